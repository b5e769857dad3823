"""How many messages of its topics a flow has still to read."""

from __future__ import annotations

from pathlib import Path

from ottla.pipelines.language.model import RateSource, TopicSource
from ottla.pipelines.language.problems import Place
from ottla.pipelines.running.lag import messages_left, newest, positions
from ottla.types import TopicPartition

PLACE = Place(Path("p.yaml"), 1, 1)
ORDERS = TopicSource(name="orders", place=PLACE, topics=("o", "o2"))
SHOPS = TopicSource(name="shops", place=PLACE, topics=("s",))
CLOCK = RateSource(name="clock", place=PLACE)

PROGRESS = {
    "sources": [
        {"endOffset": {"o": {"0": 10, "1": 5}, "o2": {"0": 1}}, "latestOffset": None},
        {"endOffset": 17},
        {"endOffset": {"logOffset": 3}},
        {"endOffset": {"s": {"0": 7}}, "latestOffset": {"s": {"0": 9}}},
    ]
}
REACHED = positions(PROGRESS)


def at(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, partition)


def test_positions_are_those_of_topics() -> None:
    assert [
        {at("o", 0): 10, at("o", 1): 5, at("o2", 0): 1},
        {at("s", 0): 7},
    ] == REACHED
    assert positions(PROGRESS, "latestOffset") == [{at("s", 0): 9}]
    assert positions({"sources": None}) == []


def test_lag_is_per_source_and_over_all_its_topics() -> None:
    ends = {at("o", 0): 12, at("o", 1): 5, at("o2", 0): 4, at("s", 0): 7, at("x", 0): 99}
    assert messages_left([ORDERS, CLOCK, SHOPS], ends, REACHED) == {"orders": 5, "shops": 0}


def test_partition_that_is_not_read_yet_counts_whole() -> None:
    ends = {at("s", 0): 7, at("s", 1): 30}
    assert messages_left([SHOPS], ends, REACHED) == {"shops": 30}


def test_an_old_answer_makes_no_negative_lag() -> None:
    assert messages_left([SHOPS], {at("s", 0): 2}, REACHED) == {"shops": 0}


def test_what_is_not_known_is_none() -> None:
    assert messages_left([SHOPS], {}, REACHED) == {"shops": None}
    assert messages_left([SHOPS], {at("s", 0): 2}, []) == {"shops": None}


def test_the_slower_of_two_readers_counts() -> None:
    again = TopicSource(name="again", place=PLACE, topics=("s",))
    reached = [{at("s", 0): 2}, {at("s", 0): 7}]
    assert messages_left([SHOPS, again], {at("s", 0): 9}, reached) == {"shops": 7, "again": 7}


def test_the_newest_of_several_answers() -> None:
    one, other = {at("s", 0): 2, at("o", 0): 1}, {at("s", 0): 9}
    assert newest(one, other) == newest(other, one) == {at("s", 0): 9, at("o", 0): 1}
