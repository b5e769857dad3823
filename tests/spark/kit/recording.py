"""A data source that writes down how Spark calls it: one line of JSON per call, in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

ROWS = 10


class Notes:
    """Appends are short and go to one file from all of Spark's processes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def add(self, call: str, **details: Any) -> None:
        line = json.dumps({"call": call, "process": os.getpid(), **details})
        with self._path.open("a") as file:
            file.write(line + "\n")

    def all(self, *calls: str) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [line for line in lines if not calls or line["call"] in calls]


class Recording(DataSource):
    """Options: `notes` (the file), `ends` (JSON: what latestOffset returns, one after the other),
    `type` (of the Arrow column), `later` (type of the second Arrow batch), `fail` (what raises)."""

    @classmethod
    def name(cls) -> str:
        return "recording"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: Any) -> RecordingReader:
        kind = FilteringReader if self.options.get("filters") else RecordingReader
        return kind(self.options)

    def streamReader(self, schema: Any) -> RecordingStreamReader:  # noqa: N802
        return RecordingStreamReader(self.options)

    def streamWriter(self, schema: Any, overwrite: bool) -> RecordingWriter:  # noqa: N802
        return RecordingWriter(self.options)


class Common:
    def __init__(self, options: Any) -> None:
        self.options = dict(options)
        self.notes = Notes(self.options["notes"])
        self.notes.add(f"new {type(self).__name__}", options=self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for kind in (self.options.get("type", "binary"), self.options.get("later", "binary")):
            column = pa.array([b"x"] * ROWS, getattr(pa, kind)())
            yield pa.RecordBatch.from_arrays([column], names=["value"])


class RecordingReader(Common, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]


class FilteringReader(RecordingReader):
    """Says that it takes every filter, and applies none."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        self.notes.add("pushFilters", filters=[str(one) for one in filters])
        return iter(())


class RecordingStreamReader(Common, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self.notes.add("initialOffset")
        return {"t": {"0": 0, "1": 0}}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.notes.add("prepareForTriggerAvailableNow")

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        ends = json.loads(self.options["ends"])
        at = len(self.notes.all("latestOffset"))
        self.notes.add("latestOffset", start=start)
        end: dict[str, Any] = ends[min(at, len(ends) - 1)]
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self.notes.add("partitions", start=start, end=end)
        return [InputPartition(0)]

    def commit(self, end: dict[str, Any]) -> None:
        self.notes.add("commit", end=end)

    def stop(self) -> None:
        self.notes.add("stop")


class RecordingWriter(Common, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        rows = sum(batch.num_rows for batch in iterator)
        attempt = (context.attemptNumber(), context.taskAttemptId())
        self.notes.add("write", rows=rows, attempt=attempt)
        if self.options.get("fail") == "first write" and context.attemptNumber() == 0:
            raise ValueError("this attempt fails")
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self.notes.add("sink commit", batch=batchId)
        if self.options.get("fail") == "commit":
            raise ValueError("this commit fails")

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self.notes.add("abort", batch=batchId)
