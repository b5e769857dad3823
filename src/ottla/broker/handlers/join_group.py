"""JoinGroup, versions 0 to 9 (KIP-62, 345, 394, 559, 800, 814).

The reply waits for the next generation; like Kafka, the connection takes no other request in the
meantime. A client's reason goes to the log at level debug.
"""

from __future__ import annotations

from ottla.broker.control.groups import caller_of
from ottla.broker.control.shards import coordinator_code_of, when_decided
from ottla.broker.deferred import Deferred
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import InvalidGroupId
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse


def handle(
    services: Services, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Deferred[JoinGroupResponse]:
    if not request.group_id:
        raise InvalidGroupId("A group needs an id.")
    caller = caller_of(context)
    future = services.groups.shard_of(request.group_id).submit(
        lambda machine, now, ticket: machine.join(request, caller, now, ticket)
    )
    return when_decided(future, lambda error: error_response(request, error), pipelined=False)


def error_response(request: JoinGroupRequest, error: Exception) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=coordinator_code_of(error), member_id=request.member_id)
