"""The statements of a JDBC sink, in PostgreSQL's words. Text only: nothing here runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# In the staging table columns have numbers, so that no name of theirs gets in the way.
ROW: Final = "r"
DELETED: Final = "d"

BATCHES: Final = "ottla_batches"
STAGING_PREFIX: Final = "ottla_staging_"

_TYPES: Final[Mapping[str, str]] = {
    "boolean": "boolean", "tinyint": "smallint", "smallint": "smallint", "int": "integer",
    "bigint": "bigint", "float": "real", "double": "double precision", "string": "text",
    "binary": "bytea", "date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp",
}  # fmt: skip


def quote(name: str) -> str:
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
    """A table as the database has it: its full name, its columns and their types."""

    schema: str
    table: str
    types: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{quote(self.schema)}.{quote(self.table)}"

    def column(self, wanted: str) -> str | None:
        """PostgreSQL writes names in lower case that were not quoted when the table was made."""
        for name in (wanted, wanted.lower()):
            if name in self.types:
                return name
        return None


@dataclass(frozen=True)
class Merge:
    """Rows of a staging table into their table; columns in the order of c0, c1, …"""

    target: Target
    staging: str
    columns: Sequence[str]
    key: Sequence[str] = ()
    order: str | None = None

    def insert(self) -> str:
        """All rows; with a key, those that are not deleted, over older ones."""
        names = ", ".join(map(quote, self.columns))
        values = ", ".join(map(self._value, self.columns))
        text = (
            f"INSERT INTO {self.target.name} AS t ({names}) SELECT {values} FROM {self.staging} s"
        )
        if not self.key:
            return f"{text} ORDER BY s.{ROW}"
        sets = ", ".join(
            f"{quote(one)} = excluded.{quote(one)}" for one in self.columns if one not in self.key
        )
        on = f"ON CONFLICT ({', '.join(map(quote, self.key))})"
        if not sets:
            return f"{text} WHERE NOT s.{DELETED} {on} DO NOTHING"
        newer = (
            ""
            if self.order is None
            else f" WHERE {self._not_newer('excluded.' + quote(self.order))}"
        )
        return f"{text} WHERE NOT s.{DELETED} {on} DO UPDATE SET {sets}{newer}"

    def delete(self) -> str:
        same = " AND ".join(f"t.{quote(one)} = {self._value(one)}" for one in self.key)
        newer = "" if self.order is None else f" AND {self._not_newer(self._value(self.order))}"
        return (
            f"DELETE FROM {self.target.name} AS t USING {self.staging} s "
            f"WHERE s.{DELETED} AND {same}{newer}"
        )

    def _not_newer(self, new: str) -> str:
        assert self.order is not None
        stored = f"t.{quote(self.order)}"
        return f"({stored} IS NULL OR {stored} <= {new})"

    def _value(self, name: str) -> str:
        """In the type of its column: text is also how uuid, json and enumerations come."""
        return f"CAST(s.c{self.columns.index(name)} AS {self.target.types[name]})"


def create_batches(schema: str) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {quote(schema)}.{BATCHES} (pipeline text, sink text, "
        "query text, batch text NOT NULL, at timestamptz NOT NULL DEFAULT now(), "
        "PRIMARY KEY (pipeline, sink, query))"
    )


def last_batch(schema: str) -> str:
    return (
        f"SELECT batch FROM {quote(schema)}.{BATCHES} "
        "WHERE pipeline = ? AND sink = ? AND query = ? FOR UPDATE"
    )


def record_batch(schema: str) -> str:
    return (
        f"INSERT INTO {quote(schema)}.{BATCHES} (pipeline, sink, query, batch) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (pipeline, sink, query) DO UPDATE SET batch = excluded.batch, at = now()"
    )


def create_staging(name: str, types: Sequence[str], *, with_deletes: bool) -> str:
    """Not logged: a crash of the database empties it, and the batch runs again.

    The primary key is the row's place in the batch, so a task that Spark has run twice fails and
    does not double its rows.
    """
    columns = [f"{ROW} bigint PRIMARY KEY", *(f"c{at} {kind}" for at, kind in enumerate(types))]
    if with_deletes:
        columns.append(f"{DELETED} boolean NOT NULL")
    return f"CREATE UNLOGGED TABLE {name} ({', '.join(columns)})"


def create_target(name: str, columns: Mapping[str, str], key: Sequence[str]) -> str:
    """What a person may run who has no table yet."""
    words = [f"{quote(column)} {kind}" for column, kind in columns.items()]
    if key:
        words.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
    return f"CREATE TABLE {name} ({', '.join(words)})"
