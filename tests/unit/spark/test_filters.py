"""Filters on topic, partition and offset, taken to the letter or handed back.

Every filter is compared with what SQL says of each single row, on both sides of Not.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from ottla.spark.filters import PUSHDOWN_MODULE, Narrowing, is_offered, take
from ottla.spark.planning import OffsetRange
from ottla.types import TopicPartition

RANGES = [
    OffsetRange(TopicPartition(topic, partition), 3, 9)
    for topic in ("a", "ab", "b")
    for partition in (0, 1, 2)
]
ROWS = [
    {"topic": r.partition.topic, "partition": r.partition.partition, "offset": offset}
    for r in RANGES
    for offset in range(r.start, r.end)
]

COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    StringStartsWith: lambda a, b: a.startswith(b),
    StringEndsWith: lambda a, b: a.endswith(b),
    StringContains: lambda a, b: b in a,
}


def sql(one: Any, row: dict[str, Any]) -> bool | None:
    """True, false or unknown, as SQL has it."""
    match one:
        case Not(child=child):
            inner = sql(child, row)
            return None if inner is None else not inner
        case IsNull():
            return row[one.attribute[0]] is None
        case IsNotNull():
            return row[one.attribute[0]] is not None
        case EqualNullSafe():
            return bool(row[one.attribute[0]] == one.value)
        case In():
            found = row[one.attribute[0]]
            return True if found in one.value else None if None in one.value else False
        case _:
            if one.value is None:
                return None
            return bool(COMPARE[type(one)](row[one.attribute[0]], one.value))


def rows_of(ranges: list[OffsetRange]) -> list[dict[str, Any]]:
    return [
        {"topic": r.partition.topic, "partition": r.partition.partition, "offset": offset}
        for r in ranges
        for offset in range(r.start, r.end)
    ]


NUMBERS = some.integers(-2, 12)
TEXTS = some.sampled_from(["", "a", "ab", "b", "B", "c", "ä"])


def columns(kinds: tuple[type, ...], values: dict[str, some.SearchStrategy[Any]]) -> Any:
    return some.one_of(
        [
            some.builds(kind, some.just((column,)), value)
            for kind in kinds
            for column, value in values.items()
        ]
    )


VALUES = {"topic": TEXTS, "partition": NUMBERS, "offset": NUMBERS}
LISTS = {
    c: some.lists(some.one_of(v, some.none()), max_size=3).map(tuple) for c, v in VALUES.items()
}
ORDERED = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
NULLABLE = {c: some.one_of(v, some.none()) for c, v in VALUES.items()}
SIMPLE = some.one_of(
    columns(ORDERED, NULLABLE),
    columns((EqualNullSafe,), NULLABLE),
    columns((In,), LISTS),
    columns((StringStartsWith, StringEndsWith, StringContains), {"topic": TEXTS}),
    some.builds(IsNull, some.sampled_from([("topic",), ("offset",)])),
    some.builds(IsNotNull, some.sampled_from([("topic",), ("offset",)])),
)
FILTERS = some.lists(some.one_of(SIMPLE, SIMPLE.map(Not), SIMPLE.map(Not).map(Not)), max_size=3)


def every_filter() -> Iterator[Filter]:
    numbers = (*range(-2, 13), None)
    texts = ("", "a", "ab", "b", "B", "c", None)
    for column, values in (("topic", texts), ("partition", numbers), ("offset", numbers)):
        for value in values:
            yield from (kind((column,), value) for kind in (*ORDERED, EqualNullSafe))
            yield In((column,), (value,))
            yield In((column,), (values[3], value))
        yield from (IsNull((column,)), IsNotNull((column,)))
    for kind in (StringStartsWith, StringEndsWith, StringContains):
        yield from (kind(("topic",), text) for text in texts if text is not None)


def test_each_filter_alone_is_what_sql_says() -> None:
    for one in every_filter():
        for wrapped in (one, Not(one), Not(Not(one))):
            check([wrapped])


@given(FILTERS)
def test_what_is_read_and_filtered_by_spark_is_what_sql_says(filters: list[Filter]) -> None:
    check(filters)


def check(filters: list[Filter]) -> None:
    narrowing, handed_back = take(filters)
    narrowing = pickle.loads(pickle.dumps(narrowing))
    rows = rows_of(narrowing.narrow(RANGES))
    seen = [row for row in rows if all(sql(one, row) is True for one in handed_back)]
    wanted = [row for row in ROWS if all(sql(one, row) is True for one in filters)]
    assert seen == wanted, filters


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("offset",), 5),
        Not(EqualTo(("topic",), "a")),
        Not(EqualTo(("partition",), 1)),
        In(("partition",), (0, 2)),
        GreaterThan(("offset",), -5),
        LessThanOrEqual(("offset",), 2**63 - 1),
        StringStartsWith(("topic",), "a"),
        EqualNullSafe(("topic",), "ab"),
        IsNotNull(("offset",)),
    ],
)
def test_what_narrows_is_taken(one: Filter) -> None:
    assert take([one])[1] == []


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("key",), b"k"),
        EqualTo(("value", "offset"), 5),
        EqualTo(("topic", "inner"), "a"),
        GreaterThan(("timestamp",), 5),
        EqualTo(("offset",), None),
        EqualTo(("offset",), "5"),
        EqualTo(("offset",), 5.0),
        EqualTo(("partition",), True),
        EqualTo(("topic",), b"a"),
        Not(EqualTo(("offset",), 5)),
        In(("partition",), (0, None)),
        In(("partition",), ()),
        Not(In(("partition",), (0, None))),
        IsNull(("offset",)),
        Not(IsNotNull(("offset",))),
        StringContains(("key",), "a"),
    ],
)
def test_all_else_is_handed_back_and_narrows_nothing(one: Filter) -> None:
    narrowing, handed_back = take([one])
    assert handed_back == [one]
    assert handed_back[0] is one
    assert narrowing.narrow(RANGES) == RANGES


def test_a_list_of_offsets_bounds_the_range_and_spark_picks_from_it() -> None:
    one = In(("offset",), (7, 5))
    narrowing, handed_back = take([one])
    assert handed_back == [one]
    assert {(r.start, r.end) for r in narrowing.narrow(RANGES)} == {(5, 8)}


def test_ranges_without_any_rows_are_left_out() -> None:
    assert take([GreaterThan(("offset",), 100)])[0].narrow(RANGES) == []
    assert Narrowing().narrow([OffsetRange(TopicPartition("a", 0), 5, 5)]) == []


def test_filters_are_offered_only_under_sparks_pushdown_worker() -> None:
    assert not is_offered()
    for globals_ in (
        {"__name__": PUSHDOWN_MODULE},
        {"__name__": "__main__", "__spec__": type("Spec", (), {"name": PUSHDOWN_MODULE})},
    ):
        names: dict[str, Any] = {**globals_, "is_offered": is_offered}
        exec("offered = is_offered()", names)
        assert names["offered"]
