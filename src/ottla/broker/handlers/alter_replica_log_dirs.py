"""AlterReplicaLogDirs, versions 1 and 2 (KIP-113): replicas move to another directory of this node.

The answer comes when the move would outlive a crash; DescribeLogDirs shows the copy until it has
taken the replica's place. Who names the directory that a replica lies in stops its move. Where this
node has no replica the directory is remembered, in memory, for one that comes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Final

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.stores import Store
from ottla.errors import (
    ErrorCode,
    LogDirNotFound,
    NotLeader,
    OttlaError,
    ReplicaNotAvailable,
    RequestTimedOut,
    StorageFailed,
    code_of,
)
from ottla.types import TopicPartition
from ottla.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

ASK_S_MAX: Final = 10.0


def handle(
    services: Services, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Awaitable[AlterReplicaLogDirsResponse]:
    return services.loop.create_task(_alter(services, request))


async def _alter(
    services: Services, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    wanted = {
        TopicPartition(topic.name, index): each.path
        for each in request.dirs
        for topic in each.topics
        for index in topic.partitions
    }
    asked = [_move(services, name, path) for name, path in wanted.items()]
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for name, code in zip(wanted, await asyncio.gather(*asked), strict=True):
        topic = topics.setdefault(name.topic, AlterReplicaLogDirTopicResult(name.topic))
        topic.partitions.append(AlterReplicaLogDirPartitionResult(name.partition, code))
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


async def _move(services: Services, name: TopicPartition, path: str) -> ErrorCode:
    try:
        store = _store(services, path)
        partition = _partition(services, name, store)
        async with asyncio.timeout(ASK_S_MAX):
            await services.directory_moves.ask(partition, store)
    except TimeoutError:
        return code_of(RequestTimedOut(f"{path} does not answer"))
    except (OttlaError, OSError) as error:
        return code_of(error)
    return ErrorCode.NONE


def _store(services: Services, path: str) -> Store:
    for store in services.stores:
        if store.takes_partitions and store.path == os.path.normpath(path):
            if not store.is_online:
                raise StorageFailed(f"{path} is offline")
            return store
    raise LogDirNotFound(f"there is no data directory {path} here")


def _partition(services: Services, name: TopicPartition, store: Store) -> Partition:
    try:
        return services.partitions.get(*name)
    except NotLeader:
        services.directory_moves.prefer(name, store)
        raise ReplicaNotAvailable(f"there is no replica of {name} here") from None


def error_response(
    request: AlterReplicaLogDirsRequest, error: Exception
) -> AlterReplicaLogDirsResponse:
    code = code_of(error)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic.name,
                [AlterReplicaLogDirPartitionResult(index, code) for index in topic.partitions],
            )
            for each in request.dirs
            for topic in each.topics
        ]
    )
