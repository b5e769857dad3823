"""OffsetDelete, version 0 (KIP-496): positions in topics that the group does not read."""

from __future__ import annotations

from ottla.broker.control.shards import coordinator_code_of, when_decided
from ottla.broker.deferred import Deferred
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import InvalidGroupId
from ottla.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse


def handle(
    services: Services, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Deferred[OffsetDeleteResponse]:
    if not request.group_id:
        raise InvalidGroupId("A group needs an id.")
    exists = services.groups.has_partition
    future = services.groups.shard_of(request.group_id).submit(
        lambda machine, now, ticket: machine.delete_offsets(request, exists, ticket)
    )
    return when_decided(future, lambda error: error_response(request, error))


def error_response(request: OffsetDeleteRequest, error: Exception) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=coordinator_code_of(error))
