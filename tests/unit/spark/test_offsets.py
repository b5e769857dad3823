"""The offsets in the checkpoint: Spark compares them as text, and the connector reads them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.spark.offsets import BadCheckpoint, from_document, to_document
from ottla.types import TopicPartition

PARTITIONS = st.builds(
    TopicPartition, st.sampled_from(["a", "b", "a.b", "zz"]), st.integers(0, 2**31 - 1)
)


def test_partitions_are_in_the_order_of_numbers_and_topics_in_that_of_letters() -> None:
    offsets = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 2, TopicPartition("a", 9): 3}
    assert json.dumps(to_document(offsets)) == '{"a": {"9": 3, "10": 2}, "b": {"0": 1}}'


@settings(deadline=None)
@given(st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1)), st.randoms())
def test_the_same_offsets_are_the_same_text(offsets: dict[TopicPartition, int], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(offsets.items())
    random.shuffle(shuffled)
    assert json.dumps(to_document(dict(shuffled))) == json.dumps(to_document(offsets))


@settings(deadline=None)
@given(st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1)))
def test_what_is_written_is_read(offsets: dict[TopicPartition, int]) -> None:
    assert from_document(json.loads(json.dumps(to_document(offsets)))) == offsets


def test_the_connectors_own_line_is_read() -> None:
    line = '{"t":{"0":351,"1":329,"2":320}}'
    assert from_document(json.loads(line))[TopicPartition("t", 1)] == 329


@pytest.mark.parametrize(
    "document", [[], 7, {"t": 3}, {"t": {"x": 3}}, {"t": {"0": "3"}}, {"t": {"0": True}}]
)
def test_the_checkpoint_of_another_source_is_refused_in_one_line(document: object) -> None:
    with pytest.raises(BadCheckpoint, match="another source") as refused:
        from_document(document)
    assert "\n" not in str(refused.value)
