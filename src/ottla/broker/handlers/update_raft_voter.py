"""UpdateRaftVoter, version 0 (KIP-853): a voter tells the leader where it listens.

Spoken between nodes. Where the voters are a setting still, the leader only remembers it: from what
all have told it makes their records when kraft.version is raised.
"""

from __future__ import annotations

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter
from ottla.types import NodeId
from ottla.wire.messages.update_raft_voter import (
    CurrentLeader,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)


async def handle(
    services: Services, context: RequestContext, request: UpdateRaftVoterRequest
) -> UpdateRaftVoterResponse:
    quorum, levels = services.quorum, request.k_raft_version_feature
    voter = Voter(
        ReplicaKey(NodeId(request.voter_id), request.voter_directory_id),
        tuple(Endpoint(each.name, each.host, each.port) for each in request.listeners),
        levels.min_supported_version,
        levels.max_supported_version,
    )
    error, _ = await quorum.changes.update(request.current_leader_epoch, voter, request.cluster_id)
    where = quorum.endpoint_of(quorum.leader_id)
    leader = CurrentLeader(quorum.leader_id, quorum.leader_epoch)
    if where is not None:
        leader.host, leader.port = where.host, where.port
    return UpdateRaftVoterResponse(error_code=error, current_leader=leader)


def error_response(request: UpdateRaftVoterRequest, error: Exception) -> UpdateRaftVoterResponse:
    return UpdateRaftVoterResponse(error_code=code_of(error))
