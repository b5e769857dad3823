"""A cluster that balances itself, step by step, when nodes have come or gone.

A step moves a few partitions, throttled, and the next begins when they have arrived. The throttle
and the names of its topics are written with the moves, as one batch: whichever controller finds
that nothing moves any more lifts it. A throttle of anybody else, or a move, is waited for. Once the
load is even, nothing more is done until other nodes are there: what traffic does from hour to hour
is no reason to copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ottla.cluster import reassignments
from ottla.cluster.balance import Held, Place, Site, planned
from ottla.cluster.elections import Rules
from ottla.cluster.image import NOT_MOVING, BrokerImage, MetadataImage, ResourceType
from ottla.cluster.placement import host_of
from ottla.types import NO_NODE, Now
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.metadata_records import ConfigRecord, PartitionChangeRecord
from ottla.wire.schema import Message

MOVES_PER_STEP: Final = 10
THROTTLED_TOPICS: Final = "auto.balance.throttled.topics"
OF_BROKERS: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
OF_TOPICS: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS


class Measured(NamedTuple):
    size_bytes: int = 0
    bytes_per_second: float = 0.0


UNKNOWN: Final = Measured()


class SelfBalancing:
    """Which nodes it has found even is soft state: another controller looks once more."""

    def __init__(self) -> None:
        self._even_for: object = None

    def step(self, rules: Rules, measured: Mapping[Place, Measured], now: Now) -> list[Message]:
        """What is to be written next: a few moves, the end of a throttle, or nothing."""
        image, config = rules.image, rules.config
        if _is_moving(image):
            return []
        if THROTTLED_TOPICS in image.broker_configs(""):
            return [*_lifted(image)]
        nodes = (frozenset(each.id for each in _active(image)), image.drained_nodes)
        if (
            not config.auto_balance_enable
            or nodes == self._even_for
            or not is_within(config.auto_balance_window, now.wall_ms)
            or _is_disturbed(image)
        ):
            return []
        moves = _moves(image, measured)
        if not moves:
            self._even_for = nodes
            return []
        records = _reassigned(rules, moves)
        if records and any(set(after) - set(before) for before, after in moves.values()):
            rate = config.auto_balance_bytes_per_second
            records = [*_throttle(image, moves, rate), *records]
        return records


def is_within(window: str, wall_ms: int) -> bool:
    """Whether it is that time of day, in UTC; the window may go over midnight."""
    if not window:
        return True
    begin, end = (int(text[:2]) * 60 + int(text[3:5]) for text in (window[:5], window[6:]))
    minute = wall_ms % DAY_MS // MINUTE_MS
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


def _is_moving(image: MetadataImage) -> bool:
    return any(
        partition.moving != NOT_MOVING
        for topic in image.topics_by_id.values()
        for partition in topic.partitions.values()
    )


def _active(image: MetadataImage) -> Iterable[BrokerImage]:
    return (broker for broker in image.brokers.values() if broker.is_active)


def _is_disturbed(image: MetadataImage) -> bool:
    """Somebody's own throttle, or replicas on a node that is away: first that has to end."""
    active = {broker.id for broker in _active(image)}
    for (kind, _), settings in image.configs.items():
        names = OF_TOPICS if kind == ResourceType.TOPIC else OF_BROKERS
        if any(name in settings for name in names):
            return True
    return any(
        not active.issuperset(partition.replicas) or partition.leader == NO_NODE
        for topic in image.topics_by_id.values()
        for partition in topic.partitions.values()
    )


Moves = dict[Place, tuple[tuple[int, ...], tuple[int, ...]]]


def _moves(image: MetadataImage, measured: Mapping[Place, Measured]) -> Moves:
    """The first steps of a plan: by partition its replicas before and after."""
    sites = [
        Site(broker.id, broker.rack, None if broker.rack is None else host_of(broker))
        for broker in _active(image)
    ]
    held = {
        (topic.name, index): Held(partition.replicas, *measured.get((topic.name, index), UNKNOWN))
        for topic in image.topics_by_name.values()
        for index, partition in topic.partitions.items()
    }
    plan = planned(sites, held, image.drained_nodes, steps_max=MOVES_PER_STEP)
    chosen = sorted(plan.after)[:MOVES_PER_STEP]
    return {place: (held[place].replicas, plan.after[place]) for place in chosen}


def _reassigned(rules: Rules, moves: Moves) -> list[Message]:
    topics: dict[str, ReassignableTopic] = {}
    for (name, index), (_, after) in moves.items():
        topic = topics.setdefault(name, ReassignableTopic(name=name))
        topic.partitions.append(ReassignablePartition(index, list(after)))
    request = AlterPartitionReassignmentsRequest(topics=list(topics.values()))
    records, _ = reassignments.alter(rules, request)
    return [record for record in records if isinstance(record, PartitionChangeRecord)]


def _throttle(image: MetadataImage, moves: Moves, rate: int) -> list[ConfigRecord]:
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for (name, index), (before, after) in moves.items():
        leaders.setdefault(name, []).extend(f"{index}:{node}" for node in before)
        newcomers = [node for node in after if node not in before]
        followers.setdefault(name, []).extend(f"{index}:{node}" for node in newcomers)
    records = [_set(ResourceType.BROKER, "", THROTTLED_TOPICS, ",".join(leaders))]
    for name in leaders:
        for setting, replicas in zip(OF_TOPICS, (leaders[name], followers[name]), strict=True):
            if replicas:
                records.append(_set(ResourceType.TOPIC, name, setting, ",".join(replicas)))
    records += [
        _set(ResourceType.BROKER, str(node), setting, str(rate))
        for node in image.brokers
        for setting in OF_BROKERS
    ]
    return records


def _lifted(image: MetadataImage) -> list[ConfigRecord]:
    """What was set with the last step goes, of the topics that are still there."""
    topics = image.broker_configs("")[THROTTLED_TOPICS].split(",")
    records = [_set(ResourceType.BROKER, "", THROTTLED_TOPICS, None)]
    for name in topics:
        own = image.topic_configs(name)
        records += [_set(ResourceType.TOPIC, name, each, None) for each in OF_TOPICS if each in own]
    for broker in image.brokers.values():
        own = image.broker_configs(str(broker.id))
        name = str(broker.id)
        records += [
            _set(ResourceType.BROKER, name, each, None) for each in OF_BROKERS if each in own
        ]
    return records


def _set(kind: ResourceType, resource: str, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)
