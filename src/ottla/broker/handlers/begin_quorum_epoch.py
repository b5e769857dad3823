"""BeginQuorumEpoch, versions 0 and 1 (KIP-595, KIP-853): a new leader tells of its epoch."""

from __future__ import annotations

from ottla.broker.control.quorum_requests import asked_partition, leader_endpoints
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.quorum.events import EpochBegun
from ottla.quorum.voters import Endpoint, ReplicaKey
from ottla.types import METADATA_TOPIC, NodeId
from ottla.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochPartitionResult,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    BeginQuorumEpochTopicResult,
    NodeEndpoint,
)


async def handle(
    services: Services, context: RequestContext, request: BeginQuorumEpochRequest
) -> BeginQuorumEpochResponse:
    asked = asked_partition(request.topics)
    voter_id = NodeId(request.voter_id)
    answer = await services.quorum.answer(
        EpochBegun(
            asked.leader_epoch,
            NodeId(asked.leader_id),
            tuple(Endpoint(each.name, each.host, each.port) for each in request.leader_endpoints),
            ReplicaKey(voter_id, asked.voter_directory_id) if voter_id >= 0 else None,
            request.cluster_id,
        )
    )
    result = BeginQuorumEpochPartitionResult(0, answer.error, answer.leader_id, answer.epoch)
    return BeginQuorumEpochResponse(
        topics=[BeginQuorumEpochTopicResult(METADATA_TOPIC, [result])],
        node_endpoints=[NodeEndpoint(*each) for each in leader_endpoints(services.quorum, answer)],
    )


def error_response(request: BeginQuorumEpochRequest, error: Exception) -> BeginQuorumEpochResponse:
    return BeginQuorumEpochResponse(error_code=code_of(error))
