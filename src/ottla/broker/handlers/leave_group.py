"""LeaveGroup, versions 0 to 5 (KIP-345, 800): one member, or from version 3 on several."""

from __future__ import annotations

from ottla.broker.control.groups import caller_of
from ottla.broker.control.shards import coordinator_code_of, when_decided
from ottla.broker.deferred import Deferred
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import InvalidGroupId
from ottla.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse


def handle(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Deferred[LeaveGroupResponse]:
    if not request.group_id:
        raise InvalidGroupId("A group needs an id.")
    caller = caller_of(context)
    future = services.groups.shard_of(request.group_id).submit(
        lambda machine, now, ticket: machine.leave(request, caller, now, ticket)
    )
    return when_decided(future, lambda error: error_response(request, error))


def error_response(request: LeaveGroupRequest, error: Exception) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=coordinator_code_of(error))
