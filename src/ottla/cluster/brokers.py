"""Registering a broker, and the new leader epoch that each of its partitions gets at its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.cluster.image import MetadataImage
from ottla.wire.messages.metadata_records import (
    BrokerEndpoint,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)

EPOCHS_PER_BATCH_MAX: Final = 5_000

# Where the raising of epochs stands: the last topic id and partition that was done.
Cursor = tuple[bytes, int]
FIRST: Final[Cursor] = (b"", -1)


class Registration(NamedTuple):
    """What a broker tells about itself when it starts."""

    node_id: int
    incarnation_id: bytes
    endpoints: Sequence[BrokerEndpoint]
    rack: str | None
    directory_id: bytes


def register(image: MetadataImage, registration: Registration) -> RegisterBrokerRecord:
    """Each registration gets a higher epoch than all before it."""
    epoch = max((broker.epoch for broker in image.brokers.values()), default=0) + 1
    return RegisterBrokerRecord(
        broker_id=registration.node_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=epoch,
        end_points=list(registration.endpoints),
        rack=registration.rack,
        fenced=False,
        log_dirs=[registration.directory_id],
    )


def raise_leader_epochs(
    image: MetadataImage, node_id: int, after: Cursor
) -> tuple[list[PartitionChangeRecord], Cursor | None]:
    """One batch of new epochs for partitions this node leads, and where to go on, if anywhere."""
    records: list[PartitionChangeRecord] = []
    for topic_id, index in _led_by(image, node_id, after):
        if len(records) == EPOCHS_PER_BATCH_MAX:
            last = records[-1]
            return records, (last.topic_id, last.partition_id)
        records.append(PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=node_id))
    return records, None


def _led_by(image: MetadataImage, node_id: int, after: Cursor) -> Iterator[Cursor]:
    for topic_id in sorted(image.topics_by_id):
        if topic_id < after[0]:
            continue
        partitions = image.topics_by_id[topic_id].partitions
        for index in sorted(partitions):
            if (topic_id, index) > after and partitions[index].leader == node_id:
                yield topic_id, index
