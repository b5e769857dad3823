"""How tests start Spark: on this machine, on loopback, small and quiet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.pipelines.launch import class_archive
from ottla.pipelines.launch.session import PLAIN_FILES
from ottla.spark import quick_start
from ottla.spark.startup.spark_home import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J = Path(__file__).with_name("log4j2.properties")
TESTS = Path(__file__).parents[2]

# For JVMs that live for seconds: no time for the second compiler, no cores for collectors.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

GIVEN_OPTIONS = os.environ.get("SPARK_SUBMIT_OPTS")

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
MORE_CLASSES = "SPARK_DIST_CLASSPATH"

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    JAVA_OPTIONS: f"-Dlog4j2.configurationFile=file:{LOG4J}",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.streaming.checkpointFileManagerClass": PLAIN_FILES,
    # A test that fails says so at once; retries are for the tests about them.
    "spark.task.maxFailures": "1",
}


# Where Delta's jars are among the session's.
DELTA: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Instead of 50 tasks for the state of a table of three rows.
    "spark.databricks.delta.snapshotPartitions": "1",
}


def prepare() -> subprocess.Popen[bytes]:
    """Once for each machine, beside the first tests: what starts later starts sooner."""
    return subprocess.Popen(
        [sys.executable, "-m", "ottla", "pipeline", "prepare"],
        env={**os.environ, **environment()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def environment() -> dict[str, str]:
    """Without these, workers take the system's python3 and Spark an address that may not answer."""
    home = spark_home()
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Workers unpickle what tests define by its name.
        "PYTHONPATH": os.pathsep.join(paths),
        # Without PySpark's archive, as in the product; one that nobody can make is gone without.
        **({"SPARK_HOME": str(home)} if home else {}),
        # For every JVM that spark-submit starts, whoever asks for it.
        "SPARK_SUBMIT_OPTS": GIVEN_OPTIONS or quick_java(),
    }


def quick_java() -> str:
    """Options for any JVM of Spark's; with the archive of its classes, as soon as there is one."""
    home = spark_home()
    archive = class_archive.java_options(home) if home else ""
    return f"{QUICK_JVM} {archive}".rstrip()


def start(
    directory: Path,
    jars: Sequence[Path] = (),
    *,
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
    is_quick: bool = False,
) -> SparkSession:
    """A session whose files live in `directory`; `is_quick` as `ottla pipeline` starts its own."""
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    if is_quick:
        quick_start()
    builder = SparkSession.builder.master(master).appName("ottla-tests")
    own = {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        JAVA_OPTIONS: f"{SETTINGS[JAVA_OPTIONS]} -Dderby.stream.error.file={directory}/derby.log",
    }
    for name, value in {**SETTINGS, **own, **(settings or {})}.items():
        builder = builder.config(name, value)
    # On the class path of a JVM that starts now, so that nothing has to be copied or added later;
    # and after Spark's own jars, since the archive of classes fits only what begins with them.
    os.environ[MORE_CLASSES] = os.pathsep.join(map(str, jars))
    try:
        session: SparkSession = builder.getOrCreate()
    finally:
        del os.environ[MORE_CLASSES]
    return session
