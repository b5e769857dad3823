"""ElectLeaders: somebody asks for the preferred leaders, or for any leader (KIP-183, KIP-460)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla.cluster.elections import Election, Rules, Standing, changed
from ottla.cluster.topics import RECORDS_PER_REQUEST_MAX
from ottla.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    InvalidRequest,
    OttlaError,
    PolicyViolation,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
    code_of,
)
from ottla.types import NO_NODE
from ottla.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.wire.messages.metadata_records import PartitionChangeRecord
from ottla.wire.schema import Message

ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}


def elect(rules: Rules, request: ElectLeadersRequest) -> tuple[list[Message], ElectLeadersResponse]:
    """One answer per partition; of all partitions, those are left out that need no election."""
    election = ELECTIONS.get(request.election_type)
    if election is None:
        raise InvalidRequest(f"There is no election of type {request.election_type}.")
    standing = Standing(rules.image.brokers)
    asks_for_all = request.topic_partitions is None
    records: list[Message] = []
    results = []
    for topic, indexes in _asked(rules, request):
        answers = []
        for index in indexes:
            error: OttlaError | None = None
            try:
                records.append(_elected(rules, standing, topic, index, election))
            except ElectionNotNeeded as not_needed:
                if asks_for_all:
                    continue
                error = not_needed
            except OttlaError as failure:
                error = failure
            answers.append(_answer(index, error))
        results.append(ReplicaElectionResult(topic=topic, partition_result=answers))
    if len(records) > RECORDS_PER_REQUEST_MAX:
        raise PolicyViolation(
            f"One request may elect {RECORDS_PER_REQUEST_MAX} leaders, not {len(records)}."
        )
    return records, ElectLeadersResponse(replica_election_results=results)


def _asked(rules: Rules, request: ElectLeadersRequest) -> Iterator[tuple[str, Iterable[int]]]:
    if request.topic_partitions is None:
        for name, topic in rules.image.topics_by_name.items():
            yield name, topic.partitions
        return
    # Named twice, a partition would be elected twice in one batch.
    named: dict[str, dict[int, None]] = {}
    for asked in request.topic_partitions:
        named.setdefault(asked.topic, {}).update(dict.fromkeys(asked.partitions))
    yield from named.items()


def _elected(
    rules: Rules, standing: Standing, name: str, index: int, election: Election
) -> PartitionChangeRecord:
    topic = rules.image.topics_by_name.get(name)
    partition = topic.partitions.get(index) if topic is not None else None
    if topic is None or partition is None:
        raise UnknownTopicOrPartition(f"There is no {name}-{index}.")
    preferred = partition.replicas[0]
    is_preferred = election is Election.PREFERRED
    if partition.leader == preferred if is_preferred else partition.leader != NO_NODE:
        raise ElectionNotNeeded(f"{name}-{index} is led by {partition.leader}.")
    terms = rules.terms(topic)
    record = changed(topic.id, index, partition, standing, terms, partition.isr, election)
    leader = None if record is None else rules.image.changed_partition(partition, record).leader
    if record is None or (leader != preferred and is_preferred):
        if is_preferred:
            raise PreferredLeaderNotAvailable(
                f"{name}-{index}: broker {preferred} is not in sync, or cannot serve."
            )
        raise EligibleLeadersNotAvailable(f"{name}-{index}: none of its brokers can serve.")
    return record


def _answer(index: int, error: OttlaError | None) -> PartitionResult:
    if error is None:
        return PartitionResult(partition_id=index, error_code=ErrorCode.NONE, error_message=None)
    return PartitionResult(partition_id=index, error_code=code_of(error), error_message=str(error))
