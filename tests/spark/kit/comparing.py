"""Reads with Spark's own connector and with ours, and holds the rows against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from spark.kit.streams import OTTLA, finish, read, read_stream

# Their consumers wait for their last fetch when they close, half a second per partition.
QUICK = {"kafka.fetch.max.wait.ms": 10}
SHOWN = 500


def comparable(frame: DataFrame) -> list[Row]:
    """All columns; microseconds, since Python's datetime bends what lies before 1970."""
    columns = [name for name in frame.columns if name != "timestamp"]
    return frame.selectExpr(*columns, "unix_micros(timestamp) as micros").collect()


def by_place(rows: list[Row]) -> list[Row]:
    """Sorted, after a look at the order in which they came: that of their partitions."""
    ends: dict[tuple[str, int], int] = {}
    for row in rows:
        assert row.offset > ends.get((row.topic, row.partition), -1), (
            f"too late: {str(row)[:SHOWN]}"
        )
        ends[row.topic, row.partition] = row.offset
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))


class Both:
    def __init__(self, spark: SparkSession, connector: str, bootstrap: str) -> None:
        self._spark = spark
        self._connector = connector
        self._bootstrap = bootstrap

    def same(self, **options: Any) -> list[Row]:
        """The rows of a batch, which are the same in both."""
        theirs = read(self._spark, self._connector, self._bootstrap, **options, **QUICK)
        ours = read(self._spark, OTTLA, self._bootstrap, **options)
        assert ours.schema.simpleString() == theirs.schema.simpleString()
        return _same(by_place(comparable(ours)), by_place(comparable(theirs)))

    def same_stream(self, directory: Path, **options: Any) -> list[Row]:
        """The rows of all batches of a stream to what is there now."""
        ours = self._stream(OTTLA, directory / "ours", **options)
        theirs = self._stream(self._connector, directory / "theirs", **options, **QUICK)
        return _same(ours, theirs)

    def refused(self, **options: Any) -> None:
        """Neither reads that."""
        for format in (self._connector, OTTLA):
            with pytest.raises(PySparkException):
                read(self._spark, format, self._bootstrap, **options).collect()

    def _stream(self, format: str, checkpoint: Path, **options: Any) -> list[Row]:
        rows: list[Row] = []
        frame = read_stream(
            self._spark, format, self._bootstrap, startingOffsets="earliest", **options
        )
        writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(comparable(batch)))
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        finish(writer.start())
        return by_place(rows)


def _same(found: list[Row], expected: list[Row]) -> list[Row]:
    for one, other in zip(found, expected, strict=False):
        assert one == other, f"ours is {str(one)[:SHOWN]}, theirs {str(other)[:SHOWN]}"
    assert len(found) == len(expected), f"ours are {len(found)} rows, theirs {len(expected)}"
    return found
