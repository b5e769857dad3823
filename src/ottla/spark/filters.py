"""What a WHERE says about topic, partition and offset, so that only those ranges are read.

A filter that is taken here is gone from Spark's plan, so it must be applied to the letter; these
three columns are never null, which makes that possible on ranges alone. All else is handed back.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ottla.spark.planning import OffsetRange

PUSHDOWN_MODULE: Final = "pyspark.sql.worker.data_source_pushdown_filters"
FRAMES_MAX: Final = 50

F = TypeVar("F")

_KINDS: Final[Mapping[str, type]] = {"topic": str, "partition": int, "offset": int}

# PySpark's classes by name: this module needs no Spark.
_COMPARISONS: Final[Mapping[str, str]] = {
    "EqualTo": "=", "EqualNullSafe": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
    "LessThan": "<", "LessThanOrEqual": "<=",
}  # fmt: skip
_TEXTS: Final[Mapping[str, str]] = {
    "StringStartsWith": "starts", "StringEndsWith": "ends", "StringContains": "contains",
}  # fmt: skip
_OPPOSITE: Final[Mapping[str, str]] = {
    "=": "!=", ">": "<=", ">=": "<", "<": ">=", "<=": ">", "in": "not in",
    "starts": "not starts", "ends": "not ends", "contains": "not contains",
}  # fmt: skip
_HOLDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda found, values: found in values,
    "not in": lambda found, values: found not in values,
    "starts": lambda found, text: found.startswith(text),
    "not starts": lambda found, text: not found.startswith(text),
    "ends": lambda found, text: found.endswith(text),
    "not ends": lambda found, text: not found.endswith(text),
    "contains": lambda found, text: text in found,
    "not contains": lambda found, text: text not in found,
}


@dataclass(frozen=True)
class Condition:
    """One comparison of a column with a constant."""

    column: str
    sign: str
    value: Any


@dataclass(frozen=True)
class Narrowing:
    """All conditions must hold; picklable, and without any it changes nothing."""

    conditions: tuple[Condition, ...] = ()

    def narrow(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """What is left of the ranges, without the empty ones."""
        narrowed = (self._narrowed(one) for one in ranges)
        return [one for one in narrowed if one is not None and one.size > 0]

    def _narrowed(self, whole: OffsetRange) -> OffsetRange | None:
        start, end = whole.start, whole.end
        for condition in self.conditions:
            if condition.column == "offset":
                first, end_wanted = _bounds(condition)
                start = start if first is None else max(start, first)
                end = end if end_wanted is None else min(end, end_wanted)
            elif not _HOLDS[condition.sign](_part(whole, condition.column), condition.value):
                return None
        return whole._replace(start=start, end=end)


def is_offered() -> bool:
    """Whether the caller is the worker of Spark that asks a reader about filters.

    Under spark.sql.python.filterPushdown.enabled=false (the default) a reader that has pushFilters
    is an error, and no setting can be read in that process. But there is a worker module for each
    case, run as a module of its own or imported by Spark's daemon, and it stands on the stack.
    """
    frame = sys._getframe()
    for _ in range(FRAMES_MAX):
        spec = frame.f_globals.get("__spec__")
        if PUSHDOWN_MODULE in (frame.f_globals.get("__name__"), getattr(spec, "name", None)):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def take(filters: Sequence[F]) -> tuple[Narrowing, list[F]]:
    """The filters that are applied here, exactly, and those that Spark must apply itself."""
    conditions: list[Condition] = []
    handed_back: list[F] = []
    for one in filters:
        if _is_always_true(one):
            continue
        condition = _condition(one)
        if condition is not None:
            conditions.append(condition)
        if condition is None or not _is_exact(condition):
            handed_back.append(one)
    return Narrowing(tuple(conditions)), handed_back


def _is_always_true(one: object) -> bool:
    return type(one).__name__ == "IsNotNull" and _column(one) is not None


def _condition(one: object) -> Condition | None:
    name = type(one).__name__
    if name == "Not":
        inner = _condition(getattr(one, "child", None))
        if inner is None:
            return None
        opposite = Condition(inner.column, _OPPOSITE.get(inner.sign, ""), inner.value)
        # An offset that is not this one leaves two ranges, so this is Spark's to apply.
        unfit = opposite.column == "offset" and opposite.sign in ("!=", "not in")
        return None if unfit or not opposite.sign else opposite
    column = _column(one)
    if column is None:
        return None
    kind, value = _KINDS[column], getattr(one, "value", None)
    if name == "In":
        # With a null among them, what is not in the list is unknown rather than false.
        if not isinstance(value, (tuple, list)) or not value:
            return None
        fits = all(type(one) is kind for one in value)
        return Condition(column, "in", tuple(value)) if fits else None
    sign = _COMPARISONS.get(name) or (_TEXTS.get(name) if column == "topic" else None)
    return Condition(column, sign, value) if sign and type(value) is kind else None


def _column(one: object) -> str | None:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 and path[0] in _KINDS else None


def _is_exact(condition: Condition) -> bool:
    """A list of offsets only bounds the range; which of those between are wanted, Spark decides."""
    return not (condition.column == "offset" and condition.sign == "in")


def _bounds(condition: Condition) -> tuple[int | None, int | None]:
    """The first offset, and the one after the last."""
    value = condition.value
    match condition.sign:
        case "=":
            return value, value + 1
        case "in":
            return min(value), max(value) + 1
        case ">":
            return value + 1, None
        case ">=":
            return value, None
        case "<":
            return None, value
        case _:
            return None, value + 1


def _part(whole: OffsetRange, column: str) -> str | int:
    return whole.partition.topic if column == "topic" else whole.partition.partition
