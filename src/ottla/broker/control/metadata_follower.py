"""Opens, makes and deletes the partitions of this node as the committed metadata says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ottla.broker.control.metadata import (
    Change,
    LeaderChanged,
    MetadataCache,
    PartitionsAdded,
    ReplicasChanged,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from ottla.broker.counters import Metrics
from ottla.broker.storage.departures import Departures
from ottla.broker.storage.finder import Finder
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_opener import (
    NOTHING_REMEMBERED,
    PartitionOpener,
    Wanted,
    log_config,
)
from ottla.broker.storage.partitions import NO_PARTITIONS, Partitions
from ottla.broker.storage.stores import Placement, Store, Stores
from ottla.cluster.directories import Assignment, directory_of, may_begin_anew
from ottla.cluster.image import PartitionImage, TopicImage
from ottla.errors import NotLeader, OttlaError, UnknownTopicOrPartition
from ottla.ports import Clock
from ottla.types import NodeId, TopicPartition


class MetadataFollower:
    def __init__(
        self,
        node_id: NodeId,
        clock: Clock,
        metadata: MetadataCache,
        stores: Stores,
        partitions: Partitions,
        opener: PartitionOpener,
        departures: Departures,
        metrics: Metrics,
        on_placed: Callable[[list[Assignment]], None],
        on_role: Callable[[Partition], None],
        may_lead: Callable[[], bool],
        preferred_store: Callable[[TopicPartition], Store | None],
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._metadata = metadata
        self._stores = stores
        self._partitions = partitions
        self._opener = opener
        self._departures = departures
        self._metrics = metrics
        self._on_placed = on_placed
        self._on_role = on_role
        self._may_lead = may_lead
        self._preferred_store = preferred_store

    def open_all(self) -> None:
        """At start, blocking: opens the log of every partition that has a replica here."""
        metadata, online = self._metadata, self._stores.online()
        topics = metadata.image.topics_by_name.values()
        topic_ids = {topic.name: topic.id for topic in topics}
        remembered = {store: self._opener.remembered(store, topic_ids) for store in online}
        synced = {store: each.recovery_points for store, each in remembered.items()}
        finder = Finder(
            metadata.image,
            metadata.deleted_ids,
            metadata.departed,
            self._node_id,
            synced,
            self._departures,
        )
        found, with_id = finder.look(self._stores.online(), self._opener.in_store)
        metadata.end_notes()
        placement = self._stores.placement(())
        for topic in topics:
            for index, image in topic.partitions.items():
                if self._node_id not in image.replicas:
                    continue
                wanted = self._wanted(topic, index)
                store = found.get(wanted.name) or self._store_of(image, placement)
                known = remembered.get(store, NOTHING_REMEMBERED)
                has_id = wanted.name in with_id
                self._add(self._opener.open(wanted, store, known, has_id=has_id), image)
        self._opener.sync_found(self._stores.online())
        self.tell_places(self._partitions)

    def _add(self, partition: Partition, image: PartitionImage) -> None:
        self._take_role(partition, image)
        self._partitions.add(partition)

    def _take_role(self, partition: Partition, image: PartitionImage) -> None:
        if image.leader == self._node_id:
            partition.lead(
                image.leader_epoch,
                image.replicas,
                image.isr,
                image.partition_epoch,
                self._clock.now().steady_ms,
            )
            if not self._may_lead():
                partition.suspend()
        else:
            is_in_sync = self._node_id in image.isr
            partition.follow(image.leader_epoch, NodeId(image.leader), is_in_sync=is_in_sync)
        self._on_role(partition)

    def _wanted(self, topic: TopicImage, index: int) -> Wanted:
        config, image = self._metadata.topic_config(topic.name), topic.partitions[index]
        return Wanted(
            TopicPartition(topic.name, index),
            topic.id,
            image.leader_epoch,
            image.replicas == (self._node_id,),
            config,
            log_config(config, self._metadata.broker_config),
        )

    def _store_of(self, image: PartitionImage, placement: Placement) -> Store:
        """Where a partition belongs of which no directory here has anything.

        With a directory out of sight it may lie there, full of messages. Another one may be begun
        only where the metadata says so, or where nothing is out of sight. One whose directory is
        none of ours is lost, as with its disk, and is begun anew where nobody counts on it.
        """
        directory_id = directory_of(image, self._node_id)
        known = None if directory_id is None else self._stores.with_id(directory_id)
        if known is not None:
            return known
        is_counted_on = directory_id is not None and not may_begin_anew(image, self._node_id)
        if is_counted_on or self._stores.has_offline:
            return self._stores.nowhere
        return placement.choose()

    # ----------------------------------------------------------------------------- following

    def follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, TopicCreated):
                self._create(change.topic, change.topic.partitions)
            elif isinstance(change, PartitionsAdded):
                self._create(change.topic, change.indexes)
            elif isinstance(change, TopicDeleted):
                self._delete(change.name)
            elif isinstance(change, LeaderChanged | ReplicasChanged):
                self._change(change.topic, change.partition_index)
            elif isinstance(change, TopicConfigChanged):
                self._configure(change.topic.name)

    def _create(self, topic: TopicImage, indexes: Iterable[int]) -> None:
        placement = self._stores.placement(self._partitions)
        for index in indexes:
            image = topic.partitions[index]
            if self._node_id not in image.replicas:
                continue
            directory_id = directory_of(image, self._node_id)
            store = self._stores.with_id(directory_id) if directory_id is not None else None
            wanted = self._wanted(topic, index)
            store = store or self._preferred_store(wanted.name) or placement.choose()
            self._add(self._opener.new(wanted, store), image)
        self.tell_places((self._partitions.in_topic(topic.name) or NO_PARTITIONS).values())

    def _change(self, topic: TopicImage, index: int) -> None:
        """Leader, epoch or replicas of a partition are others: it may even come, or go."""
        image = topic.partitions[index]
        here = (self._partitions.in_topic(topic.name) or NO_PARTITIONS).get(index)
        if self._node_id not in image.replicas:
            if here is not None:
                self._partitions.remove(here)
                self._leave([here], NotLeader(f"{here.name} has moved to other nodes"))
        elif here is None:
            self._create(topic, (index,))
        elif self._may_be_found_again(here, image):
            self._partitions.remove(here)
            self._leave([here], NotLeader(f"{here.name} is begun anew in another directory"))
            self._create(topic, (index,))
        else:
            self._take_role(here, image)

    def _may_be_found_again(self, here: Partition, image: PartitionImage) -> bool:
        """Whether it is one of those that lie nowhere, and nobody counts on it any more."""
        if self._stores.of(here) is not self._stores.nowhere or self._stores.has_offline:
            return False
        return may_begin_anew(image, self._node_id)

    def tell_places(self, partitions: Iterable[Partition]) -> None:
        """The metadata is to know where each partition lies, if it does not yet (KIP-858)."""
        news: list[Assignment] = [
            (partition.topic_id, partition.index, self._stores.of(partition).directory_id)
            for partition in partitions
            if not self.is_told(partition)
        ]
        if news:
            self._on_placed(news)

    def is_told(self, partition: Partition) -> bool:
        """Whether the metadata knows where it lies; or it lies nowhere."""
        directory_id = self._stores.of(partition).directory_id
        topic = self._metadata.image.topics_by_id[partition.topic_id]
        known = directory_of(topic.partitions[partition.index], self._node_id)
        return not directory_id or known == directory_id

    def _configure(self, topic: str) -> None:
        config = self._metadata.topic_config(topic)
        for partition in (self._partitions.in_topic(topic) or NO_PARTITIONS).values():
            partition.configure(config, log_config(config, self._metadata.broker_config))
            self._partitions.note_codec(partition)

    def _delete(self, topic: str) -> None:
        """Another may have its name at once; the files go in a thread."""
        partitions = self._partitions.remove_topic(topic)
        self._metrics.forget_topic(topic)
        error = UnknownTopicOrPartition(f"topic {topic} was deleted")
        self._leave(partitions.values(), error)

    def _leave(self, partitions: Iterable[Partition], error: OttlaError) -> None:
        leaving = []
        for partition in partitions:
            partition.leave(error)
            self._on_role(partition)
            if partition.is_busy:
                # A thread may be making its files: nobody may have the name before it is back.
                self._departures.expect(partition.data, partition.name)
                partition.when_not_busy(partial(self._depart, partition))
            elif partition.has_directory and not partition.is_offline:
                leaving.append((partition.data, partition.name, partition.abandon))
        self._departures.begin(leaving)

    def _depart(self, partition: Partition) -> None:
        self._departures.begin([(partition.data, partition.name, partition.abandon)])
