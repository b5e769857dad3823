"""Rows found beside rows expected."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.cases.diffs import (
    SHOWN_CHARS_MAX,
    SHOWN_ROWS_MAX,
    Diff,
    compare,
    render,
    value_text,
)
from ottla.pipelines.cases.expected_rows import Expected, ExpectedRow

FILE = Path("out.jsonl")


def expected(*rows: dict[str, Any]) -> Expected:
    columns = tuple(rows[0]) if rows else ("id",)
    return Expected(FILE, columns, tuple(ExpectedRow(at, row) for at, row in enumerate(rows, 1)))


def lines(diff: Diff, *, coloured: bool = False) -> list[str]:
    return list(render(diff, "totals", coloured=coloured))


def test_order_does_not_matter() -> None:
    assert not compare(expected({"id": 1}, {"id": 2}), [{"id": 2}, {"id": 1}])


def test_columns_that_nobody_expects_are_not_compared() -> None:
    assert not compare(expected({"id": 1}), [{"id": 1, "_offset": 7}])


def test_duplicates_count() -> None:
    row = {"id": 1}
    diff = compare(expected(row, row), [row])
    assert (len(diff.missing), len(diff.unexpected)) == (1, 0)
    diff = compare(expected(row), [row, row])
    assert (len(diff.missing), len(diff.unexpected)) == (0, 1)


def test_nothing_found_is_a_difference() -> None:
    assert compare(expected({"id": 1}), [])
    assert compare(Expected(FILE, ("id",), ()), [{"id": 1}])
    assert not compare(Expected(FILE, ("id",), ()), [])


def test_the_same_values_in_other_clothes_are_equal() -> None:
    berlin = timezone(timedelta(hours=2))
    assert not compare(
        expected({"a": Decimal("1.5"), "b": datetime(2024, 6, 1, 10, tzinfo=UTC), "c": 0.3}),
        [{"a": Decimal("1.50"), "b": datetime(2024, 6, 1, 12, tzinfo=berlin), "c": 0.1 + 0.2}],
    )


def test_not_a_number_is_itself_and_no_other() -> None:
    nan = float("nan")
    assert not compare(expected({"a": nan}), [{"a": float("nan")}])
    assert compare(expected({"a": nan}), [{"a": 0.0}])


def test_maps_have_no_order_but_lists_have() -> None:
    assert not compare(expected({"a": {"x": 1, "y": [1]}}), [{"a": {"y": [1], "x": 1}}])
    assert compare(expected({"a": [1, 2]}), [{"a": [2, 1]}])


def test_null_is_not_a_value() -> None:
    assert compare(expected({"a": None}), [{"a": 0}])
    assert compare(expected({"a": ""}), [{"a": None}])
    assert not compare(expected({"a": None}), [{"a": None}])


def test_a_row_that_nearly_matches_is_told_with_the_columns_that_differ() -> None:
    diff = compare(
        expected({"shop": "a", "day": 1, "sum": 10}, {"shop": "b", "day": 1, "sum": 20}),
        [{"shop": "b", "day": 1, "sum": 21}, {"shop": "a", "day": 1, "sum": 10}],
    )
    assert lines(diff) == [
        "totals is not as in out.jsonl: 2 rows expected, 2 found",
        '  ~ differs   line 2 {"shop": "b", "day": 1}: sum is 21, expected 20',
    ]


def test_the_nearest_row_is_chosen() -> None:
    wanted = {"a": 1, "b": 1, "c": 1, "d": 1}
    far, near = {**wanted, "c": 2, "d": 2}, {**wanted, "d": 2}
    for found in ([far, near], [near, far]):
        diff = compare(expected(wanted), found)
        assert [pair.found for pair in diff.pairs] == [near]
        assert diff.pairs[0].columns == ("d",)
        assert diff.unexpected == (far,)


def test_no_row_has_two_partners() -> None:
    one = {"a": 1, "b": 1}
    diff = compare(expected(one, one), [{"a": 1, "b": 2}])
    assert (len(diff.pairs), len(diff.missing), len(diff.unexpected)) == (1, 1, 0)


def test_rows_with_little_in_common_are_missing_and_unexpected() -> None:
    diff = compare(expected({"a": 1, "b": 1, "c": 1}), [{"a": 1, "b": 2, "c": 2}])
    assert lines(diff) == [
        "totals is not as in out.jsonl: 1 row expected, 1 found",
        '  - missing   line 1 {"a": 1, "b": 1, "c": 1}',
        '  + unexpected     {"a": 1, "b": 2, "c": 2}',
    ]


def test_the_report_is_bounded_in_both_directions() -> None:
    found = [{"id": "x" * 2000 + str(at)} for at in range(1000)]
    told = lines(compare(Expected(FILE, ("id",), ()), found))
    assert len(told) == SHOWN_ROWS_MAX + 2
    assert told[-1] == f"  … and {1000 - SHOWN_ROWS_MAX} rows more"
    assert max(map(len, told)) <= SHOWN_CHARS_MAX + 2


def test_many_rows_are_not_compared_with_many() -> None:
    wanted = expected(*({"id": at, "x": 1} for at in range(3000)))
    diff = compare(wanted, [{"id": -at, "x": 1} for at in range(1, 3000)])
    assert (len(diff.missing), diff.pairs) == (3000, ())


def test_colours_are_for_terminals() -> None:
    diff = compare(expected({"id": 1}), [{"id": 2}])
    assert not any("\x1b" in line for line in lines(diff))
    assert [line for line in lines(diff, coloured=True) if "\x1b[31m" in line]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ("a\nä", '"a\\nä"'),
        (Decimal("1E+3"), "1000"),
        (Decimal("12.50"), "12.50"),
        (float("inf"), '"Infinity"'),
        (0.1, "0.1"),
        (b"\x00\xff", '"AP8="'),
        (date(2024, 1, 31), '"2024-01-31"'),
        (datetime(2024, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), '"2024-01-31T10:00:00Z"'),
        (datetime(2024, 1, 31, 12, 0, 0, 5), '"2024-01-31T12:00:00.000005"'),
        ([1, {"a": [None]}], '[1, {"a": [null]}]'),
        ({1: "one"}, '{"1": "one"}'),
    ],
)
def test_values_are_shown_as_they_would_be_expected(value: Any, text: str) -> None:
    assert value_text(value) == text
