"""The columns of a read, as Arrow and as Spark spell them: those of Spark's own Kafka connector.

PySpark compares the schema of what a task yields with the declared one and drops a task for any
difference, so there is one constant for each column, and everything is built from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

HEADERS: Final = "headers"

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

ARROW: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", _HEADER)),
}

_SPARK: Final[dict[str, str]] = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    HEADERS: "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}

# All that can be asked for, in the connector's order, and what is read by default.
READ_COLUMNS: Final = tuple(ARROW)
DEFAULT_COLUMNS: Final = tuple(name for name in READ_COLUMNS if name != HEADERS)


def arrow_schema(columns: Sequence[str] = DEFAULT_COLUMNS) -> pa.Schema:
    """The schema of every Arrow batch of a read, in the order of `columns`."""
    return pa.schema([pa.field(name, ARROW[name]) for name in checked(columns)])


def spark_schema(columns: Sequence[str] = DEFAULT_COLUMNS) -> str:
    """The same as DDL, for `DataSource.schema()`."""
    return ", ".join(f"{name} {_SPARK[name]}" for name in checked(columns))


def checked(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns, each known and named once; ValueError with one line when they are not."""
    known = ", ".join(READ_COLUMNS)
    if not columns:
        raise ValueError(f"a read needs at least one column of {known}")
    for at, name in enumerate(columns):
        if name not in ARROW:
            raise ValueError(f"there is no column {name!r}; there are {known}")
        if name in columns[:at]:
            raise ValueError(f"column {name!r} is named twice")
    return tuple(columns)
