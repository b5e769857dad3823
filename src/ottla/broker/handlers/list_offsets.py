"""ListOffsets, versions 1 to 10: by timestamp, and the special timestamps below.

There is no tiered storage, so the local log is the whole log. The end is where consumers can read
to; who asks for it waits for what was written before, up to 100 ms, and is told to ask again where
a new leader does not know yet what is committed (KIP-207). With isolation level 1 (read_committed)
the end is the last stable offset, and look-ups by time find nothing after it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeAlias

from ottla.broker.network.waiting import wait_for_ends
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.partition import Partition
from ottla.errors import ErrorCode, OffsetNotAvailable, OttlaError, code_of
from ottla.log.values import LogPosition
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

READ_COMMITTED: Final = 1
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
# From here on clients know that a new leader may have to be asked again (KIP-207).
NOT_AVAILABLE_VERSION: Final = 5
# What does not depend on where the log ends.
AT_THE_START: Final = frozenset({EARLIEST, EARLIEST_LOCAL, LATEST_TIERED})

# (topic, what is asked of a partition, its answer)
LookUp: TypeAlias = tuple[str, ListOffsetsPartition, ListOffsetsPartitionResponse]


def handle(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    response = ListOffsetsResponse()
    later: list[LookUp] = []
    partitions: list[Partition] = []
    for topic in request.topics:
        answers: list[ListOffsetsPartitionResponse] = []
        response.topics.append(ListOffsetsTopicResponse(topic.name, answers))
        for asked in topic.partitions:
            answer = ListOffsetsPartitionResponse(asked.partition_index)
            answers.append(answer)
            try:
                partition = _find(services, topic.name, asked)
            except OttlaError as error:
                answer.error_code = code_of(error)
                continue
            is_end_known = partition.is_end_known and not partition.has_uncommitted
            if asked.timestamp in AT_THE_START or (asked.timestamp == LATEST and is_end_known):
                _tell_ends(partition, request, asked, answer)
            else:
                later.append((topic.name, asked, answer))
                partitions.append(partition)
    if not later:
        return response
    return _answer_later(services, context, request, response, later, partitions)


async def _answer_later(
    services: Services,
    context: RequestContext,
    request: ListOffsetsRequest,
    response: ListOffsetsResponse,
    later: list[LookUp],
    partitions: list[Partition],
) -> ListOffsetsResponse:
    await wait_for_ends(services.deadlines, partitions)
    for topic, asked, answer in later:
        try:
            partition = _find(services, topic, asked)
            if asked.timestamp == LATEST:
                partition.check_end_known()
                _tell_ends(partition, request, asked, answer)
            else:
                await _look_up(services, partition, request, asked, answer)
        except OffsetNotAvailable as error:
            is_old = context.version < NOT_AVAILABLE_VERSION
            answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE if is_old else code_of(error)
        except (OttlaError, OSError) as error:
            answer.error_code = code_of(error)
    return response


def _find(services: Services, topic: str, asked: ListOffsetsPartition) -> Partition:
    partition = services.partitions.get(topic, asked.partition_index)
    partition.check_epoch(asked.current_leader_epoch)
    return partition


def _limit(partition: Partition, request: ListOffsetsRequest) -> LogPosition:
    """Up to here the client can read."""
    is_stable_only = request.isolation_level == READ_COMMITTED
    return partition.last_stable if is_stable_only else partition.high_watermark


def _tell_ends(
    partition: Partition,
    request: ListOffsetsRequest,
    asked: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
) -> None:
    if asked.timestamp == LATEST:
        answer.offset = _limit(partition, request).offset
        answer.leader_epoch = partition.leader_epoch
    elif asked.timestamp != LATEST_TIERED:
        answer.offset = partition.start_offset
        answer.leader_epoch = partition.epoch_at(answer.offset)


async def _look_up(
    services: Services,
    partition: Partition,
    request: ListOffsetsRequest,
    asked: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
) -> None:
    is_youngest, limit = asked.timestamp == MAX_TIMESTAMP, _limit(partition, request)
    search = (
        partition.search_youngest(limit)
        if is_youngest
        else partition.search_time(asked.timestamp, limit)
    )
    store = services.stores.of(partition)
    found = await store.look_up(search, services.opening.go_through)
    if found is None or is_youngest:
        # What a new leader does not know to be committed may hold it.
        partition.check_end_known()
    if found is not None:
        answer.offset, answer.timestamp, answer.leader_epoch = found
