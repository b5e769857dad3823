"""OffsetFetch, versions 1 to 9 (KIP-88, 211, 320, 447, 709).

From version 8 on several groups at once, each with its own error. With `require_stable`, positions
that a transaction may still change are UNSTABLE_OFFSET_COMMIT. The member id and epoch of version 9
belong to the KIP-848 protocol and are not looked at.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.broker.control.shards import coordinator_code_of
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.errors import ErrorCode, OttlaError
from ottla.types import NO_OFFSET
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

VERSION_WITH_GROUPS: Final = 8
VERSION_WITH_TOP_ERROR: Final = 2


async def handle(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    if context.version >= VERSION_WITH_GROUPS:
        asked = request.groups
    else:
        asked = [_single_group(request)]
    found = await asyncio.gather(
        *(_fetch(services, group, require_stable=request.require_stable) for group in asked)
    )
    if context.version >= VERSION_WITH_GROUPS:
        return OffsetFetchResponse(groups=list(found))
    return _single_reply(request, found[0], context.version)


async def _fetch(
    services: Services, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    try:
        shard = services.groups.shard_of(group.group_id)
        return await shard.read(
            lambda machine, now: machine.fetch_offsets(group, require_stable=require_stable)
        )
    except OttlaError as error:
        # Not every consumer retries when the coordinator is not available; all look it up again.
        code = coordinator_code_of(error)
        if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            code = ErrorCode.NOT_COORDINATOR
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)


def _single_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _single_reply(
    request: OffsetFetchRequest, group: OffsetFetchResponseGroup, version: int
) -> OffsetFetchResponse:
    if group.error_code and version < VERSION_WITH_TOP_ERROR:
        return _with_error_in_partitions(request, group.error_code)
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def _with_error_in_partitions(request: OffsetFetchRequest, code: int) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=NO_OFFSET,
                        metadata="",
                        error_code=code,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def error_response(request: OffsetFetchRequest, error: Exception) -> OffsetFetchResponse:
    code = coordinator_code_of(error)
    groups = [
        OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
        for group in request.groups
    ]
    return OffsetFetchResponse(error_code=code, groups=groups)
