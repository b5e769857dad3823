"""The driver of the standalone test: reads, writes and streams on a real master and worker.

One of three applications: with the packed environment, with another version of Ottla on the
driver's side, and with Ottla sent as --py-files would.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import ottla.spark
from spark.kit import session
from spark.kit.results import say
from spark.kit.streams import OTTLA, finish, read, read_stream


def begin(job: dict[str, Any], name: str, python: str, **settings: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = python
    # Would win over it, on the executors too, for a source that Spark finds by itself.
    os.environ.pop("PYSPARK_DRIVER_PYTHON", None)
    own = {
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": session.quick_java(),
        "spark.app.name": name,
    }
    # With PySpark's archive: the packed environment brings none.
    os.environ.update(
        {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    )
    builder = SparkSession.builder.master(job["master"])
    directory = Path(job["directory"], name)
    files = {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for key, value in {**session.SETTINGS, **own, **files, **settings}.items():
        builder = builder.config(key, value)
    started: SparkSession = builder.getOrCreate()
    return started


def numbers(spark: SparkSession, job: dict[str, Any], topic: str) -> list[int]:
    rows = read(spark, OTTLA, job["bootstrap"], subscribe=topic).collect()
    return sorted(int(row.value) for row in rows)


def packed(job: dict[str, Any]) -> None:
    archive = {"spark.archives": f"{job['packed']}#environment"}
    spark = begin(job, "packed", "./environment/bin/python", **archive)
    say(read=numbers(spark, job, "source"))
    rows = spark.range(50).selectExpr("cast(id as string) key", "cast(id as string) value")
    writer = rows.write.format(OTTLA).option("kafka.bootstrap.servers", job["bootstrap"])
    writer.option("topic", "written").mode("append").save()
    frame = read_stream(
        spark, OTTLA, job["bootstrap"], subscribe="source", startingOffsets="earliest"
    )
    stream = frame.select("key", "value").writeStream.format(OTTLA).option("topic", "streamed")
    stream = stream.option("kafka.bootstrap.servers", job["bootstrap"])
    stream = stream.option("checkpointLocation", f"{job['directory']}/checkpoint")
    finish(stream.trigger(availableNow=True).start())
    spark.stop()


def other_version(job: dict[str, Any]) -> None:
    """Relative paths mean another file on the driver: there it is a link to the other version."""
    link = Path("environment")
    link.unlink()
    link.symlink_to(job["other_environment"])
    # A light one: that a whole one arrives and works is shown by `packed`.
    archive = {"spark.archives": f"{job['linked']}#environment"}
    spark = begin(job, "versions", "./environment/bin/python", **archive)
    try:
        numbers(spark, job, "source")
        say(versions="no error")
    except PySparkException as error:
        say(versions=str(error))
    spark.stop()


def sent(job: dict[str, Any]) -> None:
    spark = begin(job, "sent", f"{job['bare_environment']}/bin/python")
    spark.sparkContext.addPyFile(job["zip"])
    try:
        numbers(spark, job, "source")
        say(unregistered="found by itself")
    except Py4JJavaError as error:
        say(unregistered=str(error))
    ottla.spark.register(spark)
    say(registered=numbers(spark, job, "source"))
    spark.stop()


STAGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "packed": packed,
    "other version": other_version,
    "sent": sent,
}


def main() -> None:
    job = json.loads(sys.argv[1])
    os.chdir(job["directory"])
    STAGES[job["stage"]](job)


if __name__ == "__main__":
    main()
