"""A pipeline as its file says it, checked, with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from ottla.pipelines.language.problems import Place

TopicFormat = Literal["json", "avro", "string", "bytes"]
FileFormat = Literal["json", "csv", "parquet", "avro"]
Reading = Literal["stream", "table"]
Mode = Literal["append", "update", "complete", "upsert"]

# Beside the fields of a message's value every topic offers these columns to SQL.
MESSAGE_COLUMNS: Final = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_tombstone")


@dataclass(frozen=True)
class Watermark:
    """How late a row may come, by the time in one of its columns."""

    column: str
    delay: str


@dataclass(frozen=True)
class BadRecords:
    """What becomes of a record that does not parse."""

    do: Literal["fail", "drop", "dead_letter"]
    topic: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    name: str
    place: Place
    watermark: Watermark | None = None
    deduplicate: tuple[str, ...] = ()
    schema: str | None = None
    bad_records: BadRecords = BadRecords("fail")
    # Handed to Spark's reader as they are.
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """What a problem begins with."""
        return f"source {self.name}"


@dataclass(frozen=True, kw_only=True)
class TopicSource(Source):
    topics: tuple[str, ...]
    # earliest, latest, or an ISO time; counts only where there is no checkpoint yet.
    start: str = "earliest"
    format: TopicFormat = "json"
    key_format: TopicFormat = "string"
    key_schema: str | None = None
    # The registry's ids that fit the schemas; without any, no registry's bytes come before them.
    schema_ids: tuple[int, ...] = ()
    key_schema_ids: tuple[int, ...] = ()
    # Their own schemas, in the same order, where they are not those of the source.
    writer_schemas: tuple[str, ...] = ()
    key_writer_schemas: tuple[str, ...] = ()
    headers: bool = False
    max_rows_per_batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    path: str
    format: FileFormat
    read: Reading = "stream"
    max_files_per_batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class JdbcSource(Source):
    """Always a table: read anew for every batch of the stream it is joined with."""

    url: str
    table: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class DeltaSource(Source):
    path: str
    read: Reading = "stream"


@dataclass(frozen=True, kw_only=True)
class RateSource(Source):
    rows_per_second: int = 1


@dataclass(frozen=True)
class Piece:
    """A stretch of SQL that stands in the file as it is in the text, on one line."""

    offset: int
    length: int
    place: Place


@dataclass(frozen=True)
class Sql:
    """SQL and where its first character stands, in the pipeline's file or in its own."""

    text: str
    place: Place
    # Lines after the first are indented so much more in the file than in the text.
    indent: int = 0
    # Where the text is not simply indented: folded lines, quotes, values of variables.
    pieces: tuple[Piece, ...] = ()

    def at(self, line: int, column: int) -> Place:
        """Where in the file a line and a column of the text are; all count from one."""
        if not self.pieces:
            first = line <= 1
            moved = self.place.column - 1 if first else self.indent
            return Place(self.place.file, self.place.line + max(line, 1) - 1, moved + column)
        lines = self.text.split("\n")
        offset = sum(len(each) + 1 for each in lines[: max(line, 1) - 1]) + column - 1
        piece = max(
            (each for each in self.pieces if each.offset <= offset),
            key=lambda each: each.offset,
            default=self.pieces[0],
        )
        inside = min(max(offset - piece.offset, 0), piece.length)
        return Place(piece.place.file, piece.place.line, piece.place.column + inside)


@dataclass(frozen=True)
class PythonFunction:
    """`module:function`; its parameters are named after sources and views (or `spark`)."""

    module: str
    function: str
    place: Place


@dataclass(frozen=True, kw_only=True)
class View:
    name: str
    place: Place
    body: Sql | PythonFunction
    watermark: Watermark | None = None
    deduplicate: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return f"view {self.name}"


@dataclass(frozen=True, kw_only=True)
class Sink:
    name: str
    place: Place
    input: str
    mode: Mode = "append"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        return f"sink {self.name}"

    @property
    def upserted(self) -> TableSink | None:
        """The table in which a row replaces that of its key; None: rows are only added."""
        return None

    @property
    def named_columns(self) -> tuple[str, ...]:
        """Those that are written because a key of the file names them, whatever they are."""
        return ()


@dataclass(frozen=True, kw_only=True)
class TopicSink(Sink):
    """`key` names the columns of the message's key: one as its text, several as JSON."""

    topic: str
    key: tuple[str, ...] = ()
    format: TopicFormat = "json"
    schema: str | None = None
    headers: str | None = None


@dataclass(frozen=True, kw_only=True)
class FileSink(Sink):
    path: str
    format: FileFormat
    partition_by: tuple[str, ...] = ()

    @property
    def named_columns(self) -> tuple[str, ...]:
        return self.partition_by


@dataclass(frozen=True, kw_only=True)
class TableSink(Sink):
    """What is asked of upserts (mode upsert), in the words of Spark's AUTO CDC."""

    keys: tuple[str, ...] = ()
    # The column that tells which of two rows of a key is newer; None: by their place in the topic.
    sequence_by: str | None = None
    # A condition; None: the tombstones of the topic, where the rows know them.
    apply_as_deletes: str | None = None
    # 1: the latest row of each key; 2: all of them, with where each begins and ends.
    stored_as_scd_type: int = 1
    # So long a row that is older than its key's removal is held back.
    tombstone_life_s: float = 7 * 24 * 3600.0

    @property
    def upserted(self) -> TableSink | None:
        return self if self.mode == "upsert" else None

    @property
    def named_columns(self) -> tuple[str, ...]:
        return self.keys


@dataclass(frozen=True, kw_only=True)
class CurrentTableSink(TableSink):
    """A directory of Parquet that always holds the latest row of each key."""

    path: str
    mode: Mode = "upsert"


@dataclass(frozen=True, kw_only=True)
class JdbcSink(TableSink):
    url: str
    table: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class DeltaSink(TableSink):
    path: str
    partition_by: tuple[str, ...] = ()

    @property
    def named_columns(self) -> tuple[str, ...]:
        return (*self.keys, *self.partition_by)


@dataclass(frozen=True)
class Case:
    """A test of the file's own: each given file is one micro-batch of its source."""

    name: str
    place: Place
    given: Mapping[str, tuple[Path, ...]]
    expect: Mapping[str, Path]


@dataclass(frozen=True)
class Restarts:
    """How often a failing query is started again before a batch succeeds, and how soon."""

    max: int = 5
    backoff_s: float = 1.0
    backoff_s_max: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    name: str
    file: Path
    bootstrap: str
    sources: Mapping[str, Source]
    views: Mapping[str, View]
    sinks: Mapping[str, Sink]
    tests: Mapping[str, Case]
    # Settings of Kafka's clients without "kafka.": security.protocol, sasl.jaas.config, …
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Settings of the Spark session.
    spark: Mapping[str, str] = field(default_factory=dict)
    # How often batches begin ("10 seconds"); None: as soon as the last one is done.
    trigger: str | None = None
    restarts: Restarts = Restarts()
    # What must never be printed: values of variables and keys that look like secrets.
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
