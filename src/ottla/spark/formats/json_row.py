"""One JSON value into what Arrow builds a row from, and what was wrong with it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from ottla.spark.formats.spark_types import TIMESTAMP, to_ddl

SHOWN_CHARS: Final = 60
PROBLEM_CHARS: Final = 240
FLOAT32_MAX: Final = 3.4028235677973366e38
DECIMALS: Final = Context(prec=200)
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
DAYS_IN_400_YEARS: Final = 146_097
US_PER_S: Final = 1_000_000

# The words that Spark's parser takes for numbers that JSON does not have.
NOT_FINITE: Final[Mapping[str, float]] = {
    "NaN": float("nan"),
    "Infinity": float("inf"), "+Infinity": float("inf"), "INF": float("inf"), "+INF": float("inf"),
    "-Infinity": float("-inf"), "-INF": float("-inf"),
}  # fmt: skip
INT: Final = re.compile(r"-?[0-9]+")
DATE: Final = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2}))?)?(?:[T ].*)?", re.ASCII)
TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{1,2}-[0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,9}))?)?"
    r"\s*(Z|UTC|[+-][0-9]{1,2}(?::?[0-9]{2})?)?)?)?",
    re.ASCII,
)


Convert = Callable[[Any, list[str]], Any]


class _Number(str):
    """The digits as they stood, since a string or a decimal wants exactly these."""

    __slots__ = ()


class _Wrong(ValueError):
    """The value is not of the type that the schema says."""


_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number)


def row_parser(kind: pa.DataType) -> Callable[[bytes | None], tuple[Any, str | None]]:
    """Bytes into the value for Arrow and the first error, if any; it never raises."""
    make = _converter(kind, "")
    names = [field.name for field in kind] if pa.types.is_struct(kind) else None
    # As Spark's from_json: a row of nulls, where the whole is a struct.
    empty = None if names is None else dict.fromkeys(names, None)
    return lambda data: _parse(data, make, empty)


def _parse(
    data: bytes | None, make: Convert, empty: dict[str, None] | None
) -> tuple[Any, str | None]:
    if data is None:
        return None, None
    try:
        text = data.decode()
    except UnicodeDecodeError as wrong:
        return empty, f"it is not UTF-8: {wrong.reason} at byte {wrong.start}"
    if not text.strip():
        return None, "it is empty, which is not JSON"
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError) as wrong:
        return empty, f"it is not JSON: {str(wrong)[:SHOWN_CHARS]}"
    problems: list[str] = []
    value = make(found, problems)
    if value is None:
        value = empty
    return value, problems[0] if problems else None


def _converter(kind: pa.DataType, path: str) -> Convert:
    """Compiled once for a schema: Arrow's types are slow to ask row by row."""
    if pa.types.is_struct(kind):
        return _struct(kind, path)
    if pa.types.is_map(kind):
        return _map(kind, path)
    if pa.types.is_list(kind):
        return _list(kind, path)
    make = _decimal_maker(kind) if pa.types.is_decimal(kind) else _MAKERS[kind]
    mismatch = _mismatch_of(kind, path)

    def convert(found: Any, problems: list[str]) -> Any:
        if found is None:
            return None
        try:
            return make(found)
        except (ValueError, ArithmeticError):
            return mismatch(found, problems)

    return convert


def _struct(kind: pa.DataType, path: str) -> Convert:
    prefix = f"{path}." if path else ""
    fields = [(field.name, _converter(field.type, prefix + field.name)) for field in kind]
    mismatch = _mismatch_of(kind, path)

    def convert(found: Any, problems: list[str]) -> Any:
        if isinstance(found, dict):
            return {name: make(found.get(name), problems) for name, make in fields}
        return mismatch(found, problems)

    return convert


def _list(kind: pa.DataType, path: str) -> Convert:
    make = _converter(kind.value_type, f"{path}[]")
    mismatch = _mismatch_of(kind, path)

    def convert(found: Any, problems: list[str]) -> Any:
        if isinstance(found, list):
            return [make(one, problems) for one in found]
        return mismatch(found, problems)

    return convert


def _map(kind: pa.DataType, path: str) -> Convert:
    make = _converter(kind.item_type, f"{path}[]")
    mismatch = _mismatch_of(kind, path)

    def convert(found: Any, problems: list[str]) -> Any:
        if isinstance(found, dict):
            return [(clean(key), make(one, problems)) for key, one in found.items()]
        return mismatch(found, problems)

    return convert


def _mismatch_of(kind: pa.DataType, path: str) -> Convert:
    """Null, and the problem noted; what is null already has none."""
    place = f"field {path}: " if path else ""
    words = to_ddl(kind)

    def mismatch(found: Any, problems: list[str]) -> None:
        if found is not None:
            problems.append(f"{place}{_shown(found)} is not {words}"[:PROBLEM_CHARS])

    return mismatch


def clean(text: str) -> str:
    """Half a surrogate pair can stand in JSON, but not in UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _shown(found: Any) -> str:
    text = found if isinstance(found, _Number) else _json_text(found)
    return clean(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…")


def _json_text(found: Any) -> str:
    """JSON again, numbers as they stood; a value may be deeper than functions can be called."""
    words: list[str] = []
    # What is still to be said, the first at the end; signs go as numbers do, as they stand.
    left = [found]
    while left:
        one = left.pop()
        if isinstance(one, _Number):
            words.append(one)
        elif isinstance(one, dict):
            names = (_Number(f",{json.dumps(name, ensure_ascii=False)}:") for name in one)
            inside = [part for pair in zip(names, one.values(), strict=True) for part in pair]
            left += reversed([_Number("{"), *_without_comma(inside), _Number("}")])
        elif isinstance(one, list):
            inside = [part for item in one for part in (_Number(","), item)]
            left += reversed([_Number("["), *inside[1:], _Number("]")])
        else:
            words.append(json.dumps(one, ensure_ascii=False))
    return "".join(words)


def _without_comma(inside: list[Any]) -> list[Any]:
    return [_Number(inside[0][1:]), *inside[1:]] if inside else []


def _bool(found: Any) -> bool:
    if not isinstance(found, bool):
        raise _Wrong
    return found


def _int_maker(bits: int) -> Callable[[Any], int]:
    most = 2 ** (bits - 1)

    def make(found: Any) -> int:
        if not isinstance(found, _Number) or not INT.fullmatch(found):
            raise _Wrong
        value = int(found)
        if not -most <= value < most:
            raise _Wrong
        return value

    return make


def _double(found: Any) -> float:
    if not isinstance(found, str) or (not isinstance(found, _Number) and found not in NOT_FINITE):
        raise _Wrong
    return NOT_FINITE[found] if found in NOT_FINITE else float(found)


def _float(found: Any) -> float:
    value = _double(found)
    return value if abs(value) <= FLOAT32_MAX or value != value else value * float("inf")


def _string(found: Any) -> str:
    if isinstance(found, str):
        return clean(str(found))
    return clean(_json_text(found))


def _binary(found: Any) -> bytes:
    if not isinstance(found, str) or isinstance(found, _Number):
        raise _Wrong
    return base64.b64decode(found, validate=True)


def _date(found: Any) -> int:
    if not isinstance(found, str) or isinstance(found, _Number):
        raise _Wrong
    return _day(found.strip())


def _day(text: str) -> int:
    parts = DATE.fullmatch(text)
    if parts is None:
        raise _Wrong
    year, month, day = int(parts[1]), int(parts[2] or 1), int(parts[3] or 1)
    # Python has no year 0; the calendar repeats itself after 400 years.
    if year == 0:
        return date(400, month, day).toordinal() - DAYS_IN_400_YEARS - EPOCH_DAY
    return date(year, month, day).toordinal() - EPOCH_DAY


def _timestamp(found: Any) -> int:
    """Microseconds since 1970; a number counts seconds, and without a zone it is UTC."""
    if isinstance(found, _Number):
        seconds = _int_maker(64)(found)
        if abs(seconds) >= 2**63 // US_PER_S:
            raise _Wrong
        return seconds * US_PER_S
    local_us, zone = _moment(found)
    return local_us - _zone_us(zone)


def _timestamp_ntz(found: Any) -> int:
    local_us, zone = _moment(found)
    if zone is not None:
        raise _Wrong
    return local_us


def _moment(found: Any) -> tuple[int, str | None]:
    parts = TIME.fullmatch(found.strip()) if isinstance(found, str) else None
    if parts is None:
        raise _Wrong
    hour, minute, second = (int(parts[at] or 0) for at in (2, 3, 4))
    if hour > 23 or minute > 59 or second > 59:
        raise _Wrong
    # Digits after the sixth are cut off, as in Spark.
    fraction_us = int((parts[5] or "").ljust(6, "0")[:6])
    seconds = _day(parts[1]) * 86_400 + hour * 3600 + minute * 60 + second
    return seconds * US_PER_S + fraction_us, parts[6]


def _zone_us(zone: str | None) -> int:
    if zone is None or zone in ("Z", "UTC"):
        return 0
    hours, minutes = re.fullmatch(r".([0-9]{1,2}):?([0-9]{2})?", zone).groups("0")  # type: ignore[union-attr]
    if int(hours) > 18 or int(minutes) > 59:
        raise _Wrong
    ahead_us = (int(hours) * 60 + int(minutes)) * 60 * US_PER_S
    return -ahead_us if zone.startswith("-") else ahead_us


def _decimal_maker(kind: pa.DataType) -> Callable[[Any], Decimal]:
    step = Decimal(1).scaleb(-kind.scale)

    def make(found: Any) -> Decimal:
        if not isinstance(found, str):
            raise _Wrong
        value = Decimal(found)
        if not value.is_finite():
            raise _Wrong
        rounded = value.quantize(step, rounding=ROUND_HALF_UP, context=DECIMALS)
        if len(rounded.as_tuple().digits) > kind.precision:
            raise InvalidOperation
        return rounded

    return make


_MAKERS: Final[Mapping[pa.DataType, Callable[[Any], Any]]] = {
    pa.bool_(): _bool,
    pa.int8(): _int_maker(8),
    pa.int16(): _int_maker(16),
    pa.int32(): _int_maker(32),
    pa.int64(): _int_maker(64),
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): _string,
    pa.binary(): _binary,
    pa.date32(): _date,
    TIMESTAMP: _timestamp,
    pa.timestamp("us"): _timestamp_ntz,
}
