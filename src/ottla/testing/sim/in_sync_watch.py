"""Whoever is in sync by the metadata has all that is committed: looked at while it happens.

So has whoever a partition was moved to.

In the end all replicas are equal, and nobody would see that one of them might have been elected
without something that was acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.moves import route_of
from ottla.testing.sim.history import History
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.main import Broker
    from ottla.broker.storage.partition import Partition
    from ottla.cluster.image import MetadataImage, PartitionImage

# A partition by the id of its topic, and its index.
Place = tuple[bytes, int]


class Committed(NamedTuple):
    """The furthest high watermark that was seen anywhere, and what is before it."""

    end: int
    epoch: int
    node: int


class InSyncWatch:
    def __init__(self, history: History) -> None:
        self._history = history
        self._committed: dict[Place, Committed] = {}
        # The newest metadata of each partition that any node had.
        self._decided: dict[Place, PartitionImage] = {}
        # A leader may have heard of a change from a controller that is gone since.
        self._answered: dict[Place, int] = {}
        self._told: set[tuple[Place, int]] = set()

    def look(self, brokers: Mapping[int, Broker]) -> None:
        replicas: dict[Place, dict[int, Partition]] = {}
        for node, broker in brokers.items():
            for partition in getattr(broker, "_partitions", ()):
                place = (partition.topic_id, partition.index)
                replicas.setdefault(place, {})[node] = partition
                self._look_at(place, node, partition)
            metadata = getattr(broker, "_metadata", None)
            if metadata is not None:
                self._read(metadata.image)
        for place, decided in self._decided.items():
            committed = self._committed.get(place)
            if committed is None or decided.partition_epoch < self._answered.get(place, 0):
                continue
            for node in decided.isr:
                partition = replicas.get(place, {}).get(node)
                if partition is not None:
                    self._judge(place, node, partition, committed)

    def _look_at(self, place: Place, node: int, partition: Partition) -> None:
        known = partition.replicas
        if known is not None:
            answered = self._answered.get(place, 0)
            self._answered[place] = max(answered, known.partition_epoch)
        end, before = partition.high_watermark.offset, self._committed.get(place)
        if end > partition.start_offset and (before is None or end > before.end):
            self._committed[place] = Committed(end, _epoch_before(partition, end), node)

    def _read(self, image: MetadataImage) -> None:
        for topic in image.topics_by_id.values():
            for index, partition in topic.partitions.items():
                place = (topic.id, index)
                known = self._decided.get(place)
                if known is None or partition.partition_epoch > known.partition_epoch:
                    self._decided[place] = partition
                    if known is not None:
                        self._judge_move(TopicPartition(topic.name, index), known, partition)

    def _judge_move(
        self, name: TopicPartition, before: PartitionImage, after: PartitionImage
    ) -> None:
        """Replicas go when all who stay are in sync; who goes back need not be."""
        is_next = after.partition_epoch == before.partition_epoch + 1
        has_left = not set(before.replicas) <= set(after.replicas)
        is_back = set(after.replicas) == set(route_of(before).origin)
        if is_next and has_left and not is_back and not set(after.replicas) <= set(after.isr):
            self._history.complain(
                f"{name} has moved from {list(before.replicas)} to {list(after.replicas)}, and in "
                f"sync are {list(after.isr)}"
            )

    def _judge(self, place: Place, node: int, partition: Partition, committed: Committed) -> None:
        is_unknown = partition.failure is not None or partition.is_fenced or partition.is_offline
        if is_unknown or partition.is_retired or (place, node) in self._told:
            return
        name: TopicPartition = partition.name
        if partition.end_offset < committed.end:
            found = f"ends at {partition.end_offset}"
        elif _epoch_before(partition, committed.end) != committed.epoch:
            found = f"has epoch {_epoch_before(partition, committed.end)} there"
        else:
            return
        self._told.add((place, node))
        self._history.complain(
            f"{name}: node {node} is in sync and {found}, node {committed.node} has committed up "
            f"to {committed.end} in epoch {committed.epoch}"
        )


def _epoch_before(partition: Partition, offset: int) -> int:
    """Of the last batch before `offset`."""
    return partition._log._epochs.epoch_at(offset - 1)
