"""DescribeGroups, versions 0 to 6 (KIP-345, 430, 1043).

A group that is not there is Dead and, from version 6 on, an error.
"""

from __future__ import annotations

import asyncio

from ottla.broker.control.groups import Shard
from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.network.operations import ALL_GROUP_OPERATIONS
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import OttlaError
from ottla.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)


async def handle(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    found, failures = services.groups.by_shard(request.groups)
    answers = await asyncio.gather(
        *(_describe(shard, names, context.version) for shard, names in found.items())
    )
    groups = [group for answer in answers for group in answer]
    groups += [_failed(name, error) for name, error in failures.items()]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


async def _describe(shard: Shard, names: list[str], version: int) -> list[DescribedGroup]:
    try:
        return await shard.read(
            lambda machine, now: [machine.describe(name, version) for name in names]
        )
    except OttlaError as error:
        return [_failed(name, error) for name in names]


def _failed(name: str, error: Exception) -> DescribedGroup:
    return DescribedGroup(
        group_id=name, error_code=coordinator_code_of(error), error_message=str(error) or None
    )


def error_response(request: DescribeGroupsRequest, error: Exception) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[_failed(name, error) for name in request.groups])
