"""Records to Arrow buffers with a kernel that numba compiles: one pass, no object per row.

`fill` walks over the records of many spans and writes each row after the last one of the buffers
it is given. It stops when they are full and goes on where it stopped: all it knows is in `state`.
numba checks no bounds, so every read is held against the end of its record, every record against
the end of its span, and every write against the size of its buffer.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from ottla.spark.decoding.contract import (
    BASE_OFFSET,
    BEGIN,
    COUNT,
    HAS_DELTAS,
    HEADER_BYTES,
    LAST_DELTA,
    SHIFT_MAX,
    SPAN_FIELDS,
    STOP,
    TIMESTAMP,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
    TIMESTAMP_TYPE,
    Longs,
)
from ottla.spark.kernels import INT64S, READ_INT64S, kernel

# Where the parts of a record are: see `_read_record`.
Parts: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]

# How `fill` ended.
DONE, FULL, NO_ROOM, DAMAGED, TIMESTAMP_DAMAGED = range(5)

# What it remembers: where it is, what it has written, what the next row takes at most.
SPAN, POSITION, RECORD, FLOOR, ROWS, USED = range(6)
KEY_USED, VALUE_USED, HEADERS_USED, NAMES_USED, HEADER_VALUES_USED, NEEDED = range(6, 12)
# What it is told: limits, and for each buffer that can be too small its size.
END, ROW_BYTES, ROWS_MAX, BYTES_MAX = range(12, 16)
KEY_ROOM, VALUE_ROOM, HEADERS_ROOM, NAMES_ROOM, HEADER_VALUES_ROOM = range(16, 21)
# The addresses of the buffers; 0 for a column that nobody wants.
OFFSETS, TIMESTAMPS, TIMESTAMP_TYPES, LISTS = range(21, 25)
KEY_OFFSETS, KEYS, KEYS_VALID = range(25, 28)
VALUE_OFFSETS, VALUES, VALUES_VALID = range(28, 31)
NAME_OFFSETS, NAMES, NAMES_VALID = range(31, 34)
HEADER_OFFSETS, HEADER_VALUES, HEADER_VALUES_VALID = range(34, 37)
STATE_FIELDS = 37

# The largest byte that ends a number.
_LAST_BYTE = 0x7F


# Memory is read and written by address: numba would count an array in and out of every function
# that it is given to, which took more time than the decoding.


def _load_byte(_: Any, address: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.uint64(types.int64), generate


def _storing(bits: int) -> Any:
    """Makes the store of an integer of that width at an index of a buffer."""

    def store(_: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
            kind = ir.IntType(bits)
            value = builder.trunc(args[2], kind) if bits < 64 else args[2]
            pointer = builder.gep(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
            builder.store(value, pointer)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return store


def _copy_bytes(_: Any, target: Any, source: Any, size: Any) -> Any:
    """memcpy, which beats the loop that LLVM makes of a copy of a hundred bytes."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        into = builder.inttoptr(args[0], byte_pointer)
        out_of = builder.inttoptr(args[1], byte_pointer)
        cgutils.raw_memcpy(builder, into, out_of, args[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


# Any, since they are called without the first argument.
_byte_at: Any = intrinsic(_load_byte)
_copy: Any = intrinsic(_copy_bytes)
_store_8: Any = intrinsic(_storing(8))
_store_32: Any = intrinsic(_storing(32))
_store_64: Any = intrinsic(_storing(64))


@register_jitable
def _read_varint(data: int, pos: int, stop: int) -> tuple[int, int]:
    """A zigzag number and the position after it, which is -1 when there is no whole one."""
    if pos >= stop:
        return 0, -1
    byte = _byte_at(data + pos)
    pos += 1
    if byte <= np.uint64(_LAST_BYTE):
        small: Any = np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1))
        return small, pos
    value = byte & np.uint64(_LAST_BYTE)
    shift = np.uint64(7)
    while pos < stop and shift <= np.uint64(SHIFT_MAX):
        byte = _byte_at(data + pos)
        pos += 1
        value |= (byte & np.uint64(_LAST_BYTE)) << shift
        if byte <= np.uint64(_LAST_BYTE):
            if shift == np.uint64(SHIFT_MAX) and byte > np.uint64(1):
                return 0, -1
            number: Any = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
            return number, pos
        shift += np.uint64(7)
    return 0, -1


@register_jitable
def _read_size(data: int, pos: int, stop: int) -> tuple[int, int, int]:
    """A length, the position of what has it, and the position after that (-1: it leads out)."""
    size, at = _read_varint(data, pos, stop)
    if at < 0 or size < -1 or size > stop - at:
        return 0, 0, -1
    return size, at, at + max(size, 0)


@register_jitable
def _measure_headers(data: int, pos: int, stop: int, count: int) -> tuple[int, int, int]:
    """Bytes of all names and all values, and the position after them (-1: they lead out)."""
    names = 0
    values = 0
    for _ in range(count):
        size, _, pos = _read_size(data, pos, stop)
        if pos < 0 or size < 0:
            return 0, 0, -1
        names += size
        size, _, pos = _read_size(data, pos, stop)
        if pos < 0:
            return 0, 0, -1
        values += max(size, 0)
    return names, values, pos


@register_jitable
def _read_record(data: int, pos: int, stop: int) -> tuple[int, int, int, Parts]:
    """The record at `pos`: where it ends (-1: it is damaged), its deltas, where its parts are."""
    bad = (-1, 0, 0, (0, 0, 0, 0, 0, 0, 0, 0, 0))
    size, at = _read_varint(data, pos, stop)
    if at < 0 or size < 1 or size > stop - at:
        return bad
    stop = at + size
    # The first byte holds attributes, of which none is in use.
    timestamp_delta, at = _read_varint(data, at + 1, stop)
    if at < 0:
        return bad
    offset_delta, at = _read_varint(data, at, stop)
    if at < 0:
        return bad
    key_size, key_at, at = _read_size(data, at, stop)
    if at < 0:
        return bad
    value_size, value_at, at = _read_size(data, at, stop)
    if at < 0:
        return bad
    headers, headers_at = _read_varint(data, at, stop)
    if headers_at < 0 or headers < 0 or headers > stop - headers_at:
        return bad
    names, values, at = 0, 0, headers_at
    if headers:
        names, values, at = _measure_headers(data, headers_at, stop, headers)
    if at != stop:
        return bad
    parts = (stop, key_at, key_size, value_at, value_size, headers_at, headers, names, values)
    return stop, timestamp_delta, offset_delta, parts


@register_jitable
def _put(
    offsets: int, values: int, valid: int, index: int, used: int, source: int, size: int
) -> int:
    """Writes one element of a binary column, for which there is room; null when its size is -1."""
    if size > 0:
        _copy(values + used, source, size)
        used += size
    _store_32(offsets, index + 1, used)
    _store_8(valid, index, size >= 0)
    return used


@register_jitable
def _put_headers(state: Longs, row: int, data: int, pos: int, stop: int, count: int) -> None:
    """Writes the headers of a row, which have been measured and have room."""
    names_used, values_used = state[NAMES_USED], state[HEADER_VALUES_USED]
    first = state[HEADERS_USED]
    for header in range(first, first + count):
        size, at, pos = _read_size(data, pos, stop)
        names_used = _put(
            state[NAME_OFFSETS],
            state[NAMES],
            state[NAMES_VALID],
            header,
            names_used,
            data + at,
            size,
        )
        size, at, pos = _read_size(data, pos, stop)
        values_used = _put(
            state[HEADER_OFFSETS],
            state[HEADER_VALUES],
            state[HEADER_VALUES_VALID],
            header,
            values_used,
            data + at,
            size,
        )
    state[NAMES_USED], state[HEADER_VALUES_USED] = names_used, values_used
    state[HEADERS_USED] = first + count
    _store_32(state[LISTS], row + 1, first + count)


@register_jitable
def _has_room(
    state: Longs, keys: int, values: int, headers: int, names: int, header_values: int
) -> bool:
    """Whether the buffers take so many bytes more; a column nobody wants takes none."""
    if state[KEYS] and keys > state[KEY_ROOM] - state[KEY_USED]:
        return False
    if state[VALUES] and values > state[VALUE_ROOM] - state[VALUE_USED]:
        return False
    return not state[LISTS] or (
        headers <= state[HEADERS_ROOM] - state[HEADERS_USED]
        and names <= state[NAMES_ROOM] - state[NAMES_USED]
        and header_values <= state[HEADER_VALUES_ROOM] - state[HEADER_VALUES_USED]
    )


@register_jitable(inline="always")
def _put_row(
    state: Longs, data: int, parts: Parts, offset: int, timestamp: int, timestamp_type: int
) -> int:
    """Writes a row if there is room for it, otherwise says why not and has written nothing."""
    stop, key_at, key_size, value_at, value_size, headers_at, headers, names, values = parts
    row = state[ROWS]
    size = state[ROW_BYTES]
    if state[KEYS]:
        size += max(key_size, 0)
    if state[VALUES]:
        size += max(value_size, 0)
    if state[LISTS]:
        size += names + values + headers * HEADER_BYTES
    if row and (row == state[ROWS_MAX] or state[USED] + size > state[BYTES_MAX]):
        return FULL
    if not _has_room(state, key_size, value_size, headers, names, values):
        return NO_ROOM
    if state[TIMESTAMPS]:
        if timestamp < TIMESTAMP_MS_MIN or timestamp > TIMESTAMP_MS_MAX:
            return TIMESTAMP_DAMAGED
        _store_64(state[TIMESTAMPS], row, timestamp * 1000)
    if state[KEYS]:
        state[KEY_USED] = _put(
            state[KEY_OFFSETS],
            state[KEYS],
            state[KEYS_VALID],
            row,
            state[KEY_USED],
            data + key_at,
            key_size,
        )
    if state[VALUES]:
        state[VALUE_USED] = _put(
            state[VALUE_OFFSETS],
            state[VALUES],
            state[VALUES_VALID],
            row,
            state[VALUE_USED],
            data + value_at,
            value_size,
        )
    if state[LISTS]:
        _put_headers(state, row, data, headers_at, stop, headers)
    if state[OFFSETS]:
        _store_64(state[OFFSETS], row, offset)
    if state[TIMESTAMP_TYPES]:
        _store_32(state[TIMESTAMP_TYPES], row, timestamp_type)
    state[ROWS] = row + 1
    state[USED] += size
    return DONE


@kernel(f"int64(int64, {READ_INT64S}, {INT64S})")
def fill(data: int, spans: Longs, state: Longs) -> int:
    """Writes rows until the spans are done or the next one has no room; returns why it ended.

    `data` is an address: the caller has held the ends of all spans against what lies there.
    """
    end, floor = state[END], state[FLOOR]
    span, pos, record = state[SPAN], state[POSITION], state[RECORD]
    outcome = DONE
    while outcome == DONE and (span + 1) * SPAN_FIELDS <= spans.size:
        at = span * SPAN_FIELDS
        stop, count, last_delta = spans[at + STOP], spans[at + COUNT], spans[at + LAST_DELTA]
        base_offset, base_timestamp = spans[at + BASE_OFFSET], spans[at + TIMESTAMP]
        has_deltas, timestamp_type = spans[at + HAS_DELTAS], spans[at + TIMESTAMP_TYPE]
        if record == 0:
            pos = spans[at + BEGIN]
        while record < count:
            after, timestamp_delta, offset_delta, parts = _read_record(data, pos, stop)
            if after < 0 or offset_delta < 0 or offset_delta > last_delta:
                outcome = DAMAGED
                break
            offset = base_offset + offset_delta
            if floor <= offset < end:
                timestamp = base_timestamp + timestamp_delta * has_deltas
                outcome = _put_row(state, data, parts, offset, timestamp, timestamp_type)
                if outcome != DONE:
                    state[NEEDED] = after - pos
                    break
            floor = max(floor, offset + 1)
            pos = after
            record += 1
        if outcome == DONE:
            if pos != stop or count < 0:
                outcome = DAMAGED
            else:
                span += 1
                record = 0
    state[SPAN], state[POSITION], state[RECORD], state[FLOOR] = span, pos, record, floor
    return outcome
