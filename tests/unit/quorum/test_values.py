"""Values of the quorum are what frozen dataclasses are."""

from __future__ import annotations

import pytest

from ottla.quorum.values import Value


class Point(Value):
    x: int
    y: int = 0


class Place(Value):
    x: int
    y: int = 0


def test_fields_come_by_place_or_by_name_and_have_defaults() -> None:
    assert Point(1) == Point(x=1) == Point(1, 0) == Point(1, y=0)
    assert repr(Point(1)) == "Point(x=1, y=0)"
    assert len({Point(1), Point(1, 0), Point(2)}) == 2


def test_values_of_two_kinds_are_never_equal() -> None:
    assert Point(1) != Place(1)
    assert Point(1) != (1, 0)


def test_a_value_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Point(1).x = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1})]
)
def test_wrong_fields_are_refused(values: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        Point(*values, **named)
