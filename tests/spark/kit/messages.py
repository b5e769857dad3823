"""What is in a topic, as librdkafka reads it."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

TIMEOUT_S = 30.0


class Found(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def messages_in(bootstrap: str, topic: str) -> list[Found]:
    """Everything, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.message.max.bytes": 20_000_000,
        }
    )
    try:
        metadata = consumer.list_topics(topic, TIMEOUT_S).topics[topic]
        places = [TopicPartition(topic, number, 0) for number in sorted(metadata.partitions)]
        ends = [consumer.get_watermark_offsets(place, TIMEOUT_S)[1] for place in places]
        consumer.assign(places)
        found: list[Found] = []
        while len(found) < sum(ends):
            messages = consumer.consume(min(10_000, sum(ends) - len(found)), TIMEOUT_S)
            assert messages, f"{len(found)} of {sum(ends)} messages came"
            for one in messages:
                assert one.error() is None, one.error()
                found.append(
                    Found(
                        one.partition(), one.offset(), one.key(), one.value(), one.headers() or []
                    )
                )
        return sorted(found, key=lambda one: one[:2])
    finally:
        consumer.close()
