"""Creating topics, deleting them, adding partitions: the records that a request comes to.

Each topic of a request stands for itself: it gives records, or an error that names what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.cluster.configs import check_min_isr, check_topic_config
from ottla.cluster.directories import default_directory
from ottla.cluster.image import MetadataImage, ResourceType, TopicImage
from ottla.cluster.moves import check_target
from ottla.cluster.names import check_topic_name, collision_key, new_id
from ottla.cluster.placement import Candidate, candidate, place
from ottla.config import BrokerConfig
from ottla.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicName,
    OttlaError,
    PolicyViolation,
    TopicExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.ports import Random
from ottla.types import METADATA_TOPIC, NO_TOPIC_ID, TopicId
from ottla.wire.messages.create_partitions import CreatePartitionsTopic
from ottla.wire.messages.create_topics import CreatableTopic
from ottla.wire.messages.delete_topics import DeleteTopicState
from ottla.wire.messages.metadata_records import (
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from ottla.wire.schema import Message

# One request becomes one batch of the metadata log.
RECORDS_PER_REQUEST_MAX: Final = 10_000


class NewTopic(NamedTuple):
    """A topic that may be created."""

    id: TopicId
    partitions: int
    replication_factor: int
    overrides: Mapping[str, str]
    records: list[Message]


class Deletion(NamedTuple):
    """One answer to a request to delete; without an error the topic is deleted."""

    name: str | None
    id: bytes
    error: OttlaError | None


class Room:
    """What a request may still add: to the cluster, and to its own batch."""

    def __init__(self, image: MetadataImage, config: BrokerConfig) -> None:
        self._config = config
        self._partitions = image.partition_count
        self._records = 0

    def check(self, present: int, added: int) -> None:
        """May a topic with `present` partitions get `added` more?"""
        config = self._config
        if present + added > config.max_partitions_per_topic:
            raise InvalidPartitions(
                f"A topic may have {config.max_partitions_per_topic} partitions "
                f"(max.partitions.per.topic), not {present + added}."
            )
        if self._partitions + added > config.max_partitions:
            raise PolicyViolation(
                f"The cluster may have {config.max_partitions} partitions (max.partitions); it "
                f"has {self._partitions}, so {added} more are too many."
            )
        if self._records + added > RECORDS_PER_REQUEST_MAX:
            raise PolicyViolation(
                f"One request may make {RECORDS_PER_REQUEST_MAX} records (topics, partitions and "
                "settings); this one asks for more."
            )

    def take(self, records: Sequence[Message]) -> None:
        self._records += len(records)
        self._partitions += sum(isinstance(record, PartitionRecord) for record in records)


def create(
    image: MetadataImage, config: BrokerConfig, random: Random, topics: Sequence[CreatableTopic]
) -> dict[str, NewTopic | OttlaError]:
    """For each name what creating the topic takes, or why it cannot be created."""
    times = Counter(topic.name for topic in topics)
    room = Room(image, config)
    new_keys: dict[str, str] = {}
    outcomes: dict[str, NewTopic | OttlaError] = {}
    for topic in topics:
        try:
            if times[topic.name] > 1:
                raise InvalidRequest("Each topic may be named once in a request.")
            _check_new_name(image, topic.name, new_keys)
            created = _new_topic(image, config, random, topic, room)
            room.take(created.records)
            outcomes[topic.name] = created
            key = collision_key(topic.name)
            if key is not None:
                new_keys[key] = topic.name
        except OttlaError as error:
            outcomes[topic.name] = error
    return outcomes


def _check_new_name(image: MetadataImage, name: str, new_keys: Mapping[str, str]) -> None:
    check_topic_name(name)
    if name == METADATA_TOPIC:
        raise InvalidRequest(f"{METADATA_TOPIC} cannot be created: it is the metadata log.")
    if name in image.topics_by_name:
        raise TopicExists(f"Topic '{name}' already exists.")
    key = collision_key(name)
    if key is not None:
        other = image.topics_by_collision_key.get(key) or new_keys.get(key)
        if other is not None:
            raise InvalidTopicName(
                f"Topic '{name}' collides with '{other}': in the names of metrics '.' and '_' "
                "are the same."
            )


def _new_topic(
    image: MetadataImage,
    config: BrokerConfig,
    random: Random,
    topic: CreatableTopic,
    room: Room,
) -> NewTopic:
    overrides = _overrides(config, topic)
    if topic.assignments:
        replicas = _manual(image, topic)
        room.check(0, len(replicas))
    else:
        count, factor = _counts(config, topic)
        room.check(0, count)
        replicas = place(candidates(image), count, factor, random)
    check_min_isr(overrides, len(replicas[0]))
    topic_id = TopicId(new_id(random))
    records: list[Message] = [TopicRecord(name=topic.name, topic_id=topic_id)]
    records += [
        ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value
        )
        for name, value in overrides.items()
    ]
    records += partition_records(image, topic_id, 0, replicas)
    return NewTopic(topic_id, len(replicas), len(replicas[0]), overrides, records)


def _overrides(config: BrokerConfig, topic: CreatableTopic) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for setting in topic.configs:
        if setting.value is None:
            raise InvalidConfig(f"{setting.name} has no value.")
        overrides[setting.name] = setting.value
    if overrides:
        check_topic_config(topic.name, config, overrides)
    return overrides


def _counts(config: BrokerConfig, topic: CreatableTopic) -> tuple[int, int]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise InvalidReplicationFactor(
            "Replication factor must be larger than 0, or -1 for the default."
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise InvalidPartitions(
            "Number of partitions must be larger than 0, or -1 for the default."
        )
    count = config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = topic.replication_factor
    return count, config.default_replication_factor if factor == -1 else factor


def _manual(image: MetadataImage, topic: CreatableTopic) -> list[tuple[int, ...]]:
    if topic.replication_factor != -1 or topic.num_partitions != -1:
        raise InvalidRequest(
            "With a manual assignment, number of partitions and replication factor must be -1."
        )
    by_index = {given.partition_index: tuple(given.broker_ids) for given in topic.assignments}
    if len(by_index) < len(topic.assignments):
        raise InvalidReplicaAssignment("A partition is assigned more than once.")
    if sorted(by_index) != list(range(len(by_index))):
        raise InvalidReplicaAssignment("Partitions must be numbered 0, 1, 2 and so on.")
    replicas = [by_index[index] for index in range(len(by_index))]
    for assigned in replicas:
        _check_assignment(image, assigned, len(replicas[0]))
    return replicas


def _check_assignment(image: MetadataImage, replicas: tuple[int, ...], factor: int) -> None:
    check_target(image, replicas)
    if len(replicas) != factor:
        raise InvalidReplicaAssignment(
            f"One partition has {len(replicas)} replicas, another has {factor}."
        )
    if not any(image.brokers[broker].is_active for broker in replicas):
        raise InvalidReplicaAssignment(f"None of the brokers {list(replicas)} is available.")


def candidates(image: MetadataImage) -> list[Candidate]:
    """Who may get replicas that nobody has placed."""
    drained = image.drained_nodes
    return [
        candidate(broker)
        for broker in image.brokers.values()
        if broker.is_active and broker.id not in drained
    ]


def partition_records(
    image: MetadataImage, topic_id: TopicId, first: int, replicas: Sequence[tuple[int, ...]]
) -> list[Message]:
    """New partitions, numbered from `first`; the first active replica leads."""
    records: list[Message] = []
    for index, assigned in enumerate(replicas, first):
        active = [broker for broker in assigned if image.brokers[broker].is_active]
        records.append(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=list(assigned),
                isr=active,
                leader=active[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=[default_directory(image.brokers[broker]) for broker in assigned],
            )
        )
    return records


def add_partitions(
    image: MetadataImage,
    config: BrokerConfig,
    random: Random,
    topics: Sequence[CreatePartitionsTopic],
) -> dict[str, list[Message] | OttlaError]:
    """For each name the records of its additional partitions, or why there are none."""
    times = Counter(topic.name for topic in topics)
    room = Room(image, config)
    outcomes: dict[str, list[Message] | OttlaError] = {}
    for asked in topics:
        try:
            if times[asked.name] > 1:
                raise InvalidRequest("Each topic may be named once in a request.")
            records = _more_partitions(image, random, asked, room)
            room.take(records)
            outcomes[asked.name] = records
        except OttlaError as error:
            outcomes[asked.name] = error
    return outcomes


def _more_partitions(
    image: MetadataImage, random: Random, asked: CreatePartitionsTopic, room: Room
) -> list[Message]:
    topic = image.topics_by_name.get(asked.name)
    if topic is None:
        raise UnknownTopicOrPartition(f"Topic {asked.name} does not exist.")
    present = len(topic.partitions)
    if asked.count <= present:
        raise InvalidPartitions(
            f"Topic {asked.name} has {present} partition(s); {asked.count} would not be more."
        )
    added = asked.count - present
    room.check(present, added)
    factor = topic.replication_factor
    if asked.assignments is None:
        replicas = place(candidates(image), added, factor, random)
    else:
        if len(asked.assignments) != added:
            raise InvalidReplicaAssignment(
                f"{added} partition(s) are to be added, but {len(asked.assignments)} are assigned."
            )
        replicas = [tuple(given.broker_ids) for given in asked.assignments]
        for assigned in replicas:
            _check_assignment(image, assigned, factor)
    return partition_records(image, topic.id, present, replicas)


def delete(image: MetadataImage, asked: Sequence[DeleteTopicState]) -> list[Deletion]:
    """One answer per name and id, in the order of the request."""
    times = Counter((state.name, state.topic_id) for state in asked)
    outcomes: dict[tuple[str | None, bytes], TopicImage | OttlaError] = {}
    for state in asked:
        identity = (state.name, state.topic_id)
        try:
            if times[identity] > 1:
                raise InvalidRequest("Each topic may be named once in a request.")
            outcomes[identity] = _deletable(image, *identity)
        except OttlaError as error:
            outcomes[identity] = error
    found = Counter(topic.id for topic in outcomes.values() if isinstance(topic, TopicImage))
    deletions = []
    for (name, topic_id), outcome in outcomes.items():
        if isinstance(outcome, OttlaError):
            deletions.append(Deletion(name, topic_id, outcome))
        elif found[outcome.id] > 1:
            twice = InvalidRequest("A name and an id in this request are the same topic.")
            deletions.append(Deletion(outcome.name, outcome.id, twice))
        else:
            deletions.append(Deletion(outcome.name, outcome.id, None))
    return deletions


def _deletable(image: MetadataImage, name: str | None, topic_id: bytes) -> TopicImage:
    if name is None:
        if topic_id == NO_TOPIC_ID:
            raise InvalidRequest("Neither the name nor the id of a topic is given.")
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId("There is no topic with this id.")
        return topic
    if topic_id != NO_TOPIC_ID:
        raise InvalidRequest("A topic is named by its name or by its id, not by both.")
    topic = image.topics_by_name.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"Topic {name} does not exist.")
    return topic


def removal_records(deletions: Iterable[Deletion]) -> list[Message]:
    return [RemoveTopicRecord(topic_id=gone.id) for gone in deletions if gone.error is None]
