"""Dead letters of a read: written by the task that finds the record, before its rows go on."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from ottla.spark.options.letters import CannotPost
from ottla.spark.options.source import SourceOptions
from ottla.spark.planning import OffsetRange
from ottla.spark.read_task import OffsetTask, read_task
from ottla.testing import Broker
from ottla.types import TopicPartition
from spark.conftest import MakeTopic
from spark.kit.filling import put, record
from spark.kit.messages import Found, messages_in
from spark.kit.pipeline_sources import Message, send


def task(broker: Broker, topic: str, end: int, **options: str) -> Iterator[pa.RecordBatch]:
    """What Spark runs for one partition."""
    given = {
        "bootstrap": broker.bootstrap, "subscribe": topic, "valueformat": "json",
        "valueschema": "id INT", "columns": "value,offset,_error",
    }  # fmt: skip
    parsed = SourceOptions.parse({**given, **options}, streaming=True)
    return read_task(parsed, OffsetTask(OffsetRange(TopicPartition(topic, 0), 0, end)))


def headers(letter: Found) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in letter.headers}


def test_letters_are_acknowledged_before_their_rows_go_on(broker: Broker, topic: MakeTopic) -> None:
    name, dead = topic(), topic()
    own = [("trace", b"\x00\xff"), ("none", None), ("trace", b"2")]
    send(
        broker.bootstrap, name,
        Message(b'{"id": 1}', b"k"), Message(b"\xff{", b"k\x00", own, 1_769_860_800_250),
    )  # fmt: skip
    rows = task(broker, name, 2, deadlettertopic=dead, deadlettersof='["shop", "orders"]')
    batch = next(rows)
    (letter,) = messages_in(broker.bootstrap, dead)
    # As a query does that wants no more of them.
    rows.close()  # type: ignore[attr-defined]
    assert batch.schema.names == ["value", "offset", "_error"]
    assert [error is None for error in batch.column("_error").to_pylist()] == [True, False]
    assert (letter.key, letter.value) == (b"k\x00", b"\xff{")
    assert letter.headers == [
        *own,
        ("ottla.topic", name.encode()),
        ("ottla.partition", b"0"),
        ("ottla.offset", b"1"),
        ("ottla.timestamp", b"2026-01-31T12:00:00.250Z"),
        ("ottla.reason", b"value: it is not UTF-8: invalid start byte at byte 0"),
        ("ottla.pipeline", b"shop"),
        ("ottla.source", b"orders"),
    ]


def test_a_message_without_a_time_keeps_none(broker: Broker, topic: MakeTopic) -> None:
    name, dead = topic(), topic()
    put(broker.bootstrap, name, [record(b"{", timestamp=-1)])
    list(task(broker, name, 1, deadlettertopic=dead))
    (letter,) = messages_in(broker.bootstrap, dead)
    assert headers(letter)["ottla.timestamp"] == "1969-12-31T23:59:59.999Z"
    assert headers(letter)["ottla.pipeline"] == ""


def test_letters_begin_where_another_has_ended(broker: Broker, topic: MakeTopic) -> None:
    name, dead = topic(), topic()
    send(broker.bootstrap, name, *(Message(b"{%d" % number) for number in range(5)))
    since = f'{{"{name}": {{"0": 3}}}}'
    (batch,) = task(broker, name, 5, deadlettertopic=dead, deadlettersfrom=since)
    assert batch.column("_error").null_count == 0
    assert [one.value for one in messages_in(broker.bootstrap, dead)] == [b"{3", b"{4"]


def test_rows_whose_letters_nobody_takes_do_not_go_on(broker: Broker, topic: MakeTopic) -> None:
    name = topic()
    send(broker.bootstrap, name, Message(b"{"))
    dead = topic(1, {"max.message.bytes": 100})
    rows = task(broker, name, 1, deadlettertopic=dead)
    with pytest.raises(CannotPost, match=f"dead letters for {dead}: .*more than the broker takes"):
        next(rows)


def test_letters_keep_the_keys_partition(broker: Broker, topic: MakeTopic) -> None:
    """As a topic's sink puts them: all letters of a key are in one partition, in order."""
    name, dead = topic(), topic(4)
    messages = [Message(b"{%d" % number, b"key-%d" % (number % 7)) for number in range(70)]
    send(broker.bootstrap, name, *messages)
    list(task(broker, name, 70, deadlettertopic=dead))
    by_key: dict[bytes | None, list[Found]] = {}
    for one in messages_in(broker.bootstrap, dead):
        by_key.setdefault(one.key, []).append(one)
    assert len(by_key) == 7
    assert len({one.partition for some in by_key.values() for one in some}) > 1
    for some in by_key.values():
        assert len({one.partition for one in some}) == 1
        numbers = [int((one.value or b"")[1:]) for one in some]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("limit", [1_048_588, 20_000])
def test_a_record_too_large_for_a_letter_is_cut(
    broker: Broker, topic: MakeTopic, limit: int
) -> None:
    """Its headers make it larger than it was; or the topic of the letters takes less."""
    name, dead = topic(), topic(1, {"max.message.bytes": limit})
    value = b"{" + b"x" * 1_048_300
    rows = [record(b"{1"), record(value, b"key", headers=[("own", b"1")]), record(b"{3")]
    put(broker.bootstrap, name, *([row] for row in rows))
    list(task(broker, name, 3, deadlettertopic=dead))
    letters = messages_in(broker.bootstrap, dead)
    assert {one.value for one in letters if one.value in (b"{1", b"{3")} == {b"{1", b"{3"}
    (cut,) = [one for one in letters if one.key == b"key"]
    assert value.startswith(cut.value or b"")
    assert limit * 0.9 < len(cut.value or b"") < limit
    names = [key for key, _ in cut.headers]
    assert names[:3] == ["own", "ottla.cut", "ottla.topic"]
    assert headers(cut)["ottla.cut"] == str(len(value))
    assert headers(cut)["ottla.offset"] == "1"


def test_headers_and_key_give_way_where_they_are_what_is_large(
    broker: Broker, topic: MakeTopic
) -> None:
    name, dead = topic(), topic(1, {"max.message.bytes": 2_000})
    large = b"l" * 3_000
    send(
        broker.bootstrap, name, Message(b"{1", b"k", [("own", large)]), Message(b"{2", large)
    )  # fmt: skip
    list(task(broker, name, 2, deadlettertopic=dead))
    letters = [one for one in messages_in(broker.bootstrap, dead) if "ottla.cut" in headers(one)]
    assert [(one.key, one.value) for one in letters] == [(b"k", b"{1"), (None, b"{2")]
    assert [headers(one)["ottla.offset"] for one in letters] == ["0", "1"]
