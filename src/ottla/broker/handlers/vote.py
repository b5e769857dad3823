"""Vote, versions 0 to 2 (KIP-595, 853, 996): a candidate asks for this node's vote."""

from __future__ import annotations

from ottla.broker.control.quorum_requests import asked_partition, leader_endpoints
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.quorum.events import VoteAsked
from ottla.quorum.voters import ReplicaKey
from ottla.types import METADATA_TOPIC, NodeId, Offset
from ottla.wire.messages.vote import (
    NodeEndpoint,
    VotePartitionResult,
    VoteRequest,
    VoteResponse,
    VoteTopicResult,
)


async def handle(services: Services, context: RequestContext, request: VoteRequest) -> VoteResponse:
    asked = asked_partition(request.topics)
    voter_id = NodeId(request.voter_id)
    answer = await services.quorum.answer(
        VoteAsked(
            asked.replica_epoch,
            ReplicaKey(NodeId(asked.replica_id), asked.replica_directory_id),
            asked.last_offset_epoch,
            Offset(asked.last_offset),
            asked.pre_vote,
            ReplicaKey(voter_id, asked.voter_directory_id) if voter_id >= 0 else None,
            request.cluster_id,
        )
    )
    result = VotePartitionResult(0, answer.error, answer.leader_id, answer.epoch, answer.granted)
    return VoteResponse(
        topics=[VoteTopicResult(METADATA_TOPIC, [result])],
        node_endpoints=[NodeEndpoint(*each) for each in leader_endpoints(services.quorum, answer)],
    )


def error_response(request: VoteRequest, error: Exception) -> VoteResponse:
    return VoteResponse(error_code=code_of(error))
