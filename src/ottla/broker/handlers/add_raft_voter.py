"""AddRaftVoter, versions 0 and 1 (KIP-853, 1186): a node gets a vote on the metadata log.

The new voter must have caught up, and is asked what it supports. One change at a time: another one,
or one that is not committed yet, is answered with REQUEST_TIMED_OUT, as Kafka does.
"""

from __future__ import annotations

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import InvalidRequest, code_of
from ottla.quorum.voters import Endpoint, ReplicaKey
from ottla.types import NodeId
from ottla.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse


async def handle(
    services: Services, context: RequestContext, request: AddRaftVoterRequest
) -> AddRaftVoterResponse:
    quorum = services.quorum
    endpoints = [Endpoint(each.name, each.host, each.port) for each in request.listeners]
    own_name = quorum.listener_name
    # The one that the voters use comes first.
    endpoints.sort(key=lambda endpoint: endpoint.name != own_name)
    if not endpoints or endpoints[0].name != own_name:
        raise InvalidRequest(f"The new voter's listeners lack {own_name}, which the voters use.")
    error, message = await quorum.changes.add(
        ReplicaKey(NodeId(request.voter_id), request.voter_directory_id),
        tuple(endpoints),
        request.timeout_ms,
        waits=request.ack_when_committed,
        cluster_id=request.cluster_id,
    )
    return AddRaftVoterResponse(error_code=error, error_message=message)


def error_response(request: AddRaftVoterRequest, error: Exception) -> AddRaftVoterResponse:
    return AddRaftVoterResponse(error_code=code_of(error), error_message=str(error))
