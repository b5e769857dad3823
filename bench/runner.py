"""Runs cases on one or more sides, in turn, and keeps what they measured."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bench import group_loads
from bench.cases import WARM_UP_MESSAGES, Case
from bench.floors import FLOORS
from bench.librdkafka import LoadFailed
from bench.loads import Backlog, Requests
from bench.nodes import Lab, Node, NodeFactory, topic
from bench.spread import Figures, Spread, spreads
from ottla.testing.broker import BrokerFailed

Results = dict[str, dict[str, Spread]]
Runs = dict[str, dict[str, list[Figures]]]
Tick = Callable[[str], None]

WARM_UP: Final = Backlog(100, WARM_UP_MESSAGES)
SMALL_WARM_UP: Final = Requests(16, seconds=0)
SMALL_WARM_UP_EACH: Final = 1000


def prepare_environment() -> None:
    """Brokers start from compiled modules, as installed ones do, wherever that was turned off."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(".cache/pycache").absolute())


def measure_floors(tick: Tick) -> Figures:
    figures: Figures = {}
    for floor in FLOORS:
        tick(f"floor: {floor.__name__}")
        figures.update(floor())
    return figures


def run_alone(make: NodeFactory, cases: Sequence[Case], tick: Tick) -> Results:
    """Each case as often as it says, one after the other; one that fails has no figures."""
    lab = Lab(make, _warm_up)
    results: Results = {}
    try:
        for case in cases:
            runs = []
            for _ in range(case.repeats):
                tick(f"{case.name}: {case.title}")
                figures = _run_case(case, lab, tick)
                if figures is not None:
                    runs.append(figures)
            if runs:
                results[case.name] = spreads(runs)
    finally:
        lab.close()
    return results


def _run_case(case: Case, lab: Lab, tick: Tick) -> Figures | None:
    """None when it failed: the broker that failed it is not used again."""
    try:
        return case.load.run(lab)
    except (LoadFailed, BrokerFailed, KafkaException) as failure:
        tick(f"{case.name} failed: {failure}")
        lab.close()
        return None


def run_in_turn(
    sides: Mapping[str, NodeFactory], cases: Sequence[Case], rounds: int, tick: Tick
) -> Runs:
    """A B A B …: in every round each side runs all cases on a broker of its own.

    Cases that take long to prepare come last, on two brokers that stay for all rounds.
    """
    runs: Runs = {side: {case.name: [] for case in cases} for side in sides}
    brief = [case for case in cases if not case.is_lasting]
    for number in range(rounds):
        for side, make in sides.items():
            with _lab(make) as lab:
                _run_round(number, side, lab, brief, runs, tick)
    lasting = [case for case in cases if case.is_lasting]
    if lasting:
        with ExitStack() as stack:
            labs = {side: stack.enter_context(_lab(make)) for side, make in sides.items()}
            for number in range(rounds):
                for side, lab in labs.items():
                    _run_round(number, side, lab, lasting, runs, tick)
    return runs


@contextmanager
def _lab(make: NodeFactory) -> Iterator[Lab]:
    lab = Lab(make, _warm_up_all)
    try:
        yield lab
    finally:
        lab.close()


def _run_round(
    number: int, side: str, lab: Lab, cases: Sequence[Case], runs: Runs, tick: Tick
) -> None:
    for case in cases:
        tick(f"round {number + 1}, {side}: {case.name}")
        _settle()
        figures = _run_case(case, lab, tick)
        if figures is not None:
            runs[side][case.name].append(figures | lab.memory())


def summed_up(runs: Runs) -> dict[str, Results]:
    return {
        side: {name: spreads(figures) for name, figures in by_case.items() if figures}
        for side, by_case in runs.items()
    }


@contextmanager
def progress(steps: int) -> Iterator[Tick]:
    """A bar on a terminal, one line per step elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        started = time.monotonic()

        def say(what: str) -> None:
            print(f"{time.monotonic() - started:6.1f} s  {what}", file=sys.stderr, flush=True)

        yield say
        return
    columns = (
        BarColumn(30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)
        is_first = True

        def advance(what: str) -> None:
            nonlocal is_first
            if " failed: " in what:
                console.print(what, style="red")
                return
            bar.update(task, description=what, advance=0 if is_first else 1)
            is_first = False

        yield advance


# Longer than Kafka keeps the files of a deleted topic (see its properties).
SETTLE_S: Final = 0.5
FLOORS_ABOUT_S: Final = 6
SIDE_ABOUT_S: Final = 10


def minutes_about(sides: int, cases: Sequence[Case], rounds: int) -> float:
    """What a comparison takes: each side of a round also starts, warms up and stops a broker."""
    side_s = SIDE_ABOUT_S + sum(case.about_s for case in cases)
    prepare_s = sum(case.prepare_s for case in cases)
    return (FLOORS_ABOUT_S + prepare_s + rounds * sides * side_s) / 60


def steps_alone(cases: Sequence[Case]) -> int:
    return len(FLOORS) + sum(case.repeats for case in cases)


def _warm_up(node: Node) -> None:
    with topic(node, "bench-warm-up") as name:
        WARM_UP.produce(node, name)
        WARM_UP.consume(node, name)


def _settle() -> None:
    """What the last case left is deleted and written before the next one begins."""
    time.sleep(SETTLE_S)
    os.sync()


def _warm_up_all(node: Node) -> None:
    """A JVM compiles what it meets often, and each kind of load is a path of its own."""
    _warm_up(node)
    with topic(node, "bench-warm-up-requests") as name:
        SMALL_WARM_UP.send_some(node, name, SMALL_WARM_UP_EACH)
    group_loads.warm_up(node)
