"""Records to Arrow without a compiler: numpy over many records at once, for where numba is missing.

A loop finds where records begin, since each says only where the next one is; it keeps no object
per record. All else is done for the records of all spans together, and Arrow copies the bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.spark.columns import HEADERS
from ottla.spark.decoding.contract import (
    BASE_OFFSET,
    BEGIN,
    BYTES_MAX,
    COUNT,
    HAS_DELTAS,
    HEADER_BYTES,
    LAST_DELTA,
    ROWS_MAX,
    SHIFT_MAX,
    SPAN_FIELDS,
    STOP,
    TIMESTAMP,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
    TIMESTAMP_TYPE,
    Bytes,
    ConstantColumns,
    DamagedRecord,
    Longs,
    TimestampTooLarge,
    Wanted,
    assemble,
    bitmap,
    check_spans,
    fixed_array,
    headers_array,
)
from ottla.wire.schema import Buffer

_VARINT_BYTES_MAX: Final = 10


class NumpyRows:
    """Rows decoded by numpy; gathers pieces and joins them when they fill an Arrow batch."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._constants = ConstantColumns(wanted)
        self._floor = wanted.start
        self._pieces: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, data: Buffer, spans: array[int]) -> Iterator[pa.RecordBatch]:
        """Decodes all spans, which lie in `data`; nothing of it is needed afterwards."""
        table: Longs = np.frombuffer(spans, np.int64).reshape(-1, SPAN_FIELDS)
        check_spans(table, len(data))
        found = _read(data, table)
        kept = self._kept(found)
        if not kept.any():
            return
        rows = found.only(kept)
        columns = _Columns(self._wanted, data, rows, table)
        yield from self._gather(columns.batch(self._constants), columns.row_bytes())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """All rows so far, if there are any."""
        if not self._pieces:
            return
        table = pa.Table.from_batches(self._pieces, self._wanted.schema)
        self._pieces, self._rows, self._bytes = [], 0, 0
        yield from table.combine_chunks().to_batches()

    def _kept(self, found: _Records) -> npt.NDArray[np.bool_]:
        """Which records become rows: from the start on, before the end, and never backwards."""
        offsets = found.offsets
        if not len(offsets):
            return np.zeros(0, np.bool_)
        highest = np.maximum.accumulate(offsets)
        floors = np.empty_like(offsets)
        floors[0] = self._floor
        floors[1:] = np.maximum(highest[:-1] + 1, self._floor)
        self._floor = max(self._floor, int(highest[-1]) + 1)
        kept: npt.NDArray[np.bool_] = (offsets >= floors) & (offsets < self._wanted.end)
        return kept

    def _gather(self, batch: pa.RecordBatch, row_bytes: Longs) -> Iterator[pa.RecordBatch]:
        """Cuts the rows where an Arrow batch is full, and keeps the rest for the next."""
        ends = np.cumsum(row_bytes)
        at = 0
        while at < len(ends):
            before = int(ends[at - 1]) if at else 0
            fitting = int(np.searchsorted(ends, before + BYTES_MAX - self._bytes, "right"))
            if fitting == at and self._rows == 0:
                fitting = at + 1
            stop = min(fitting, at + ROWS_MAX - self._rows)
            if stop > at:
                self._pieces.append(batch.slice(at, stop - at))
                self._rows += stop - at
                self._bytes += int(ends[stop - 1]) - before
                at = stop
            if at < len(ends):
                yield from self.finish()


class _Parts(NamedTuple):
    """Where keys, values, names… lie; a size of -1 is null."""

    begins: Longs
    sizes: Longs

    def only(self, kept: npt.NDArray[np.bool_] | Longs) -> _Parts:
        return _Parts(self.begins[kept], self.sizes[kept])

    @property
    def data_bytes(self) -> Longs:
        return np.maximum(self.sizes, 0)


class _Records(NamedTuple):
    """All records of some spans, field by field."""

    spans: Longs
    timestamp_deltas: Longs
    offsets: Longs
    keys: _Parts
    values: _Parts
    headers: Longs
    headers_at: Longs
    stops: Longs

    def only(self, kept: npt.NDArray[np.bool_]) -> _Records:
        return _Records(
            self.spans[kept],
            self.timestamp_deltas[kept],
            self.offsets[kept],
            self.keys.only(kept),
            self.values.only(kept),
            self.headers[kept],
            self.headers_at[kept],
            self.stops[kept],
        )


class _Columns:
    """The columns of rows whose places are known."""

    def __init__(self, wanted: Wanted, data: Buffer, rows: _Records, spans: Longs) -> None:
        self._wanted = wanted
        self._data = data
        self._rows = rows
        self._spans = spans[rows.spans]
        self._header_names, self._header_values = _NO_PARTS, _NO_PARTS
        if wanted.has(HEADERS):
            _, self._header_names, self._header_values = _read_headers(_bytes(data), rows)

    def row_bytes(self) -> Longs:
        """What each row takes, as the limit of an Arrow batch counts it."""
        rows = self._rows
        sizes: Longs = np.full(len(rows.offsets), self._wanted.row_bytes, np.int64)
        if self._wanted.has("key"):
            sizes += rows.keys.data_bytes
        if self._wanted.has("value"):
            sizes += rows.values.data_bytes
        if self._wanted.has(HEADERS):
            sizes += rows.headers * HEADER_BYTES
            of_headers = self._header_names.data_bytes + self._header_values.data_bytes
            totals = np.concatenate(([0], np.cumsum(of_headers)))
            ends = np.cumsum(rows.headers)
            sizes += totals[ends] - totals[ends - rows.headers]
        return sizes

    def batch(self, constants: ConstantColumns) -> pa.RecordBatch:
        schema = self._wanted.schema
        return assemble(schema, {name: self._column(name, constants) for name in schema.names})

    def _column(self, name: str, constants: ConstantColumns) -> pa.Array:
        rows = self._rows
        if name == "key":
            return _taken(self._data, rows.keys)
        if name == "value":
            return _taken(self._data, rows.values)
        if name == "offset":
            return fixed_array(name, rows.offsets)
        if name == "timestamp":
            return fixed_array(name, self._timestamps())
        if name == "timestampType":
            return fixed_array(name, self._spans[:, TIMESTAMP_TYPE].astype(np.int32))
        if name == HEADERS:
            offsets = np.zeros(len(rows.offsets) + 1, np.int32)
            np.cumsum(rows.headers, out=offsets[1:])
            names = _taken(self._data, self._header_names)
            return headers_array(offsets, names, _taken(self._data, self._header_values))
        return constants.take(name, len(rows.offsets))

    def _timestamps(self) -> Longs:
        deltas = self._rows.timestamp_deltas * self._spans[:, HAS_DELTAS]
        timestamps: Longs = self._spans[:, TIMESTAMP] + deltas
        bad = (timestamps < TIMESTAMP_MS_MIN) | (timestamps > TIMESTAMP_MS_MAX)
        if bad.any():
            raise TimestampTooLarge(int(self._rows.spans[np.argmax(bad)]))
        return timestamps * 1000


_NOTHING: Final = np.zeros(0, np.int64)
_NO_PARTS: Final = _Parts(_NOTHING, _NOTHING)


def _read(data: Buffer, spans: Longs) -> _Records:
    """Finds the records of all spans and reads everything in front of their headers."""
    starts, stops, owners = _find(data, spans)
    view = _bytes(data)
    bad = np.zeros(len(starts), np.bool_)
    # The first byte holds attributes, of which none is in use.
    timestamp_deltas, at = _read_varints(view, starts + 1, stops, bad)
    offset_deltas, at = _read_varints(view, at, stops, bad)
    keys, at = _read_parts(view, at, stops, bad)
    values, at = _read_parts(view, at, stops, bad)
    headers, headers_at = _read_varints(view, at, stops, bad)
    bad |= (headers < 0) | (headers > stops - headers_at)
    bad |= (offset_deltas < 0) | (offset_deltas > spans[owners, LAST_DELTA])
    _raise_first(bad, owners)
    offsets = spans[owners, BASE_OFFSET] + offset_deltas
    found = _Records(owners, timestamp_deltas, offsets, keys, values, headers, headers_at, stops)
    ends, _, _ = _read_headers(view, found)
    _raise_first(ends != stops, owners)
    return found


def _find(data: Buffer, spans: Longs) -> tuple[Longs, Longs, Longs]:
    """Where the records begin after their length, where they end, and whose they are."""
    starts, stops = array("q"), array("q")
    counts = np.zeros(len(spans), np.int64)
    with memoryview(data) as view:
        octets = view.cast("B")
        for index, span in enumerate(spans):
            pos, end, count = int(span[BEGIN]), int(span[STOP]), int(span[COUNT])
            found = len(starts)
            while len(starts) - found < count:
                # Most lengths have two bytes; the general way takes three times as long.
                if end - pos >= 2 and octets[pos + 1] < 0x80 <= octets[pos]:
                    value = octets[pos] & 0x7F | octets[pos + 1] << 7
                    size, start = (value >> 1) ^ -(value & 1), pos + 2
                else:
                    size, start = _read_size(octets, pos, end)
                if size < 1 or size > end - start:
                    raise _damaged(index, len(starts) - found)
                pos = start + size
                starts.append(start)
                stops.append(pos)
            if pos != end or count < 0:
                raise _damaged(index, count)
            counts[index] = count
    owners = np.repeat(np.arange(len(spans)), counts)
    return np.frombuffer(starts, np.int64), np.frombuffer(stops, np.int64), owners


def _read_size(octets: memoryview, pos: int, end: int) -> tuple[int, int]:
    """The length of a record, which is 0 when there is none, and the position after it."""
    value = shift = 0
    for at in range(pos, min(pos + _VARINT_BYTES_MAX, end)):
        byte = octets[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    return 0, end


def _read_varints(
    view: Bytes, at: Longs, stops: Longs, bad: npt.NDArray[np.bool_]
) -> tuple[Longs, Longs]:
    """The numbers at these positions and the positions after; marks those that are not whole."""
    values = np.zeros(len(at), np.uint64)
    after = at.copy()
    left = np.flatnonzero(~bad)
    for shift in range(0, SHIFT_MAX + 1, 7):
        is_out = after[left] >= stops[left]
        if is_out.any():
            bad[left[is_out]] = True
            left = left[~is_out]
        octets = view[after[left]]
        if shift == SHIFT_MAX:
            bad[left[octets > 1]] = True
        values[left] |= (octets & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
        after[left] += 1
        left = left[octets > 0x7F]
        if not len(left):
            break
    numbers = (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)
    return numbers, after


def _read_parts(
    view: Bytes, at: Longs, stops: Longs, bad: npt.NDArray[np.bool_]
) -> tuple[_Parts, Longs]:
    sizes, begins = _read_varints(view, at, stops, bad)
    bad |= (sizes < -1) | (sizes > stops - begins)
    # What is bad is not read any further, but must not lead anybody out either.
    sizes = np.where(bad, 0, sizes)
    return _Parts(begins, sizes), begins + np.maximum(sizes, 0)


def _read_headers(view: Bytes, rows: _Records) -> tuple[Longs, _Parts, _Parts]:
    """Where headers end in each record, and all names and values in the order of the rows."""
    ends = rows.headers_at.copy()
    owners, names, values = [_NOTHING], [_NO_PARTS], [_NO_PARTS]
    left = np.flatnonzero(rows.headers)
    nth = 0
    while len(left):
        bad = np.zeros(len(left), np.bool_)
        stops = rows.stops[left]
        name, at = _read_parts(view, ends[left], stops, bad)
        bad |= name.sizes < 0
        value, at = _read_parts(view, at, stops, bad)
        _raise_first(bad, rows.spans[left])
        ends[left] = at
        owners.append(left)
        names.append(name)
        values.append(value)
        nth += 1
        left = left[rows.headers[left] > nth]
    order = np.argsort(np.concatenate(owners), kind="stable")
    return ends, _in_order(names, order), _in_order(values, order)


def _in_order(parts: list[_Parts], order: Longs) -> _Parts:
    begins = np.concatenate([part.begins for part in parts])
    sizes = np.concatenate([part.sizes for part in parts])
    return _Parts(begins[order], sizes[order])


def _taken(data: Buffer, parts: _Parts) -> pa.Array:
    """The bytes at these places as a column of their own.

    For Arrow the data is first a column of twice as many: what lies between, and what is wanted.
    """
    rows = len(parts.begins)
    edges = np.zeros(2 * rows + 1, np.int32)
    edges[1::2] = parts.begins
    edges[2::2] = parts.begins + parts.data_bytes
    valid, nulls = bitmap(np.repeat(parts.sizes >= 0, 2))
    buffers = [valid, pa.py_buffer(edges), pa.py_buffer(data)]
    whole = pa.Array.from_buffers(pa.binary(), 2 * rows, buffers, nulls)
    return whole.take(pa.array(np.arange(1, 2 * rows, 2, dtype=np.int32)))


def _bytes(data: Buffer) -> Bytes:
    return np.frombuffer(data, np.uint8)


def _raise_first(bad: npt.NDArray[np.bool_], owners: Longs) -> None:
    if bad.any():
        first = int(np.argmax(bad))
        span = int(owners[first])
        raise _damaged(span, first - int(np.searchsorted(owners, span)))


def _damaged(span: int, record: int) -> DamagedRecord:
    return DamagedRecord(span, f"record {record} is damaged")
