"""Where on a broker a replica lies, and what follows when that directory fails (KIP-858).

A broker chooses the directory of a new replica itself and tells the controller. A replica whose
directory its broker does not have (any more) is offline: it cannot lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from ottla.cluster.image import BrokerImage, MetadataImage, PartitionImage
from ottla.types import NO_NODE, TopicId
from ottla.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from ottla.wire.schema import Message

UNASSIGNED_DIRECTORY: Final = bytes(15) + b"\x01"
RECORDS_PER_BATCH_MAX: Final = 5_000
# Kafka keeps the first hundred ids for such meanings: unassigned, lost, not known yet.
_RESERVED_BYTE: Final = 100

# (topic id, partition, directory id)
Assignment = tuple[TopicId, int, bytes]


def is_reserved(directory_id: bytes) -> bool:
    """True for what is no directory's id."""
    return not any(directory_id[:15]) and directory_id[15:] < bytes([_RESERVED_BYTE])


def directory_of(partition: PartitionImage, node_id: int) -> bytes | None:
    """The directory that a broker's replica lies in; None while nobody has said so."""
    if len(partition.directories) != len(partition.replicas):
        return None
    for replica, directory_id in zip(partition.replicas, partition.directories, strict=True):
        if replica == node_id:
            return None if is_reserved(directory_id) else directory_id
    return None


def default_directory(broker: BrokerImage) -> bytes:
    """Where a new replica lies, where the broker has no choice."""
    return broker.log_dirs[0] if len(broker.log_dirs) == 1 else UNASSIGNED_DIRECTORY


def lies_offline(broker: BrokerImage, partition: PartitionImage) -> bool:
    """Whether the broker's replica is known to lie in a directory that the broker does not have."""
    directory_id = directory_of(partition, broker.id)
    return (
        directory_id is not None and bool(broker.log_dirs) and directory_id not in broker.log_dirs
    )


def may_begin_anew(partition: PartitionImage, node_id: int) -> bool:
    """Whether a replica whose directory is lost may be copied again: others have all it had.

    Who is in sync, or may lead without it, has what nobody else may have. That is not given up.
    """
    return node_id not in partition.isr and node_id not in partition.recovery.eligible


def assign(
    image: MetadataImage, node_id: int, assignments: Iterable[Assignment]
) -> list[PartitionChangeRecord]:
    """What a broker tells of where its replicas lie; what is known or gone gives no record."""
    records = []
    for topic_id, index, directory_id in assignments:
        topic = image.topics_by_id.get(topic_id)
        partition = topic.partitions.get(index) if topic is not None else None
        if partition is None or directory_of(partition, node_id) == directory_id:
            continue
        known = partition.directories
        if len(known) != len(partition.replicas):
            known = (UNASSIGNED_DIRECTORY,) * len(partition.replicas)
        directories = [
            directory_id if replica == node_id else before
            for replica, before in zip(partition.replicas, known, strict=True)
        ]
        records.append(
            PartitionChangeRecord(partition_id=index, topic_id=topic_id, directories=directories)
        )
    return records


def take_offline(image: MetadataImage, node_id: int, directory_id: bytes) -> list[Message]:
    """A directory of the broker has failed: the partitions in it have no leader any more.

    One batch of records at a time; the last of them takes the directory from the broker.
    """
    broker = image.brokers.get(node_id)
    if broker is None or directory_id not in broker.log_dirs:
        return []
    records: list[Message] = list(
        islice(_leaderless(image, node_id, directory_id), RECORDS_PER_BATCH_MAX)
    )
    if len(records) < RECORDS_PER_BATCH_MAX:
        left = [known for known in broker.log_dirs if known != directory_id]
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=node_id, broker_epoch=broker.epoch, log_dirs=left
            )
        )
    return records


def _leaderless(
    image: MetadataImage, node_id: int, directory_id: bytes
) -> Iterator[PartitionChangeRecord]:
    for topic in image.topics_by_id.values():
        for index, partition in topic.partitions.items():
            if partition.leader == node_id and directory_of(partition, node_id) == directory_id:
                yield PartitionChangeRecord(partition_id=index, topic_id=topic.id, leader=NO_NODE)


def leader_after_start(broker: BrokerImage, partition: PartitionImage) -> int | None:
    """Who leads once this broker has started with the directories it has; None is no change."""
    if broker.id not in partition.replicas:
        return None
    if partition.leader == broker.id:
        return NO_NODE if lies_offline(broker, partition) else broker.id
    if partition.leader == NO_NODE and broker.id in partition.isr:
        return None if lies_offline(broker, partition) else broker.id
    return None
