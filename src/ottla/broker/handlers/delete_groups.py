"""DeleteGroups, versions 0 to 2 (KIP-229): empty groups, with all their positions."""

from __future__ import annotations

import asyncio

from ottla.broker.control.groups import Shard
from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import OttlaError
from ottla.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(
    services: Services, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    found, failures = services.groups.by_shard(request.groups_names)
    answers = await asyncio.gather(*(_delete(shard, names) for shard, names in found.items()))
    results = [result for answer in answers for result in answer]
    results += [result for name, error in failures.items() for result in _failed([name], error)]
    return DeleteGroupsResponse(results=results)


async def _delete(shard: Shard, names: list[str]) -> list[DeletableGroupResult]:
    try:
        results: list[DeletableGroupResult] = await shard.submit(
            lambda machine, now, ticket: machine.delete_groups(names, now, ticket)
        )
    except OttlaError as error:
        return _failed(names, error)
    return results


def _failed(names: list[str], error: Exception) -> list[DeletableGroupResult]:
    code = coordinator_code_of(error)
    return [DeletableGroupResult(group_id=name, error_code=code) for name in names]


def error_response(request: DeleteGroupsRequest, error: Exception) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=_failed(request.groups_names, error))
