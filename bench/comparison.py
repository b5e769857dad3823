"""One comparison from its first floor to its stored tables, samples and pictures."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import history, machine, peer_plots, report, runner
from bench.cases import Case
from bench.cluster_cases import NOTE as CLUSTER_NOTE
from bench.clusters import KafkaCluster, OttlaCluster
from bench.floors import FLOORS
from bench.nodes import NodeFactory, OttlaNode, pinned
from bench.peer_cases import NOTE
from bench.peers import KAFKA_VERSION, KafkaNode, java_version
from bench.ratios import comparison_sheets
from bench.spread import CURVE_PREFIX, Figures

# Kafka's properties say the same.
OTTLA_SETTINGS: Final = {"group.initial.rebalance.delay.ms": 0}


@dataclass(frozen=True, slots=True)
class Compared:
    kind: str
    about: Mapping[str, Any]
    floors: Figures
    cases: Sequence[Case]
    runs: runner.Runs
    results: Mapping[str, runner.Results]
    sheets: Sequence[report.Sheet]


PEERS: Final = "peers"
PINNED: Final = "peers-pinned"
CLUSTERED: Final = "peers-cluster"
HOW: Final = {
    PEERS: "not pinned",
    PINNED: "the broker on one core, the load on the other",
    CLUSTERED: "three nodes each",
}


def _sides(kind: str) -> dict[str, NodeFactory]:
    if kind == CLUSTERED:
        return {
            "ottla": functools.partial(OttlaCluster, OTTLA_SETTINGS),
            "kafka": KafkaCluster,
        }
    return {"ottla": functools.partial(OttlaNode, OTTLA_SETTINGS), "kafka": KafkaNode}


def compare(cases: Sequence[Case], rounds: int, load_before: float, kind: str) -> Compared:
    sides, is_pinned = _sides(kind), kind == PINNED
    minutes = runner.minutes_about(len(sides), cases, rounds)
    words = f"{len(cases)} cases, {rounds} rounds of both sides: about {minutes:.0f} min"
    print(f"bench: {words}", file=sys.stderr)
    with runner.progress(len(FLOORS) + rounds * len(sides) * len(cases)) as tick:
        floors = runner.measure_floors(tick)
        if is_pinned:
            sides = {side: pinned(make) for side, make in sides.items()}
        runs = runner.run_in_turn(sides, cases, rounds, tick)
    results = runner.summed_up(runs)
    peer_name = f"Kafka {KAFKA_VERSION}"
    sheets = comparison_sheets(
        cases, results["ottla"], results["kafka"], floors, peer_name, note_of(kind)
    )
    about = machine.describe(load_before)
    about["versions"] |= {"kafka": KAFKA_VERSION, "java": java_version()}
    about |= {"rounds": rounds, "is_pinned": is_pinned}
    return Compared(
        kind,
        about,
        floors,
        cases,
        runs,
        results,
        [*sheets, report.floor_sheet(floors)],
    )


def note_of(kind: str) -> str:
    return CLUSTER_NOTE if kind == CLUSTERED else NOTE


def keep(compared: Compared, home: Path) -> list[Path]:
    """The tables, every run's figures, and the pictures; in the docs also a line of history."""
    home.mkdir(parents=True, exist_ok=True)
    run = history.record(compared.kind, compared.about, compared.floors, compared.results)
    if home == history.HOME:
        history.append(run)
    title = f"Ottla beside Apache Kafka, {HOW[compared.kind]}"
    table = home / f"{compared.kind}.md"
    table.write_text(report.markdown(title, run, compared.sheets))
    samples = home / f"{compared.kind}.json"
    samples.write_text(_samples_text(compared))
    return [table, samples, *peer_plots.draw(samples)]


def _samples_text(compared: Compared) -> str:
    """Every figure of every run, not only their medians; a line for each run of a case."""
    head = {
        "kind": compared.kind,
        **compared.about,
        "note": note_of(compared.kind),
        "curves": f"{CURVE_PREFIX}N is percentile N of one run's end-to-end times in ms",
        "floors": compared.floors,
        "cases": [
            {"name": case.name, "row": case.row, "title": case.title, "goals": dict(case.limits)}
            for case in compared.cases
        ],
    }
    samples = [
        {"case": case.name, "side": side, "round": number + 1, "figures": figures}
        for case in compared.cases
        for side, by_case in compared.runs.items()
        for number, figures in enumerate(by_case[case.name])
    ]
    lines = ",\n".join(json.dumps(sample, ensure_ascii=False) for sample in samples)
    return (
        json.dumps(head, ensure_ascii=False, indent=1)[:-2] + f',\n "samples": [\n{lines}\n ]\n}}\n'
    )
