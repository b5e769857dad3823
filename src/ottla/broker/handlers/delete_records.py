"""DeleteRecords, versions 0 to 2 (KIP-107): moves the start of partitions forward.

The new start is on disk before anybody sees it. Files go as retention lets them go; unlike in
Kafka whole segments before the new start go at once, not with the next round. What was written
just before is waited for, up to 100 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.broker.network.waiting import wait_for_ends
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.partition import Partition
from ottla.errors import InvalidTopicName, OttlaError, PolicyViolation, code_of
from ottla.types import INTERNAL_TOPICS
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

ALL_COMMITTED: Final = -1


async def handle(
    services: Services, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    await wait_for_ends(services.deadlines, _with_new_end(services, request))
    response = DeleteRecordsResponse()
    starts: dict[Partition, int] = {}
    moved: list[tuple[DeleteRecordsPartitionResult, Partition]] = []
    for topic in request.topics:
        answers: list[DeleteRecordsPartitionResult] = []
        response.topics.append(DeleteRecordsTopicResult(topic.name, answers))
        for asked in topic.partitions:
            answer = DeleteRecordsPartitionResult(asked.partition_index, low_watermark=-1)
            answers.append(answer)
            try:
                partition = services.partitions.get(topic.name, asked.partition_index)
                partition.check_leader()
                _check_policy(topic.name, partition.config.cleanup_policy)
                start = partition.start_for(asked.offset)
                starts[partition] = max(start, starts.get(partition, 0))
                moved.append((answer, partition))
            except OttlaError as error:
                answer.error_code = code_of(error)
    if moved:
        failed = await services.shortener.shorten(starts)
        for answer, partition in moved:
            if partition in failed:
                answer.error_code = code_of(failed[partition])
            else:
                answer.low_watermark = partition.start_offset
    return response


def _with_new_end(services: Services, request: DeleteRecordsRequest) -> Iterator[Partition]:
    """Those of which something is to go that is not committed yet."""
    for topic in request.topics:
        partitions = services.partitions.in_topic(topic.name) or {}
        for asked in topic.partitions:
            partition = partitions.get(asked.partition_index)
            if partition is not None and (
                asked.offset == ALL_COMMITTED
                or partition.high_watermark.offset < asked.offset <= partition.end_offset
            ):
                yield partition


def _check_policy(topic: str, cleanup_policy: tuple[str, ...]) -> None:
    if topic in INTERNAL_TOPICS:
        raise InvalidTopicName(f"{topic} keeps the broker's own state")
    if "delete" not in cleanup_policy:
        raise PolicyViolation(f"{topic} is compacted only; its records cannot be deleted")
