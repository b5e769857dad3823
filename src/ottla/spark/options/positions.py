"""Where a read begins and ends, as asked for; planning turns these into offsets.

In the offsets of a JSON text -2 stands for earliest and -1 for latest, as in Kafka's protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NoReturn

from ottla.client.values import EARLIEST, LATEST
from ottla.spark.options.values import LONG_MAX, as_json, raise_bad_option
from ottla.types import TopicPartition

# Spark's connector writes them as the protocol does.
LATEST_OFFSET: Final = LATEST
EARLIEST_OFFSET: Final = EARLIEST

OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
TIMESTAMPS_EXAMPLE: Final = '{"topicA":{"0":1735689600000,"1":1735689600000}}'
ASSIGN_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[2,4]}'

PARTITION_MAX: Final = 2**31 - 1
PARTITION: Final = re.compile(r"[0-9]+")


class Named(Enum):
    """The positions that need no more than their name; an enum stays itself when pickled."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


Earliest: Final = Named.EARLIEST
Latest: Final = Named.LATEST
Committed: Final = Named.COMMITTED

# What a start by time does in a partition that has no record so late: fail, or begin at its end.
# An end by time is the end of the partition there, whatever is chosen.
NoMatch = Literal["error", "latest"]


@dataclass(frozen=True)
class AtOffsets:
    """An offset for each partition; -2 and -1 may stand among them."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamp:
    """In every partition the first offset whose timestamp is at least this."""

    ms: int
    no_match: NoMatch = "error"


@dataclass(frozen=True)
class AtTimestamps:
    """The same with a time of its own for each partition."""

    ms: Mapping[TopicPartition, int]
    no_match: NoMatch = "error"


Position = Named | AtOffsets | AtTimestamp | AtTimestamps


def is_repeatable(position: Position) -> bool:
    """Whether asking again later gives the same offsets, as long as no data is deleted."""
    if isinstance(position, AtOffsets):
        return LATEST_OFFSET not in position.offsets.values()
    if isinstance(position, (AtTimestamp, AtTimestamps)):
        return position.no_match == "error"
    return position is not Latest


def parse_offsets(name: str, text: str) -> dict[TopicPartition, int]:
    wanted = "an offset for each partition (-1 latest, -2 earliest)"
    return _per_partition(name, text, wanted, OFFSETS_EXAMPLE, least=EARLIEST_OFFSET)


def parse_timestamps(name: str, text: str) -> dict[TopicPartition, int]:
    # A negative time would mean earliest or latest to a broker.
    wanted = "a time in milliseconds for each partition"
    return _per_partition(name, text, wanted, TIMESTAMPS_EXAMPLE, least=0)


def parse_assignment(name: str, text: str) -> dict[str, tuple[int, ...]]:
    def wrong() -> NoReturn:
        raise_bad_option(name, text, "the partitions of each topic, as JSON", ASSIGN_EXAMPLE)

    found = as_json(name, text, "the partitions of each topic, as JSON", ASSIGN_EXAMPLE)
    if not isinstance(found, dict) or not any(found.values()):
        wrong()
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, list) or not all(_is_number(p, 0) for p in partitions):
            wrong()
        if partitions:
            assigned[topic] = tuple(sorted(set(partitions)))
    if max(max(partitions) for partitions in assigned.values()) > PARTITION_MAX:
        wrong()
    return assigned


def _per_partition(
    name: str, text: str, wanted: str, example: str, *, least: int
) -> dict[TopicPartition, int]:
    def wrong() -> NoReturn:
        raise_bad_option(name, text, wanted + ", as JSON", example)

    found = as_json(name, text, wanted + ", as JSON", example)
    if not isinstance(found, dict) or not any(found.values()):
        wrong()
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict):
            wrong()
        for partition, number in partitions.items():
            if not PARTITION.fullmatch(partition) or int(partition) > PARTITION_MAX:
                wrong()
            if not _is_number(number, least):
                wrong()
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def _is_number(value: object, least: int) -> bool:
    return type(value) is int and least <= value <= LONG_MAX
