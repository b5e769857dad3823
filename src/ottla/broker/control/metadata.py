"""The cluster's metadata as this broker knows it: the image folded at commit.

Handlers read it; whoever has work to do when it changes listens. Listeners hear of each committed
batch once, after all of it is folded, as a list of changes in this order: what is gone, what is
new, what is different. Settings come before leaders and replicas: who is elected, or was counted
out, is so by the minimum of in-sync replicas that the controller knew, and no leader may commit by
a lower one then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ottla.cluster.configs import BrokerLayers, stored_topic_config
from ottla.cluster.image import (
    NO_LEADER_CHANGE,
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    ResourceType,
    TopicImage,
)
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import NotLeader, OttlaError, UnknownTopicId, UnknownTopicOrPartition
from ottla.types import NO_NODE, NodeId
from ottla.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from ottla.wire.schema import Message

T = TypeVar("T")

KEPT_FOR_IMAGE_MAX: Final = 16
OF_BROKERS: Final = (RegisterBrokerRecord, BrokerRegistrationChangeRecord, UnregisterBrokerRecord)


class TopicDeleted(NamedTuple):
    name: str
    id: bytes
    partitions: int


class TopicCreated(NamedTuple):
    """The topic with all partitions that it has at the end of the batch."""

    topic: TopicImage


class PartitionsAdded(NamedTuple):
    topic: TopicImage
    indexes: tuple[int, ...]


class LeaderChanged(NamedTuple):
    """A new leader epoch, with the same leader or another."""

    topic: TopicImage
    partition_index: int
    partition: PartitionImage


class ReplicasChanged(NamedTuple):
    """Another partition epoch under the same leader epoch: other replicas, others of them in sync,
    or only other directories. A leader hears of each, or the controller would take none of its
    proposals any more.
    """

    topic: TopicImage
    partition_index: int
    partition: PartitionImage


class TopicConfigChanged(NamedTuple):
    """The settings in force for this topic may have changed: its own, or a broker's default."""

    topic: TopicImage


class BrokerConfigChanged(NamedTuple):
    """The dynamic settings of this broker; all topics' configs are announced beside it."""

    config: BrokerConfig


class BrokersChanged(NamedTuple):
    """A broker came, went, or has other endpoints."""


Change = (
    TopicDeleted
    | TopicCreated
    | PartitionsAdded
    | LeaderChanged
    | ReplicasChanged
    | TopicConfigChanged
    | BrokerConfigChanged
    | BrokersChanged
)
OnChange = Callable[[Sequence[Change]], None]

logger = logging.getLogger(__name__)


class MetadataCache:
    """What is committed of the metadata log."""

    def __init__(self, config: BrokerConfig) -> None:
        self.image = MetadataImage()
        self._config = config
        self._effective: BrokerConfig | None = None
        self._topic_configs: dict[str, TopicConfig] = {}
        self._plain_topic_config: TopicConfig | None = None
        self._by_topic: dict[str, dict[Hashable, Any]] = {}
        self._kept_for_image: dict[Hashable, Any] = {}
        self._listeners: list[OnChange] = []
        # Told why this node does not follow the metadata any more.
        self.on_missed: Callable[[str], None] = lambda reason: None
        # This node, while it may not act as a leader: clients are not sent to it.
        self.absent_leader = NO_NODE
        # Topics whose deletion a start has read in the log; nobody asks for later ones.
        self.deleted_ids: set[bytes] = set()
        # Partitions of which it has read there that they have moved away from this node.
        self.departed: set[tuple[bytes, int]] = set()
        self._is_noting = True

    # What handlers ask.

    def topic(self, name: str) -> TopicImage:
        topic = self.image.topics_by_name.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"Topic {name} does not exist.")
        return topic

    def topic_by_id(self, topic_id: bytes) -> TopicImage:
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId("There is no topic with this id.")
        return topic

    def has_topic(self, name: str) -> bool:
        return name in self.image.topics_by_name

    def partition(self, name: str, index: int) -> PartitionImage:
        partition = self.topic(name).partitions.get(index)
        if partition is None:
            raise UnknownTopicOrPartition(f"Topic {name} has no partition {index}.")
        return partition

    def absence_of(self, name: str, index: int) -> OttlaError:
        """Why a partition is not here: there is none, or its replicas are elsewhere."""
        topic = self.image.topics_by_name.get(name)
        if topic is None:
            return UnknownTopicOrPartition(f"topic {name} does not exist")
        image = topic.partitions.get(index)
        if image is None:
            return UnknownTopicOrPartition(f"{name} has no partition {index}")
        return NotLeader(f"{name}-{index} is led by node {image.leader}")

    def known_leader(
        self, name: str, index: int, listener: str
    ) -> tuple[PartitionImage, BrokerImage, Endpoint] | None:
        """Who leads a partition, and where this listener's clients find it (KIP-951)."""
        partition = self.partition(name, index)
        broker = self.image.brokers.get(partition.leader)
        endpoint = None if broker is None else broker.endpoints.get(listener)
        if broker is None or endpoint is None or broker.is_fenced:
            return None
        return None if partition.leader == self.absent_leader else (partition, broker, endpoint)

    def leader_of(self, name: str, index: int) -> int:
        return self.partition(name, index).leader

    @property
    def broker_config(self) -> BrokerConfig:
        """This broker's settings, the dynamic ones included."""
        if self._effective is None:
            self._effective = BrokerLayers.of(self._config, self.image).effective()
        return self._effective

    def topic_config(self, name: str) -> TopicConfig:
        """The settings in force for a topic, also for one that does not exist yet."""
        config = self._topic_configs.get(name)
        if config is None:
            overrides = self.image.topic_configs(name)
            if not overrides:
                # One object for all topics without settings of their own.
                if self._plain_topic_config is None:
                    self._plain_topic_config = stored_topic_config(self.broker_config, {})
                return self._plain_topic_config
            config = stored_topic_config(self.broker_config, overrides)
            self._topic_configs[name] = config
        return config

    def brokers(self) -> list[BrokerImage]:
        """The brokers that clients may talk to, by id."""
        return [broker for _, broker in sorted(self.image.brokers.items()) if not broker.is_fenced]

    def kept_for_topic(
        self, topic: TopicImage, key: Hashable, build: Callable[[TopicImage], T]
    ) -> T:
        """Keeps what was built from a topic until the topic or a broker changes."""
        kept = self._by_topic.setdefault(topic.name, {})
        made: T | None = kept.get(key)
        if made is None:
            made = kept[key] = build(topic)
        return made

    def kept_for_image(self, key: Hashable, build: Callable[[], T]) -> T:
        """Keeps what was built from the whole image until anything changes."""
        made: T | None = self._kept_for_image.get(key)
        if made is None:
            if len(self._kept_for_image) >= KEPT_FOR_IMAGE_MAX:
                self._kept_for_image.clear()
            made = self._kept_for_image[key] = build()
        return made

    # What the runtime and the composition root do.

    def on_change(self, listener: OnChange) -> None:
        self._listeners.append(listener)

    def end_notes(self) -> None:
        """The start has looked at its files: what goes from here on, listeners are told."""
        self._is_noting = False

    def set_absent_leader(self, node_id: NodeId) -> None:
        """NO_NODE: all leaders can be told of."""
        self.absent_leader = node_id
        self._by_topic.clear()
        self._kept_for_image.clear()

    def apply(self, record: Message) -> None:
        self.committed((record,))

    def committed(self, records: Iterable[Message]) -> None:
        """Folds a committed batch, then tells the listeners."""
        batch = _Batch()
        self._kept_for_image.clear()
        for record in records:
            self._forget(record)
            batch.see(record, self.image)
            if self._is_noting:
                self._note_absence(record)
            self.image.apply(record)
        if not self._listeners:
            return
        changes = batch.changes(self.image)
        if batch.broker_config:
            changes.append(BrokerConfigChanged(self.broker_config))
        if changes:
            self._tell(changes)

    def replaced(self, records: Iterable[Message]) -> None:
        """All that is committed is in these records, whatever was known before (KIP-630)."""
        before, self.image = self.image, MetadataImage()
        for record in records:
            self.image.apply(record)
        self._kept_for_image.clear()
        self._by_topic.clear()
        self._topic_configs.clear()
        self._effective = self._plain_topic_config = None
        changes = _differences(before, self.image)
        changes.append(BrokerConfigChanged(self.broker_config))
        if self._is_noting:
            gone = before.topics_by_id.keys() - self.image.topics_by_id.keys()
            self.deleted_ids.update(gone)
            self.departed |= self._places(before) - self._places(self.image)
        self._tell(changes)

    def _tell(self, changes: Sequence[Change]) -> None:
        """Whoever has not carried out a change never hears of it again: only a start helps, which
        reads all of it anew. The others are told all the same.
        """
        for listener in self._listeners:
            try:
                listener(changes)
            except Exception as error:
                logger.exception("a change of the metadata cannot be carried out")
                self.on_missed(f"a change of the metadata cannot be carried out: {error!r}")

    def _note_absence(self, record: Message) -> None:
        """At a start: what the record takes away from this node, or brings back."""
        if isinstance(record, RemoveTopicRecord):
            self.deleted_ids.add(record.topic_id)
        elif isinstance(record, PartitionChangeRecord) and record.replicas is not None:
            place = (record.topic_id, record.partition_id)
            before = self.image.topic_with_id(record.topic_id).partitions.get(record.partition_id)
            if self._config.node_id in record.replicas:
                self.departed.discard(place)
            elif before is not None and self._config.node_id in before.replicas:
                self.departed.add(place)

    def _places(self, image: MetadataImage) -> set[tuple[bytes, int]]:
        """The partitions that have a replica here."""
        return {
            (topic.id, index)
            for topic in image.topics_by_id.values()
            for index, partition in topic.partitions.items()
            if self._config.node_id in partition.replicas
        }

    def _forget(self, record: Message) -> None:
        if isinstance(record, PartitionRecord | PartitionChangeRecord | RemoveTopicRecord):
            topic = self.image.topics_by_id.get(record.topic_id)
            if topic is not None:
                self._by_topic.pop(topic.name, None)
                if isinstance(record, RemoveTopicRecord):
                    self._topic_configs.pop(topic.name, None)
        elif isinstance(record, ConfigRecord):
            if record.resource_type == ResourceType.TOPIC:
                self._topic_configs.pop(record.resource_name, None)
            else:
                self._effective = self._plain_topic_config = None
                self._topic_configs.clear()
        elif isinstance(record, OF_BROKERS):
            self._by_topic.clear()


def _differences(before: MetadataImage, after: MetadataImage) -> list[Change]:
    """What a batch would have told of that led from one image to the other."""
    changes: list[Change] = [
        TopicDeleted(topic.name, topic.id, len(topic.partitions))
        for topic_id, topic in before.topics_by_id.items()
        if topic_id not in after.topics_by_id
    ]
    stayed: list[tuple[TopicImage, TopicImage]] = []
    for topic_id, topic in after.topics_by_id.items():
        known = before.topics_by_id.get(topic_id)
        if known is None:
            changes.append(TopicCreated(topic))
        else:
            stayed.append((known, topic))
    for known, topic in stayed:
        added = tuple(index for index in topic.partitions if index not in known.partitions)
        if added:
            changes.append(PartitionsAdded(topic, added))
    changes += [TopicConfigChanged(topic) for _, topic in stayed]
    for known, topic in stayed:
        for index, was in known.partitions.items():
            now = topic.partitions[index]
            if now.leader_epoch != was.leader_epoch:
                changes.append(LeaderChanged(topic, index, now))
            elif now != was:
                changes.append(ReplicasChanged(topic, index, now))
    changes.append(BrokersChanged())
    return changes


class _Batch:
    """Gathers what a batch of records does, so that each topic and partition is told once."""

    def __init__(self) -> None:
        self.deleted: list[TopicDeleted] = []
        self.created: dict[bytes, None] = {}
        self.added: dict[bytes, list[int]] = {}
        self.led: dict[tuple[bytes, int], None] = {}
        self.replicated: dict[tuple[bytes, int], None] = {}
        self.configured: dict[str, None] = {}
        self.broker_config = False
        self.brokers = False

    def see(self, record: Message, before: MetadataImage) -> None:
        if isinstance(record, TopicRecord):
            self.created[record.topic_id] = None
        elif isinstance(record, PartitionRecord):
            if record.topic_id not in self.created:
                self.added.setdefault(record.topic_id, []).append(record.partition_id)
        elif isinstance(record, PartitionChangeRecord):
            place = (record.topic_id, record.partition_id)
            if record.leader != NO_LEADER_CHANGE:
                self.led[place] = None
            else:
                self.replicated[place] = None
        elif isinstance(record, RemoveTopicRecord):
            self._see_removal(before.topic_with_id(record.topic_id))
        elif isinstance(record, ConfigRecord):
            if record.resource_type == ResourceType.TOPIC:
                self.configured[record.resource_name] = None
            else:
                self.broker_config = True
        elif isinstance(record, OF_BROKERS):
            self.brokers = True

    def _see_removal(self, topic: TopicImage) -> None:
        if topic.id in self.created:
            # Made and removed within one batch: nobody needs to hear of it.
            del self.created[topic.id]
            return
        added = len(self.added.pop(topic.id, ()))
        self.deleted.append(TopicDeleted(topic.name, topic.id, len(topic.partitions) - added))

    def changes(self, image: MetadataImage) -> list[Change]:
        changes: list[Change] = [*self.deleted]
        changes += [TopicCreated(image.topics_by_id[topic_id]) for topic_id in self.created]
        for topic_id, indexes in self.added.items():
            changes.append(PartitionsAdded(image.topics_by_id[topic_id], tuple(indexes)))
        names = image.topics_by_name if self.broker_config else self.configured
        for name in names:
            topic = image.topics_by_name.get(name)
            if topic is not None and topic.id not in self.created:
                changes.append(TopicConfigChanged(topic))
        for place in {**self.led, **self.replicated}:
            topic_id, index = place
            topic = image.topics_by_id.get(topic_id)
            if topic and topic_id not in self.created and index not in self.added.get(topic_id, ()):
                kind = LeaderChanged if place in self.led else ReplicasChanged
                changes.append(kind(topic, index, topic.partitions[index]))
        if self.brokers:
            changes.append(BrokersChanged())
        return changes
