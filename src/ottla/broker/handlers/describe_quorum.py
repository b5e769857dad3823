"""DescribeQuorum, versions 0 to 2 (KIP-595, 836, 853): the voters, and how far each has come.

Only the leader knows; others answer NOT_LEADER_OR_FOLLOWER, as Kafka's controllers do.
"""

from __future__ import annotations

from ottla.broker.control.quorum_requests import asked_partition
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import ErrorCode, NotLeader, OttlaError, UnknownTopicOrPartition, code_of
from ottla.quorum.description import ReplicaView
from ottla.types import METADATA_TOPIC
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumPartitionResult,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopicResult,
    QuorumListener,
    QuorumNode,
    QuorumReplica,
)


def handle(
    services: Services, context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    try:
        asked_partition(request.topics)
    except OttlaError as error:
        raise UnknownTopicOrPartition(str(error)) from None
    if not services.quorum.is_leader:
        refusal = NotLeader(f"node {services.quorum.leader_id} leads the metadata log")
        result = DescribeQuorumPartitionResult(
            error_code=code_of(refusal), error_message=str(refusal)
        )
        return DescribeQuorumResponse(topics=[_topic(result)])
    seen, now = services.quorum.describe(), services.clock.now()
    # The quorum counts by the steady clock, people by the one on the wall.
    ahead_ms = now.wall_ms - now.steady_ms

    def shown(replica: ReplicaView) -> QuorumReplica:
        return QuorumReplica(
            replica.key.id,
            replica.key.directory_id,
            replica.log_end_offset,
            replica.fetched_ms + ahead_ms if replica.fetched_ms >= 0 else -1,
            replica.caught_up_ms + ahead_ms if replica.caught_up_ms >= 0 else -1,
        )

    result = DescribeQuorumPartitionResult(
        error_code=ErrorCode.NONE,
        leader_id=seen.leader_id,
        leader_epoch=seen.epoch,
        high_watermark=seen.high_watermark,
        current_voters=[shown(replica) for replica in seen.voters],
        observers=[shown(replica) for replica in seen.observers],
    )
    nodes = [
        QuorumNode(voter.key.id, [QuorumListener(*endpoint) for endpoint in voter.endpoints])
        for voter in seen.voter_set
    ]
    return DescribeQuorumResponse(topics=[_topic(result)], nodes=nodes)


def _topic(result: DescribeQuorumPartitionResult) -> DescribeQuorumTopicResult:
    return DescribeQuorumTopicResult(METADATA_TOPIC, [result])


def error_response(request: DescribeQuorumRequest, error: Exception) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=code_of(error), error_message=str(error))
