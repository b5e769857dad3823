"""The command: `python -m bench NAME` (`--help` lists the names), run from the root."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Protocol, TypeVar

import typer

from bench import cases, history, machine, plots, report, runner
from bench.cluster_cases import CLUSTERED
from bench.librdkafka import LoadFailed
from bench.nodes import OttlaNode
from bench.peer_cases import PEERS, PINNED
from ottla.testing.broker import BrokerFailed

SCRATCH: Final = Path(".cache/peers")

app = typer.Typer(help="Ottla's benchmark; without a command: quick.", add_completion=False)

Only = Annotated[
    list[str] | None,
    typer.Option(help="Only the cases whose name contains this; may be repeated. Not stored."),
]
Store = Annotated[bool, typer.Option(help="Keep the figures in the history, tables and plots.")]


class Named(Protocol):
    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Named)


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
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each side, in turn.")] = 5,
    only: Only = None,
    store: Store = True,
    is_pinned: Annotated[
        bool,
        typer.Option("--pinned", help="The broker on one core, the load on the rest; fewer cases."),
    ] = False,
    is_clustered: Annotated[
        bool, typer.Option("--cluster", help="Three nodes of each side, replication 3, acks=all.")
    ] = False,
) -> None:
    """Ottla and Apache Kafka in turn, with the same load and the same durability."""
    from bench import comparison

    if is_pinned and is_clustered:
        raise typer.BadParameter("three nodes are not pinned; give --pinned or --cluster")
    kind = comparison.PINNED if is_pinned else comparison.PEERS
    table = PINNED if is_pinned and not only else PEERS
    if is_clustered:
        kind, table = comparison.CLUSTERED, CLUSTERED
    chosen = _chosen(table, only)
    load_before = _load_before()
    compared = comparison.compare(chosen, rounds, load_before, kind)
    report.show(compared.sheets)
    # What is not stored can be looked at all the same.
    home = history.HOME if store and not only else SCRATCH
    for path in comparison.keep(compared, home):
        print(path, file=sys.stderr)
    for side in compared.results.values():
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


@app.command("spark")
def spark_formats(
    rounds: Annotated[int, typer.Option(min=1, help="Applications of each side, in turn.")] = 3,
    only: Only = None,
    store: Store = True,
) -> None:
    """Spark's format("ottla") against its format("kafka"), on the same broker and topic."""
    from bench import spark

    chosen = _chosen(spark.CASES, only)
    load_before = _load_before()
    with runner.progress(spark.steps(chosen, rounds)) as tick:
        results = spark.compare(chosen, rounds, tick)
    sheets = spark.sheets(chosen, results)
    report.show(sheets)
    home = history.HOME if store and not only else SCRATCH
    about = machine.describe(load_before)
    about["versions"] |= spark.versions()
    for path in spark.keep(chosen, results, {**about, "rounds": rounds}, home):
        print(path, file=sys.stderr)


@app.command("spark-start")
def spark_start(
    rounds: Annotated[int, typer.Option(min=1, help="How often each command is started.")] = 3,
) -> None:
    """How long a person waits for `ottla pipeline test`, and for the first batch of `run`."""
    from bench import spark_start as start

    with runner.progress(2 * rounds) as tick:
        results = start.measure(rounds, tick)
    report.show([start.sheet(results)])


@app.command()
def kills(
    count: Annotated[int, typer.Option("--kills", min=1, help="Leaders killed of Ottla.")] = 50,
    of_kafka: Annotated[
        int, typer.Option("--kafka-kills", min=0, help="And of Kafka, which takes longer.")
    ] = 10,
    store: Store = True,
) -> None:
    """From kill -9 of a leader to the next acknowledged write, three nodes each."""
    from bench import kills as killing

    load_before = _load_before()
    wanted = {"ottla": count, "kafka": of_kafka}
    minutes = count * killing.OTTLA_ABOUT_S + of_kafka * killing.KAFKA_ABOUT_S
    print(f"bench: about {minutes / 60:.0f} min", file=sys.stderr)
    with runner.progress(count + of_kafka + 2) as tick:
        pauses = {side: killing.measure(side, each, tick) for side, each in wanted.items() if each}
    report.show([killing.sheet(pauses)])
    home = history.HOME if store else SCRATCH
    for path in killing.keep(pauses, machine.describe(load_before), home):
        print(path, file=sys.stderr)


@app.command()
def stops(
    count: Annotated[int, typer.Option("--stops", min=1, help="Leaders stopped of Ottla.")] = 5,
    of_kafka: Annotated[int, typer.Option("--kafka-stops", min=0, help="And of Kafka.")] = 5,
    store: Store = True,
) -> None:
    """From SIGSTOP of a leader to the next acknowledged write, three nodes each."""
    from bench import stops as stopping

    load_before = _load_before()
    wanted = {"ottla": count, "kafka": of_kafka}
    minutes = (count + of_kafka) * stopping.ABOUT_S / 60
    print(f"bench: about {minutes:.0f} min", file=sys.stderr)
    with runner.progress(count + of_kafka + 2) as tick:
        pauses = {side: stopping.measure(side, each, tick) for side, each in wanted.items() if each}
    report.show([stopping.sheet(pauses)])
    home = history.HOME if store else SCRATCH
    print(stopping.keep(pauses, machine.describe(load_before), home), file=sys.stderr)


@app.command()
def returns(
    gb: Annotated[float, typer.Option(help="What is written while the follower is away.")] = 2,
    store: Store = True,
) -> None:
    """A follower that was away: how fast it catches up, what producers feel, and usual lag."""
    from bench import returns as returning

    load_before = _load_before()
    with runner.progress(returning.STEPS) as tick:
        returned = returning.measure(gb, tick)
    report.show([returning.sheet(returned)])
    home = history.HOME if store else SCRATCH
    for path in returning.keep(returned, machine.describe(load_before), home):
        print(path, file=sys.stderr)


@app.command()
def workers(
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each side, in turn.")] = 3,
    store: Store = True,
) -> None:
    """Two workers of one host beside one broker, with the load on the same cores."""
    from bench import workers as working

    load_before = _load_before()
    with runner.progress(working.steps(rounds)) as tick:
        runs = working.measure(rounds, tick)
    report.show([working.sheet(runs)])
    home = history.HOME if store else SCRATCH
    for path in working.keep(runs, machine.describe(load_before), home):
        print(path, file=sys.stderr)


@app.command("plots")
def draw() -> None:
    """Draws the pictures of the history and of the stored comparisons again."""
    from bench import peer_plots

    for path in (*plots.draw_all(), *peer_plots.draw_stored(history.HOME)):
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


def _chosen(table: Sequence[C], only: Sequence[str] | None) -> list[C]:
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
