"""The command: `python -m bench [quick|flat|peers|profile|plots]`, from the root of the tree."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from bench import cases, history, machine, plots, report, runner
from bench.floors import FLOORS
from bench.librdkafka import LoadFailed
from bench.nodes import NodeFactory, OttlaNode
from ottla.testing.broker import BrokerFailed

app = typer.Typer(help="Ottla's benchmark; without a command: quick.", add_completion=False)

Only = Annotated[
    list[str] | None,
    typer.Option(help="Only the cases whose name contains this; may be repeated. Not stored."),
]
Store = Annotated[bool, typer.Option(help="Keep the figures in the history, tables and plots.")]


class WorkName(StrEnum):
    PRODUCE = "produce"
    CONSUME = "consume"
    REQUESTS = "requests"


@app.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """Without a command: quick."""
    runner.prepare_environment()
    if context.invoked_subcommand is None:
        quick()


@app.command()
def quick(only: Only = None, store: Store = True) -> None:
    """Ottla alone: every figure that it promises, in less than five minutes."""
    _run_alone("quick", _chosen(cases.QUICK, only), store=store and not only, latest="latest.md")


@app.command()
def flat(
    gb: Annotated[float, typer.Option(help="How much passes through.")] = 20, store: Store = True
) -> None:
    """Anonymous memory while many gigabytes pass through."""
    _run_alone("flat", cases.flat_cases(gb), store=store, latest=None)


@app.command()
def peers(
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each side, in turn.")] = 3,
    only: Only = None,
    store: Store = True,
) -> None:
    """Ottla and Apache Kafka in turn, with the same load and the same durability."""
    from bench.peers import KAFKA_VERSION, KafkaNode

    chosen = _chosen(cases.PEERS, only)
    sides: Mapping[str, NodeFactory] = {"ottla": OttlaNode, "kafka": KafkaNode}
    steps = len(FLOORS) + rounds * len(sides) * len(chosen)
    load_before = _load_before()
    with runner.progress(steps) as tick:
        floors = runner.measure_floors(tick)
        results = runner.run_in_turn(sides, chosen, rounds, tick)
    sheets = [
        report.floor_sheet(floors),
        report.ratio_sheet(chosen, results["ottla"], results["kafka"], f"Kafka {KAFKA_VERSION}"),
    ]
    report.show(sheets)
    if store and not only:
        run = history.record("peers", machine.describe(load_before), floors, results)
        _keep(run, sheets, "Ottla beside Apache Kafka", "peers.md")
    for side in results.values():
        _exit_if_missing(chosen, side)


@app.command()
def profile(
    work: WorkName,
    seconds: Annotated[int, typer.Option(min=1, help="How long to look.")] = 8,
    synced: Annotated[bool, typer.Option(help="A topic without write.caching.")] = False,
    flame: Annotated[bool, typer.Option(help="Also py-spy's flame graph, by wall time.")] = False,
    native: Annotated[bool, typer.Option(help="The flame graph shows compiled code, too.")] = False,
) -> None:
    """Where the broker spends its CPU time under a load; results are also in .cache/profile."""
    from bench import profiling

    report.show(profiling.profile(work.value, seconds=seconds, is_cached=not synced))
    if flame or native:
        graph = profiling.flame_graph(
            work.value, seconds=seconds, with_native=native, is_cached=not synced
        )
        print(f"flame graph: {graph}")


@app.command("plots")
def draw() -> None:
    """Draws the history's pictures again."""
    for path in plots.draw_all():
        print(path)


def _run_alone(kind: str, chosen: Sequence[cases.Case], *, store: bool, latest: str | None) -> None:
    load_before = _load_before()
    with runner.progress(runner.steps_alone(chosen)) as tick:
        floors = runner.measure_floors(tick)
        results = runner.run_alone(OttlaNode, chosen, tick)
    sheets = [report.floor_sheet(floors), *report.result_sheets(chosen, results)]
    report.show(sheets)
    if store:
        run = history.record(kind, machine.describe(load_before), floors, {"ottla": results})
        _keep(run, sheets, "Ottla's figures", latest)
    _exit_if_missing(chosen, results)


def _keep(
    run: Mapping[str, object], sheets: Sequence[report.Sheet], title: str, name: str | None
) -> None:
    history.append(run)
    if name is not None:
        (history.HOME / name).write_text(report.markdown(title, run, sheets))
    plots.draw_all()
    print(f"stored in {history.HISTORY}", file=sys.stderr)


def _exit_if_missing(chosen: Sequence[cases.Case], results: runner.Results) -> None:
    missing = [case.name for case in chosen if case.name not in results]
    if missing:
        raise LoadFailed(f"no figures for {', '.join(missing)}")


def _load_before() -> float:
    load = machine.load_of_others()
    if load > machine.LOAD_OF_OTHERS_MAX:
        words = f"the machine is busy (load {load}): times and rates will be worse than they are"
        print(f"bench: {words}", file=sys.stderr)
    return load


def _chosen(table: Sequence[cases.Case], only: Sequence[str] | None) -> list[cases.Case]:
    chosen = [case for case in table if not only or any(part in case.name for part in only)]
    if not chosen:
        names = ", ".join(case.name for case in table)
        raise typer.BadParameter(f"no such case; there are {names}")
    return chosen


def main() -> None:
    try:
        app()
    except (LoadFailed, BrokerFailed) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
