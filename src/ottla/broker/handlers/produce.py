"""Produce, versions 3 to 12.

Versions 0 to 2 are advertised, as Kafka does, because librdkafka compresses only where they are,
but they are answered with UNSUPPORTED_VERSION. Left out: transactions, and the leader hints of
KIP-951 beyond this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection

from ottla.broker.partition import Partition
from ottla.broker.services import RequestContext, Services
from ottla.broker.topic_creation import ensure_topic
from ottla.broker.waiting import Deferred, PendingProduce
from ottla.broker.waiting import refuse as refuse_answer
from ottla.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidRequiredAcks,
    OttlaError,
    RequestTimedOut,
    TransactionsNotSupported,
    UnknownTopicOrPartition,
    UnsupportedCompression,
    UnsupportedVersion,
)
from ottla.wire.compression import Compression
from ottla.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.wire.records import read_header
from ottla.wire.schema import Buffer

FIRST_VERSION = 3
ZSTD_VERSION = 7
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Deferred[ProduceResponse] | ProduceResponse | Awaitable[ProduceResponse | None] | None:
    refusal = _refusal(context, request)
    if refusal is not None:
        if request.acks == ACKS_NONE:
            raise refusal
        return _refuse_all(request, refusal)
    for topic in request.topic_data:
        if not services.partitions.is_ready_for(topic.name) or _is_cold(services, topic):
            return services.loop.create_task(_prepare_and_append(services, context, request))
    return _append(services, context, request)


def _is_cold(services: Services, topic: TopicProduceData) -> bool:
    """Whether a partition has not been appended to since the start: the disk comes first."""
    partitions = services.partitions.of_topic(topic.name) or {}
    for data in topic.partition_data:
        partition = partitions.get(data.index)
        if partition is not None and partition.is_cold:
            return True
    return False


def _refusal(context: RequestContext, request: ProduceRequest) -> OttlaError | None:
    if context.version < FIRST_VERSION:
        return UnsupportedVersion("produce with version 3 or later")
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        return InvalidRequiredAcks(f"acks is {request.acks}; it may be 0, 1 or -1 (all)")
    if request.transactional_id is not None:
        return TransactionsNotSupported("transactions are not supported yet")
    return None


def _refuse_all(request: ProduceRequest, error: OttlaError) -> ProduceResponse:
    response = ProduceResponse()
    for topic in request.topic_data:
        answers = [PartitionProduceResponse(data.index) for data in topic.partition_data]
        for answer in answers:
            refuse_answer(answer, error)
        response.responses.append(TopicProduceResponse(topic.name, answers))
    return response


async def _prepare_and_append(
    services: Services, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | None:
    """First creates topics, reads indexes, or compresses batches anew, which takes its time."""
    late: set[Partition] = set()
    for topic in request.topic_data:
        partitions = services.partitions.of_topic(topic.name)
        if partitions is None:
            if not services.config.auto_create_topics_enable:
                continue
            try:
                await ensure_topic(services, topic.name)
            except OttlaError:
                # The append below finds no topic and says so.
                continue
            partitions = services.partitions.of_topic(topic.name) or {}
        for data in topic.partition_data:
            partition = partitions.get(data.index)
            if partition is not None and partition.is_cold:
                try:
                    await _warm_up(services, partition, request.timeout_ms / 1000)
                except TimeoutError:
                    late.add(partition)
                except (OttlaError, OSError):
                    continue
            if partition is not None and partition.must_recompress and data.records is not None:
                try:
                    data.records = await asyncio.to_thread(partition.recompressed, data.records)
                except OttlaError:
                    continue
    outcome = _append(services, context, request, late)
    if not isinstance(outcome, Deferred):
        return outcome
    reply: asyncio.Future[ProduceResponse | None] = services.loop.create_future()
    outcome.when_resolved(reply.set_result)
    return await reply


async def _warm_up(services: Services, partition: Partition, timeout_s: float) -> None:
    threads = services.partitions.stores.of(partition).threads
    async with asyncio.timeout(timeout_s):
        await partition.warm_up(threads)


def _append(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    late: Collection[Partition] = (),
) -> Deferred[ProduceResponse] | ProduceResponse | None:
    now_ms = services.clock.wall_ms()
    response = ProduceResponse()
    pending = PendingProduce(response, services.deadlines)
    for topic in request.topic_data:
        partitions = services.partitions.of_topic(topic.name)
        answers: list[PartitionProduceResponse] = []
        response.responses.append(TopicProduceResponse(topic.name, answers))
        for data in topic.partition_data:
            answer = PartitionProduceResponse(data.index)
            answers.append(answer)
            partition = (partitions or {}).get(data.index)
            try:
                if partitions is None:
                    raise UnknownTopicOrPartition(f"topic {topic.name} does not exist")
                if partition is None:
                    raise UnknownTopicOrPartition(f"{topic.name} has no partition {data.index}")
                partition.metrics.produce_requests += 1
                if partition in late:
                    raise RequestTimedOut(f"{partition.name}: its disk did not answer in time")
                end_offset = _append_one(partition, data, answer, context.version, now_ms)
            except (OttlaError, OSError) as error:
                refuse_answer(answer, error)
                if partition is not None:
                    partition.refuse(data.records, now_ms)
                if partitions:
                    services.metrics.topic(topic.name).produce_errors += 1
            else:
                pending.waits.append((partition, end_offset, answer))
    return _wait(pending, response, request)


def _append_one(
    partition: Partition,
    data: PartitionProduceData,
    answer: PartitionProduceResponse,
    version: int,
    now_ms: int,
) -> int:
    """Appends one partition's batch and returns the offset that must be committed."""
    records: Buffer | None = data.records
    if records is None:
        raise InvalidRecord("the request has no records for this partition")
    if version < ZSTD_VERSION and read_header(records).compression == Compression.ZSTD:
        raise UnsupportedCompression("zstd needs produce version 7 or later")
    appended = partition.append(records, now_ms)
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = now_ms if partition.is_append_time else -1
    answer.log_start_offset = partition.log.start_offset
    return appended.end_offset


def _wait(
    pending: PendingProduce, response: ProduceResponse, request: ProduceRequest
) -> Deferred[ProduceResponse] | ProduceResponse | None:
    acks, waits = request.acks, pending.waits
    is_late = acks != ACKS_ALL and any(wait[0].flusher.is_far_behind for wait in waits)
    if acks == ACKS_NONE:
        _close_on_error(response)
        if not is_late:
            return None
        pending.response = None
    if not waits:
        return response
    pending.arm(request.timeout_ms / 1000)
    for partition, end_offset, answer in waits:
        if acks == ACKS_ALL or partition.flusher.is_far_behind:
            partition.wait_committed(end_offset, pending, answer)
        else:
            partition.wait_written(pending, answer)
    return pending


def _close_on_error(response: ProduceResponse) -> None:
    """Who wants no reply learns of an error, as in Kafka, by losing the connection."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise InvalidRequest(f"{topic.name}-{answer.index}: {answer.error_message}")
