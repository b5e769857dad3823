"""ListGroups, versions 0 to 5 (KIP-518, 848's type filter): the groups that live on this broker."""

from __future__ import annotations

import asyncio

from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


async def handle(
    services: Services, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    states, types = request.states_filter, request.types_filter
    answers = await asyncio.gather(
        *(
            shard.read(lambda machine, now: machine.list_groups(states, types))
            for shard in services.groups.shards()
        )
    )
    return ListGroupsResponse(groups=[group for answer in answers for group in answer])


def error_response(request: ListGroupsRequest, error: Exception) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=coordinator_code_of(error))
