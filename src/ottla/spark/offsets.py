"""The offsets in Spark's checkpoint, in the words of Spark's own Kafka connector.

`{"orders": {"0": 351, "1": 329}}`: the next offset of every partition. Spark compares them as text,
so the order of the keys belongs to their meaning: topics sorted, then partitions by number.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.errors import OttlaError
from ottla.types import TopicPartition

# PySpark turns this into the JSON of its offset log.
OffsetDocument = dict[str, dict[str, int]]


class BadCheckpoint(OttlaError):
    """The checkpoint holds offsets that are not ours nor those of Spark's Kafka connector."""


def to_document(offsets: Mapping[TopicPartition, int]) -> OffsetDocument:
    document: OffsetDocument = {}
    for partition in sorted(offsets):
        document.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return document


def from_document(document: object) -> dict[TopicPartition, int]:
    """What `to_document` or the connector has written; anything else is BadCheckpoint."""
    offsets: dict[TopicPartition, int] = {}
    if not isinstance(document, dict):
        raise _refused(document)
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise _refused(document)
        for partition, offset in partitions.items():
            # isdigit alone would let other scripts' digits in.
            if not (partition.isascii() and partition.isdigit()) or type(offset) is not int:
                raise _refused(document)
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def _refused(document: object) -> BadCheckpoint:
    text = str(document)
    return BadCheckpoint(
        f"the checkpoint holds {text[:200]!r} as offsets, wanted is "
        '{"topic": {"partition": offset}}: is this the checkpoint of another source?'
    )
