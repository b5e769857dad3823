"""The statements of a JDBC sink, in PostgreSQL's words. Text only: nothing here runs them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# In the staging table columns have numbers, so that no name of theirs gets in the way.
ROW: Final = "r"
DELETED: Final = "d"

BATCHES: Final = "ottla_batches"
SEQUENCES_PREFIX: Final = "ottla_sequences_"
STAGING_PREFIX: Final = "ottla_staging_"

_TYPES: Final[Mapping[str, str]] = {
    "boolean": "boolean", "tinyint": "smallint", "smallint": "smallint", "int": "integer",
    "bigint": "bigint", "float": "real", "double": "double precision", "string": "text",
    "binary": "bytea", "date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp",
}  # fmt: skip


_WITH_LENGTH: Final = re.compile(r"^character( varying)?\([0-9]+\)")


def sql_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def column_type(kind: DataType) -> str | None:
    """None where PostgreSQL has no place for it."""
    from pyspark.sql.types import ArrayType, CharType, DecimalType, VarcharType

    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, ArrayType):
        inner = None if isinstance(kind.elementType, ArrayType) else column_type(kind.elementType)
        return inner and f"{inner}[]"
    if isinstance(kind, CharType | VarcharType):
        return "text"
    return _TYPES.get(kind.simpleString())


def cast_type(kind: str) -> str:
    """A column's type for what is put into it.

    A cast to a text of some length cuts what is longer, without a word; the column refuses it.
    """
    return _WITH_LENGTH.sub(lambda found: "character varying" if found[1] else "bpchar", kind)


def table_parts(name: str) -> list[str]:
    """`schema.table` by its dot; double quotes keep a dot in a name."""
    parts, word, quoted = [], "", False
    for char in name:
        if char == '"':
            quoted = not quoted
        elif char == "." and not quoted:
            parts.append(word)
            word = ""
        else:
            word += char
    return [*parts, word]


@dataclass(frozen=True)
class Target:
    """A table as the database has it: its full name, its columns and their types (`cast_type`)."""

    schema: str
    table: str
    types: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{sql_name(self.schema)}.{sql_name(self.table)}"

    def column(self, wanted: str) -> str | None:
        """PostgreSQL writes names in lower case that were not quoted when the table was made."""
        for name in (wanted, wanted.lower()):
            if name in self.types:
                return name
        return None


@dataclass(frozen=True)
class Sequences:
    """The table beside a target that keeps, for each key, where it stands in its sequence.

    Its columns are k0, k1, … for the keys, q0, q1, … for the sequence, and `deleted_at`, which is
    null while the key has a row.
    """

    target: Target
    # The columns of the target that are the keys.
    keys: Sequence[str]
    # The columns of the sequence and their types, which PostgreSQL compares as Spark does.
    by: Mapping[str, str]

    @property
    def table(self) -> str:
        whose = f"{self.target.schema}\0{self.target.table}".encode()
        return SEQUENCES_PREFIX + hashlib.sha256(whose).hexdigest()[:12]

    @property
    def name(self) -> str:
        return f"{sql_name(self.target.schema)}.{self.table}"

    @property
    def types(self) -> list[str]:
        """Of q0, q1, …: Spark orders text by its bytes."""
        return [f'{one} COLLATE "C"' if one == "text" else one for one in self.by.values()]

    @property
    def numbers(self) -> str:
        return ", ".join(f"q{at}" for at in range(len(self.by)))

    def describe(self) -> str:
        """What it was made for, kept as its comment."""
        by = ", ".join(f"{name} {kind}" for name, kind in self.by.items())
        keys = ", ".join(f"{name} {self.target.types[name]}" for name in self.keys)
        return f"Ottla: {self.target.schema}.{self.target.table}, keys {keys}, sequence by {by}"

    def unique(self) -> Sequence[str]:
        return [f"k{at}" for at in range(len(self.keys))]

    def create(self) -> list[str]:
        keys = [f"k{at} {self.target.types[one]}" for at, one in enumerate(self.keys)]
        numbers = [f"q{at} {kind} NOT NULL" for at, kind in enumerate(self.types)]
        primary = f"PRIMARY KEY ({', '.join(self.unique())})"
        words = [*keys, *numbers, "deleted_at timestamptz", primary]
        comment = self.describe().replace("'", "''")
        return [
            f"CREATE TABLE {self.name} ({', '.join(words)})",
            f"CREATE INDEX ON {self.name} (deleted_at) WHERE deleted_at IS NOT NULL",
            f"COMMENT ON TABLE {self.name} IS '{comment}'",
        ]

    def told_by_rows(self) -> str | None:
        """Fills the table, when it is new, from a target whose own columns tell the sequence."""
        columns = {name: self.target.column(name) for name in self.by}
        own = [sql_name(column) for column in columns.values() if column is not None]
        if len(own) < len(columns):
            return None
        keys = [*map(sql_name, self.keys)]
        numbers = [
            f"CAST({one} AS {kind})" for one, kind in zip(own, self.by.values(), strict=True)
        ]
        there = " AND ".join(f"{one} IS NOT NULL" for one in (*keys, *own))
        return (
            f"INSERT INTO {self.name} ({', '.join(self.unique())}, {self.numbers}) "
            f"SELECT {', '.join([*keys, *numbers])} FROM {self.target.name} WHERE {there} "
            "ON CONFLICT DO NOTHING"
        )

    def forget(self, life_s: float) -> str:
        """Tombstones that have lived their time."""
        return f"DELETE FROM {self.name} WHERE deleted_at < now() - interval '{life_s:f} seconds'"


@dataclass(frozen=True)
class Merge:
    """Rows of a staging table into their table; columns in the order of c0, c1, …"""

    target: Target
    staging: str
    columns: Sequence[str]
    keys: Sequence[str] = ()
    # Keys of other types than in the table: two of them may become one.
    has_cast_keys: bool = False

    def insert(self) -> str:
        """All rows; with keys, those that are not deleted, over others."""
        names = ", ".join(map(sql_name, self.columns))
        values = ", ".join(map(self.value, self.columns))
        text = (
            f"INSERT INTO {self.target.name} AS t ({names}) SELECT {values} FROM {self.staging} s"
        )
        if not self.keys:
            return f"{text} ORDER BY s.{ROW}"
        others = [sql_name(one) for one in self.columns if one not in self.keys]
        sets = ", ".join(f"{one} = excluded.{one}" for one in others)
        on = f"ON CONFLICT ({', '.join(map(sql_name, self.keys))})"
        do = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
        return f"{text} WHERE NOT s.{DELETED} {on} {do}"

    def delete(self) -> str:
        same = " AND ".join(f"t.{sql_name(one)} = {self.value(one)}" for one in self.keys)
        return (
            f"DELETE FROM {self.target.name} AS t USING {self.staging} s "
            f"WHERE s.{DELETED} AND {same}"
        )

    def hold_back(self, sequences: Sequences) -> list[str]:
        """Leaves in the staging table what is newer than what is stored."""
        same = " AND ".join(f"t.k{at} = {self.value(one)}" for at, one in enumerate(sequences.keys))
        stored, new = _row("t", sequences), _row("s", sequences)
        older = f"DELETE FROM {self.staging} s USING {sequences.name} t WHERE {same} AND "
        return [older + f"{stored} > {new}"]

    def hold_back_places(self, sequences: Sequences) -> list[str]:
        """As `hold_back`, for places in a topic (q0: time, q1: partition, q2: offset).

        Of one partition the greatest time up to an offset counts, in stored rows as in new ones;
        and the staging table has a row for each partition of a key (`leave_one`).
        """
        same = " AND ".join(f"t.k{at} = {self.value(one)}" for at, one in enumerate(sequences.keys))
        at_least = "SET q0 = greatest(s.q0, t.q0)"
        return [
            f"UPDATE {sequences.name} t {at_least} FROM {self.staging} s "
            f"WHERE {same} AND t.q1 = s.q1 AND s.q2 < t.q2",
            f"UPDATE {self.staging} s {at_least} FROM {sequences.name} t "
            f"WHERE {same} AND t.q1 = s.q1",
            *self.hold_back(sequences),
        ]

    def leave_one(self, sequences: Sequences | None) -> str:
        """Of rows whose keys are the same to the database, which may not be so to Spark."""
        twins = " AND ".join(f"{self.value(one)} = {self.value(one, 'b')}" for one in self.keys)
        numbers = [*(f"q{at}" for at in range(len(sequences.by) if sequences else 0)), ROW]
        newer, older = (", ".join(f"{row}.{one}" for one in numbers) for row in ("b", "s"))
        return (
            f"DELETE FROM {self.staging} s USING {self.staging} b "
            f"WHERE {twins} AND ({newer}) > ({older})"
        )

    def remember(self, sequences: Sequences) -> str:
        """The sequences of what is merged."""
        keys = sequences.unique()
        values = ", ".join(self.value(one) for one in sequences.keys)
        rest = [f"q{at}" for at in range(len(sequences.by))] + ["deleted_at"]
        sets = ", ".join(f"{one} = excluded.{one}" for one in rest)
        return (
            f"INSERT INTO {sequences.name} ({', '.join([*keys, *rest])}) SELECT {values}, "
            f"{sequences.numbers}, CASE WHEN s.{DELETED} THEN now() END FROM {self.staging} s "
            f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {sets}"
        )

    def value(self, name: str, row: str = "s") -> str:
        """In the type of its column: text is also how uuid, json and enumerations come."""
        return f"CAST({row}.c{self.columns.index(name)} AS {self.target.types[name]})"


def _row(table: str, sequences: Sequences) -> str:
    numbers = [f"{table}.q{at}" for at in range(len(sequences.by))]
    return f"({', '.join(numbers)})" if len(numbers) > 1 else numbers[0]


def create_batches(schema: str) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {sql_name(schema)}.{BATCHES} (pipeline text, sink text, "
        "query text, batch text NOT NULL, at timestamptz NOT NULL DEFAULT now(), "
        "PRIMARY KEY (pipeline, sink, query))"
    )


def last_batch(schema: str) -> str:
    return (
        f"SELECT batch FROM {sql_name(schema)}.{BATCHES} "
        "WHERE pipeline = ? AND sink = ? AND query = ? FOR UPDATE"
    )


def record_batch(schema: str) -> str:
    return (
        f"INSERT INTO {sql_name(schema)}.{BATCHES} (pipeline, sink, query, batch) "
        "VALUES (?, ?, ?, ?) "
        "ON CONFLICT (pipeline, sink, query) DO UPDATE SET batch = excluded.batch, at = now()"
    )


def create_staging(
    name: str, types: Sequence[str], *, with_deletes: bool, sequence: Sequence[str] = ()
) -> str:
    """Not logged: a crash of the database empties it, and the batch runs again.

    The primary key is the row's place in the batch, so a task that Spark has run twice fails and
    does not double its rows.
    """
    columns = [f"{ROW} bigint PRIMARY KEY", *(f"c{at} {kind}" for at, kind in enumerate(types))]
    if with_deletes:
        columns.append(f"{DELETED} boolean NOT NULL")
    columns += [f"q{at} {kind}" for at, kind in enumerate(sequence)]
    return f"CREATE UNLOGGED TABLE {name} ({', '.join(columns)})"


def create_target(name: str, columns: Mapping[str, str], key: Sequence[str]) -> str:
    """What a person may run who has no table yet."""
    words = [f"{sql_name(column)} {kind}" for column, kind in columns.items()]
    if key:
        words.append(f"PRIMARY KEY ({', '.join(map(sql_name, key))})")
    return f"CREATE TABLE {name} ({', '.join(words)})"
