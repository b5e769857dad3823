"""A type as the tables that the kernel of json_numba.py walks along, and its call for a column."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark import json_numba
from ottla.spark.spark_types import TIMESTAMP, TIMESTAMP_NTZ

_PLAIN: Final = {
    pa.bool_(): json_numba.BOOLEAN, pa.string(): json_numba.STRING,
    pa.float32(): json_numba.FLOAT, pa.float64(): json_numba.FLOAT,
    pa.binary(): json_numba.BASE64, pa.date32(): json_numba.DATE,
    TIMESTAMP: json_numba.TIME, TIMESTAMP_NTZ: json_numba.LOCAL_TIME,
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
        self.kinds.append((json_numba.ANY, 0, 0))
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
            return json_numba.OBJECT, first, kind.num_fields
        if pa.types.is_list(kind):
            return json_numba.LIST, self.add(kind.value_type), 0
        if pa.types.is_integer(kind):
            return json_numba.INTEGER, kind.bit_width, 0
        if pa.types.is_decimal(kind):
            return json_numba.DECIMAL, kind.precision - kind.scale, kind.scale
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
    json_numba.screen(
        data.address if data is not None else 0,
        np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1],
        tables.kinds.ctypes.data,
        tables.fields.ctypes.data,
        tables.names.ctypes.data,
        good,
    )
    return pc.or_(pa.array(good.view(np.bool_)), column.is_null())
