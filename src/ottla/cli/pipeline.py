"""`ottla pipeline`: a YAML file for the plumbing, SQL for the logic, run on Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli import figures, output
from ottla.cli.failures import FAILED, WRONG_USAGE, WrongUsage
from ottla.cli.help import examples
from ottla.cli.options import JsonOption, YesOption, pairs
from ottla.cli.pipeline_run import (
    Printer,
    Stopping,
    Topics,
    asking_broker,
    checkpoint_of,
    earlier_run,
    environment_of,
    failures_told,
    import_meanwhile,
    metrics_address,
    serving_metrics,
    spark_session,
    split,
)
from ottla.cli.standby import StandbyOption, standing_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipelines.language.model import Pipeline
    from ottla.pipelines.language.problems import Problem
    from ottla.pipelines.repair import Letter, Repaired

app = typer.Typer(
    help="Pipelines on Spark: from topics, files and tables to others, from one file.",
    no_args_is_help=True,
    epilog=examples(
        "ottla pipeline test shop.yaml",
        "ottla pipeline validate shop.yaml",
        "ottla pipeline run shop.yaml",
    ),
)

FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="The pipeline's YAML file.", show_default=False)
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A value of the file, by its path: sources.orders.start=latest. May be repeated.",
        show_default=False,
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="MASTER",
        help="Where Spark runs: local[N], spark://HOST:PORT, yarn, k8s://…; else in this process "
        "with all cores.",
        show_default=False,
    ),
]
Jars = Annotated[
    list[str] | None,
    typer.Option(
        "--jars",
        metavar="JAR,…",
        help="Jars that sources and sinks need: JDBC drivers, Delta.",
        show_default=False,
    ),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--packages",
        metavar="GROUP:NAME:VERSION,…",
        help="The same by their Maven coordinates; Spark fetches them.",
        show_default=False,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also show what Spark logs.")]


@app.callback()
def pipeline() -> None: ...


# --------------------------------------------------------------------------------------- test


@app.command(
    "test",
    epilog=examples(
        "ottla pipeline test shop.yaml",
        "ottla pipeline test shop.yaml sums_by_shop",
    ),
)
def run_own_tests(
    file: FileArgument,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Only this test.", show_default=False),
    ] = None,
    sets: Sets = None,
    jars: Jars = None,
    packages: Packages = None,
    standby: StandbyOption = None,
    verbose: Verbose = False,
) -> None:
    """Runs the file's own tests on Spark, without a broker; exit code 1 when one fails.

    Each given file is one batch of its source. What a view has given in the end is compared with
    the expected file, and rows that are missing or too many are shown.
    """
    read = _read(file, sets)
    _check_tests(read, name, file)
    with standing_by(read, standby, jars=split(jars), is_alone=verbose or bool(packages)):
        import_meanwhile("ottla.pipelines.cases.suite")
        with (
            failures_told(read),
            spark_session(read, None, jars, packages, verbose, is_brief=True) as spark,
        ):
            from ottla.pipelines.cases.suite import run_tests

            printer = Printer(read, as_json=False)
            coloured = output.has_colours(sys.stdout)
            passed = run_tests(spark, read, only=name, report=printer.words, coloured=coloured)
        if not passed:
            raise typer.Exit(FAILED)


def _check_tests(read: Pipeline, name: str | None, file: str) -> None:
    """Before Spark is started for nothing."""
    from ottla.spark.spelling import nearest

    if not read.tests:
        raise WrongUsage(f"{file} has no tests; write some below `tests`.")
    if name is not None and name not in read.tests:
        near = nearest(name, read.tests) or f"; there are {', '.join(read.tests)}."
        raise WrongUsage(f"{file} has no test {name}{near}")


# ----------------------------------------------------------------------------------- validate


@app.command(
    "validate",
    epilog=examples(
        "ottla pipeline validate shop.yaml",
        "ottla pipeline validate shop.yaml --set bootstrap=broker:9092 --json",
    ),
)
def validate(
    file: FileArgument,
    sets: Sets = None,
    jars: Jars = None,
    packages: Packages = None,
    as_json: JsonOption = False,
    standby: StandbyOption = None,
    verbose: Verbose = False,
) -> None:
    """Checks keys, names, SQL and topics before any job starts; exit code 2 when one is wrong.

    Each problem is a line: file, line, column, what is wrong, what to do. Topics are looked up
    when a broker answers.
    """
    read = _read(file, sets, as_json=as_json)
    with standing_by(read, standby, jars=split(jars), is_alone=verbose or bool(packages)):
        topics = asking_broker(read)
        import_meanwhile("ottla.pipelines.checks.validation")
        with (
            failures_told(read, as_json=as_json),
            spark_session(read, None, jars, packages, verbose, is_brief=True) as spark,
        ):
            found = _problems(spark, read, topics)
        _tell_problems(read, found, as_json=as_json)
    if not as_json:
        output.say(f"{file} is valid: {_held(read)}.")


def _tell_problems(read: Pipeline, found: Sequence[Problem], *, as_json: bool) -> None:
    printer = Printer(read, as_json=as_json)
    for problem in found:
        printer.problem(problem)
    wrong = sum(not problem.is_note for problem in found)
    if wrong:
        output.complain(f"{read.file} has {_count(wrong, 'problem')}.")
        raise typer.Exit(WRONG_USAGE)


def _problems(spark: SparkSession, read: Pipeline, topics: Topics) -> list[Problem]:
    from ottla.pipelines.checks.validation import validate as check

    return check(spark, read, topics=topics)


def _held(read: Pipeline) -> str:
    parts = (
        (read.sources, "source"),
        (read.views, "view"),
        (read.sinks, "sink"),
        (read.tests, "test"),
    )
    return ", ".join(_count(len(held), noun) for held, noun in parts if held)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# ---------------------------------------------------------------------------------------- run


@app.command(
    "run",
    epilog=examples(
        "ottla pipeline run shop.yaml",
        "ottla pipeline run shop.yaml --once",
        "ottla pipeline run shop.yaml --set sources.orders.start=latest --metrics 9404",
        "ottla pipeline run shop.yaml --packages org.postgresql:postgresql:42.7.11",
        "ottla pipeline run shop.yaml --master spark://head:7077 --checkpoint s3a://bucket/shop "
        "--environment environment.tar.gz",
    ),
)
def run(
    file: FileArgument,
    master: Master = None,
    once: Annotated[
        bool, typer.Option("--once", help="Take what is there now, then end with lag 0.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where progress is kept; else .ottla/NAME beside the file. Needed with a --master "
            "that is not local: every machine must reach it.",
            show_default=False,
        ),
    ] = None,
    sets: Sets = None,
    jars: Jars = None,
    packages: Packages = None,
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="ARCHIVE",
            help="The executors' Python on a cluster, as `ottla pipeline pack` makes it; Spark "
            "sends it to them.",
            show_default=False,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve Prometheus metrics there; port 0 takes a free one.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object per line, as when the output is no terminal."),
    ] = False,
    standby: StandbyOption = None,
    verbose: Verbose = False,
) -> None:
    """Runs the pipeline until Ctrl-C, which finishes the batch; a second one does not.

    On a terminal each batch is a line: rows in and out, rate, time, lag per source, state, bad
    records; elsewhere it is a JSON object. A query that fails is started again as `restarts` in the
    file says; then the command ends with the cause and exit code 1.
    """
    read = _read(file, sets)
    earlier = earlier_run()
    address = metrics_address(metrics)
    directory = checkpoint_of(read, checkpoint, master)
    archive = environment_of(read, environment, master)
    if not read.sinks:
        raise WrongUsage(f"{file} has no sinks, so there is nothing to run; add one below `sinks`.")
    is_alone = verbose or bool(packages) or earlier is not None
    with standing_by(
        read, standby, master=master, jars=split(jars), is_alone=is_alone, checkpoint=directory
    ):
        printer = Printer(read, as_json=as_json or not sys.stdout.isatty())
        topics = asking_broker(read)
        import_meanwhile("ottla.pipelines.running.run", "ottla.pipelines.checks.validation")
        with (
            failures_told(read),
            serving_metrics(read, address) as counters,
            spark_session(
                read, master, jars, packages, verbose, archive, checkpoint=directory
            ) as spark,
            Stopping() as stopping,
        ):
            from ottla.pipelines.checks.validation import flow_problems
            from ottla.pipelines.running.run import run as run_all

            run_all(
                spark,
                read,
                checkpoint=directory,
                once=once,
                report=printer.report,
                stop=stopping.stop,
                stop_now=stopping.stop_now,
                metrics=counters,
                earlier=earlier,
                check=lambda flows: flow_problems(read, flows, topics),
            )
        printer.check_reader()
        if stopping.exit_code:
            raise typer.Exit(stopping.exit_code)


# ------------------------------------------------------------------------------------- repair


@app.command(
    "repair",
    epilog=examples(
        "ottla pipeline repair shop.yaml --dry-run",
        "ottla pipeline repair shop.yaml --source orders",
        "ottla pipeline repair shop.yaml --all --yes",
    ),
)
def repair(
    file: FileArgument,
    source: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only of this source.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would become of each.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that still do not parse.")
    ] = False,
    sets: Sets = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Puts dead letters back into the topic they came from, after a fix of the file.

    Only what parses now goes back, with its key, value and headers; each letter once, however
    often this is run.
    """
    read = _read(file, sets)
    with failures_told(read):
        from ottla.pipelines import repair as repairing

        if not dry_run:
            whose = f"source {source}" if source else "all sources"
            output.confirm(f"Put dead letters of {whose} back into their topics?", yes=yes)
        printer = Printer(read, as_json=as_json)
        done = repairing.repair(
            read,
            source=source,
            dry_run=dry_run,
            all=everything,
            report=lambda letter: _show_letter(printer, letter),
        )
        output.flush()
        output.say(_repaired(done, dry_run=dry_run))


def _show_letter(printer: Printer, letter: Letter) -> None:
    row = {
        "source": letter.source,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "reason": letter.reason,
        "reason_now": letter.reason_now,
        "fate": letter.fate.value,
    }
    if letter.partition >= 0:
        where = f"{letter.topic}-{letter.partition} at offset {letter.offset}"
    else:
        where = letter.topic or "a letter of unknown origin"
    why = letter.reason_now or letter.reason
    printer.row(row, f"{letter.source}: {where}: {letter.fate.value} ({why})")


def _repaired(done: Repaired, *, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    parts = [f"{_count(done.put_back, 'dead letter')} {would}put back"]
    for number, words in (
        (done.still_bad, "still bad"),
        (done.from_files, "from files, which have no topic to go back to"),
        (done.foreign, "foreign"),
    ):
        if number:
            parts.append(f"{number:,} {words}")
    return "; ".join(parts) + "."


# --------------------------------------------------------------------------------------- pack


@app.command(
    "pack",
    epilog=examples(
        "ottla pipeline pack environment.tar.gz",
        "ottla pipeline pack environment.tar.gz --prefix ./environment",
    ),
)
def pack(
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="What to write: NAME.tar.gz.")],
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The virtual environment to pack; else the one that this command runs in.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Packs a virtual environment for the executors of a cluster: `run --environment ARCHIVE`.

    Every machine of the cluster needs the same version of Python under the same path.
    """
    with failures_told(None):
        from ottla.pipelines.launch.environments import pack as pack_environment

        output.say("Packing …")
        size = pack_environment(Path(prefix or sys.prefix), Path(archive))
        output.say(f"{archive} holds {prefix or sys.prefix} in {figures.size(size)}.")


# --------------------------------------------------------------------------------------- warm


@app.command(
    "warm",
    epilog=examples(
        "ottla pipeline warm shop.yaml",
        "ottla pipeline warm shop.yaml --minutes 60",
        "ottla pipeline warm --end",
    ),
)
def warm(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="For which pipeline.", show_default=False),
    ] = None,
    sets: Sets = None,
    master: Master = None,
    jars: Jars = None,
    minutes: Annotated[
        float, typer.Option(metavar="N", help="How long it stands by when nobody uses it.", min=0)
    ] = 10,
    end: Annotated[bool, typer.Option("--end", help="Let the one that stands by go.")] = False,
) -> None:
    """Starts a Spark that stands by for the next `test`, `validate` or `run` of this file.

    At a terminal every such command leaves one for the next, and OTTLA_STANDBY=off keeps them from
    it; elsewhere they use one with --standby or OTTLA_STANDBY=on. Each is used once, and there is
    one at a time.
    """
    if end == (file is not None):
        raise WrongUsage("Say for which FILE, or --end.")
    with failures_told(None):
        from ottla.cli import standby

        if file is None:
            output.say("It has gone." if standby.end() else "None stands by.")
            return
        read = _read(file, sets)
        output.say("Spark is starting …")
        standby.warm(read, split(jars), master, minutes * 60)
        output.say(f"A Spark stands by for {file}; it goes after {minutes:g} minutes.")


# ------------------------------------------------------------------------------------ prepare


@app.command("prepare", epilog=examples("ottla pipeline prepare"))
def prepare() -> None:
    """Makes now what the first commands would make in the background, so that they start quickly.

    That is machine code for reading and writing records, and Java's archive of Spark's classes;
    both are kept in the user's cache. For an image of a container, and for a machine of CI.
    """
    with failures_told(None):
        from ottla.pipelines.launch.preparation import prepare as prepare_all

        prepare_all(output.say)


# ------------------------------------------------------------------------------------- schema


@app.command(
    "schema",
    epilog=examples(
        "ottla pipeline schema",
        "ottla pipeline schema > pipeline.schema.json",
    ),
)
def schema() -> None:
    """Prints the JSON Schema of pipeline files, with which editors complete and check them.

    Begin a file with `# yaml-language-server: $schema=pipeline.schema.json` beside the schema.
    """
    from ottla.pipelines.language.json_schema import schema_text

    output.write(schema_text().encode())


# ------------------------------------------------------------------------------------- shared


def _read(file: str, sets: list[str] | None, *, as_json: bool = False) -> Pipeline:
    overrides = pairs("--set", sets or ())
    with failures_told(None, file=file, as_json=as_json):
        from ottla.pipelines.language.pipeline_file import read_pipeline

        return read_pipeline(Path(file), overrides=overrides)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="pipeline")
