"""Which JSON values Arrow's parser will likely take, where numba is missing.

One bad value makes it refuse a whole block, without saying which. This look is coarse and takes a
few microseconds each: what it lets through may still be refused, what it holds back may be good.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

Check = Callable[[Any], bool]

_DECODER: Final = json.JSONDecoder()
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?",
    re.ASCII,
)


def screen(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Whether each value looks good; a null does."""
    check = _check(kind)
    good = [value is None or _passes(value, check) for value in column.to_pylist()]
    return pa.array(good, pa.bool_())


def _passes(value: bytes, check: Check) -> bool:
    try:
        text = value.decode().strip()
        found, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return end == len(text) and check(found)


def _check(kind: pa.DataType) -> Check:
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_list(kind):
        inner = _check(kind.value_type)
        return lambda found: type(found) is list and all(one is None or inner(one) for one in found)
    if pa.types.is_decimal(kind):
        limit, scale = 10 ** (kind.precision - kind.scale), kind.scale
        return lambda found: (
            type(found) in (int, float) and -limit < found < limit and round(found, scale) == found
        )
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return lambda found: type(found) is int and -bound <= found < bound
    if pa.types.is_boolean(kind):
        return lambda found: type(found) is bool
    if pa.types.is_floating(kind):
        return lambda found: type(found) in (int, float)
    if pa.types.is_temporal(kind):
        return lambda found: type(found) is str and _TIME.fullmatch(found) is not None
    return lambda found: type(found) is str


def _struct(kind: pa.DataType) -> Check:
    checks = [(field.name, _check(field.type)) for field in kind]

    def check(found: Any) -> bool:
        if type(found) is not dict:
            return False
        for name, passes in checks:
            value = found.get(name)
            if value is not None and not passes(value):
                return False
        return True

    return check
