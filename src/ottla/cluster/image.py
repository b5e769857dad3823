"""The cluster's metadata as a fold over the records of the metadata log.

A partition is an immutable tuple that a change replaces, and equal replica lists are one object:
fifty thousand partitions cost a few megabytes, and whoever holds a partition holds a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from ottla.cluster.names import collision_key
from ottla.types import INTERNAL_TOPICS, NO_NODE, LeaderEpoch, ProducerId, TopicId
from ottla.wire.messages.metadata_records import (
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    ControllerFeature,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from ottla.wire.schema import Message

T = TypeVar("T")

# PartitionChangeRecord: this value of `leader` leaves leader and leader epoch alone.
NO_LEADER_CHANGE: Final = -2
NO_BROKER_EPOCH: Final = -1
DRAINED_NODES: Final = "drained.nodes"


class ResourceType(IntEnum):
    """What settings can belong to, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4


class InconsistentMetadata(Exception):
    """A record that does not follow from those before it: this log is not ours or is damaged."""


class Recovery(NamedTuple):
    """Who else may lead a partition whose in-sync replicas are too few (KIP-966, KIP-704)."""

    eligible: tuple[int, ...] = ()
    """The eligible leader replicas: they have all that was acknowledged."""
    last_known: tuple[int, ...] = ()
    """The last leader of a partition without in-sync replicas."""
    is_recovering: bool = False
    """The leader was elected uncleanly and has not yet said that it is done with it."""


NO_RECOVERY: Final = Recovery()
# PartitionChangeRecord and PartitionRecord, `leader_recovery_state`.
RECOVERED: Final = 0
RECOVERING: Final = 1
NO_RECOVERY_CHANGE: Final = -1


class Moving(NamedTuple):
    """A partition on its way to other brokers (KIP-455); who is in both only passes through."""

    adding: tuple[int, ...] = ()
    """The replicas that were none before: they go when the move is cancelled."""
    removing: tuple[int, ...] = ()
    """The replicas that go when the move is complete."""


NOT_MOVING: Final = Moving()


class PartitionImage(NamedTuple):
    leader: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...] = ()
    """By replica the id of the data directory it lies in (KIP-858); reserved ids are none."""
    recovery: Recovery = NO_RECOVERY
    moving: Moving = NOT_MOVING

    @property
    def replication_factor(self) -> int:
        """How many replicas it has once it is where it is to be."""
        return len(self.replicas) - len(self.moving.removing)


class TopicImage:
    """A topic and its partitions."""

    __slots__ = ("id", "name", "partitions")

    def __init__(self, name: str, id: TopicId) -> None:
        self.name = name
        self.id = id
        self.partitions: dict[int, PartitionImage] = {}

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return self.partitions[0].replication_factor

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TopicImage)
            and (self.name, self.id) == (other.name, other.id)
            and self.partitions == other.partitions
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TopicImage({self.name!r}, {self.id.hex()}, {self.partitions!r})"


class Endpoint(NamedTuple):
    host: str
    port: int
    security_protocol: int


class FeatureLevels(NamedTuple):
    """The levels of a feature that a node can work with."""

    name: str
    first: int
    last: int


class ControllerImage(NamedTuple):
    id: int
    incarnation_id: bytes
    endpoints: dict[str, Endpoint]
    features: tuple[FeatureLevels, ...]


class BrokerImage(NamedTuple):
    id: int
    epoch: int
    incarnation_id: bytes
    rack: str | None
    endpoints: dict[str, Endpoint]
    is_fenced: bool
    is_shutting_down: bool
    log_dirs: tuple[bytes, ...]
    features: tuple[FeatureLevels, ...] = ()

    @property
    def is_active(self) -> bool:
        return not self.is_fenced and not self.is_shutting_down


class MetadataImage:
    """Everything the metadata log says."""

    __slots__ = (
        "_tuples",
        "brokers",
        "configs",
        "controllers",
        "features",
        "last_registration",
        "next_producer_id",
        "partition_count",
        "topics_by_collision_key",
        "topics_by_id",
        "topics_by_name",
    )

    def __init__(self) -> None:
        self.topics_by_name: dict[str, TopicImage] = {}
        # Looked up by what requests and records bring, which may be any bytes.
        self.topics_by_id: dict[bytes, TopicImage] = {}
        self.topics_by_collision_key: dict[str, str] = {}
        self.partition_count = 0
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.brokers: dict[int, BrokerImage] = {}
        self.controllers: dict[int, ControllerImage] = {}
        # The broker id and the highest epoch that was ever given, also to one that is gone.
        self.last_registration: tuple[int, int] = (NO_NODE, 0)
        self.features: dict[str, int] = {}
        self.next_producer_id = ProducerId(0)
        self._tuples: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MetadataImage) and all(
            getattr(self, name) == getattr(other, name)
            for name in self.__slots__
            if name != "_tuples"
        )

    __hash__ = None  # type: ignore[assignment]

    def apply(self, record: Message) -> None:
        """Folds one record; the image is left as it was when the record does not fit."""
        fold = _FOLDS.get(type(record))
        if fold is None:
            raise InconsistentMetadata(f"{type(record).__name__} is no metadata record")
        fold(self, record)

    def topic_configs(self, name: str) -> dict[str, str]:
        """The topic's own settings; not to be changed by the caller."""
        return self.configs.get((ResourceType.TOPIC, name), {})

    def broker_configs(self, name: str) -> dict[str, str]:
        """The dynamic settings of one broker (its id as text), or of all (the empty name)."""
        return self.configs.get((ResourceType.BROKER, name), {})

    @property
    def drained_nodes(self) -> frozenset[int]:
        """Those that get no new partitions, as is set for all brokers."""
        texts = self.broker_configs("").get(DRAINED_NODES, "").split(",")
        return frozenset(int(text) for text in texts if text.isdecimal())

    def topic_with_id(self, topic_id: bytes) -> TopicImage:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise InconsistentMetadata(f"a record names the unknown topic id {topic_id.hex()}")
        return topic

    def _shared(self, values: Iterable[T]) -> tuple[T, ...]:
        made = tuple(values)
        return self._tuples.setdefault(made, made)

    def _add_topic(self, record: TopicRecord) -> None:
        if record.name in self.topics_by_name or record.topic_id in self.topics_by_id:
            raise InconsistentMetadata(f"topic {record.name} is created twice")
        topic = TopicImage(record.name, TopicId(record.topic_id))
        self.topics_by_name[record.name] = topic
        self.topics_by_id[topic.id] = topic
        key = collision_key(record.name)
        if key is not None:
            self.topics_by_collision_key[key] = record.name

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self.topic_with_id(record.topic_id)
        del self.topics_by_id[topic.id]
        del self.topics_by_name[topic.name]
        self.partition_count -= len(topic.partitions)
        self.configs.pop((ResourceType.TOPIC, topic.name), None)
        key = collision_key(topic.name)
        if key is not None:
            self.topics_by_collision_key.pop(key, None)

    def _add_partition(self, record: PartitionRecord) -> None:
        topic = self.topic_with_id(record.topic_id)
        if record.partition_id not in topic.partitions:
            self.partition_count += 1
        topic.partitions[record.partition_id] = PartitionImage(
            leader=record.leader,
            leader_epoch=LeaderEpoch(record.leader_epoch),
            partition_epoch=record.partition_epoch,
            replicas=self._shared(record.replicas),
            isr=self._shared(record.isr),
            directories=self._shared(record.directories),
            recovery=self._recovery(
                tuple(record.eligible_leader_replicas or ()),
                tuple(record.last_known_elr or ()),
                record.leader_recovery_state == RECOVERING,
            ),
            moving=self._moving(tuple(record.adding_replicas), tuple(record.removing_replicas)),
        )

    def _moving(self, adding: tuple[int, ...], removing: tuple[int, ...]) -> Moving:
        return Moving(adding, removing) if adding or removing else NOT_MOVING

    def _recovery(
        self, eligible: tuple[int, ...], last_known: tuple[int, ...], is_recovering: bool
    ) -> Recovery:
        if not (eligible or last_known or is_recovering):
            return NO_RECOVERY
        return Recovery(eligible, last_known, is_recovering)

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        topic = self.topic_with_id(record.topic_id)
        before = topic.partitions.get(record.partition_id)
        if before is None:
            raise InconsistentMetadata(f"{topic.name} has no partition {record.partition_id}")
        topic.partitions[record.partition_id] = self.changed_partition(before, record)

    def changed_partition(
        self, before: PartitionImage, record: PartitionChangeRecord
    ) -> PartitionImage:
        """The partition as it is after the record."""
        leader, leader_epoch = before.leader, before.leader_epoch
        if record.leader != NO_LEADER_CHANGE:
            # The epoch grows even when the leader stays the same: that is how a restart is told.
            leader, leader_epoch = record.leader, LeaderEpoch(leader_epoch + 1)
        return PartitionImage(
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=before.partition_epoch + 1,
            replicas=before.replicas if record.replicas is None else self._shared(record.replicas),
            isr=before.isr if record.isr is None else self._shared(record.isr),
            directories=(
                before.directories
                if record.directories is None
                else self._shared(record.directories)
            ),
            recovery=self._changed_recovery(before.recovery, record),
            moving=self._changed_moving(before.moving, record),
        )

    def _changed_moving(self, before: Moving, record: PartitionChangeRecord) -> Moving:
        adding, removing = before
        if record.adding_replicas is not None:
            adding = tuple(record.adding_replicas)
        if record.removing_replicas is not None:
            removing = tuple(record.removing_replicas)
        return self._moving(adding, removing)

    def _changed_recovery(self, before: Recovery, record: PartitionChangeRecord) -> Recovery:
        eligible, last_known, is_recovering = before
        if record.eligible_leader_replicas is not None:
            eligible = tuple(record.eligible_leader_replicas)
        if record.last_known_elr is not None:
            last_known = tuple(record.last_known_elr)
        if record.leader_recovery_state != NO_RECOVERY_CHANGE:
            is_recovering = record.leader_recovery_state == RECOVERING
        return self._recovery(eligible, last_known, is_recovering)

    def _set_config(self, record: ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        if record.value is not None:
            self.configs.setdefault(key, {})[record.name] = record.value
            return
        settings = self.configs.get(key)
        if settings is not None:
            settings.pop(record.name, None)
            if not settings:
                del self.configs[key]

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        self.controllers[record.controller_id] = ControllerImage(
            id=record.controller_id,
            incarnation_id=record.incarnation_id,
            endpoints={
                point.name: Endpoint(point.host, point.port, point.security_protocol)
                for point in record.end_points
            },
            features=_levels(record.features),
        )

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._broker_in(record.broker_id, record.broker_epoch)
        del self.brokers[record.broker_id]

    def _broker_in(self, node_id: int, epoch: int) -> BrokerImage:
        broker = self.brokers.get(node_id)
        if broker is None or broker.epoch != epoch:
            raise InconsistentMetadata(f"broker {node_id} is not registered in that epoch")
        return broker

    def _fence_broker(self, record: FenceBrokerRecord) -> None:
        broker = self._broker_in(record.id, record.epoch)
        self.brokers[record.id] = broker._replace(is_fenced=True)

    def _unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        broker = self._broker_in(record.id, record.epoch)
        self.brokers[record.id] = broker._replace(is_fenced=False)

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        if record.broker_epoch > self.last_registration[1]:
            self.last_registration = (record.broker_id, record.broker_epoch)
        self.brokers[record.broker_id] = BrokerImage(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            rack=record.rack,
            endpoints={
                point.name: Endpoint(point.host, point.port, point.security_protocol)
                for point in record.end_points
            },
            is_fenced=record.fenced,
            is_shutting_down=record.in_controlled_shutdown,
            log_dirs=tuple(record.log_dirs),
            features=_levels(record.features),
        )

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._broker_in(record.broker_id, record.broker_epoch)
        self.brokers[record.broker_id] = broker._replace(
            is_fenced=record.fenced > 0 if record.fenced else broker.is_fenced,
            is_shutting_down=record.in_controlled_shutdown > 0 or broker.is_shutting_down,
            log_dirs=tuple(record.log_dirs) or broker.log_dirs,
        )

    def _take_producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id <= self.next_producer_id:
            raise InconsistentMetadata("producer ids would be handed out twice")
        self.next_producer_id = ProducerId(record.next_producer_id)

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        if record.feature_level:
            self.features[record.name] = record.feature_level
        else:
            self.features.pop(record.name, None)

    def _do_nothing(self, record: NoOpRecord) -> None:
        pass


def _levels(features: Iterable[BrokerFeature | ControllerFeature]) -> tuple[FeatureLevels, ...]:
    return tuple(
        FeatureLevels(told.name, told.min_supported_version, told.max_supported_version)
        for told in features
    )


_FOLDS: Final[dict[type[Message], Callable[[MetadataImage, Any], None]]] = {
    TopicRecord: MetadataImage._add_topic,
    RemoveTopicRecord: MetadataImage._remove_topic,
    PartitionRecord: MetadataImage._add_partition,
    PartitionChangeRecord: MetadataImage._change_partition,
    ConfigRecord: MetadataImage._set_config,
    RegisterBrokerRecord: MetadataImage._register_broker,
    BrokerRegistrationChangeRecord: MetadataImage._change_broker,
    ProducerIdsRecord: MetadataImage._take_producer_ids,
    FeatureLevelRecord: MetadataImage._set_feature,
    NoOpRecord: MetadataImage._do_nothing,
    RegisterControllerRecord: MetadataImage._register_controller,
    UnregisterBrokerRecord: MetadataImage._unregister_broker,
    FenceBrokerRecord: MetadataImage._fence_broker,
    UnfenceBrokerRecord: MetadataImage._unfence_broker,
}
