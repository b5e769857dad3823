"""Who leads a partition and who is in sync after brokers have come or gone (KIP-841, KIP-966).

The rules are those of Kafka's PartitionChangeBuilder at the metadata versions that we support.
Each change raises the partition epoch. The leader epoch rises with each election, also with one
that finds nobody, and not where only the in-sync replicas change (since 3.6, KAFKA-15021). One rule
is our own: a replica that may have lost what it had not synced stays eligible where it is the last,
so that there is always one, and Kafka's election of the last known leader has nothing to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from ottla.cluster.configs import MIN_INSYNC_REPLICAS
from ottla.cluster.directories import is_reserved
from ottla.cluster.features import has_eligible_leaders
from ottla.cluster.image import (
    NO_LEADER_CHANGE,
    RECOVERED,
    RECOVERING,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from ottla.cluster.moves import moved, route_of
from ottla.config import TOPIC_SETTINGS, BrokerConfig
from ottla.errors import InvalidConfig
from ottla.types import NO_NODE
from ottla.wire.messages.metadata_records import PartitionChangeRecord
from ottla.wire.schema import Message

T = TypeVar("T")

UNCLEAN: Final = "unclean.leader.election.enable"


class Election(Enum):
    ONLINE = "the leader stays while it can, else a replica that has everything"
    PREFERRED = "the first replica, where it has everything"
    UNCLEAN = "any replica, where none that has everything can serve"


class Terms(NamedTuple):
    """What a topic's settings and the cluster's level say of its elections."""

    min_isr: int
    allows_unclean: bool
    has_eligible: bool

    def are_enough(self, isr: Collection[int], partition: PartitionImage) -> bool:
        """Whether a leader with these in sync acknowledges; it counts by the same rule."""
        return len(isr) >= min(self.min_isr, len(partition.replicas))

    @property
    def election(self) -> Election:
        return Election.UNCLEAN if self.allows_unclean else Election.ONLINE


class Rules:
    """The image that a decision rests on, and the terms of each topic in it."""

    def __init__(self, image: MetadataImage, config: BrokerConfig) -> None:
        self.image = image
        self.config = config
        self._has_eligible = has_eligible_leaders(image)

    def terms(self, topic: TopicImage) -> Terms:
        overrides = self.image.topic_configs(topic.name)
        min_isr: int = _own(overrides, MIN_INSYNC_REPLICAS, self.config.min_insync_replicas)
        allows_unclean: bool = _own(overrides, UNCLEAN, self.config.unclean_leader_election_enable)
        return Terms(min_isr, allows_unclean, self._has_eligible)


def _own(overrides: Mapping[str, str], name: str, inherited: T) -> T:
    text = overrides.get(name)
    if text is None:
        return inherited
    try:
        parsed: T = TOPIC_SETTINGS[name].parse(text)
    except InvalidConfig:
        return inherited
    return parsed


class Standing:
    """Which brokers can serve, as they will be once what is being decided is written."""

    def __init__(
        self, brokers: Mapping[int, BrokerImage], distrusted: Collection[int] = ()
    ) -> None:
        self._directories = {
            broker.id: frozenset(broker.log_dirs)
            for broker in brokers.values()
            if broker.is_active and broker.id not in distrusted
        }
        self.distrusted = frozenset(distrusted)

    @property
    def active(self) -> Collection[int]:
        return self._directories.keys()

    def can_serve(self, node_id: int, partition: PartitionImage) -> bool:
        """Whether the broker is there and has the directory that its replica lies in."""
        directories = self._directories.get(node_id)
        if directories is None:
            return False
        try:
            directory_id = partition.directories[partition.replicas.index(node_id)]
        except (ValueError, IndexError):
            return True  # Nobody has said where it lies.
        return not directories or directory_id in directories or is_reserved(directory_id)

    def is_settled(self, partition: PartitionImage) -> bool:
        """Whether there is a leader, and nobody in sync who cannot serve."""
        if partition.leader == NO_NODE:
            return False
        for replica in partition.isr:
            if not self.can_serve(replica, partition):
                return False
        return self.distrusted.isdisjoint(partition.recovery.eligible)


def settled(
    topic_id: bytes, index: int, partition: PartitionImage, standing: Standing, terms: Terms
) -> PartitionChangeRecord | None:
    """The change that a partition needs, if any, as the brokers now are."""
    is_outdated = bool(partition.recovery.eligible) and terms.are_enough(partition.isr, partition)
    has_arrived = route_of(partition).arrived(partition.isr) is not None
    if standing.is_settled(partition) and not is_outdated and not has_arrived:
        return None
    isr = [replica for replica in partition.isr if standing.can_serve(replica, partition)]
    if not isr and not terms.has_eligible:
        # Somebody must remain who is known to have everything, to lead when it comes back.
        trusted = [member for member in partition.isr if member not in standing.distrusted]
        isr = trusted or list(partition.isr)
    return changed(topic_id, index, partition, standing, terms, isr, terms.election)


def changed(
    topic_id: bytes,
    index: int,
    partition: PartitionImage,
    standing: Standing,
    terms: Terms,
    isr: Sequence[int],
    election: Election,
    is_recovering: bool | None = None,
    aim: PartitionImage | None = None,
) -> PartitionChangeRecord | None:
    """The record that makes `isr` the in-sync replicas and elects a leader where one is needed.

    `aim` is the partition with other replicas, where those are to change. One that moves has
    arrived with the first change that has everybody in sync who stays.
    """
    record = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    aim, isr = _arrived(partition if aim is None else aim, isr)
    eligible = _eligible(aim, standing, terms, isr)
    leader, is_unclean = _elected(aim, standing, election, isr, eligible)
    before = partition.recovery
    if is_recovering is not None and is_recovering != before.is_recovering:
        record.leader_recovery_state = RECOVERING if is_recovering else RECOVERED
    if leader != partition.leader:
        record.leader = leader
        if is_unclean:
            # What only the others had is lost; they are to fetch from this one.
            isr, eligible = [leader], []
            record.leader_recovery_state = RECOVERING
        elif leader in eligible:
            isr = [leader]
            eligible.remove(leader)
        aim, isr = _arrived(aim, isr)
    elif not set(partition.replicas) <= set(aim.replicas):
        # What is under way from a replica that is gone must not count, should it come back.
        record.leader = leader
    if tuple(isr) != partition.isr:
        record.isr = isr
    if tuple(eligible) != before.eligible:
        record.eligible_leader_replicas = eligible
    if terms.has_eligible:
        if not isr and partition.leader != NO_NODE:
            record.last_known_elr = [partition.leader]
        elif leader != NO_NODE and before.last_known:
            record.last_known_elr = []
    _tell_replicas(record, partition, aim)
    return None if _says_nothing(record) else record


def _arrived(partition: PartitionImage, isr: Sequence[int]) -> tuple[PartitionImage, list[int]]:
    """The partition at the end of its way, if these in-sync replicas are what it waits for."""
    end = route_of(partition).arrived(isr)
    if end is None:
        return partition, list(isr)
    return moved(partition, end), [node for node in isr if node in end.replicas]


def _tell_replicas(
    record: PartitionChangeRecord, before: PartitionImage, after: PartitionImage
) -> None:
    if after.replicas != before.replicas:
        record.replicas = list(after.replicas)
    if after.directories != before.directories:
        record.directories = list(after.directories)
    if after.moving.adding != before.moving.adding:
        record.adding_replicas = list(after.moving.adding)
    if after.moving.removing != before.moving.removing:
        record.removing_replicas = list(after.moving.removing)


def _says_nothing(record: PartitionChangeRecord) -> bool:
    return record == PartitionChangeRecord(
        partition_id=record.partition_id, topic_id=record.topic_id
    )


def _eligible(
    partition: PartitionImage, standing: Standing, terms: Terms, isr: Sequence[int]
) -> list[int]:
    """Who has everything that was acknowledged and is not in sync: told while those are few."""
    if not terms.has_eligible or terms.are_enough(isr, partition):
        return []
    # Since the minimum was lowered, more may be committed than those who were eligible have.
    known = () if terms.are_enough(partition.isr, partition) else partition.recovery.eligible
    had_everything = {*partition.isr, *known}
    others = [node for node in partition.replicas if node in had_everything and node not in isr]
    trusted = [node for node in others if node not in standing.distrusted]
    return trusted if trusted or isr else others


def _elected(
    partition: PartitionImage,
    standing: Standing,
    election: Election,
    isr: Sequence[int],
    eligible: Sequence[int],
) -> tuple[int, bool]:
    """The leader, and whether its election is unclean."""
    complete = isr or eligible
    order = [partition.leader, *partition.replicas]
    if election is Election.PREFERRED:
        order.insert(0, partition.replicas[0])
    for node in order:
        if node in complete and standing.can_serve(node, partition):
            return node, False
    if election is Election.UNCLEAN:
        for node in partition.replicas:
            if standing.can_serve(node, partition):
                return node, True
    return NO_NODE, False


def unclean_elections(records: Iterable[Message]) -> int:
    """How many of the records tell of a leader that may not have everything."""
    return sum(
        isinstance(record, PartitionChangeRecord)
        and record.leader != NO_LEADER_CHANGE
        and record.leader_recovery_state == RECOVERING
        for record in records
    )
