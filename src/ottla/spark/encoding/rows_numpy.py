"""The encoder's work per row with numpy alone: the functions of `rows_numba.py`, many rows at
a time instead of one after the other."""

from __future__ import annotations

from typing import Final

import numpy as np

from ottla.spark.encoding.partitioner import POSITIVE, murmur2_of_all
from ottla.spark.encoding.sink_columns import Bytes, Numbers

# A copy by index needs 16 bytes of memory per byte, a slice some hundred nanoseconds.
_SLICE_BYTES_MIN: Final = 512
_VARINT_BYTES_MAX: Final = 10


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
    out[:] = np.where(explicit >= 0, explicit, sticky[codes])
    keyed = np.flatnonzero((explicit < 0) & (lengths >= 0))
    hashes = murmur2_of_all(data, starts[keyed], lengths[keyed]) & np.uint32(POSITIVE)
    out[keyed] = hashes.astype(np.int64) % partitions[codes[keyed]]
    out += slots[codes]


def arrange(slots: Numbers, first: Numbers, order: Numbers) -> None:
    """Rows by slot, each slot's in their order: those of slot s from `first[s]` in `order`."""
    np.cumsum(np.bincount(slots, minlength=len(first) - 1), out=first[1:])
    order[:] = np.argsort(slots, kind="stable")


def varint_size(values: Numbers) -> Numbers:
    """Bytes of numbers ≥ -1."""
    zigzag = _zigzag(values)
    size = np.ones(len(values), np.int64)
    limit = 128
    while (larger := zigzag >= limit).any():
        size += larger
        limit <<= 7
    return size


def _zigzag(values: Numbers) -> Numbers:
    return (values << 1) ^ (values >> 63)


def _field_size(lengths: Numbers) -> Numbers:
    return varint_size(lengths) + np.maximum(lengths, 0)


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
    out[:] = 2 + _field_size(key_lengths) + _field_size(value_lengths)
    out += varint_size(header_counts)
    sums = np.zeros(len(header_key_lengths) + 1, np.int64)
    np.cumsum(_field_size(header_key_lengths) + _field_size(header_value_lengths), out=sums[1:])
    out += sums[header_starts + header_counts] - sums[header_starts]


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
    in_order = sizes[order]
    sums = np.zeros(len(order) + 1, np.int64)
    # At least one byte each for the length and the delta: no batch holds more rows than this says.
    np.cumsum(in_order + 2, out=sums[1:])
    batch = 0
    for slot in np.flatnonzero(np.diff(first)):
        place, end = int(first[slot]), int(first[slot + 1])
        while place < end:
            most = int(np.searchsorted(sums, sums[place] + room, side="right")) - 1
            most = min(max(most, place + 1), end)
            size = in_order[place:most] + varint_size(np.arange(most - place))
            size += varint_size(size)
            used = np.cumsum(size)
            count = max(int(np.searchsorted(used, room, side="right")), 1)
            begins[batch], slots[batch], lengths[batch] = place, slot, used[count - 1]
            batch += 1
            place += count
    return batch


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
    deltas = np.arange(first_delta, first_delta + len(rows))
    size = sizes[rows] + varint_size(deltas)
    ends = pos + np.cumsum(size + varint_size(size))
    end = int(ends[-1])
    if end > len(out):
        return -1
    at = np.concatenate(([pos], ends[:-1]))
    at = _write_varints(out, at, size)
    out[at] = 0
    out[at + 1] = 0
    at = _write_varints(out, at + 2, deltas)
    at = _write_fields(out, at, keys, key_starts[rows], key_lengths[rows])
    at = _write_fields(out, at, values, value_starts[rows], value_lengths[rows])
    counts = header_counts[rows]
    at = _write_varints(out, at, counts)
    first = header_starts[rows]
    # The first header of every row that has one, then the second, and so on.
    number = 0
    while len(has := np.flatnonzero(counts > number)):
        header = first[has] + number
        begin, length = header_key_starts[header], header_key_lengths[header]
        key_end = _write_fields(out, at[has], header_keys, begin, length)
        begin, length = header_value_starts[header], header_value_lengths[header]
        at[has] = _write_fields(out, key_end, header_values, begin, length)
        number += 1
    return end


def _write_varints(out: Bytes, at: Numbers, values: Numbers) -> Numbers:
    """Where each ends."""
    zigzag = _zigzag(values)
    at = at.copy()
    alive = np.arange(len(values))
    for _ in range(_VARINT_BYTES_MAX):
        more = zigzag >= 128
        out[at[alive]] = (zigzag & 127) | (more << 7)
        at[alive] += 1
        if not more.any():
            break
        alive, zigzag = alive[more], zigzag[more] >> 7
    return at


def _write_fields(
    out: Bytes, at: Numbers, data: Bytes, starts: Numbers, lengths: Numbers
) -> Numbers:
    """Lengths and bytes; where each ends."""
    at = _write_varints(out, at, lengths)
    full = np.maximum(lengths, 0)
    for row in np.flatnonzero(full >= _SLICE_BYTES_MIN):
        begin, into, length = int(starts[row]), int(at[row]), int(full[row])
        out[into : into + length] = data[begin : begin + length]
    short = np.flatnonzero((full > 0) & (full < _SLICE_BYTES_MIN))
    _copy_short(out, at[short], data, starts[short], full[short])
    return at + full


def _copy_short(out: Bytes, at: Numbers, data: Bytes, starts: Numbers, lengths: Numbers) -> None:
    if not len(lengths):
        return
    before = np.cumsum(lengths) - lengths
    steps = np.arange(int(before[-1] + lengths[-1]))
    out[np.repeat(at - before, lengths) + steps] = data[np.repeat(starts - before, lengths) + steps]
