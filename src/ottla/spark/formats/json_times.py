"""Texts into times, many at once: by Arrow, where that takes them for what Spark does."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.formats.spark_types import TIMESTAMP, TIMESTAMP_NTZ

# A date and an hour; what is longer goes on with a colon.
HOUR_CHARS: Final = 13
# How far before the end the sign of +hh:mm, +hhmm and +hh is.
SIGN_BACK: Final = (6, 5, 3)


def timestamps(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raises ArrowInvalid for what either of them refuses; without a zone it is UTC."""
    has_zone = _zones(array)
    if kind == TIMESTAMP_NTZ or not has_zone.any():
        local = array.cast(TIMESTAMP_NTZ)
        return local if kind == TIMESTAMP_NTZ else pc.assume_timezone(local, "UTC")
    if pc.all(pc.or_(pa.array(has_zone), array.is_null())).as_py():
        return array.cast(TIMESTAMP)
    zoned = pa.array(has_zone)
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, array, nothing).cast(TIMESTAMP)
    without = pc.if_else(zoned, nothing, array).cast(TIMESTAMP_NTZ)
    return pc.coalesce(with_zone, pc.assume_timezone(without, "UTC"))


def _zones(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which texts end with a zone; some of which only Arrow takes."""
    _, offsets, buffer = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    begin, end = ends[:-1], ends[1:]
    has_zone = np.zeros(len(array), np.bool_)
    longer = np.flatnonzero(end - begin > HOUR_CHARS)
    if len(longer) == 0:
        return has_zone
    begin, end = begin[longer], end[longer]
    text = np.frombuffer(buffer, np.uint8)
    if (text[begin + HOUR_CHARS] != ord(":")).any():
        raise pa.ArrowInvalid("a zone after an hour without minutes")
    zoned = text[end - 1] == ord("Z")
    for back in SIGN_BACK:
        at = np.flatnonzero(np.isin(text[end - back], (ord("+"), ord("-"))))
        zoned[at] = True
        tens, ones = text[end[at] - back + 1], text[end[at] - back + 2]
        if ((tens > ord("1")) | ((tens == ord("1")) & (ones > ord("8")))).any():
            raise pa.ArrowInvalid("a zone of more than 18 hours")
    has_zone[longer] = zoned
    return has_zone
