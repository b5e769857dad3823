"""How a pipeline gets its Spark: embedded on this machine, or on a cluster."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.pipelines.jars import DELTA_CLASS
from ottla.pipelines.language.model import DeltaSink, DeltaSource, FileSink, Pipeline
from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.language.secrets import redact
from ottla.pipelines.launch import class_archive, environments
from ottla.pipelines.launch.jvm import JAVA_OPTIONS as ALL_JAVA_OPTIONS
from ottla.pipelines.launch.jvm import SUBMIT_ARGUMENTS, start_jvm
from ottla.pipelines.launch.standby.held import held_session, is_holding
from ottla.pipelines.launch.standby.likeness import Wish
from ottla.pipelines.views.spark_errors import one_line
from ottla.spark.startup.environment import quick_environment, scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J: Final = Path(__file__).with_name("log4j2.properties")
LOOPBACK: Final = "127.0.0.1"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
PACKAGES: Final = "spark.jars.packages"
DERBY_LOG: Final = "derby.stream.error.file"
# For a JVM that lives for seconds: no time for the second compiler, no cores for collectors.
ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1"
SMALL_COLLECTOR: Final = "-XX:+UseSerialGC"
# For one that stays: the second compiler takes the cores of a start for what runs a few thousand
# times and never again. Twenty times as many calls are soon there where rows are many.
LATE_SECOND_COMPILER: Final = (
    "-XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=12000 "
    "-XX:Tier4CompileThreshold=300000 -XX:Tier4BackEdgeThreshold=800000"
)
A_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
A_COMPILER: Final = re.compile(r"-XX:[+-]?Tier")
# Where options come from for every Java, and for the one of spark-submit.
OF_EVERY_JAVA: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
OF_SPARK_SUBMIT: Final = (*OF_EVERY_JAVA, "SPARK_SUBMIT_OPTS", SUBMIT_ARGUMENTS)
# Spark's other way to its own files starts a process of the system for each look at one of them.
PLAIN_FILES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
HADOOP: Final = "HADOOP_CONF_DIR"
FILE_SYSTEM: Final = "fs.default"
JAVA_NOISE: Final = b"WARNING: Using incubator modules: "


def start_session(
    pipeline: Pipeline,
    *,
    master: str | None = None,
    jars: Sequence[str] = (),
    packages: Sequence[str] = (),
    archive: str | None = None,
    checkpoint: str | None = None,
    verbose: bool = False,
    is_brief: bool = False,
) -> SparkSession:
    """For a command that is over in seconds `is_brief` makes it start sooner and work slower.

    Raises PipelineFailed in one line when Spark cannot start: no Java, a master that is away.
    """
    where = master_of(pipeline, master)
    _check_java()
    os.environ.update(environment(where, os.environ))
    settings = settings_of(
        pipeline,
        where,
        jars=jars,
        packages=packages,
        checkpoint=checkpoint,
        verbose=verbose,
        is_brief=is_brief and not is_holding(),
    )
    if (held := held_session(where, settings)) is not None:
        return held
    launching: AbstractContextManager[None] = nullcontext()
    if archive is not None:
        settings |= environments.settings(archive, settings)
        os.environ.update(environments.variables())
        launching = environments.launching(scratch() / "launch")
    with launching:
        return _start(where, settings, pipeline.secrets, is_verbose=verbose)


def start_ahead(master: str, settings: Mapping[str, str]) -> SparkSession:
    """For a command that has not come yet; raises PipelineFailed as `start_session` does."""
    _check_java()
    os.environ.update(environment(master, os.environ))
    return _start(master, settings)


def _start(
    master: str,
    given: Mapping[str, str],
    secrets: Collection[str] = (),
    *,
    is_verbose: bool = False,
) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    settings = dict(given)
    home = own_home(master)
    if home is not None:
        settings[JAVA_OPTIONS] = f"{class_archive.java_options(home)} {settings[JAVA_OPTIONS]}"
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _output_kept():
            start_jvm({"spark.master": master, **settings})
            spark: SparkSession = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError, RuntimeError) as error:
        hint = "" if is_verbose else "; --verbose shows Spark's own log"
        cause = redact(one_line(error), secrets)
        raise PipelineFailed(f"Spark does not start on {master}: {cause}{hint}") from None
    return spark


def wish_of(
    pipeline: Pipeline, *, master: str | None, jars: Sequence[str], checkpoint: str | None
) -> Wish | None:
    """The Spark that could stand by for a command; None where none should.

    On a cluster it would keep what others could use; and what stands by keeps nobody's passwords.
    """
    where = master_of(pipeline, master)
    if not is_local(where) or PACKAGES in pipeline.spark:
        return None
    settings = settings_of(pipeline, where, jars=jars, checkpoint=checkpoint)
    if any(redact(value, pipeline.secrets) != value for value in settings.values()):
        return None
    return Wish.of(where, settings, scratch())


def master_of(pipeline: Pipeline, master: str | None) -> str:
    return master or pipeline.spark.get("spark.master") or "local[*]"


def prepare_next(stopped: SparkSession) -> None:
    """What lets the next start be quicker, made in the background."""
    home = own_home(stopped.sparkContext.master or "")
    if home is not None:
        class_archive.make_in_background(home)


def own_home(master: str) -> Path | None:
    """Where Spark runs here from a home like ours: one of the user's brings its own PySpark."""
    home = os.environ.get("SPARK_HOME")
    if home is None or not is_local(master) or Path(home, "python").exists():
        return None
    return Path(home)


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def environment(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """On this machine: workers with this very Python, on an address that always answers.

    On a cluster all is the user's to say, since nothing here knows the other machines.
    """
    if not is_local(master):
        return {}
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": given.get("SPARK_LOCAL_IP", LOOPBACK),
        # Of the short JVM that puts together the command line of the long one.
        "SPARK_LAUNCHER_OPTS": given.get(
            "SPARK_LAUNCHER_OPTS", _quick_jvm(given.get(name, "") for name in OF_EVERY_JAVA)
        ),
        **quick_environment(given),
    }


def settings_of(
    pipeline: Pipeline,
    master: str,
    *,
    jars: Sequence[str] = (),
    packages: Sequence[str] = (),
    checkpoint: str | None = None,
    verbose: bool = False,
    is_brief: bool = False,
) -> dict[str, str]:
    """Ours, over which the file's own win; the log's place is added to the file's Java options."""
    settings = {
        "spark.app.name": f"ottla {pipeline.name}",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # A driver killed while it writes its first offsets leaves a file that Spark takes for
        # another query's; our own pipeline.json says whose a checkpoint is.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        # Traces are for --verbose.
        "spark.sql.pyspark.jvmStacktrace.enabled": "true" if verbose else "false",
        "spark.sql.streaming.stopTimeout": "60s",
    }
    if is_local(master):
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            # Every task of a shuffle costs some milliseconds. A checkpoint keeps its number.
            "spark.sql.shuffle.partitions": str(local_cores(master)),
            "spark.sql.streaming.pollingDelay": "50ms",
            **_settings_of_logs(pipeline, checkpoint),
            # Without this every run leaves `spark-warehouse` in the working directory.
            "spark.sql.warehouse.dir": str(scratch() / "warehouse"),
        }
    given = dict(pipeline.spark)
    if _wants_delta(pipeline) and (jars or packages or given.keys() & _JAR_SETTINGS):
        settings |= _DELTA
    level = "info" if verbose else "off"
    options = []
    others = [os.environ.get(name, "") for name in OF_SPARK_SUBMIT]
    others += [given.get(name, "") for name in ALL_JAVA_OPTIONS]
    if is_brief:
        options.append(_quick_jvm(others))
    elif is_local(master) and not any(map(A_COMPILER.search, others)):
        options.append(LATE_SECOND_COMPILER)
    options += [given.pop(JAVA_OPTIONS, ""), f"-Dlog4j2.configurationFile={LOG4J.as_uri()}"]
    if DERBY_LOG not in pipeline.spark.get(JAVA_OPTIONS, ""):
        options.append(f"-D{DERBY_LOG}={shlex.quote(str(scratch() / 'derby.log'))}")
    settings |= given | {
        JAVA_OPTIONS: " ".join([*filter(None, options), f"-Dottla.log.level={level}"])
    }
    for name, more in (("spark.jars", jars), (PACKAGES, packages)):
        both = [*filter(None, given.get(name, "").split(",")), *more]
        if name == "spark.jars":
            # The JVM may be launched elsewhere.
            both = [one if ":/" in one else os.path.abspath(one) for one in both]
        if both:
            settings[name] = ",".join(both)
    settings.pop("spark.master", None)
    return settings


def _settings_of_logs(pipeline: Pipeline, checkpoint: str | None) -> dict[str, str]:
    """Where all that Spark writes down about its batches is in files of this machine.

    Elsewhere its own choice is the safer one, and where Hadoop is set up any path may be elsewhere.
    """
    sinks = [sink.path for sink in pipeline.sinks.values() if isinstance(sink, FileSink)]
    places = [*sinks, *filter(None, [checkpoint])]
    is_elsewhere = any(":/" in place and not place.startswith("file:") for place in places)
    if is_elsewhere or HADOOP in os.environ or any(FILE_SYSTEM in name for name in pipeline.spark):
        return {}
    return {"spark.sql.streaming.checkpointFileManagerClass": PLAIN_FILES}


def _quick_jvm(others: Iterable[str]) -> str:
    """Java does not start with two collectors: one that is chosen elsewhere stays alone."""
    is_chosen = any(A_COLLECTOR.search(options) for options in others)
    return ONE_COMPILER if is_chosen else f"{ONE_COMPILER} {SMALL_COLLECTOR}"


_JAR_SETTINGS: Final = frozenset({"spark.jars", PACKAGES, "spark.driver.extraClassPath"})
_DELTA: Final = {
    "spark.sql.extensions": DELTA_CLASS,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def local_cores(master: str) -> int:
    """As many tasks as `local[N]` runs at once."""
    inner = master.removeprefix("local").strip("[]").partition(",")[0]
    if not inner:
        return 1
    return int(inner) if inner.isdigit() else len(os.sched_getaffinity(0))


def _wants_delta(pipeline: Pipeline) -> bool:
    both = (*pipeline.sources.values(), *pipeline.sinks.values())
    return any(isinstance(one, DeltaSource | DeltaSink) for one in both)


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").exists():
        raise PipelineFailed(
            f"JAVA_HOME is {home}, where there is no bin/java; correct or unset it"
        )
    if not home and shutil.which("java") is None:
        raise PipelineFailed(
            "Spark needs Java 17 or newer, and no java is found: install one (for example "
            "openjdk-17-jre-headless), or set JAVA_HOME"
        )


@contextmanager
def _output_kept() -> Iterator[None]:
    """While the JVM is started, which inherits our output and keeps it.

    Stdout is for the pipeline's own lines, so the JVM gets stderr in its place; and that without
    the line of Java's that comes with every start of Spark and concerns nobody.
    """
    try:
        numbers = sys.stdout.fileno(), sys.stderr.fileno()
    except (OSError, ValueError):
        # Captured by a test: there is no descriptor that a child could write to.
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in numbers]
    reading, writing = os.pipe()
    is_up = threading.Event()
    forwarding = (reading, numbers[1], os.dup(numbers[1]), is_up)
    # Ends with the JVM, at the latest with this process: nobody else holds the pipe's other end.
    threading.Thread(
        target=_forward, args=forwarding, name="ottla-spark-stderr", daemon=True
    ).start()
    try:
        for number in numbers:
            os.dup2(writing, number)
        yield
    finally:
        for number, before in zip(numbers, kept, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.close(writing)
        is_up.set()


def _forward(reading: int, stderr: int, aside: int, is_up: threading.Event) -> None:
    """To wherever stderr leads at the time: until the JVM is up that is the one kept aside."""
    with os.fdopen(reading, "rb") as lines, os.fdopen(aside, "wb", buffering=0):
        for line in lines:
            if not line.startswith(JAVA_NOISE):
                os.write(stderr if is_up.is_set() else aside, line)
