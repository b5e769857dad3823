"""The option deadLetterTopic: where the dead letters of a read go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.errors import OttlaError
from ottla.spark.options.both_sides import check_topic
from ottla.spark.options.positions import parse_offsets
from ottla.spark.options.sink import SinkOptions
from ottla.spark.options.subscriptions import (
    Assigned,
    Pattern,
    Subscription,
    Topics,
    parse_subscription,
)
from ottla.spark.options.values import BadOption
from ottla.types import TopicPartition

# What of a message a dead letter tells.
LETTER_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")


class CannotPost(OttlaError):
    """Letters that no broker has taken, so that the rows around them stay where they are."""


@dataclass(frozen=True)
class LetterOptions:
    """Where the dead letters of a read go, and what they say of their origin; picklable."""

    sink: SinkOptions
    pipeline: str = ""
    source: str = ""
    # Another has written those before these offsets.
    since: Mapping[TopicPartition, int] = field(default_factory=dict)


def parse_letters(options: Mapping[str, str], *, with_formats: bool) -> LetterOptions | None:
    topic = options.get("deadlettertopic")
    if topic is None:
        return None
    if not with_formats:
        raise BadOption(
            "option deadLetterTopic needs valueFormat or keyFormat: bytes are never bad"
        )
    check_topic("deadLetterTopic", topic.strip())
    if _reads(parse_subscription(options), topic.strip()):
        raise BadOption(
            f"option deadLetterTopic is {topic.strip()}, which is read as well, so that letters "
            "would come back for ever; choose another"
        )
    pipeline, source = json.loads(options.get("deadlettersof", '["", ""]'))
    since = options.get("deadlettersfrom")
    return LetterOptions(
        letter_sink(options, topic),
        pipeline,
        source,
        parse_offsets("deadLettersFrom", since) if since is not None else {},
    )


def letter_sink(options: Mapping[str, str], topic: str) -> SinkOptions:
    """What is passed over must be kept for certain, whatever rows may risk."""
    others = {name: text for name, text in options.items() if name != "kafka.acks"}
    return SinkOptions.parse({**others, "topic": topic})


def _reads(subscription: Subscription, topic: str) -> bool:
    match subscription:
        case Topics(names=names):
            return topic in names
        case Assigned(partitions=named):
            return topic in named
        case Pattern():
            return subscription.matches(topic)
