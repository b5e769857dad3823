"""AlterPartition: the leader of a partition asks for another set of in-sync replicas.

It is believed only if it knows everything that the controller knows: its own epoch, the leader
epoch, the partition epoch, and the epoch of every broker it names (KIP-497, KIP-841, KIP-903).
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster.elections import Rules, Standing, changed
from ottla.cluster.image import RECOVERED, RECOVERING, MetadataImage, PartitionImage, TopicImage
from ottla.cluster.registrations import check_epoch
from ottla.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NewLeaderElected,
    NotController,
    OttlaError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    code_of,
)
from ottla.types import NO_NODE
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionResult,
    TopicResult,
)
from ottla.wire.messages.metadata_records import PartitionChangeRecord
from ottla.wire.schema import Message

NO_BROKER_EPOCH = -1


def alter(
    rules: Rules, request: AlterPartitionRequest
) -> tuple[list[Message], AlterPartitionResponse]:
    """One answer per partition; StaleBrokerEpoch where the whole request is of another life."""
    check_epoch(rules.image, request.broker_id, request.broker_epoch)
    standing = Standing(rules.image.brokers)
    records: list[Message] = []
    results = []
    seen: set[tuple[bytes, int]] = set()
    for asked in request.topics:
        answers = []
        for wanted in asked.partitions:
            place = (asked.topic_id, wanted.partition_index)
            try:
                if place in seen:
                    raise InvalidRequest("Each partition may be named once in a request.")
                seen.add(place)
                record, answer = _altered(rules, standing, request.broker_id, place, wanted)
                records += [] if record is None else [record]
            except OttlaError as error:
                answer = _refused(wanted.partition_index, error)
            answers.append(answer)
        results.append(TopicResult(topic_id=asked.topic_id, partitions=answers))
    return records, AlterPartitionResponse(topics=results)


def _altered(
    rules: Rules, standing: Standing, node_id: int, place: tuple[bytes, int], wanted: PartitionData
) -> tuple[PartitionChangeRecord | None, PartitionResult]:
    topic_id, index = place
    topic = rules.image.topics_by_id.get(topic_id)
    if topic is None:
        raise UnknownTopicId("There is no topic with this id.")
    partition = _checked(rules.image, node_id, topic, wanted)
    isr = _named(wanted)
    if all(member.broker_id != node_id for member in isr):
        return _given_up(rules, standing, place, partition, isr)
    _check_isr(rules.image, partition, isr, wanted.leader_recovery_state)
    record = changed(
        topic_id,
        index,
        partition,
        standing,
        rules.terms(topic),
        [member.broker_id for member in isr],
        rules.terms(topic).election,
        is_recovering=wanted.leader_recovery_state == RECOVERING,
    )
    if record is None:
        return None, _answer(index, partition)
    after = rules.image.changed_partition(partition, record)
    if after.leader != node_id:
        error = NewLeaderElected(f"{topic.name}-{index} is led by {after.leader} from now on.")
        return record, _refused(index, error)
    return record, _answer(index, after)


def _given_up(
    rules: Rules,
    standing: Standing,
    place: tuple[bytes, int],
    partition: PartitionImage,
    isr: Sequence[BrokerState],
) -> tuple[PartitionChangeRecord, PartitionResult]:
    """A leader that leaves itself out cannot go on under its epoch: its disk has failed a sync.

    Kafka's brokers never ask for this. One of those it names leads, if one of them can serve; the
    leader is in sync again when it has caught up. If not it leads on, under a new epoch.
    """
    topic_id, index = place
    topic = rules.image.topics_by_id[topic_id]
    members = [member.broker_id for member in isr]
    if len(set(members)) < len(members) or not set(members) < set(partition.isr):
        raise InvalidRequest(f"{members} are not in sync, each once.")
    able = [
        node for node in partition.isr if node in members and standing.can_serve(node, partition)
    ]
    record: PartitionChangeRecord | None = None
    if able:
        terms = rules.terms(topic)
        record = changed(topic_id, index, partition, standing, terms, able, terms.election)
    if record is None:
        record = PartitionChangeRecord(
            partition_id=index, topic_id=topic_id, leader=partition.leader
        )
    after = rules.image.changed_partition(partition, record)
    if after.leader == partition.leader:
        return record, _answer(index, after)
    error = NewLeaderElected(f"{topic.name}-{index} is led by {after.leader} from now on.")
    return record, _refused(index, error)


def _checked(
    image: MetadataImage, node_id: int, topic: TopicImage, wanted: PartitionData
) -> PartitionImage:
    """The partition, if it is its leader that asks and knows how things stand."""
    name = f"{topic.name}-{wanted.partition_index}"
    partition = topic.partitions.get(wanted.partition_index)
    if partition is None:
        raise UnknownTopicOrPartition(f"There is no {name}.")
    if (
        wanted.leader_epoch > partition.leader_epoch
        or wanted.partition_epoch > partition.partition_epoch
    ):
        raise NotController(f"{name}: the broker knows more than this controller.")
    if wanted.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(f"{name} is in leader epoch {partition.leader_epoch}.")
    if node_id != partition.leader:
        raise InvalidRequest(f"{name} is led by {partition.leader}, not by {node_id}.")
    if wanted.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersion(f"{name} is in partition epoch {partition.partition_epoch}.")
    return partition


def _named(wanted: PartitionData) -> Sequence[BrokerState]:
    """Version 2 names brokers without their epochs."""
    if wanted.new_isr_with_epochs:
        return wanted.new_isr_with_epochs
    return [BrokerState(node_id, NO_BROKER_EPOCH) for node_id in wanted.new_isr]


def _check_isr(
    image: MetadataImage,
    partition: PartitionImage,
    isr: Sequence[BrokerState],
    leader_recovery_state: int,
) -> None:
    members = [member.broker_id for member in isr]
    if len(set(members)) < len(members) or not set(members) <= set(partition.replicas):
        raise InvalidRequest(f"{members} are not replicas, each once.")
    if leader_recovery_state not in (RECOVERED, RECOVERING):
        raise InvalidRequest(f"There is no leader recovery state {leader_recovery_state}.")
    if leader_recovery_state == RECOVERING:
        if len(members) > 1:
            raise InvalidRequest("While its leader recovers nobody else can be in sync.")
        if not partition.recovery.is_recovering:
            raise InvalidRequest("A leader that has recovered does not begin to.")
    for member in isr:
        _check_eligible(image, member)


def _check_eligible(image: MetadataImage, member: BrokerState) -> None:
    broker = image.brokers.get(member.broker_id)
    if broker is None:
        reason = "is not registered"
    elif broker.is_shutting_down:
        reason = "is shutting down"
    elif broker.is_fenced:
        reason = "is fenced"
    elif member.broker_epoch not in (NO_BROKER_EPOCH, broker.epoch):
        reason = f"is in broker epoch {broker.epoch}, not {member.broker_epoch}"
    else:
        return
    raise IneligibleReplica(f"Broker {member.broker_id} {reason}.")


def _answer(index: int, partition: PartitionImage) -> PartitionResult:
    return PartitionResult(
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=RECOVERING if partition.recovery.is_recovering else RECOVERED,
        partition_epoch=partition.partition_epoch,
    )


def _refused(index: int, error: OttlaError) -> PartitionResult:
    return PartitionResult(partition_index=index, error_code=code_of(error), leader_id=NO_NODE)
