"""A type as the tables that the kernel walks along, and the kernel's call for a column."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.formats import json_screen_numba as kernel
from ottla.spark.formats.spark_types import TIMESTAMP, TIMESTAMP_NTZ

_PLAIN: Final = {
    pa.bool_(): kernel.BOOLEAN, pa.string(): kernel.STRING,
    pa.float32(): kernel.FLOAT, pa.float64(): kernel.FLOAT,
    pa.binary(): kernel.BASE64, pa.date32(): kernel.DATE,
    TIMESTAMP: kernel.TIME, TIMESTAMP_NTZ: kernel.LOCAL_TIME,
}  # fmt: skip


class _Tables(NamedTuple):
    kinds: npt.NDArray[np.int64]
    fields: npt.NDArray[np.int64]
    names: npt.NDArray[np.uint8]


class _Making:
    def __init__(self) -> None:
        self.kinds: list[tuple[int, int, int]] = []
        self.fields: list[tuple[int, int, int]] = []
        self.names = b""

    def add(self, kind: pa.DataType | None) -> int:
        """The place of the type in the table; None stands for what may be anything."""
        at = len(self.kinds)
        self.kinds.append((kernel.ANY, 0, 0))
        if kind is not None:
            self.kinds[at] = self._described(kind)
        return at

    def _described(self, kind: pa.DataType) -> tuple[int, int, int]:
        if pa.types.is_struct(kind):
            first = len(self.fields)
            self.fields += [(0, 0, 0)] * kind.num_fields
            for step, field in enumerate(kind):
                name, begin = field.name.encode(), len(self.names)
                self.names += name
                self.fields[first + step] = (begin, len(name), self.add(field.type))
            return kernel.OBJECT, first, kind.num_fields
        if pa.types.is_list(kind):
            return kernel.LIST, self.add(kind.value_type), 0
        if pa.types.is_integer(kind):
            return kernel.INTEGER, kind.bit_width, 0
        if pa.types.is_decimal(kind):
            return kernel.DECIMAL, kind.precision - kind.scale, kind.scale
        return _PLAIN[kind], 0, 0


@lru_cache(maxsize=64)
def _tables(kind: pa.DataType) -> _Tables:
    making = _Making()
    making.add(None)
    making.add(kind)
    return _Tables(
        np.array(making.kinds, np.int64),
        np.array(making.fields, np.int64),
        np.frombuffer(making.names, np.uint8),
    )


def screen(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Whether each value looks good; a null does."""
    tables = _tables(kind)
    _, offsets, data = column.buffers()
    good = np.zeros(len(column), np.uint8)
    kernel.screen(
        data.address if data is not None else 0,
        np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1],
        tables.kinds.ctypes.data,
        tables.fields.ctypes.data,
        tables.names.ctypes.data,
        good,
    )
    return pc.or_(pa.array(good.view(np.bool_)), column.is_null())
