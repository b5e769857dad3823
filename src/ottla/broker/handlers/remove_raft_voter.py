"""RemoveRaftVoter, version 0 (KIP-853): a node votes on the metadata log no more.

A leader that is removed itself hands over when that is committed. The last voter is not removed.
"""

from __future__ import annotations

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import code_of
from ottla.quorum.voters import ReplicaKey
from ottla.types import NodeId
from ottla.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse


async def handle(
    services: Services, context: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    key = ReplicaKey(NodeId(request.voter_id), request.voter_directory_id)
    error, message = await services.quorum.changes.remove(key, request.cluster_id)
    return RemoveRaftVoterResponse(error_code=error, error_message=message)


def error_response(request: RemoveRaftVoterRequest, error: Exception) -> RemoveRaftVoterResponse:
    return RemoveRaftVoterResponse(error_code=code_of(error), error_message=str(error))
