"""The sink's columns: which there are, their types, and Arrow's buffers as numpy sees them.

Columns and types are those of Spark's Kafka sink (`KafkaWriter.validateQuery`): `value`, `key`,
`topic`, `partition` and `headers`; other columns are ignored. Everything that a kernel gets has
passed through here, so that no offset leads out of its buffer.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import OttlaError

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_NO_BYTES: Final = np.zeros(0, np.uint8)
_HEADERS_WANTED: Final = "array<struct<key: string, value: binary>>"


class CannotEncode(OttlaError):
    """Rows that cannot become messages; the message is one line for a person."""


class Column(NamedTuple):
    """Binary values in one buffer; a length of -1 is null."""

    data: Bytes
    starts: Numbers
    lengths: Numbers


class Headers(NamedTuple):
    """Row i has `counts[i]` headers, the first of which is number `starts[i]`."""

    starts: Numbers
    counts: Numbers
    keys: Column
    values: Column


class Places(NamedTuple):
    """Where in a schema the sink's columns are; -1 is not there."""

    value: int
    key: int
    topic: int
    partition: int
    headers: int


def find_columns(schema: pa.Schema, topic: str | None) -> Places:
    """Looks for the sink's columns and refuses what they cannot be."""
    value = _place(schema, "value", _is_text_or_bytes, "binary or string")
    if value < 0:
        written = {name.lower(): name for name in schema.names}
        near = get_close_matches("value", written, 1)
        found = ", ".join(schema.names) or "none"
        hint = f"; rename {written[near[0]]!r} if that is it" if near else ""
        raise CannotEncode(f"the column 'value' is missing (binary or string), found {found}{hint}")
    at_topic = -1 if topic is not None else _place(schema, "topic", _is_text, "string")
    if topic is None and at_topic < 0:
        raise CannotEncode(
            "no topic to write to: set the option 'topic', or add a column 'topic' (string)"
        )
    return Places(
        value,
        _place(schema, "key", _is_text_or_bytes, "binary or string"),
        at_topic,
        _place(schema, "partition", pa.types.is_int32, "int"),
        _place(schema, "headers", _is_headers, _HEADERS_WANTED),
    )


def _place(schema: pa.Schema, name: str, accepts: Any, wanted: str) -> int:
    places = schema.get_all_field_indices(name)
    if not places:
        return -1
    if len(places) > 1:
        raise CannotEncode(f"{len(places)} columns are called {name!r}, one is wanted")
    found = schema.field(places[0]).type
    if not accepts(found):
        raise CannotEncode(f"the column {name!r} is to be {wanted}, found {found}")
    return int(places[0])


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    kind = _plain(kind)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    kind = _plain(kind)
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_bytes(kind)


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    header = kind.value_type
    if not pa.types.is_struct(header) or [field.name for field in header] != ["key", "value"]:
        return False
    return _is_text(header.field(0).type) and _is_bytes(header.field(1).type)


def binary_column(array: pa.Array, name: str) -> Column:
    """The view of a column of text or bytes; a slice is looked at where it lies."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.cast(kind.value_type)
        kind = array.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        array = array.cast(pa.large_binary())
        kind = array.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    _, offsets, data = array.buffers()
    held = _NO_BYTES if data is None else np.frombuffer(data, np.uint8)
    starts, lengths = _ranges(array, offsets, wide, len(held), name)
    lengths[_nulls(array)] = -1
    return Column(held, starts, lengths)


def no_column(rows: int) -> Column:
    return Column(_NO_BYTES, np.zeros(rows, np.int64), np.full(rows, -1, np.int64))


def header_column(array: pa.Array) -> Headers:
    """A null array is no headers; a header whose name is null is refused with its row."""
    # A list's values and a struct's fields do not know of the slice around them; flatten does.
    keys, values = array.values.flatten()
    wide = pa.types.is_large_list(array.type)
    starts, counts = _ranges(array, array.buffers()[1], wide, len(keys), "headers")
    counts[_nulls(array)] = 0
    key_column = binary_column(keys, "headers.key")
    nameless = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(key_column.lengths < 0, out=nameless[1:])
    bad = np.flatnonzero(nameless[starts + counts] > nameless[starts])
    if len(bad):
        raise CannotEncode(f"row {bad[0]} has a header without a key; drop it or give it a name")
    return Headers(starts, counts, key_column, binary_column(values, "headers.value"))


def no_headers(rows: int) -> Headers:
    zeros = np.zeros(rows, np.int64)
    return Headers(zeros, zeros, no_column(0), no_column(0))


def explicit_partitions(array: pa.Array) -> Numbers:
    """What the rows ask for; -1 where they leave it to us, and -2 for what is no partition."""
    values = array.buffers()[1]
    if len(array) == 0 or values is None:
        return np.full(len(array), -1, np.int64)
    found = np.frombuffer(values, np.uint8)
    found = found[4 * array.offset : 4 * (array.offset + len(array))]
    if len(found) != 4 * len(array):
        raise CannotEncode("the column 'partition' has fewer values than rows")
    wanted = found.view(np.int32).astype(np.int64)
    wanted[wanted < 0] = -2
    wanted[_nulls(array)] = -1
    return wanted


def _ranges(
    array: pa.Array, offsets: pa.Buffer | None, wide: bool, limit: int, name: str
) -> tuple[Numbers, Numbers]:
    """Starts and lengths in 64 bits, checked: they grow and stay below `limit`."""
    rows = len(array)
    kind: type[np.signedinteger[Any]] = np.int64 if wide else np.int32
    width = 8 if wide else 4
    if rows == 0 or offsets is None:
        return np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    held = np.frombuffer(offsets, np.uint8)[
        width * array.offset : width * (array.offset + rows + 1)
    ]
    if len(held) != width * (rows + 1):
        raise CannotEncode(f"the column {name!r} has fewer offsets than rows")
    ends = held.view(kind).astype(np.int64)
    lengths = np.diff(ends)
    if ends[0] < 0 or ends[-1] > limit or lengths.min() < 0:
        raise CannotEncode(f"the column {name!r} has offsets that lead out of its values")
    return ends[:-1], lengths


def _nulls(array: pa.Array) -> Any:
    """An index of the null rows."""
    bitmap = array.buffers()[0]
    if bitmap is None or array.null_count == 0:
        return slice(0, 0)
    first = array.offset
    held = np.frombuffer(bitmap, np.uint8)[first >> 3 : (first + len(array) + 7) >> 3]
    bits = np.unpackbits(held, bitorder="little")[first & 7 :][: len(array)]
    return np.flatnonzero(bits == 0)
