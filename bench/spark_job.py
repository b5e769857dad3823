"""One Spark application of the comparison: `python -m bench.spark_job JOB`, JOB as JSON.

The same DataFrame calls for both formats. Prints the seconds of each run, one per line; the first
run in a process is the cold one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import ottla.spark
from ottla.spark.startup.environment import scratch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

MASTER: Final = "local[2]"
CEILING: Final = "ottla_bench_ceiling"
BATCH_ROWS: Final = 50_000
DIGITS: Final = 8
NUMBER: Final = f"lpad(cast(id as string), {DIGITS}, '0')"


@dataclass(frozen=True)
class Job:
    """`format` is ottla, kafka, or `ceiling`: the same Arrow batches without a broker."""

    format: str
    action: str
    bootstrap: str
    topic: str
    rows: int
    message_bytes: int
    partitions: int
    runs: int
    jars: Sequence[str] = ()
    options: dict[str, str] = field(default_factory=dict)
    master: str = MASTER
    # For the pipeline: where totals go, and what does not parse; without the latter it is dropped.
    target: str = ""
    dead_letters: str = ""


class CeilingSource(DataSource):
    """What Spark takes from Python at best: batches that are there already."""

    @classmethod
    def name(cls) -> str:
        return CEILING

    def schema(self) -> str:
        from ottla.spark.columns import DEFAULT_COLUMNS, spark_schema

        return spark_schema(DEFAULT_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(
            int(self.options["rows"]),
            int(self.options["message_bytes"]),
            int(self.options["partitions"]),
        )


class CeilingReader(DataSourceReader):
    def __init__(self, rows: int, message_bytes: int, partitions: int) -> None:
        self._rows = rows
        self._message_bytes = message_bytes
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        full = _batch(BATCH_ROWS, self._message_bytes)
        left = self._rows // self._partitions
        while left > 0:
            yield full if left >= BATCH_ROWS else full.slice(0, left)
            left -= BATCH_ROWS


def _batch(rows: int, message_bytes: int) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    from ottla.spark.columns import DEFAULT_COLUMNS, arrow_schema

    columns = {
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.array([bytes(message_bytes)] * rows, pa.binary()),
        "topic": pa.array(["bench-spark"] * rows),
        "partition": pa.array(np.zeros(rows, np.int32)),
        "offset": pa.array(np.arange(rows)),
        "timestamp": pa.array(np.zeros(rows, np.int64)).cast(pa.timestamp("us", "UTC")),
        "timestampType": pa.array(np.zeros(rows, np.int32)),
    }
    schema = arrow_schema(DEFAULT_COLUMNS)
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    started = time.perf_counter()
    if job.format == "ottla" and job.master == MASTER:
        ottla.spark.quick_start()
    session = _session(job)
    print(json.dumps({"session_s": time.perf_counter() - started}), flush=True)
    for _ in range(job.runs):
        started = time.perf_counter()
        ACTIONS[job.action](session, job)
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
    session.stop()


def _session(job: Job) -> SparkSession:
    builder: Any = SparkSession.builder
    builder = builder.master(job.master).appName("ottla-bench")
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.memory", "2g")
    builder = builder.config("spark.sql.warehouse.dir", str(scratch() / "warehouse"))
    if job.jars:
        for where in ("driver", "executor"):
            builder = builder.config(f"spark.{where}.extraClassPath", ":".join(job.jars))
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if job.format == "ceiling":
        session.dataSource.register(CeilingSource)
    return session


def _read(session: SparkSession, job: Job) -> None:
    if job.format == "ceiling":
        source = session.read.format(CEILING).option("rows", job.rows)
        source = source.option("message_bytes", job.message_bytes)
        source = source.option("partitions", job.partitions)
    else:
        source = session.read.format(job.format).option("kafka.bootstrap.servers", job.bootstrap)
        source = source.option("subscribe", job.topic).options(**job.options)
    source.load().write.format("noop").mode("overwrite").save()


def _write(session: SparkSession, job: Job) -> None:
    rows = session.range(0, job.rows, 1, job.partitions).selectExpr(
        f"cast({NUMBER} as binary) as key",
        # The long part is a constant: Spark should spend its time on writing.
        f"cast(concat({NUMBER}, repeat('x', {job.message_bytes - DIGITS})) as binary) as value",
    )
    sink = rows.write.format(job.format).option("kafka.bootstrap.servers", job.bootstrap)
    sink.option("topic", job.topic).options(**job.options).mode("append").save()


def _pipeline(session: SparkSession, job: Job) -> None:
    from bench import spark_pipeline

    spark_pipeline.once(session, job)


ACTIONS: Final[Mapping[str, Callable[[SparkSession, Job], None]]] = {
    "read": _read,
    "first": _read,
    "write": _write,
    "pipeline": _pipeline,
}


if __name__ == "__main__":
    main()
