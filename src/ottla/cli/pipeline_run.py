"""What the commands of `ottla pipeline` share: Spark, signals, lines without secrets, failures."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import typer

from ottla.cli import output
from ottla.cli.failures import INTERRUPTED, CommandFailed, ReaderGone, StartAgain, WrongUsage
from ottla.pipelines.language.problems import BadPipeline, PipelineFailed, Problem
from ottla.pipelines.language.secrets import redact
from ottla.pipelines.launch.standby.held import UnfitSpark
from ottla.pipelines.running.lost_spark import Earlier, SparkLost, end_java, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipelines.language.model import Pipeline
    from ottla.pipelines.running.metrics import PipelineMetrics
    from ottla.pipelines.running.reports import Report

Topics: TypeAlias = Callable[[], "Mapping[str, int] | None"]

PORT_MAX: Final = 65535
METRICS_HOST: Final = "127.0.0.1"
# From a process that has lost its Spark to the one that takes up its command.
EARLIER: Final = "_OTTLA_PIPELINE_RUN"
METRICS_PORT: Final = "_OTTLA_METRICS_PORT"
# From one that had another Spark than its command wants.
UNFIT: Final = "_OTTLA_UNFIT_SPARK"
# Which extra brings a package that is not there.
EXTRAS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("yaml", "pyspark", "py4j", "pyarrow", "pandas", "numba", "scramp", "prometheus_client"),
        "pipelines",
    ),
    "venv_pack": "pipelines",
    "fastavro": "pipelines,avro",
}


class Printer:
    """Lines on stdout, from any thread, never with a secret in them."""

    def __init__(self, pipeline: Pipeline | None, *, as_json: bool) -> None:
        self._secrets = pipeline.secrets if pipeline is not None else frozenset()
        self._width = max(map(len, _flow_names(pipeline)), default=0)
        self._as_json = as_json
        self._lock = threading.Lock()
        self._reader_gone = threading.Event()

    def words(self, line: str) -> None:
        self._write(redact(line, self._secrets))

    def row(self, row: Mapping[str, Any], line: str) -> None:
        """The row as JSON, or the line."""
        # Not the JSON itself: there a secret with quotes in it looks otherwise.
        self._write(output.json_line(self._clean(row)) if self._as_json else self._clean(line))

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return redact(value, self._secrets)
        if isinstance(value, Mapping):
            return {name: self._clean(each) for name, each in value.items()}
        return value

    def problem(self, problem: Problem) -> None:
        place = problem.place
        row = {
            "type": "note" if problem.is_note else "problem",
            "file": str(place.file) if place else None,
            "line": place.line if place else None,
            "column": place.column if place else None,
            "text": problem.text,
        }
        if self._as_json:
            self.row(row, "")
        else:
            output.say(redact(str(problem), self._secrets))

    def report(self, report: Report) -> None:
        """A batch or an event of a run. Whoever calls has other things to do than to fail."""
        # To a person it was said when the signal came.
        was_said = not self._as_json and getattr(report, "kind", None) == "stopping"
        if not was_said and not self._reader_gone.is_set():
            try:
                self.row(report.json(), report.line(self._width))
            except ReaderGone:
                self._reader_gone.set()

    def say(self, words: str) -> None:
        output.say(redact(words, self._secrets))

    def check_reader(self) -> None:
        if self._reader_gone.is_set():
            raise ReaderGone

    def _write(self, line: str) -> None:
        with self._lock:
            output.write(f"{line}\n".encode())
            output.flush()


def _flow_names(pipeline: Pipeline | None) -> list[str]:
    return [] if pipeline is None else list(pipeline.sinks)


class Stopping:
    """Ctrl-C and SIGTERM: the first lets batches finish, the second does not, the third kills.

    To be entered when Spark is up, since its context takes SIGINT for itself.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.stop_now = threading.Event()
        self._before: dict[int, Any] = {}
        self._is_interrupted = False

    @property
    def was_cut_short(self) -> bool:
        return self.stop_now.is_set()

    @property
    def exit_code(self) -> int:
        """As of every command after Ctrl-C; SIGTERM is how a service is told to stop."""
        return INTERRUPTED if self._is_interrupted or self.was_cut_short else 0

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._told)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _told(self, number: int, _frame: FrameType | None) -> None:
        self._is_interrupted |= number == signal.SIGINT
        if self.stop_now.is_set():
            raise KeyboardInterrupt
        if self.stop.is_set():
            self.stop_now.set()
            _say_in_handler("Ending at once; the next run does the batch again.")
        else:
            self.stop.set()
            _say_in_handler("Finishing the batch; Ctrl-C again ends at once.")


def _say_in_handler(words: str) -> None:
    """A print that a signal has interrupted cannot be interrupted by another print."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{words}\n".encode())


@contextmanager
def failures_told(
    pipeline: Pipeline | None, *, file: str | None = None, as_json: bool = False
) -> Iterator[None]:
    """The ways in which a pipeline fails, as lines and exit codes."""
    secrets = pipeline.secrets if pipeline is not None else frozenset()
    try:
        yield
    except BadPipeline as bad:
        printer = Printer(pipeline, as_json=as_json)
        for problem in bad.problems:
            printer.problem(problem)
        count = len(bad.problems)
        name = file or (str(pipeline.file) if pipeline is not None else "the file")
        raise WrongUsage(f"{name} has {count} problem{'' if count == 1 else 's'}.") from None
    except SparkLost as lost:
        variables = {EARLIER: lost.earlier.to_json()}
        raise StartAgain(redact(str(lost), secrets), variables) from lost
    except UnfitSpark as unfit:
        raise StartAgain(str(unfit), {UNFIT: "1"}) from unfit
    except PipelineFailed as failed:
        raise CommandFailed(redact(str(failed), secrets)) from failed
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise CommandFailed(
            f"{package} is not installed; run: pip install 'ottla[{EXTRAS[package]}]'"
        ) from missing
    except Exception as error:
        # A bug, then; its message is shown, so it must not hold a secret either.
        if "OTTLA_DEBUG" in os.environ or redact(str(error), secrets) == str(error):
            raise
        words = redact(" ".join(str(error).split()), secrets)
        raise CommandFailed(f"{type(error).__name__}: {words}") from None


@contextmanager
def spark_session(
    pipeline: Pipeline,
    master: str | None,
    jars: Sequence[str] | None,
    packages: Sequence[str] | None,
    verbose: bool,
    archive: str | None = None,
    *,
    checkpoint: str | None = None,
    is_brief: bool = False,
) -> Iterator[SparkSession]:
    """Stopped in the end; a brief command on this machine leaves that to the JVM, which stops
    when its Python is gone."""
    from ottla.pipelines.launch.session import is_local, prepare_next, start_session
    from ottla.pipelines.launch.standby.held import is_holding

    if sys.stderr.isatty() and not is_holding():
        output.say("Spark is starting …")
    with _undisturbed():
        spark = start_session(
            pipeline,
            master=master,
            jars=split(jars),
            packages=split(packages),
            archive=archive,
            checkpoint=checkpoint,
            verbose=verbose,
            is_brief=is_brief,
        )
    is_lost = False
    try:
        yield spark
    except SparkLost:
        is_lost = True
        end_java()
        raise
    finally:
        if not is_brief or not is_local(spark.sparkContext.master or ""):
            stop_session(spark)
        # Who takes up this command needs the cores, and would not wait for what he never started.
        if not is_lost:
            prepare_next(spark)


def import_meanwhile(*modules: str) -> None:
    """While Spark starts; who imports one of them later says what is wrong with it."""

    def import_all() -> None:
        with contextlib.suppress(ImportError):
            for module in modules:
                importlib.import_module(module)

    threading.Thread(target=import_all, name="ottla-importing", daemon=True).start()


def earlier_run() -> Earlier | None:
    """What the process before this one has left, where this one takes up its command."""
    text = os.environ.pop(EARLIER, None)
    return None if text is None else Earlier.from_json(text)


def asking_broker(pipeline: Pipeline) -> Topics:
    """Asks for the topics while Spark starts, where any are used; the answer, once it is there."""
    from ottla.pipelines.checks.broker_topics import broker_topics
    from ottla.pipelines.checks.existing_topics import uses_topics

    answer: Future[Mapping[str, int] | None] = Future()

    def ask() -> None:
        try:
            answer.set_result(broker_topics(pipeline))
        except BaseException as error:
            answer.set_exception(error)

    if uses_topics(pipeline):
        # A daemon: nobody waits for it where Spark does not start.
        threading.Thread(target=ask, name="ottla-asking-broker", daemon=True).start()
    return answer.result


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A signal counts when Spark is up: a JVM whose Python left before that would live on, and so
    would the files with its settings."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            active.stop()
        if signal.SIGINT in came:
            raise KeyboardInterrupt
        # As later, when a service is told to stop.
        raise typer.Exit(0)


def split(given: Sequence[str] | None) -> tuple[str, ...]:
    """`--jars a,b --jars c`, as with spark-submit and as with our other options."""
    texts = (text.strip() for each in given or () for text in each.split(","))
    return tuple(text for text in texts if text)


def checkpoint_of(pipeline: Pipeline, checkpoint: str | None, master: str | None) -> str:
    """Where progress is kept; one that only this machine sees is no good to a cluster."""
    if checkpoint is not None:
        has_scheme = ":/" in checkpoint
        return checkpoint if has_scheme else os.path.abspath(checkpoint)
    where = master or pipeline.spark.get("spark.master", "local")
    if not where.startswith("local"):
        raise WrongUsage(
            f"With --master {where} say where progress is kept, so that all machines reach it: "
            "--checkpoint s3a://…, hdfs://… or a shared directory."
        )
    return os.path.join(os.path.dirname(os.path.abspath(pipeline.file)), ".ottla", pipeline.name)


def environment_of(pipeline: Pipeline, environment: str | None, master: str | None) -> str | None:
    """The archive for executors, as an address that does not depend on where one is."""
    if environment is None:
        return None
    where = master or pipeline.spark.get("spark.master", "local")
    if where.startswith("local"):
        raise WrongUsage("--environment is for a cluster: give its --master, or leave it out.")
    if ":/" in environment:
        return environment
    if not os.path.isfile(environment):
        raise WrongUsage(
            f"There is no {environment}; `ottla pipeline pack {environment}` makes it."
        )
    return os.path.abspath(environment)


def metrics_address(text: str | None) -> tuple[str, int] | None:
    """HOST:PORT, or a port of this machine alone."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or not port.isascii() or int(port) > PORT_MAX or (colon and not host):
        raise WrongUsage(f"--metrics {text} is no port and no HOST:PORT, for example 9404.")
    return (host.strip("[]") if colon else METRICS_HOST), int(port)


@contextmanager
def serving_metrics(
    pipeline: Pipeline, address: tuple[str, int] | None
) -> Iterator[PipelineMetrics | None]:
    if address is None:
        yield None
        return
    from ottla.pipelines.running.metrics import PipelineMetrics, serving

    host, port = address
    metrics = PipelineMetrics(pipeline.name)
    with serving(metrics, port or int(os.environ.get(METRICS_PORT, 0)), host) as bound:
        # A free port stays the same when another process takes up the command.
        os.environ[METRICS_PORT] = str(bound)
        print(f"Metrics: http://{host}:{bound}/metrics", file=sys.stderr, flush=True)
        yield metrics
