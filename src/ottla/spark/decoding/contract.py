"""What both decoders agree on: how batches are described to them, and when an Arrow batch is full.

A *span* is one opened record batch: eight integers that say where its records lie in a buffer and
what its header adds to each of them. Decoders believe nothing of it but its two ends.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.spark.columns import ARROW, HEADERS
from ottla.types import TopicPartition
from ottla.wire.schema import Buffer

# An Arrow batch ends before the row that would lead past one of these; any row fits alone.
ROWS_MAX: Final = 50_000
BYTES_MAX: Final = 16 * 1024 * 1024

# The fields of a span, in order.
SPAN_FIELDS: Final = 8
BEGIN, STOP, COUNT, BASE_OFFSET, LAST_DELTA, TIMESTAMP, HAS_DELTAS, TIMESTAMP_TYPE = range(8)

# Milliseconds become microseconds in 64 bits.
TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
TIMESTAMP_MS_MIN: Final = -TIMESTAMP_MS_MAX

# The last shift of a variable-length number that has a place in 64 bits.
SHIFT_MAX: Final = 63

# What the two offsets of a header's name and value take.
HEADER_BYTES: Final = 8

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]

_FIXED_BYTES: Final = {
    "key": 4,
    "value": 4,
    "topic": 4,
    "partition": 4,
    "offset": 8,
    "timestamp": 8,
    "timestampType": 4,
    HEADERS: 4,
}
# Where Java's reading of UTF-8 differs from Python's: a surrogate is one error, not three.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\ufffd".encode()


class DamagedRecord(Exception):
    """A span does not hold the records that it claims; `span` counts within one call."""

    def __init__(self, span: int, reason: str) -> None:
        super().__init__(reason)
        self.span = span


class TimestampTooLarge(Exception):
    """A timestamp that has no microseconds; Spark's own connector fails on it too."""

    def __init__(self, span: int) -> None:
        super().__init__("a timestamp that has no microseconds in 64 bits")
        self.span = span


class Wanted(NamedTuple):
    """What rows to make, and of which columns."""

    partition: TopicPartition
    schema: pa.Schema
    start: int
    end: int

    def has(self, column: str) -> bool:
        return column in self.schema.names

    @property
    def row_bytes(self) -> int:
        """What a row takes before its key, value and headers."""
        text = len(self.partition.topic.encode()) if self.has("topic") else 0
        return text + sum(_FIXED_BYTES[name] for name in self.schema.names)


class RowDecoder(Protocol):
    """Gathers rows over many calls; yields Arrow batches as they become full."""

    def add(self, data: Buffer, spans: array[int]) -> Iterator[pa.RecordBatch]: ...

    def finish(self) -> Iterator[pa.RecordBatch]: ...


def check_spans(spans: Longs, data_bytes: int) -> None:
    """Spans lie within their data: the one thing that no decoder looks at again."""
    table = spans.reshape(-1, SPAN_FIELDS)
    begins, stops = table[:, BEGIN], table[:, STOP]
    if np.any(begins < 0) or np.any(begins > stops) or np.any(stops > data_bytes):
        raise ValueError(f"a span lies outside of {data_bytes} bytes")


class ConstantColumns:
    """Topic and partition, made once and cut to length: all batches share their memory."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._columns: dict[str, pa.Array] = {}

    def take(self, name: str, rows: int) -> pa.Array:
        column = self._columns.get(name)
        if column is None or len(column) < rows:
            column = self._columns[name] = self._make(name, max(rows, min(2 * rows, ROWS_MAX)))
        return column.slice(0, rows)

    def _make(self, name: str, rows: int) -> pa.Array:
        partition = self._wanted.partition
        value = partition.topic if name == "topic" else partition.partition
        return pa.repeat(pa.scalar(value, ARROW[name]), rows)


def assemble(schema: pa.Schema, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def fixed_array(name: str, values: npt.NDArray[Any]) -> pa.Array:
    """A column of numbers over the memory of `values`."""
    return pa.Array.from_buffers(ARROW[name], len(values), [None, pa.py_buffer(values)])


def headers_array(offsets: Ints, names: pa.Array, values: pa.Array) -> pa.Array:
    """The headers column: a message without any has null, as in Spark's own connector."""
    rows = len(offsets) - 1
    valid, nulls = bitmap(offsets[1:] != offsets[:-1])
    items = pa.StructArray.from_arrays([as_text(names), values], fields=_header_fields())
    return pa.Array.from_buffers(
        ARROW[HEADERS], rows, [valid, pa.py_buffer(offsets)], nulls, children=[items]
    )


def _header_fields() -> Sequence[pa.Field]:
    header = ARROW[HEADERS].value_type
    return [header.field(at) for at in range(header.num_fields)]


def bitmap(valid: npt.NDArray[np.bool_] | Bytes) -> tuple[pa.Buffer | None, int]:
    """Arrow's validity of a column, none when all of it is, and the number of nulls."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    if nulls == 0:
        return None, 0
    return pa.py_buffer(np.packbits(valid, bitorder="little")), nulls


def as_text(names: pa.Array) -> pa.Array:
    """Names of headers as strings; bytes that are no UTF-8 are replaced as Java does it."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([java_text(name.as_py()) for name in names], pa.string())


def java_text(data: bytes) -> str:
    """`new String(data, UTF_8)`: what cannot be read becomes U+FFFD, never an error."""
    return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")
