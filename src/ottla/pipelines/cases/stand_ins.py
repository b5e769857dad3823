"""What stands in for the sources of a test: directories whose files come one after the other.

Spark's file stream takes one file for each batch, the oldest first, and with `availableNow` it ends
after the last one. Sources of a query advance together, so batch i has file i of each source.

In a running pipeline a quiet moment lets the watermark take effect: Spark runs a batch without
rows, which closes windows, and from then on late rows are late. While data is waiting that moment
does not come, and a late row may still be taken. A test must not leave this to chance: between two
files of a pipeline with a watermark stands one without rows.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.pipelines.cases.given_messages import message_schema, message_tables
from ottla.pipelines.cases.row_files import (
    JSON_LINES,
    BadCase,
    bytes_of,
    struct_type,
    typed_rows,
    typed_table,
)
from ottla.pipelines.language.model import (
    Case,
    FileSource,
    Pipeline,
    PythonFunction,
    Source,
    TopicSource,
)
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.sources.kinds import source_kind
from ottla.pipelines.views.graph import Opened
from ottla.spark.columns import spark_schema
from ottla.spark.formats.avro import arrow_type as avro_arrow_type
from ottla.spark.formats.spark_types import to_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of a reader of files: what decides when a file is read, and what becomes of it afterwards.
NOT_FOR_TESTS: Final = (
    "maxfilespertrigger", "maxbytespertrigger", "latestfirst", "maxfileage", "cleansource",
    "sourcearchivedir", "filenameonly", "modifiedafter", "modifiedbefore", "pathglobfilter",
    "recursivefilelookup", "maxcachedfiles", "discardcachedinputratio",
)  # fmt: skip
NO_BAD_RECORDS: Final = "has no bad records to expect: there is nothing in it to be parsed"
Step = TypeVar("Step")
# Files get times a second apart, long ago.
FIRST_FILE_AT_S: Final = 1_000_000_000


class StandIns:
    """The sources of one test, in a directory of its own."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        case: Case,
        directory: Path,
        *,
        in_steps: bool = True,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._case = case
        self._directory = directory
        self._has_pauses = in_steps and has_watermark(pipeline)
        self._files_per_batch = 1 if in_steps else None

    def open(self, source: Source) -> Opened:
        """As `open_source`; raises BadCase for what is wrong with the test's files."""
        return source_kind(source).stand_in(self._spark, self._pipeline, source, self)

    def open_bad(self, source: Source) -> DataFrame:
        """The records of a source that do not parse: value (binary), reason."""
        if not source_kind(source).has_bad_records(source):
            raise self._problem(source, NO_BAD_RECORDS)
        # Nothing is remembered from batch to batch, so that one will do.
        at_once = StandIns(self._spark, self._pipeline, self._case, self._directory, in_steps=False)
        bad = at_once.open(source).bad
        assert bad is not None, "what can be bad is decoded by tasks of ours, or by Spark's CSV"
        return bad

    def messages(self, source: TopicSource) -> DataFrame:
        """Bytes, as brokers would have given them."""
        schema = message_schema(source)
        directory = self._drop(message_tables(source, self._given(source)), schema)
        return self._stream(directory, spark_schema(schema.names))

    def files(self, source: FileSource) -> FileSource:
        """The source, of a directory with the test's files."""
        files, directory = self._given(source), self._new_directory()
        if source.read == "table" and len(files) > 1:
            raise self._problem(source, "is a table: give it one file")
        empty = empty_file(source, files) if self._has_pauses else b""
        for file in self._with_pauses(files):
            data = empty if file is None else file_data(source, file)
            is_as_given = file is not None and not _is_converted(source, file)
            # Spark tells compressed files by their names.
            self._put(directory, data, f"-{file.name}" if file and is_as_given else ".rows")
        options = {name: text for name, text in source.options.items()
                   if name.lower() not in NOT_FOR_TESTS}  # fmt: skip
        return replace(
            source, path=str(directory), max_files_per_batch=self._files_per_batch, options=options
        )

    def rows(self, source: Source, schema: str | None, *, is_stream: bool) -> DataFrame:
        """JSON lines as the rows of a source that gives rows."""
        files = self._given(source)
        if schema is None:
            raise self._problem(source, "needs its columns for tests: add schema: id BIGINT, …")
        kind = struct_type(schema, source.place)
        tables = (typed_table(file, kind) for file in files)
        columns = ", ".join(f"`{field.name}` {to_ddl(field.type)}" for field in kind)
        if is_stream:
            return self._stream(self._drop(tables, pa.schema(list(kind))), columns)
        if len(files) > 1:
            raise self._problem(source, "is a table: give it one file")
        directory = self._drop(tables, pa.schema(list(kind)))
        return self._spark.read.schema(columns).parquet(str(directory))

    def _given(self, source: Source) -> Sequence[Path]:
        return self._case.given.get(source.name, ())

    def _stream(self, directory: Path, schema: str) -> DataFrame:
        reader = self._spark.readStream.schema(schema)
        if self._files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", self._files_per_batch)
        return reader.parquet(str(directory))

    def _drop(self, tables: Iterator[pa.Table], schema: pa.Schema) -> Path:
        directory = self._new_directory()
        for table in self._with_pauses(list(tables)):
            self._put(
                directory, parquet(schema.empty_table() if table is None else table), ".parquet"
            )
        return directory

    def _with_pauses(self, steps: Sequence[Step]) -> Iterator[Step | None]:
        for at, step in enumerate(steps):
            if at > 0 and self._has_pauses:
                yield None
            yield step

    def _new_directory(self) -> Path:
        return Path(mkdtemp(prefix="given-", dir=self._directory))

    def _put(self, directory: Path, data: bytes, suffix: str) -> None:
        at = len(os.listdir(directory))
        file = directory / f"{at:06}{suffix}"
        file.write_bytes(data)
        os.utime(file, (FIRST_FILE_AT_S + at, FIRST_FILE_AT_S + at))

    def _problem(self, source: Source, text: str) -> BadCase:
        return BadCase([Problem(f"source {source.name} {text}", source.place)])


def has_watermark(pipeline: Pipeline) -> bool:
    """Whether there may be one: SQL and Python can set their own."""
    return any(source.watermark for source in pipeline.sources.values()) or any(
        view.watermark
        or isinstance(view.body, PythonFunction)
        or "watermark" in view.body.text.lower()
        for view in pipeline.views.values()
    )


def parquet(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    return bytes(out.getvalue())


def file_data(source: FileSource, file: Path) -> bytes:
    """What is dropped; JSON lines become Parquet or Avro where the source reads that."""
    if not _is_converted(source, file):
        return bytes_of(file)
    if source.schema is None:
        text = f"source {source.name} needs a schema for tests, or a .{source.format} file"
        raise BadCase([Problem(text, source.place)])
    if source.format == "parquet":
        return parquet(typed_table(file, struct_type(source.schema, source.place)))
    kind = avro_arrow_type(source.schema)
    rows = pa.array(typed_rows(file, kind), kind)
    return _avro_container(json.loads(source.schema), rows.to_pylist(maps_as_pydicts="strict"))


def _is_converted(source: FileSource, file: Path) -> bool:
    return source.format in ("parquet", "avro") and file.suffix in JSON_LINES


def empty_file(source: FileSource, files: Sequence[Path]) -> bytes:
    """A file of the source's format without rows."""
    if not files or source.format in ("json", "csv"):
        return b""
    first = pa.BufferReader(file_data(source, files[0]))
    if source.format == "parquet":
        return parquet(pq.read_schema(first).empty_table())
    import fastavro

    return _avro_container(fastavro.reader(first).writer_schema, [])


def _avro_container(schema: Any, rows: list[Any]) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), rows)
    return out.getvalue()
