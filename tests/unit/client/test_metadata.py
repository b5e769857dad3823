"""What is known of a cluster, answer by answer."""

from __future__ import annotations

import pytest

from ottla.client.metadata import Image
from ottla.errors import ErrorCode, InvalidTopicName
from ottla.types import TopicPartition
from ottla.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

BROKERS = [MetadataResponseBroker(1, "a", 9092), MetadataResponseBroker(2, "::1", 9093)]
ORDERS_0 = TopicPartition("orders", 0)
FIRST_ID, SECOND_ID = b"1" * 16, b"2" * 16


def answer(
    *leaders: tuple[int, int], topic_id: bytes = FIRST_ID, error: int = 0
) -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(partition_index=at, leader_id=leader, leader_epoch=epoch)
        for at, (leader, epoch) in enumerate(leaders)
    ]
    topic = MetadataResponseTopic(
        error_code=error, name="orders", topic_id=topic_id, partitions=partitions
    )
    return MetadataResponse(brokers=BROKERS, topics=[topic])


def test_an_answer_tells_topics_leaders_and_addresses():
    image = Image()
    topics = image.fold(answer((2, 5), (1, 5)))
    assert topics["orders"].partitions == (0, 1)
    assert image.leader_of(ORDERS_0) == 2
    assert image.addresses == {1: "a:9092", 2: "[::1]:9093"}
    assert image.topic_id("orders") == FIRST_ID


def test_a_broker_that_lags_does_not_bring_back_the_old_leader():
    image = Image()
    image.fold(answer((2, 5)))
    image.fold(answer((1, 4)))
    assert image.leader_of(ORDERS_0) == 2
    image.fold(answer((1, 6)))
    assert image.leader_of(ORDERS_0) == 1


def test_a_topic_made_anew_begins_with_new_epochs():
    image = Image()
    image.fold(answer((2, 5)))
    image.fold(answer((1, 0), topic_id=SECOND_ID))
    assert image.leader_of(ORDERS_0) == 1


def test_a_partition_without_a_leader_or_with_an_unknown_one_has_none():
    image = Image()
    image.fold(answer((2, 5)))
    image.fold(answer((-1, 6)))
    assert image.leader_of(ORDERS_0) is None
    image.fold(answer((7, 7)))
    assert image.leader_of(ORDERS_0) is None


def test_a_topic_that_is_gone_is_absent_and_forgotten():
    image = Image()
    image.fold(answer((2, 5)))
    assert image.fold(answer(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)) == {}
    assert image.leader_of(ORDERS_0) is None


def test_what_else_is_said_about_a_topic_is_raised_with_its_name():
    with pytest.raises(InvalidTopicName, match=r"topic 'orders': INVALID_TOPIC_EXCEPTION"):
        Image().fold(answer(error=ErrorCode.INVALID_TOPIC_EXCEPTION))
