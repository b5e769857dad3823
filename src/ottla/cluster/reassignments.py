"""AlterPartitionReassignments and ListPartitionReassignments: partitions go elsewhere, or back.

What a request asks for is written down at once; the partition arrives with the change of in-sync
replicas that its leader asks for when the newcomers have caught up (`elections.changed`). So a
move needs nobody who remembers it: it goes on under any controller and any leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla.cluster.elections import Rules, Standing, Terms, changed
from ottla.cluster.image import NOT_MOVING, MetadataImage, PartitionImage, TopicImage
from ottla.cluster.moves import check_target, moved, route_to, way_back
from ottla.cluster.topics import RECORDS_PER_REQUEST_MAX
from ottla.errors import (
    ErrorCode,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignmentInProgress,
    OttlaError,
    PolicyViolation,
    UnknownTopicOrPartition,
    code_of,
)
from ottla.types import NO_NODE
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ottla.wire.messages.metadata_records import PartitionChangeRecord
from ottla.wire.schema import Message


def alter(
    rules: Rules, request: AlterPartitionReassignmentsRequest
) -> tuple[list[Message], AlterPartitionReassignmentsResponse]:
    """One answer per partition."""
    standing = Standing(rules.image.brokers)
    may_change_factor = request.allow_replication_factor_change
    records: list[Message] = []
    responses = []
    seen: set[tuple[str, int]] = set()
    for asked in request.topics:
        answers = []
        for wanted in asked.partitions:
            error: OttlaError | None = None
            try:
                if (asked.name, wanted.partition_index) in seen:
                    raise InvalidRequest("Each partition may be named once in a request.")
                seen.add((asked.name, wanted.partition_index))
                record = _altered(rules, standing, asked.name, wanted, may_change_factor)
                records += [] if record is None else [record]
            except OttlaError as failure:
                error = failure
            answers.append(_answer(wanted.partition_index, error))
        responses.append(ReassignableTopicResponse(name=asked.name, partitions=answers))
    if len(records) > RECORDS_PER_REQUEST_MAX:
        raise PolicyViolation(
            f"One request may move {RECORDS_PER_REQUEST_MAX} partitions, not {len(records)}."
        )
    return records, AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor, error_message=None, responses=responses
    )


def _altered(
    rules: Rules,
    standing: Standing,
    name: str,
    wanted: ReassignablePartition,
    may_change_factor: bool,
) -> PartitionChangeRecord | None:
    index = wanted.partition_index
    topic = rules.image.topics_by_name.get(name)
    partition = topic.partitions.get(index) if topic is not None else None
    if topic is None or partition is None:
        raise UnknownTopicOrPartition(f"There is no {name}-{index}.")
    terms = rules.terms(topic)
    if wanted.replicas is None:
        return _cancelled(standing, terms, topic, index, partition)
    check_target(rules.image, wanted.replicas)
    factor = partition.replication_factor
    if len(wanted.replicas) != factor and not may_change_factor:
        raise InvalidReplicationFactor(
            f"The replication factor is changed from {factor} to {len(wanted.replicas)}."
        )
    route = route_to(partition, wanted.replicas)
    aim = moved(partition, route, rules.image.brokers)
    return changed(
        topic.id, index, partition, standing, terms, partition.isr, terms.election, aim=aim
    )


def _cancelled(
    standing: Standing, terms: Terms, topic: TopicImage, index: int, partition: PartitionImage
) -> PartitionChangeRecord | None:
    name = f"{topic.name}-{index}"
    if partition.moving == NOT_MOVING:
        raise NoReassignmentInProgress(f"{name} is not being moved.")
    aim = moved(partition, way_back(partition))
    isr = [node for node in partition.isr if node in aim.replicas]
    has_everything = isr or any(node in aim.replicas for node in partition.recovery.eligible)
    if not has_everything and not terms.allows_unclean:
        raise InvalidReplicaAssignment(
            f"{name} cannot go back to {list(aim.replicas)}: none of them has everything, so that "
            "its leader would be elected uncleanly."
        )
    record = changed(topic.id, index, partition, standing, terms, isr, terms.election, aim=aim)
    if not has_everything and (record is None or record.leader == NO_NODE):
        raise InvalidReplicaAssignment(
            f"{name} cannot go back to {list(aim.replicas)}: none of them can serve."
        )
    return record


def _answer(index: int, error: OttlaError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(index, ErrorCode.NONE, None)
    return ReassignablePartitionResponse(index, code_of(error), str(error))


def listed(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Those that are being moved, of all or of the named; others are passed over in silence."""
    topics = []
    for topic, indexes in _named(image, request):
        partitions = [
            OngoingPartitionReassignment(
                index,
                list(partition.replicas),
                list(partition.moving.adding),
                list(partition.moving.removing),
            )
            for index in indexes
            if (partition := topic.partitions.get(index)) is not None
            and partition.moving != NOT_MOVING
        ]
        if partitions:
            topics.append(OngoingTopicReassignment(topic.name, partitions))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def _named(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> Iterator[tuple[TopicImage, Iterable[int]]]:
    if request.topics is None:
        for topic in image.topics_by_name.values():
            yield topic, topic.partitions
        return
    for asked in request.topics:
        known = image.topics_by_name.get(asked.name)
        if known is not None:
            yield known, asked.partition_indexes
