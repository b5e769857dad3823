"""ListOffsets, versions 1 to 10: by timestamp, and the special timestamps below.

There is no tiered storage, so the local log is the whole log. Left out: isolation levels differ
only once there are transactions.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.partition import Partition
from ottla.broker.services import RequestContext, Services
from ottla.broker.stores import Store
from ottla.errors import OttlaError, code_of
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5


async def handle(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    for topic in request.topics:
        answers: list[ListOffsetsPartitionResponse] = []
        response.topics.append(ListOffsetsTopicResponse(topic.name, answers))
        for asked in topic.partitions:
            answer = ListOffsetsPartitionResponse(asked.partition_index)
            answers.append(answer)
            try:
                partition = services.partitions.get(topic.name, asked.partition_index)
                partition.check_epoch(asked.current_leader_epoch)
                await _look_up(services.partitions.stores.of(partition), partition, asked, answer)
            except (OttlaError, OSError) as error:
                answer.error_code = code_of(error)
    return response


async def _look_up(
    store: Store,
    partition: Partition,
    asked: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
) -> None:
    log, limit = partition.log, partition.high_watermark
    if asked.timestamp == LATEST:
        answer.offset = limit.offset
        answer.leader_epoch = partition.leader_epoch
    elif asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = log.start_offset
        answer.leader_epoch = log.epoch_at(log.start_offset)
    elif asked.timestamp == LATEST_TIERED:
        return
    else:
        if asked.timestamp == MAX_TIMESTAMP:
            found = await store.run(log.max_timestamp, limit)
        else:
            found = await store.run(log.first_at_or_after, asked.timestamp, limit)
        if found is not None:
            answer.offset, answer.timestamp, answer.leader_epoch = found
