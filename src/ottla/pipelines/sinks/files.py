"""Rows into files, each row once.

JSON, CSV and Parquet are written by Spark's own file sink, whose list of whole batches
(`_spark_metadata`) its readers go by. Avro is written here: the files of a batch are written aside
and appear by one rename of their directory, `batch=<number>-<query>`; a batch that comes again
finds its directory and does nothing. Readers see no directory whose name begins with a dot.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote as quote_path
from urllib.parse import unquote, urlsplit

from ottla.pipelines.language.model import CurrentTableSink, FileSink, Pipeline, Source
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.sinks import avro_rows
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.contract import SinkKind
from ottla.pipelines.sinks.json_text import JSON, TIMES
from ottla.pipelines.sinks.written_columns import partition_problems, problem, written_columns
from ottla.pipelines.views.columns import quote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STAGING: Final = ".ottla-staging"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_FORMAT_OPTIONS: Final[dict[str, dict[str, str]]] = {
    "json": dict(JSON), "csv": dict(TIMES), "parquet": {},
}  # fmt: skip
_NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"


class Files(SinkKind[FileSink]):
    def problems(
        self, sink: FileSink, frame: DataFrame, sources: Sequence[Source]
    ) -> list[Problem]:
        return [
            *path_problems(sink),
            *partition_problems(sink, frame),
            *_format_problems(sink, frame),
        ]

    def identity(self, sink: FileSink, secrets: frozenset[str]) -> dict[str, Any]:
        return {"kind": "files", "path": sink.path, "format": sink.format}

    def stream_writer(
        self, frame: DataFrame, pipeline: Pipeline, sink: FileSink, mode: str
    ) -> DataStreamWriter | None:
        if sink.format == "avro":
            return None
        writer = _rows_to_write(frame, sink).writeStream.outputMode(mode)
        writer = writer.format(sink.format).options(**_writer_options(sink))
        path = str(local_path(sink.path))
        return writer.partitionBy(*sink.partition_by).option("path", path)

    def write_batch(
        self, rows: DataFrame, pipeline: Pipeline, sink: FileSink, batch: Batch
    ) -> None:
        """A table's rows, beside those that earlier runs have left."""
        if sink.format == "avro":
            write_avro(rows, pipeline, sink, batch)
            return
        writer = _rows_to_write(rows, sink).write.format(sink.format)
        writer = writer.options(**_writer_options(sink)).mode("append")
        writer.partitionBy(*sink.partition_by).save(str(local_path(sink.path)))


def is_local(path: str) -> bool:
    return _SCHEME.match(path) is None or urlsplit(path).scheme == "file"


def local_path(path: str) -> Path:
    return Path(unquote(urlsplit(path).path)) if _SCHEME.match(path) else Path(path)


def path_problems(sink: FileSink | CurrentTableSink) -> list[Problem]:
    if is_local(sink.path):
        return []
    scheme = sink.path.split(":", 1)[0]
    text = (
        f"{scheme}: is no file system this sink can write to; give a path that is mounted on all "
        "machines of the run"
    )
    return [problem(sink, text)]


def _format_problems(sink: FileSink, frame: DataFrame) -> list[Problem]:
    found: list[Problem] = []
    names = written_columns(sink, frame.columns)
    rest = [name for name in names if name not in sink.partition_by]
    if not rest:
        text = f"{sink.input} has no columns to write; select some under names without _"
        found.append(problem(sink, text))
    elif sink.format == "avro":
        fields = frame.select(*map(quote, names)).schema
        found += avro_rows.schema_problems(sink, None, fields)
    elif sink.format == "csv":
        for name in rest:
            kind = frame.schema[name].dataType.typeName()
            if kind in ("struct", "array", "map", "binary", "variant"):
                text = f"{name} is {kind}, which has no place in CSV; make it text in a view"
                found.append(problem(sink, text))
    return found


def _rows_to_write(frame: DataFrame, sink: FileSink) -> DataFrame:
    return frame.select(*map(quote, written_columns(sink, frame.columns)))


def _writer_options(sink: FileSink) -> dict[str, str]:
    return {**_FORMAT_OPTIONS[sink.format], **sink.options}


def write_avro(frame: DataFrame, pipeline: Pipeline, sink: FileSink, batch: Batch) -> None:
    """The batch's directory, all of it at once; nothing when it is there already."""
    root = local_path(sink.path)
    done = root / f"batch={batch.name}"
    staging = root / STAGING / f"{pipeline.name}.{sink.name}"
    # What a crash has left is of this sink, whichever batch it was of.
    shutil.rmtree(staging, ignore_errors=True)
    if done.exists():
        return
    rows = _rows_to_write(frame, sink)
    if sink.partition_by:
        rows = rows.sortWithinPartitions(*map(quote, sink.partition_by))
    aside = staging / batch.name
    aside.mkdir(parents=True)
    task = _AvroFiles(str(aside), avro_rows.schema_of(rows.schema), sink)
    written = {row.file for row in rows.mapInArrow(task, "file string").collect()}
    for path in aside.rglob("*.avro"):
        # A task that was tried twice has left files that do not count.
        if str(path.relative_to(aside)) not in written:
            path.unlink()
    if written:
        aside.rename(done)
    shutil.rmtree(staging, ignore_errors=True)


class _AvroFiles:
    """Writes a task's rows and tells the names of the files: a new one where the place changes."""

    def __init__(self, directory: str, schema: dict[str, Any], sink: FileSink) -> None:
        self._directory = directory
        self._schema = schema
        self._partition_by = sink.partition_by
        self._who = f"sink {sink.name}"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "called in a task"
        prefix = f"part-{context.partitionId():05}-{context.taskAttemptId()}"
        rows = (row for batch in batches for row in avro_rows.rows_of(batch.to_struct_array()))
        files: list[str] = []
        for place, group in groupby(rows, self._place):
            files.append(os.path.join(place, f"{prefix}-{len(files)}.avro"))
            path = os.path.join(self._directory, files[-1])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            avro_rows.write_file(path, self._schema, group, self._who)
        yield pa.RecordBatch.from_pydict({"file": pa.array(files, pa.string())})

    def _place(self, row: dict[str, Any]) -> str:
        """As Hive names directories; the columns stay in the files too."""
        words = []
        for name in self._partition_by:
            value = row[name]
            text = _NULL_DIRECTORY if value is None else quote_path(str(value), safe=" ")
            words.append(f"{name}={text}")
        return os.path.join("", *words)
