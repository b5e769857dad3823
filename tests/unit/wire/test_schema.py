"""The language in which messages are declared."""

import pytest

from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.schema import INT32, NEVER, STRING, VERSION_MAX, Array, Struct, Versions, field


class Point(Struct):
    x: int = field(INT32)
    y: int = field(INT32, default=-1)


class Line(Struct):
    name: str | None = field(STRING, nullable="0+", default=None)
    start: Point = field(Point)
    points: list[Point] = field(Array(Point))
    labels: list[str] | None = field(Array(STRING), nullable="1+", default=None)


@pytest.mark.parametrize(
    ("text", "first", "last"), [("3+", 3, VERSION_MAX), ("0-12", 0, 12), ("4", 4, 4)]
)
def test_ranges_are_read(text, first, last):
    assert Versions.parse(text) == Versions(first, last)
    assert first in Versions.parse(text)
    assert last in Versions.parse(text)
    assert first - 1 not in Versions.parse(text)
    assert last + 1 not in Versions.parse(text)


def test_never_contains_nothing():
    assert Versions.parse("none") is NEVER
    assert not any(version in NEVER for version in range(20))


def test_a_struct_is_built_by_position_or_by_name_and_the_rest_is_default():
    assert (Point(1).x, Point(1).y) == (1, -1)
    assert Point(1, 2) == Point(y=2, x=1)
    line = Line()
    assert (line.name, line.start, line.points, line.labels) == (None, Point(0), [], None)
    with pytest.raises(TypeError):
        Point(z=1)


def test_structs_are_equal_by_value_and_only_to_their_own_kind():
    assert Line(points=[Point(1)]) == Line(points=[Point(1)])
    assert Line(points=[Point(1)]) != Line(points=[Point(2)])
    assert HeartbeatRequest() != HeartbeatResponse()
    with pytest.raises(TypeError):
        hash(Point())


def test_a_misspelt_field_is_an_error_and_not_a_new_attribute():
    with pytest.raises(AttributeError):
        Point().z = 1


def test_a_struct_shows_its_values():
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"


def test_messages_know_their_key_and_versions():
    assert HeartbeatRequest.API_KEY == 12
    assert list(HeartbeatRequest.VERSIONS) == [0, 4]
    assert 4 in HeartbeatRequest.FLEXIBLE
    assert 3 not in HeartbeatRequest.FLEXIBLE
