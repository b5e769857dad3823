"""Positions out of JSON texts."""

from __future__ import annotations

import pickle
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ottla.spark.options.positions import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Committed,
    Earliest,
    Latest,
    is_repeatable,
    parse_assignment,
    parse_offsets,
    parse_timestamps,
)
from ottla.spark.options.values import BadOption
from ottla.types import TopicPartition

ZERO = TopicPartition("t", 0)


def test_offsets_by_topic_and_partition() -> None:
    found = parse_offsets("startingOffsets", '{"t":{"0":23,"1":-1},"u":{"0":-2}}')
    assert found == {ZERO: 23, TopicPartition("t", 1): -1, TopicPartition("u", 0): -2}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "1", "null", "{}", '{"t":{}}', '{"t":[0]}', '{"t":{"a":1}}',
        '{"t":{"-1":1}}', '{"t":{"0":-3}}', '{"t":{"0":1.0}}', '{"t":{"0":"1"}}',
        '{"t":{"0":true}}', '{"t":{"0":null}}', '{"t":{"0":9223372036854775808}}',
        '{"t":{"0":1,"0":2}}', '{"t":{"2147483648":1}}', '{"t":{"0":NaN}}', "[" * 100_000,
    ],
)  # fmt: skip
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadOption, match=r"option startingOffsets is .* for example {") as caught:
        parse_offsets("startingOffsets", text)
    assert "\n" not in str(caught.value)


def test_a_negative_time_is_refused_as_a_broker_would_take_it_for_latest() -> None:
    assert parse_timestamps("x", '{"t":{"0":0}}') == {ZERO: 0}
    with pytest.raises(BadOption, match="a time in milliseconds"):
        parse_timestamps("x", '{"t":{"0":-1}}')


@given(some.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_offsets, parse_timestamps, parse_assignment):
        with suppress(BadOption):
            parse("x", text)


def test_only_what_moves_with_the_log_is_not_repeatable() -> None:
    assert is_repeatable(Earliest)
    assert is_repeatable(Committed)
    assert is_repeatable(AtOffsets({ZERO: -2}))
    assert is_repeatable(AtTimestamp(1))
    assert not is_repeatable(Latest)
    assert not is_repeatable(AtOffsets({ZERO: 5, TopicPartition("t", 1): -1}))
    assert not is_repeatable(AtTimestamp(1, "latest"))
    assert not is_repeatable(AtTimestamps({ZERO: 1}, "latest"))


def test_positions_stay_what_they_are_when_pickled() -> None:
    for position in (Earliest, Latest, Committed):
        assert pickle.loads(pickle.dumps(position)) is position
    assert pickle.loads(pickle.dumps(AtTimestamps({ZERO: 1}))) == AtTimestamps({ZERO: 1})
