"""EndQuorumEpoch, versions 0 and 1 (KIP-595, KIP-853): the leader resigns."""

from __future__ import annotations

from ottla.broker.control.quorum_requests import asked_partition, leader_endpoints
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.quorum.events import EpochEnded
from ottla.quorum.voters import Endpoint, ReplicaKey
from ottla.types import METADATA_TOPIC, NodeId
from ottla.wire.messages.end_quorum_epoch import (
    EndQuorumEpochPartitionResult,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    EndQuorumEpochTopicResult,
    NodeEndpoint,
)


async def handle(
    services: Services, context: RequestContext, request: EndQuorumEpochRequest
) -> EndQuorumEpochResponse:
    asked = asked_partition(request.topics)
    successors = tuple(
        ReplicaKey(NodeId(each.candidate_id), each.candidate_directory_id)
        for each in asked.preferred_candidates
    ) or tuple(ReplicaKey(NodeId(node_id)) for node_id in asked.preferred_successors)
    answer = await services.quorum.answer(
        EpochEnded(
            asked.leader_epoch,
            NodeId(asked.leader_id),
            successors,
            tuple(Endpoint(each.name, each.host, each.port) for each in request.leader_endpoints),
            request.cluster_id,
        )
    )
    result = EndQuorumEpochPartitionResult(0, answer.error, answer.leader_id, answer.epoch)
    return EndQuorumEpochResponse(
        topics=[EndQuorumEpochTopicResult(METADATA_TOPIC, [result])],
        node_endpoints=[NodeEndpoint(*each) for each in leader_endpoints(services.quorum, answer)],
    )


def error_response(request: EndQuorumEpochRequest, error: Exception) -> EndQuorumEpochResponse:
    return EndQuorumEpochResponse(error_code=code_of(error))
