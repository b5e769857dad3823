"""What a letter tells about where it came from, and whether it can be read now."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.language.model import FileSource, TopicSource
from ottla.pipelines.language.problems import Place
from ottla.pipelines.sources.dead_letters import OF_FILE, OF_TOPIC, errors_now, origin, original
from ottla.wire.records import Record

PLACE = Place(Path("p.yaml"), 1, 1)
TOLD = dict(
    zip(
        OF_TOPIC,
        [b"orders", b"3", b"17", b"2026-01-31T12:00:00.250Z", b"value: why", b"shop", b"in"],
        strict=True,
    )
)
MS = 1_769_860_800_250
FROM_FILE = list(zip(OF_FILE, [b"file:/a.csv", b"why", b"shop", b"in"], strict=True))


def letter(*own: tuple[str, bytes | None], **changed: bytes | None) -> Record:
    told = {**TOLD, **{f"ottla.{name}": value for name, value in changed.items()}}
    return Record(0, 999, b"k", b"v", [*own, *told.items()])


def test_a_letter_tells_its_origin() -> None:
    told = ("orders", 3, 17, MS, "value: why", "shop", "in")
    assert origin(letter().headers) == (*told, None)
    cut = letter(("a", b"1"), ("ottla.cut", b"1048300"))
    assert origin(cut.headers) == (*told, 1048300)
    assert original(cut).headers == [("a", b"1")]


def test_the_message_comes_back_as_it_was() -> None:
    own = [("a", b"1"), ("b", None), ("a", b"")]
    assert original(letter(*own)) == Record(0, MS, b"k", b"v", own)


def test_a_message_without_a_time_comes_back_without_one() -> None:
    assert original(letter(timestamp=b"1969-12-31T23:59:59.999Z")).timestamp == -1


def test_a_time_that_cannot_be_read_is_the_letters_own() -> None:
    assert original(letter(timestamp=b"+12345-01-01T00:00:00.000Z")).timestamp == 999


def test_a_letter_of_a_letter_loses_only_the_outer_headers() -> None:
    inner = letter(("a", b"1"), topic=b"first")
    outer = Record(0, 999, b"k", b"v", [*inner.headers, *TOLD.items()])
    found = origin(outer.headers)
    assert found is not None
    assert found.place == "orders"
    assert list(original(outer).headers) == list(inner.headers)
    assert original(original(outer)).headers == [("a", b"1")]


def test_a_letter_from_a_file_has_no_partition() -> None:
    found = origin(FROM_FILE)
    assert found is not None
    assert (found.place, found.is_file, found.reason) == ("file:/a.csv", True, "why")


@pytest.mark.parametrize(
    "headers",
    [
        (),
        [("a", b"1")],
        list(TOLD.items())[:-1],
        [*TOLD.items(), ("a", b"1")],
        list(reversed(TOLD.items())),
        letter(partition=b"x").headers,
        letter(partition=b"-1").headers,
        letter(offset=None).headers,
        letter(topic=b"\xff").headers,
        letter(reason=b"\xff").headers,
    ],
)
def test_other_headers_are_foreign(headers: list[tuple[str, bytes | None]]) -> None:
    assert origin(headers) is None
    assert original(Record(0, 1, None, None, headers)).headers == headers


def test_the_schema_of_today_decides() -> None:
    messages = [
        Record(0, 0, b"k", b'{"id": 1}'),
        Record(0, 0, b"k", b'{"id": "x"}'),
        Record(0, 0, b"\xff", b'{"id": 1}'),
        Record(0, 0, None, None),
    ]
    source = TopicSource(name="in", place=PLACE, topics=("orders",), schema="id INT")
    wrong = errors_now(source, messages)
    assert [one is None for one in wrong] == [True, False, False, True]
    assert (wrong[1] or "").startswith("value: field id")
    mended = TopicSource(
        name="in", place=PLACE, topics=("orders",), schema="id STRING", key_format="bytes"
    )
    assert errors_now(mended, messages) == [None] * 4
    assert errors_now(mended, []) == []


def test_bytes_are_never_wrong() -> None:
    source = TopicSource(
        name="in", place=PLACE, topics=("orders",), format="bytes", key_format="bytes"
    )
    assert errors_now(source, [Record(0, 0, b"\xff", b"\xff")]) == [None]


def test_files_are_not_decoded() -> None:
    source = FileSource(name="in", place=PLACE, path="in", format="csv", schema="id INT")
    assert errors_now(source, [Record(0, 0, None, b"junk")]) == [None]
