"""Reading, writing and streaming with either connector, and what a checkpoint says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from scenarios import polling

TIMEOUT_S = 120
OTTLA = "ottla"


def read(spark: SparkSession, format: str, bootstrap: str, **options: Any) -> DataFrame:
    """A batch; options are texts as a person would write them."""
    texts = {name: str(value) for name, value in options.items()}
    return (
        spark.read.format(format)
        .option("kafka.bootstrap.servers", bootstrap)
        .options(**texts)
        .load()
    )


def read_stream(spark: SparkSession, format: str, bootstrap: str, **options: Any) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return (
        spark.readStream.format(format)
        .option("kafka.bootstrap.servers", bootstrap)
        .options(**texts)
        .load()
    )


def rows_of(frame: DataFrame) -> list[Row]:
    """All rows, by place."""
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


class Collected:
    """For foreachBatch: keeps the rows of each batch as they come, a repeated batch twice."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Row]]] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.batches.append((batch_id, frame.collect()))

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in self.batches for row in rows]

    @property
    def numbers(self) -> list[int]:
        """The values of rows made by `put_numbers`, in order."""
        return sorted(int(row.value) for row in self.rows)

    @property
    def ids(self) -> list[int]:
        return [batch_id for batch_id, _ in self.batches]


def finish(query: StreamingQuery) -> StreamingQuery:
    """Waits for a query that ends by itself; raises what it raised."""
    try:
        assert query.awaitTermination(TIMEOUT_S), f"still running: {query.status}"
    finally:
        query.stop()
    return query


def drain(frame: DataFrame, checkpoint: Path, **writer_options: Any) -> Collected:
    """Everything there is now (availableNow), from where the checkpoint says on."""
    collected = Collected()
    writer = frame.writeStream.foreachBatch(collected).options(**writer_options)
    finish(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
    return collected


@contextmanager
def running(frame: DataFrame, checkpoint: Path) -> Iterator[tuple[StreamingQuery, Collected]]:
    """A query without an end, stopped at the end of `with`."""
    collected = Collected()
    writer = frame.writeStream.foreachBatch(collected)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query, collected
    finally:
        query.stop()


def until(holds: Callable[[], object], what: str) -> None:
    """With Spark's patience: a batch may take seconds."""
    polling.until(holds, what, TIMEOUT_S)


def until_query(query: StreamingQuery, holds: Callable[[], object], what: str) -> None:
    """Waits, and fails at once with the query's own reason when it ends."""

    def check() -> bool:
        failure = query.exception()
        if failure is not None:
            raise failure
        return bool(holds())

    until(check, what)


def batch_ids(checkpoint: Path, log: str = "commits") -> list[int]:
    """The batches in a log of the checkpoint: `offsets` (begun) or `commits` (done)."""
    return sorted(int(path.name) for path in (checkpoint / log).iterdir() if path.name.isdigit())


def offsets_of(checkpoint: Path, batch_id: int) -> dict[str, dict[str, int]]:
    """Where a batch ends."""
    return json.loads(offsets_line(checkpoint, batch_id))  # type: ignore[no-any-return]


def offsets_line(checkpoint: Path, batch_id: int) -> str:
    """As it stands in the file: the version, Spark's own settings, one line per source."""
    return (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2]


def forget_last_commit(checkpoint: Path) -> int:
    """As a crash between the end of a batch and its commit; returns the batch that runs again."""
    last = batch_ids(checkpoint)[-1]
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last
