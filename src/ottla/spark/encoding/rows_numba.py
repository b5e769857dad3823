"""The encoder's work per row, compiled. `rows_numpy.py` has the same functions.

What comes in was checked by `sink_columns.py`; `write` looks at the room that is left before
each record all the same, since nothing else would notice.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ottla.spark.encoding.partitioner import MIX, POSITIVE, SEED, SHIFT
from ottla.spark.encoding.sink_columns import Bytes, Numbers
from ottla.spark.kernels import BYTES, INT64S, READ_BYTES, READ_INT64S, kernel

_COLUMN: Final = f"{READ_BYTES}, {READ_INT64S}, {READ_INT64S}"
_M: Final = np.uint32(MIX)
_R: Final = np.uint32(SHIFT)
_SEED: Final = np.uint32(SEED)
_POSITIVE: Final = np.uint32(POSITIVE)
_1, _2, _3, _4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
_7, _128 = np.uint64(7), np.uint64(128)


@kernel(f"uint32({READ_BYTES}, int64, int64)")
def murmur2(data: Bytes, start: int, length: int) -> np.uint32:
    h = np.uint32(_SEED ^ np.uint32(length))
    at = np.uint64(start)
    for _ in range(length >> 2):
        k = np.uint32(
            np.uint32(data[at])
            | np.uint32(data[at + _1]) << np.uint32(8)
            | np.uint32(data[at + _2]) << np.uint32(16)
            | np.uint32(data[at + _3]) << np.uint32(24)
        )
        k = np.uint32(k * _M)
        k = np.uint32(np.uint32(k ^ (k >> _R)) * _M)
        h = np.uint32(np.uint32(h * _M) ^ k)
        at += _4
    rest = np.uint64(length & 3)
    if rest:
        for place in range(rest):
            h = np.uint32(h ^ np.uint32(np.uint32(data[at + place]) << np.uint32(8 * place)))
        h = np.uint32(h * _M)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * _M)
    return np.uint32(h ^ (h >> np.uint32(15)))


@kernel(
    f"void({_COLUMN}, {READ_INT64S}, {READ_INT64S}, {READ_INT64S}, {READ_INT64S}, {READ_INT64S},"
    f" {INT64S})"
)
def assign(
    data: Bytes,
    starts: Numbers,
    lengths: Numbers,
    explicit: Numbers,
    codes: Numbers,
    partitions: Numbers,
    slots: Numbers,
    sticky: Numbers,
    out: Numbers,
) -> None:
    """The slot of every row: of the partition it asks for, of its key, or the sticky one."""
    for row in range(len(out)):
        code = codes[row]
        if explicit[row] >= 0:
            partition = explicit[row]
        elif lengths[row] < 0:
            partition = sticky[code]
        else:
            hashed = murmur2(data, starts[row], lengths[row]) & _POSITIVE
            partition = np.int64(hashed) % partitions[code]
        out[row] = slots[code] + partition


@kernel(f"void({READ_INT64S}, {INT64S}, {INT64S})")
def arrange(slots: Numbers, first: Numbers, order: Numbers) -> None:
    """Rows by slot, each slot's in their order: those of slot s from `first[s]` in `order`."""
    for row in range(len(slots)):
        first[slots[row] + 1] += 1
    for slot in range(1, len(first)):
        first[slot] += first[slot - 1]
    following = first.copy()
    for row in range(len(slots)):
        slot = slots[row]
        order[following[slot]] = row
        following[slot] += 1


@kernel("int64(int64)")
def varint_size(value: int) -> int:
    """Bytes of a number ≥ -1."""
    size = 1
    zigzag = np.int64(value << 1) ^ np.int64(value >> 63)
    while zigzag >= 128:
        zigzag >>= 7
        size += 1
    return size


@kernel("int64(int64)")
def field_size(length: int) -> int:
    """Bytes of a length and what it counts; null has the length -1."""
    return varint_size(length) + (length if length > 0 else 0)


@kernel(
    f"void({READ_INT64S}, {READ_INT64S}, {READ_INT64S}, {READ_INT64S}, {READ_INT64S},"
    f" {READ_INT64S}, {INT64S})"
)
def measure(
    key_lengths: Numbers,
    value_lengths: Numbers,
    header_starts: Numbers,
    header_counts: Numbers,
    header_key_lengths: Numbers,
    header_value_lengths: Numbers,
    out: Numbers,
) -> None:
    """Bytes of each record without its own length and its offset delta."""
    for row in range(len(out)):
        # Two for the attributes and the timestamp delta, which is 0.
        size = 2 + field_size(key_lengths[row]) + field_size(value_lengths[row])
        size += varint_size(header_counts[row])
        first = header_starts[row]
        for header in range(first, first + header_counts[row]):
            size += field_size(header_key_lengths[header])
            size += field_size(header_value_lengths[header])
        out[row] = size


@kernel(f"int64({READ_INT64S}, {READ_INT64S}, {READ_INT64S}, int64, {INT64S}, {INT64S}, {INT64S})")
def cut(
    order: Numbers,
    first: Numbers,
    sizes: Numbers,
    room: int,
    begins: Numbers,
    slots: Numbers,
    lengths: Numbers,
) -> int:
    """Cuts each slot's rows into batches of at most `room` bytes, or of one row; their number.

    Batch b belongs to `slots[b]`, has `lengths[b]` bytes and begins at `begins[b]` in `order`.
    """
    batch = -1
    for slot in range(len(first) - 1):
        used = room + 1
        delta = 0
        for place in range(first[slot], first[slot + 1]):
            size = sizes[order[place]] + varint_size(delta)
            size += varint_size(size)
            if used + size > room:
                batch += 1
                begins[batch] = place
                slots[batch] = slot
                used = 0
                delta = 0
                size = sizes[order[place]] + 1
                size += varint_size(size)
            used += size
            delta += 1
            lengths[batch] = used
    return batch + 1


@kernel(f"uint64({BYTES}, uint64, int64)")
def write_varint(out: Bytes, pos: np.uint64, value: int) -> np.uint64:
    zigzag = np.uint64(np.int64(value << 1) ^ np.int64(value >> 63))
    while zigzag >= _128:
        out[pos] = np.uint8(zigzag) | np.uint8(128)
        zigzag >>= _7
        pos += _1
    out[pos] = np.uint8(zigzag)
    return pos + _1


@kernel(f"uint64({BYTES}, uint64, {READ_BYTES}, int64, int64)")
def write_field(out: Bytes, pos: np.uint64, data: Bytes, start: int, length: int) -> np.uint64:
    pos = write_varint(out, pos, length)
    if length <= 0:
        return pos
    source, size = np.uint64(start), np.uint64(length)
    for at in range(size):
        out[pos + at] = data[source + at]
    return pos + size


@kernel(
    f"int64({READ_INT64S}, {READ_INT64S}, {_COLUMN}, {_COLUMN}, {READ_INT64S}, {READ_INT64S},"
    f" {_COLUMN}, {_COLUMN}, {BYTES}, int64, int64)"
)
def write(
    rows: Numbers,
    sizes: Numbers,
    keys: Bytes,
    key_starts: Numbers,
    key_lengths: Numbers,
    values: Bytes,
    value_starts: Numbers,
    value_lengths: Numbers,
    header_starts: Numbers,
    header_counts: Numbers,
    header_keys: Bytes,
    header_key_starts: Numbers,
    header_key_lengths: Numbers,
    header_values: Bytes,
    header_value_starts: Numbers,
    header_value_lengths: Numbers,
    out: Bytes,
    pos: int,
    first_delta: int,
) -> int:
    """Writes these rows as records from `pos` on; where they end, or -1 when the room is short."""
    at = np.uint64(pos)
    for number in range(len(rows)):
        row = rows[number]
        delta = first_delta + number
        size = sizes[row] + varint_size(delta)
        if np.int64(at) + varint_size(size) + size > len(out):
            return -1
        at = write_varint(out, at, size)
        out[at] = 0
        out[at + _1] = 0
        at = write_varint(out, at + _2, delta)
        at = write_field(out, at, keys, key_starts[row], key_lengths[row])
        at = write_field(out, at, values, value_starts[row], value_lengths[row])
        at = write_varint(out, at, header_counts[row])
        first = header_starts[row]
        for header in range(first, first + header_counts[row]):
            start, length = header_key_starts[header], header_key_lengths[header]
            at = write_field(out, at, header_keys, start, length)
            start, length = header_value_starts[header], header_value_lengths[header]
            at = write_field(out, at, header_values, start, length)
    return np.int64(at)  # type: ignore[return-value]  # an int for Python
