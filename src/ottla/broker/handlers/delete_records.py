"""DeleteRecords, versions 0 to 2 (KIP-107): moves the start of partitions forward.

The new start is on disk before the answer is.
"""

from __future__ import annotations

import asyncio

from ottla.broker.partition import Partition
from ottla.broker.services import RequestContext, Services
from ottla.errors import OttlaError, PolicyViolation, code_of
from ottla.types import INTERNAL_TOPICS
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


async def handle(
    services: Services, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    moved: list[tuple[DeleteRecordsPartitionResult, Partition]] = []
    for topic in request.topics:
        answers: list[DeleteRecordsPartitionResult] = []
        response.topics.append(DeleteRecordsTopicResult(topic.name, answers))
        for asked in topic.partitions:
            answer = DeleteRecordsPartitionResult(asked.partition_index, low_watermark=-1)
            answers.append(answer)
            try:
                partition = services.partitions.get(topic.name, asked.partition_index)
                _check_policy(topic.name, partition.config.cleanup_policy)
                answer.low_watermark = partition.delete_before(asked.offset)
                moved.append((answer, partition))
            except (OttlaError, OSError) as error:
                answer.error_code = code_of(error)
    if moved:
        try:
            await services.partitions.save_start_offsets()
            await asyncio.to_thread(_remove_files, [partition for _, partition in moved])
        except OSError as error:
            for answer, _ in moved:
                answer.low_watermark = -1
                answer.error_code = code_of(error)
    return response


def _remove_files(partitions: list[Partition]) -> None:
    for partition in partitions:
        partition.log.reap()


def _check_policy(topic: str, cleanup_policy: tuple[str, ...]) -> None:
    if topic in INTERNAL_TOPICS:
        raise PolicyViolation(f"{topic} keeps the broker's own state")
    if "delete" not in cleanup_policy:
        raise PolicyViolation(f"{topic} is compacted only; its records cannot be deleted")
