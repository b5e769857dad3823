"""Heartbeat, versions 0 to 4 (KIP-345).

A group that is still being read takes every heartbeat for good: its members keep their places.
"""

from __future__ import annotations

from ottla.broker.control.shards import coordinator_code_of, when_decided
from ottla.broker.deferred import Deferred
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import CoordinatorLoading, InvalidGroupId
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(
    services: Services, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Deferred[HeartbeatResponse]:
    if not request.group_id:
        raise InvalidGroupId("A group needs an id.")
    future = services.groups.shard_of(request.group_id).submit(
        lambda machine, now, ticket: machine.heartbeat(request, now, ticket)
    )
    return when_decided(future, lambda error: error_response(request, error))


def error_response(request: HeartbeatRequest, error: Exception) -> HeartbeatResponse:
    if isinstance(error, CoordinatorLoading):
        return HeartbeatResponse()
    return HeartbeatResponse(error_code=coordinator_code_of(error))
