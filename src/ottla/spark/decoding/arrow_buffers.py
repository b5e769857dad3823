"""The Arrow buffers that the compiled kernel fills, and the batches that are made of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.spark.columns import HEADERS
from ottla.spark.decoding import rows_numba as kernel
from ottla.spark.decoding.contract import (
    BYTES_MAX,
    ROWS_MAX,
    Bytes,
    ConstantColumns,
    DamagedRecord,
    Ints,
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

HEADERS_ROOM_MIN: Final = 1024


class CompiledRows:
    """Rows decoded by numba: no object and no call for each."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._constants = ConstantColumns(wanted)
        self._buffers: _Buffers | None = None
        self._used_before = 0
        self._state = np.zeros(kernel.STATE_FIELDS, np.int64)
        self._state[kernel.FLOOR] = wanted.start
        self._state[kernel.END] = wanted.end
        self._state[kernel.ROW_BYTES] = wanted.row_bytes
        self._state[kernel.ROWS_MAX] = ROWS_MAX
        self._state[kernel.BYTES_MAX] = BYTES_MAX

    def add(self, data: Buffer, spans: array[int]) -> Iterator[pa.RecordBatch]:
        """Decodes all spans, which lie in `data`; nothing of it is needed afterwards."""
        state = self._state
        state[kernel.SPAN] = state[kernel.RECORD] = 0
        view: Bytes = np.frombuffer(data, np.uint8)
        table: Longs = np.frombuffer(spans, np.int64)
        table.flags.writeable = False
        check_spans(table, len(view))
        while True:
            if self._buffers is None:
                self._buffers = _Buffers(self._wanted, self._room_bytes(len(view)))
                self._buffers.tell(state)
            outcome = kernel.fill(view.ctypes.data, table, state)
            if outcome == kernel.DONE:
                return
            if outcome == kernel.FULL:
                yield from self.finish()
            elif outcome == kernel.NO_ROOM:
                self._buffers.grow(state)
                self._buffers.tell(state)
            else:
                raise _refusal(outcome, state)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """All rows so far, if there are any."""
        if self._buffers is None or self._state[kernel.ROWS] == 0:
            return
        batch = self._buffers.batch(self._state, self._constants)
        self._used_before = int(self._state[kernel.USED])
        self._buffers = None
        self._state[kernel.ROWS : kernel.NEEDED + 1] = 0
        yield batch

    def _room_bytes(self, data_bytes: int) -> int:
        """What the next batch is likely to need; pages that are not written cost nothing."""
        return min(max(data_bytes, self._used_before), BYTES_MAX)


class _Binary:
    """A column of bytes in the making."""

    def __init__(self, rows: int, room_bytes: int) -> None:
        self.offsets: Ints = _room(rows + 1, np.int32)
        self.offsets[0] = 0
        # An address of 0 would say that nobody wants the column.
        self.data: Bytes = _room(max(room_bytes, 1), np.uint8)
        self.valid: Bytes = _room(rows, np.uint8)

    def tell(self, state: Longs, at: int) -> None:
        state[at : at + 3] = _address(self.offsets), _address(self.data), _address(self.valid)

    def grow_data(self, used: int, needed: int) -> None:
        self.data = _grown(self.data, used, needed)

    def grow_rows(self, used: int, needed: int) -> None:
        self.valid = _grown(self.valid, used, needed)
        self.offsets = _grown(self.offsets, used + 1, len(self.valid) - used)

    def array(self, rows: int) -> pa.Array:
        valid, nulls = bitmap(self.valid[:rows])
        offsets = self.offsets[: rows + 1]
        data = self.data[: offsets[-1]]
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls)


class _Buffers:
    """The columns of one Arrow batch, those that are wanted."""

    def __init__(self, wanted: Wanted, room_bytes: int) -> None:
        self._schema = wanted.schema
        self._numbers: dict[str, npt.NDArray[Any]] = {
            name: _room(ROWS_MAX, kind) for name, (kind, _) in _NUMBERS.items() if wanted.has(name)
        }
        self._binary = {
            name: _Binary(ROWS_MAX, room_bytes) for name in ("key", "value") if wanted.has(name)
        }
        self._headers = _Headers(room_bytes) if wanted.has(HEADERS) else None

    def tell(self, state: Longs) -> None:
        """Writes for the kernel where the buffers are, and how large."""
        for name, numbers in self._numbers.items():
            state[_NUMBERS[name][1]] = _address(numbers)
        for name, binary in self._binary.items():
            at, _, room = _BINARY[name]
            binary.tell(state, at)
            state[room] = len(binary.data)
        if self._headers is not None:
            self._headers.tell(state)

    def grow(self, state: Longs) -> None:
        """Makes room for the next row, of which only the size as a whole is known."""
        needed = int(state[kernel.NEEDED])
        for name, binary in self._binary.items():
            _, used, _ = _BINARY[name]
            binary.grow_data(int(state[used]), needed)
        if self._headers is not None:
            self._headers.grow(state, needed)

    def batch(self, state: Longs, constants: ConstantColumns) -> pa.RecordBatch:
        rows = int(state[kernel.ROWS])
        return assemble(
            self._schema,
            {name: self._column(name, rows, state, constants) for name in self._schema.names},
        )

    def _column(self, name: str, rows: int, state: Longs, constants: ConstantColumns) -> pa.Array:
        if name in self._numbers:
            return fixed_array(name, self._numbers[name][:rows])
        if name in self._binary:
            return self._binary[name].array(rows)
        if name == HEADERS and self._headers is not None:
            return self._headers.array(rows, int(state[kernel.HEADERS_USED]))
        return constants.take(name, rows)


class _Headers:
    """The column of headers in the making: lists of names and values."""

    def __init__(self, room_bytes: int) -> None:
        self._lists: Ints = _room(ROWS_MAX + 1, np.int32)
        self._lists[0] = 0
        self._names = _Binary(HEADERS_ROOM_MIN, room_bytes)
        self._values = _Binary(HEADERS_ROOM_MIN, room_bytes)

    def tell(self, state: Longs) -> None:
        state[kernel.LISTS] = _address(self._lists)
        self._names.tell(state, kernel.NAME_OFFSETS)
        self._values.tell(state, kernel.HEADER_OFFSETS)
        state[kernel.HEADERS_ROOM] = len(self._names.valid)
        state[kernel.NAMES_ROOM] = len(self._names.data)
        state[kernel.HEADER_VALUES_ROOM] = len(self._values.data)

    def grow(self, state: Longs, needed: int) -> None:
        self._names.grow_data(int(state[kernel.NAMES_USED]), needed)
        self._values.grow_data(int(state[kernel.HEADER_VALUES_USED]), needed)
        count = int(state[kernel.HEADERS_USED])
        # A header takes at least the two bytes of its lengths.
        self._names.grow_rows(count, needed // 2)
        self._values.grow_rows(count, needed // 2)

    def array(self, rows: int, count: int) -> pa.Array:
        names, values = self._names.array(count), self._values.array(count)
        return headers_array(self._lists[: rows + 1], names, values)


# What a number is kept as, and the kernel's place for its address.
_NUMBERS: Final[dict[str, tuple[type[np.signedinteger[Any]], int]]] = {
    "offset": (np.int64, kernel.OFFSETS),
    "timestamp": (np.int64, kernel.TIMESTAMPS),
    "timestampType": (np.int32, kernel.TIMESTAMP_TYPES),
}
# The kernel's places for addresses, for the bytes that are used, and for those that could be.
_BINARY: Final = {
    "key": (kernel.KEY_OFFSETS, kernel.KEY_USED, kernel.KEY_ROOM),
    "value": (kernel.VALUE_OFFSETS, kernel.VALUE_USED, kernel.VALUE_ROOM),
}


def _room(count: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Memory of Arrow's pool, which is used again: fresh pages took a quarter of all time."""
    kind = np.dtype(kind)
    return np.frombuffer(pa.allocate_buffer(count * kind.itemsize), kind)


def _address(values: npt.NDArray[Any]) -> int:
    return values.ctypes.data


def _grown(values: npt.NDArray[Any], used: int, needed: int) -> npt.NDArray[Any]:
    """The same with room for `needed` more, and then some."""
    if needed <= len(values) - used:
        return values
    larger = _room(max(2 * len(values), used + needed), values.dtype)
    larger[:used] = values[:used]
    return larger


def _refusal(outcome: int, state: Longs) -> Exception:
    span, record = int(state[kernel.SPAN]), int(state[kernel.RECORD])
    if outcome == kernel.TIMESTAMP_DAMAGED:
        return TimestampTooLarge(span)
    return DamagedRecord(span, f"record {record} is damaged")
