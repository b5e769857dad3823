"""The job of the crash tests: copies a topic into another, and into files, until it is killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ottla.spark import register
from spark.kit import session
from spark.kit.owner import end_with_owner
from spark.kit.streams import OTTLA, read_stream

# A driver that is killed while it writes the first offsets leaves a temporary file, which Spark
# takes for another query's checkpoint (docs/spark.md, "What is promised").
VERIFY_EMPTY = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"


def copy_to_topic(spark: SparkSession, job: dict[str, Any], **trigger: Any) -> StreamingQuery:
    spark.conf.set(VERIFY_EMPTY, "false")
    frame = source(spark, job).select("key", "value")
    writer = frame.writeStream.format(OTTLA).option("topic", job["target"])
    writer = writer.option("kafka.bootstrap.servers", job["bootstrap"])
    writer = writer.option("checkpointLocation", f"{job['directory']}/topic-checkpoint")
    return (writer.trigger(**trigger) if trigger else writer).start()


def copy_to_files(spark: SparkSession, job: dict[str, Any], **trigger: Any) -> StreamingQuery:
    spark.conf.set(VERIFY_EMPTY, "false")
    frame = source(spark, job).selectExpr("cast(value as string) value")
    writer = frame.writeStream.format("parquet").option("path", f"{job['directory']}/files")
    writer = writer.option("checkpointLocation", f"{job['directory']}/files-checkpoint")
    return (writer.trigger(**trigger) if trigger else writer).start()


def source(spark: SparkSession, job: dict[str, Any]) -> Any:
    return read_stream(
        spark, OTTLA, job["bootstrap"], subscribe=job["source"], startingOffsets="earliest",
        maxOffsetsPerTrigger=job["rows_per_batch"],
    )  # fmt: skip


def main() -> None:
    job = json.loads(sys.argv[1])
    end_with_owner()
    jars = [Path(jar) for jar in job["jars"]]
    spark = session.start(Path(job["directory"], "spark"), jars, is_quick=True)
    register(spark)
    queries = [copy_to_topic(spark, job), copy_to_files(spark, job)]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
