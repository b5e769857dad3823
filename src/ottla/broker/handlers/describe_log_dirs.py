"""DescribeLogDirs, versions 1 to 4: what the data directories hold, and their room (KIP-827).

A directory that is offline is told by its error, with nothing in it. The room is asked of the disk
anew, in a thread; one that does not answer in time is told as it was last seen. A replica that
moves between directories is in both: the copy is the future one, with the offsets that it lacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.stores import Store
from ottla.errors import ErrorCode, code_of
from ottla.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

MEASURE_S_MAX: Final = 2.0


def handle(
    services: Services, context: RequestContext, request: DescribeLogDirsRequest
) -> Awaitable[DescribeLogDirsResponse]:
    return services.loop.create_task(_describe(services, request))


async def _describe(services: Services, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    wanted = (
        None if request.topics is None else {t.topic: set(t.partitions) for t in request.topics}
    )
    stores = [store for store in services.stores if store.takes_partitions]
    results = [DescribeLogDirsResult(log_dir=store.path) for store in stores]
    await asyncio.gather(*map(_measure, [services] * len(stores), stores, results))
    for store, result in zip(stores, results, strict=True):
        if store.failure is not None:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        if not result.error_code:
            result.total_bytes, result.usable_bytes = store.total_bytes, store.usable_bytes
            result.topics = _topics_in(services, store, wanted)
    return DescribeLogDirsResponse(results=results)


async def _measure(services: Services, store: Store, result: DescribeLogDirsResult) -> None:
    if store.is_online:
        try:
            async with asyncio.timeout(MEASURE_S_MAX):
                await store.run(store.measure, services.disk)
        except TimeoutError:
            return
        except OSError as error:
            result.error_code = code_of(error)


def _topics_in(
    services: Services, store: Store, wanted: Mapping[str, set[int]] | None
) -> list[DescribeLogDirsTopic]:
    topics = []
    futures = services.directory_moves.into(store)
    for name, partitions in services.partitions.by_topic().items():
        if wanted is not None and name not in wanted:
            continue
        described = [
            DescribeLogDirsPartition(index, partition.size_bytes)
            for index, partition in partitions.items()
            if partition.data is store.data and (wanted is None or index in wanted[name])
        ]
        described += [
            DescribeLogDirsPartition(move.partition.index, move.byte_count, move.lag, True)
            for move in futures
            if move.partition.name.topic == name
            and (wanted is None or move.partition.index in wanted[name])
        ]
        if described:
            topics.append(DescribeLogDirsTopic(name, described))
    return topics
