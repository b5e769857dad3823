"""More replicas for the broker's own topics when nodes come.

Such a topic is created on as many hosts as there are; a cluster that begins with one node and
becomes three has its groups' offsets on three, without anybody asking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ottla.cluster.directories import UNASSIGNED_DIRECTORY, default_directory
from ottla.cluster.elections import Rules, Standing
from ottla.cluster.image import NOT_MOVING, MetadataImage, TopicImage
from ottla.cluster.placement import host_of
from ottla.types import OFFSETS_TOPIC
from ottla.wire.messages.metadata_records import PartitionChangeRecord


def grown(rules: Rules, standing: Standing, topic: TopicImage) -> list[PartitionChangeRecord]:
    """The replicas that an internal topic lacks, if any; they stand last and have to catch up."""
    if topic.name != OFFSETS_TOPIC:
        return []
    image = rules.image
    free = [node for node in standing.active if node not in image.drained_nodes]
    hosts = {host_of(image.brokers[node]) for node in free}
    wanted = min(rules.config.offsets_topic_replication_factor, len(hosts))
    load = Counter(node for partition in topic.partitions.values() for node in partition.replicas)
    records = []
    for index, partition in topic.partitions.items():
        if len(partition.replicas) >= wanted or partition.moving != NOT_MOVING:
            continue
        replicas, directories = list(partition.replicas), list(partition.directories)
        directories += [UNASSIGNED_DIRECTORY] * (len(replicas) - len(directories))
        while len(replicas) < wanted:
            node_id = _next_replica(image, free, load, replicas)
            if node_id is None:
                break
            load[node_id] += 1
            replicas.append(node_id)
            directories.append(default_directory(image.brokers[node_id]))
        if len(replicas) == len(partition.replicas):
            continue
        records.append(
            PartitionChangeRecord(
                partition_id=index, topic_id=topic.id, replicas=replicas, directories=directories
            )
        )
    return records


def _next_replica(
    image: MetadataImage, candidates: Collection[int], load: Counter[int], present: list[int]
) -> int | None:
    """A rack that is not there yet comes first, then whoever has the fewest; never a host twice."""
    known = [image.brokers[node] for node in present if node in image.brokers]
    racks, hosts = {broker.rack for broker in known}, {host_of(broker) for broker in known}
    free = (
        node
        for node in candidates
        if node not in present and host_of(image.brokers[node]) not in hosts
    )
    return min(
        free, key=lambda node: (image.brokers[node].rack in racks, load[node], node), default=None
    )
