"""Every key of a pipeline file once: its type, default and meaning, and which belong together.

The checks (checking.py), the JSON Schema (json_schema.py) and the tables of
docs/reference/pipeline.md (reference.py) are drawn from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

# ---------------------------------------------------------------------------- what a value can be


@dataclass(frozen=True)
class Text:
    """Some text; `words` says what it is, `pattern` how it looks."""

    words: str = "text"
    pattern: str | None = None
    example: str | None = None
    # A password, which is taken to the letter.
    may_be_empty: bool = False
    # Its errors have lines and columns: it is kept with where it stands.
    is_sql: bool = False


@dataclass(frozen=True)
class Whole:
    least: int
    most: int = 2**31 - 1


@dataclass(frozen=True)
class Version:
    """The version of the file's language."""

    number: int = 1


@dataclass(frozen=True)
class Flag:
    pass


@dataclass(frozen=True)
class Choice:
    values: tuple[str, ...]


@dataclass(frozen=True)
class Duration:
    """As Spark writes them: `10 seconds`, `1 hour 30 minutes`."""


@dataclass(frozen=True)
class Start:
    """Where a topic is begun: earliest, latest, or a time."""


@dataclass(frozen=True)
class Texts:
    """One text or number, or a list of them."""

    item: Text | Whole
    least: int = 1


@dataclass(frozen=True)
class Settings:
    """Names that others have given, and values that are handed on as text."""

    owner: str


@dataclass(frozen=True)
class Fields:
    keys: tuple[Key, ...]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys)

    def names(self) -> tuple[str, ...]:
        return tuple(key.name for key in self.keys)


@dataclass(frozen=True)
class Variant:
    """One kind of source, view or sink, told by the one of `told_by` that is there."""

    title: str
    told_by: tuple[str, ...]
    fields: Fields


@dataclass(frozen=True)
class Variants:
    words: str
    variants: tuple[Variant, ...]

    def told_by(self) -> tuple[str, ...]:
        return tuple(name for variant in self.variants for name in variant.told_by)


@dataclass(frozen=True)
class Either:
    """A plain value or a list in short, or a mapping for more."""

    short: Text | Choice | Texts
    long: Fields | Variants | Named


@dataclass(frozen=True)
class Named:
    """A mapping whose names the author chooses."""

    words: str
    pattern: str
    item: Text | Texts | Fields | Variants | Either
    hint: str = "use letters, digits and _, a letter first"


Kind: TypeAlias = (
    Text | Whole | Version | Flag | Choice | Duration | Start | Texts | Settings
    | Fields | Variants | Either | Named
)  # fmt: skip


@dataclass(frozen=True)
class When:
    """The value of another key of the same mapping is one of these."""

    key: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key}: {' or '.join(self.values)}"


@dataclass(frozen=True)
class Key:
    name: str
    kind: Kind
    doc: str
    required: bool = False
    default: str | None = None
    needed_when: When | None = None
    allowed_when: When | None = None
    # What it was called: people are told the new word.
    formerly: str | None = None


# ------------------------------------------------------------------------------- words and shapes

NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
PIPELINE_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
# A test may expect the bad records of a source, by its name with this after it.
BAD_SUFFIX: Final = ".bad"
EXPECTED_NAME: Final = rf"{NAME}({re.escape(BAD_SUFFIX)})?"
CASE_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_. -]*"
TOPIC_NAME: Final = r"[a-zA-Z0-9._-]{1,249}"
_ADDRESS: Final = r"([A-Za-z_]+://)?(\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]+):[0-9]{1,5}"
ADDRESSES: Final = rf"{_ADDRESS}(\s*,\s*{_ADDRESS})*"
FUNCTION: Final = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
_SPAN: Final = r"[0-9]{1,9}\s+(microsecond|millisecond|second|minute|hour|day|week)s?"
DURATION: Final = rf"{_SPAN}(\s+{_SPAN})*"
SCHEMA_ID: Final = r"[0-9]{1,9}|1[0-9]{9}|20[0-9]{8}"
JDBC_URL: Final = r"jdbc:[a-z0-9]+:.+"

BOOTSTRAP: Final = "${OTTLA_BOOTSTRAP:-127.0.0.1:9092}"

TOPIC_FORMATS: Final = ("json", "avro", "string", "bytes")
FILE_FORMATS: Final = ("json", "csv", "parquet", "avro")

_TOPIC: Final = Text("a topic's name", TOPIC_NAME, "orders")
_COLUMN: Final = Text("a column's name", None, "shop")
_PATH: Final = Text("a path", None, "out/")
_SCHEMA_IDS: Final = Either(
    Texts(Whole(0)),
    Named("schema", SCHEMA_ID, Text("an Avro schema"), "use the id that the registry has given it"),
)
_SQL: Final = Text("a SELECT", None, "SELECT * FROM orders", is_sql=True)
_UPSERT: Final = When("mode", ("upsert",))
_STREAM: Final = When("read", ("stream",))
_TYPED: Final = When("format", ("json", "avro"))
_AVRO: Final = When("format", ("avro",))

_WATERMARK: Final = Key(
    "watermark",
    Fields(
        (
            Key("column", _COLUMN, "The column with the rows' own time.", required=True),
            Key("delay", Duration(), "How late a row may come.", required=True),
        )
    ),
    "How late rows may come, by the time in one of their columns: windows close that much later.",
)
_DEDUPLICATE: Final = Key(
    "deduplicate",
    Texts(_COLUMN),
    "Of rows that agree in these columns only the first counts; within the watermark's delay, "
    "where there is one.",
)
_BAD_RECORDS: Final = Key(
    "bad_records",
    Either(
        Choice(("fail", "drop")),
        Fields((Key("topic", _TOPIC, "Where they go, with the reason in headers.", True),)),
    ),
    "What becomes of a record that does not parse: `fail` ends the run, `drop` counts it, "
    "`{topic: …}` sends it there, for `ottla pipeline repair`.",
    default="fail",
)


def _options(doc: str) -> Key:
    return Key("options", Settings("options"), doc)


def _read(doc: str) -> Key:
    return Key("read", Choice(("stream", "table")), doc, default="stream")


def _only_stream(key: Key) -> Key:
    return Key(key.name, key.kind, key.doc, default=key.default, allowed_when=_STREAM)


_TABLE_OR_STREAM: Final = "`stream` takes what is new with each batch, `table` is all of it."

# ---------------------------------------------------------------------------------------- sources

_TOPIC_SOURCE: Final = Fields(
    (
        Key("topic", _TOPIC, "The topic to read."),
        Key("topics", Texts(_TOPIC), "Several topics of one shape."),
        Key("start", Start(), "`earliest`, `latest` or a time (`2026-01-31T12:00:00Z`): where to "
            "begin. Counts only where there is no checkpoint yet.", default="earliest"),
        Key("format", Choice(TOPIC_FORMATS), "What a message's value is.", default="json"),
        Key("schema", Text("a schema", None, "id string, amount decimal(10,2)"),
            "The value's fields: Spark's DDL for json, an Avro schema (JSON) for avro.",
            needed_when=_TYPED, allowed_when=_TYPED),
        Key("key", Fields((
            Key("format", Choice(TOPIC_FORMATS), "What a message's key is.", default="string"),
            Key("schema", Text("a schema"), "As the value's.",
                needed_when=_TYPED, allowed_when=_TYPED),
            Key("schema_ids", _SCHEMA_IDS, "As the value's.", allowed_when=_AVRO),
        )), "How to read the key, which SQL sees as `_key`."),
        Key("framing", Choice(("none", "confluent")), "`confluent` takes the five bytes of a "
            "schema registry off Avro keys and values.", default="none"),
        Key("schema_ids", _SCHEMA_IDS, "With `framing: confluent`: the ids that the registry has "
            "given to schemas which fit this one; or a mapping of ids and their own Avro schemas, "
            "from which the fields of this one are taken. A message with another id is a bad "
            "record.",
            allowed_when=_AVRO),
        Key("headers", Flag(), "Whether SQL sees the column `_headers`.", default="false"),
        Key("max_rows_per_batch", Whole(1, 2**63 - 1), "Messages per batch at most."),
        _WATERMARK,
        _DEDUPLICATE,
        _BAD_RECORDS,
        _options("Further options of `format(\"ottla\")`, see docs/spark.md."),
    )
)  # fmt: skip

_FILE_SOURCE: Final = Fields(
    (
        Key("files", Text("a path or pattern", None, "in/*.csv"),
            "A directory, or a pattern of files."),
        Key("format", Choice(FILE_FORMATS), "What the files are; json is one object per line.",
            required=True),
        Key("schema", Text("a schema", None, "id string, amount decimal(10,2)"),
            "Their columns, in Spark's DDL. Parquet and Avro files know their own.",
            needed_when=When("format", ("json", "csv"))),
        _read(_TABLE_OR_STREAM),
        _only_stream(Key("max_files_per_batch", Whole(1), "New files per batch at most.")),
        _only_stream(_WATERMARK),
        _only_stream(_DEDUPLICATE),
        _BAD_RECORDS,
        _options("Options of Spark's reader of that format: `header: true`."),
    )
)  # fmt: skip

_LOGIN: Final = (
    Key("user", Text("a user's name"), "Who logs in."),
    Key("password", Text("a password", None, "${PGPASSWORD}", may_be_empty=True),
        "Take it from a variable; it is never printed."),
)  # fmt: skip
_JDBC: Final = Key(
    "jdbc",
    Text("a JDBC URL", JDBC_URL, "jdbc:postgresql://localhost/shop"),
    "The database; its driver comes by `--packages`.",
)

_JDBC_SOURCE: Final = Fields(
    (
        _JDBC,
        Key("table", Text("a table's name"), "The table to read, anew with each batch.", True),
        *_LOGIN,
        Key("schema", Text("a schema"), "Its columns in Spark's DDL, for `test` and `validate` "
            "without the database."),
        _options("Options of Spark's JDBC reader: `fetchsize: 1000`."),
    )
)  # fmt: skip

_DELTA_SOURCE: Final = Fields(
    (
        Key("delta", _PATH, "The table's directory; its jars come by `--packages`."),
        _read(_TABLE_OR_STREAM),
        Key("schema", Text("a schema"), "Its columns in Spark's DDL, for `test` and `validate` "
            "without the table."),
        _only_stream(_WATERMARK),
        _only_stream(_DEDUPLICATE),
        _options("Options of Delta's reader: `startingVersion: 0`."),
    )
)  # fmt: skip

_RATE_SOURCE: Final = Fields(
    (
        Key("rate", Whole(1), "Rows per second, with the columns `timestamp` and `value`."),
        _WATERMARK,
        _DEDUPLICATE,
        _options("Options of Spark's rate source."),
    )
)

SOURCES: Final = Variants(
    "source",
    (
        Variant("topic", ("topic", "topics"), _TOPIC_SOURCE),
        Variant("files", ("files",), _FILE_SOURCE),
        Variant("jdbc", ("jdbc",), _JDBC_SOURCE),
        Variant("delta", ("delta",), _DELTA_SOURCE),
        Variant("rate", ("rate",), _RATE_SOURCE),
    ),
)

# ------------------------------------------------------------------------------------------ views

VIEWS: Final = Either(
    _SQL,
    Variants(
        "view",
        (
            Variant("sql", ("sql",), Fields((
                Key("sql", _SQL, "A SELECT over sources and other views."),
                _WATERMARK, _DEDUPLICATE,
            ))),
            Variant("file", ("file",), Fields((
                Key("file", Text("a path", None, "totals.sql"), "A file with one SELECT; variables "
                    "are not filled in there."),
                _WATERMARK, _DEDUPLICATE,
            ))),
            Variant("python", ("python",), Fields((
                Key("python", Text("module:function", FUNCTION, "totals:per_shop"), "A function "
                    "whose parameters are named after sources and views; it returns a DataFrame."),
                _WATERMARK, _DEDUPLICATE,
            ))),
        ),
    ),
)  # fmt: skip

# ------------------------------------------------------------------------------------------ sinks

_FROM: Final = Key("from", Text("a source's or view's name", NAME), "What is written.", True)
_KEYS: Final = Key(
    "keys",
    Texts(_COLUMN),
    "The columns that name a row.",
    needed_when=_UPSERT,
    allowed_when=_UPSERT,
    formerly="key",
)
_SEQUENCE_BY: Final = Key(
    "sequence_by",
    _COLUMN,
    "The column that tells which of two rows of a key is newer. Without it `_timestamp`, "
    "`_partition` and `_offset` of one topic: within a partition the offset, across partitions "
    "the time.",
    allowed_when=_UPSERT,
    formerly="order",
)
_APPLY_AS_DELETES: Final = Key(
    "apply_as_deletes",
    Text("a condition", None, "_tombstone"),
    "A condition in SQL: such a row removes its key. Without it `_tombstone`, where the rows have "
    "it.",
    allowed_when=_UPSERT,
    formerly="delete",
)
_TOMBSTONE_LIFE: Final = Key(
    "tombstone_life",
    Duration(),
    "So long a removed key is remembered, and rows that are older than its removal are held back.",
    default="7 days",
    allowed_when=_UPSERT,
)
_SCD_TYPE: Final = Key(
    "stored_as_scd_type",
    Whole(1, 2),
    "What is kept of each key: 1 its latest row, 2 all its rows, with `__START_AT` and `__END_AT`: "
    "from where to where in the sequence each holds.",
    default="1",
    allowed_when=_UPSERT,
)
_UPSERTS: Final = (_KEYS, _SEQUENCE_BY, _APPLY_AS_DELETES, _TOMBSTONE_LIFE)
_PARTITION_BY: Final = Key("partition_by", Texts(_COLUMN), "Columns that become directories.")


def _mode(doc: str, *values: str) -> Key:
    return Key("mode", Choice(values), doc, default=values[0])


def _always(keys: tuple[Key, ...]) -> Iterator[Key]:
    """For a sink that has no other mode."""
    for key in keys:
        needed = key.needed_when is not None
        yield replace(key, required=needed, needed_when=None, allowed_when=None)


_TOPIC_SINK: Final = Fields(
    (
        _FROM,
        Key("topic", _TOPIC, "The topic to write."),
        Key("key", Texts(_COLUMN), "The columns of the message's key: one as its text, several as "
            "JSON."),
        Key("format", Choice(TOPIC_FORMATS), "What the value becomes: all columns as json or avro, "
            "or the one column `value` as string or bytes.", default="json"),
        Key("schema", Text("a schema"), "The Avro schema (JSON) of the value.",
            needed_when=_AVRO, allowed_when=_AVRO),
        Key("headers", _COLUMN, "The column with the message's headers."),
        _mode("What a batch writes: new rows, changed rows, or all rows of an aggregation.",
              "append", "update", "complete"),
        _options("Further options of `format(\"ottla\")`, see docs/spark.md."),
    )
)  # fmt: skip

_FILE_SINK: Final = Fields(
    (
        _FROM,
        Key("files", _PATH, "The directory to write."),
        Key("format", Choice(FILE_FORMATS), "What the files are.", required=True),
        _PARTITION_BY,
        _mode("Files only grow.", "append"),
        _options("Options of Spark's writer of that format."),
    )
)

_CURRENT_TABLE_SINK: Final = Fields(
    (
        _FROM,
        Key("current_table", _PATH, "A directory of Parquet with the latest row of each key."),
        *_always((*_UPSERTS, _SCD_TYPE)),
        _mode("Implied.", "upsert"),
    )
)

_JDBC_SINK: Final = Fields(
    (
        _FROM,
        _JDBC,
        Key("table", Text("a table's name"), "The table to write.", required=True),
        *_LOGIN,
        _mode("`upsert` keeps the latest row of each key.", "append", "upsert"),
        *_UPSERTS,
        _SCD_TYPE,
        _options("Options of Spark's JDBC writer."),
    )
)

_DELTA_SINK: Final = Fields(
    (
        _FROM,
        Key("delta", _PATH, "The table's directory; its jars come by `--packages`."),
        _mode("`complete` replaces the table with each batch, `upsert` keeps the latest row of "
              "each key.", "append", "complete", "upsert"),
        *_UPSERTS,
        _PARTITION_BY,
        _options("Options of Delta's writer."),
    )
)  # fmt: skip

SINKS: Final = Variants(
    "sink",
    (
        Variant("topic", ("topic",), _TOPIC_SINK),
        Variant("files", ("files",), _FILE_SINK),
        Variant("current_table", ("current_table",), _CURRENT_TABLE_SINK),
        Variant("jdbc", ("jdbc",), _JDBC_SINK),
        Variant("delta", ("delta",), _DELTA_SINK),
    ),
)

# --------------------------------------------------------------------------------- tests, the rest

TESTS: Final = Fields(
    (
        Key("given", Named("source", NAME, Texts(_PATH, least=0)), "For each source its files; "
            "each is one batch. A source that is not named has no rows.", required=True),
        Key("expect", Named("view", EXPECTED_NAME, _PATH), "For each view the file with the rows "
            "it has given in the end; `orders.bad` stands for the bad records of a source.",
            required=True),
    )
)  # fmt: skip

RESTARTS: Final = Fields(
    (
        Key("max", Whole(0, 1_000_000), "So often in a row, until a batch succeeds.", default="5"),
        Key("backoff", Duration(), "The first pause; each is twice the last.", default="1 second"),
        Key("max_backoff", Duration(), "The longest pause.", default="1 minute"),
    )
)

PIPELINE: Final = Fields(
    (
        Key("version", Version(), "The version of this language.", required=True),
        Key("name", Text("a name", PIPELINE_NAME, "shop-totals"), "The pipeline's name: in lines, "
            "metrics and checkpoints.", required=True),
        Key("bootstrap", Text("host:port, several with commas", ADDRESSES, "127.0.0.1:9092"),
            "The brokers to begin with.", default=BOOTSTRAP),
        Key("sources", Named("source", NAME, SOURCES), "What is read.", required=True),
        Key("views", Named("view", NAME, VIEWS), "What is made of it: SQL, or Python."),
        Key("sinks", Named("sink", NAME, SINKS), "What is written, each with a checkpoint of its "
            "own."),
        Key("tests", Named("test", CASE_NAME, TESTS), "What `ottla pipeline test` runs."),
        Key("trigger", Duration(), "How often batches begin; without it, as soon as the last one "
            "is done."),
        Key("restarts", RESTARTS, "How often a failing query is started again, and how soon."),
        Key("kafka", Settings("kafka"), "Settings of Kafka's clients: `security.protocol`, "
            "`sasl.jaas.config` …"),
        Key("spark", Settings("spark"), "Settings of the Spark session: "
            "`spark.sql.shuffle.partitions` …"),
    )
)  # fmt: skip
