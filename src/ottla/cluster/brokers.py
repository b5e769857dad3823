"""Registering a broker, and the new leader epoch that each of its partitions gets at its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.cluster.directories import leader_after_start
from ottla.cluster.image import MetadataImage
from ottla.types import TopicId
from ottla.wire.messages.metadata_records import (
    BrokerEndpoint,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)

EPOCHS_PER_BATCH_MAX: Final = 5_000

# Where the raising of epochs stands: the last topic id and partition that was done.
Cursor = tuple[TopicId, int]
FIRST: Final[Cursor] = (TopicId(b""), -1)


class Registration(NamedTuple):
    """What a broker tells about itself when it starts."""

    node_id: int
    incarnation_id: bytes
    endpoints: Sequence[BrokerEndpoint]
    rack: str | None
    directory_ids: Sequence[bytes]


def next_epoch(image: MetadataImage) -> int:
    """Higher than those of all brokers that ever were."""
    return image.last_registration[1] + 1


def register(image: MetadataImage, registration: Registration) -> RegisterBrokerRecord:
    """Each registration gets a higher epoch than all before it."""
    epoch = next_epoch(image)
    return RegisterBrokerRecord(
        broker_id=registration.node_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=epoch,
        end_points=list(registration.endpoints),
        rack=registration.rack,
        fenced=False,
        log_dirs=list(registration.directory_ids),
    )


def raise_leader_epochs(
    image: MetadataImage, node_id: int, after: Cursor
) -> tuple[list[PartitionChangeRecord], Cursor | None]:
    """One batch of new epochs for partitions this node leads, and where to go on, if anywhere.

    Those whose directory it has no more lose their leader; those whose directory is back get one.
    """
    records: list[PartitionChangeRecord] = []
    done = after
    for topic_id, index, leader in _leaders(image, node_id, after):
        if len(records) == EPOCHS_PER_BATCH_MAX:
            return records, done
        records.append(PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=leader))
        done = (topic_id, index)
    return records, None


def _leaders(
    image: MetadataImage, node_id: int, after: Cursor
) -> Iterator[tuple[TopicId, int, int]]:
    broker = image.brokers[node_id]
    for topic in sorted(image.topics_by_id.values(), key=lambda topic: topic.id):
        if topic.id < after[0]:
            continue
        for index in sorted(topic.partitions):
            if (topic.id, index) > after:
                leader = leader_after_start(broker, topic.partitions[index])
                if leader is not None:
                    yield topic.id, index, leader
