"""SyncGroup, versions 0 to 5 (KIP-345, 559).

Followers wait for their leader; like Kafka, the connection takes no other request in the meantime.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.control.shards import coordinator_code_of, when_decided
from ottla.broker.deferred import Deferred
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import ErrorCode, InvalidGroupId
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

VERSION_WITH_PROTOCOL: Final = 5


def handle(
    services: Services, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Deferred[SyncGroupResponse]:
    is_unnamed = request.protocol_type is None or request.protocol_name is None
    if context.version >= VERSION_WITH_PROTOCOL and is_unnamed:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        raise InvalidGroupId("A group needs an id.")
    future = services.groups.shard_of(request.group_id).submit(
        lambda machine, now, ticket: machine.sync(request, now, ticket)
    )
    return when_decided(future, lambda error: error_response(request, error), pipelined=False)


def error_response(request: SyncGroupRequest, error: Exception) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=coordinator_code_of(error))
