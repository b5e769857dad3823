"""Produce, versions 3 to 12.

Versions 0 to 2 are advertised, as Kafka does, because librdkafka compresses only where they are,
but they are answered with UNSUPPORTED_VERSION. Where messages without a key keep a batch out of a
compacted topic, the reply names them (KIP-467), at most a thousand of a batch. Internal topics are
refused, except to the client id `__admin_client`, as in Kafka. Who does not lead names who does
(KIP-951). Before a transaction begins in a partition its coordinator is asked whether it knows of
it, and from version 12 on told (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

from ottla.broker.control.topic_creation import ensure_topic
from ottla.broker.deferred import Deferred
from ottla.broker.handlers.verifying import ALL_VERIFIED, Verified, verify
from ottla.broker.network.leader_hints import LeaderHints
from ottla.broker.network.waiting import PendingProduce, answer_with
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.opening import Opened
from ottla.broker.storage.partition import Partition
from ottla.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTopicName,
    OttlaError,
    RequestTimedOut,
    UnsupportedCompression,
    UnsupportedVersion,
)
from ottla.log.verification import Verification
from ottla.types import ADMIN_CLIENT_ID, INTERNAL_TOPICS, METADATA_TOPIC
from ottla.wire.compression import Compression
from ottla.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.wire.records import read_header
from ottla.wire.scanning import KEYLESS_NAMED_MAX, QUICK_RECORDS_MAX, records_to_scan
from ottla.wire.schema import Buffer

FIRST_VERSION = 3
ZSTD_VERSION = 7
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
# In one reply; they are written on the loop.
RECORD_ERRORS_MAX: Final = 2 * KEYLESS_NAMED_MAX
NONE_OPENED: Final[Mapping[int, Opened]] = {}


Outcome: TypeAlias = Deferred[ProduceResponse] | ProduceResponse | None


def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Outcome | Awaitable[Outcome]:
    refusal = _refusal(context, request)
    if refusal is not None:
        if request.acks == ACKS_NONE:
            raise refusal
        return _all_failed(request, refusal)
    if request.transactional_id is not None or _takes_time(services, request):
        return services.loop.create_task(_prepare_and_append(services, context, request))
    return _append(services, context, request)


def _takes_time(services: Services, request: ProduceRequest) -> bool:
    """Whether something comes before the append: a topic, a disk, a codec, or many keys."""
    to_scan = 0
    for topic in request.topic_data:
        if not services.partitions.is_ready_for(topic.name):
            return True
        partitions = services.partitions.in_topic(topic.name) or {}
        for data in topic.partition_data:
            partition = partitions.get(data.index)
            if partition is None:
                continue
            if partition.is_cold:
                return True
            if partition.is_compacted and data.records is not None:
                to_scan += records_to_scan(data.records)
                if to_scan > QUICK_RECORDS_MAX:
                    return True
    return False


def _is_closed_to(context: RequestContext, topic: str) -> bool:
    """Internal topics are for the broker, and as in Kafka for who is called as its admin tool."""
    if topic == METADATA_TOPIC:
        return True
    return topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID


def _refusal(context: RequestContext, request: ProduceRequest) -> OttlaError | None:
    if context.version < FIRST_VERSION:
        return UnsupportedVersion("produce with version 3 or later")
    if request.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        return InvalidRequiredAcks(f"acks is {request.acks}; it may be 0, 1 or -1 (all)")
    if request.transactional_id == "":
        return InvalidRequest("The transactional id is empty.")
    return None


def _all_failed(request: ProduceRequest, error: OttlaError) -> ProduceResponse:
    response = ProduceResponse()
    for topic in request.topic_data:
        answers = [PartitionProduceResponse(data.index) for data in topic.partition_data]
        for answer in answers:
            answer_with(error, answer)
        response.responses.append(TopicProduceResponse(topic.name, answers))
    return response


async def _prepare_and_append(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Outcome:
    """First creates topics, reads indexes, or opens batches, which takes its time.

    The connection's next request waits until this one has its place in the log, and no longer.
    """
    late: set[Partition] = set()
    opened: dict[int, Opened] = {}
    verified = ALL_VERIFIED
    for topic in request.topic_data:
        if _is_closed_to(context, topic.name):
            continue
        partitions = await _partitions_of(services, topic.name)
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
                    data.records = await services.opening.compress(
                        partition.recompressed, data.records
                    )
                except OttlaError as error:
                    opened[id(data)] = Opened(error)
    if request.transactional_id is not None:
        verified = await verify(services, request, context.version)
    # Settings may have changed meanwhile, or change now: between the last look and the append
    # nothing is waited for.
    while unopened := list(_unopened(services, context, request, opened)):
        await _look_for_keys(services, unopened, opened, request.timeout_ms / 1000)
    return _append(services, context, request, late, opened, verified)


async def _partitions_of(services: Services, topic: str) -> dict[int, Partition]:
    if services.partitions.in_topic(topic) is None and services.config.auto_create_topics_enable:
        # Without a topic the append finds none, and says so.
        with suppress(OttlaError):
            await ensure_topic(services, topic)
    return services.partitions.in_topic(topic) or {}


def _unopened(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    opened: Mapping[int, Opened],
) -> Iterator[tuple[str, PartitionProduceData]]:
    """The batches that must be looked into and have not been."""
    for topic in request.topic_data:
        if _is_closed_to(context, topic.name):
            continue
        partitions = services.partitions.in_topic(topic.name) or {}
        for data in topic.partition_data:
            partition = partitions.get(data.index)
            if partition is None or data.records is None or id(data) in opened:
                continue
            if partition.is_compacted and not partition.is_too_large(data.records):
                yield topic.name, data


async def _look_for_keys(
    services: Services,
    batches: list[tuple[str, PartitionProduceData]],
    opened: dict[int, Opened],
    timeout_s: float,
) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            found = await services.opening.check_keys(
                [(topic, data.records) for topic, data in batches if data.records is not None]
            )
    except TimeoutError:
        late = RequestTimedOut("the batch was not looked into in time")
        found = [Opened(late)] * len(batches)
    for (_, data), verdict in zip(batches, found, strict=True):
        opened[id(data)] = verdict


async def _warm_up(services: Services, partition: Partition, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        await partition.warm_up(services.stores.of(partition).run)


def _append(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    late: Collection[Partition] = (),
    opened: Mapping[int, Opened] = NONE_OPENED,
    verified: Verified = ALL_VERIFIED,
) -> Outcome:
    now_ms = services.clock.wall_ms()
    named = 0
    response = ProduceResponse()
    hints = LeaderHints(services.metadata, context.listener)
    pending = PendingProduce(response, services.deadlines, hints)
    for topic in request.topic_data:
        partitions = services.partitions.in_topic(topic.name)
        answers: list[PartitionProduceResponse] = []
        response.responses.append(TopicProduceResponse(topic.name, answers))
        for data in topic.partition_data:
            answer = PartitionProduceResponse(data.index)
            answers.append(answer)
            partition = (partitions or {}).get(data.index)
            try:
                if _is_closed_to(context, topic.name):
                    raise InvalidTopicName(f"{topic.name} is internal, clients do not write to it")
                if partition is None:
                    raise services.partitions.absence_of(topic.name, data.index)
                partition.metrics.produce_requests += 1
                if partition in late:
                    raise RequestTimedOut(f"{partition.name}: its disk did not answer in time")
                if request.acks == ACKS_ALL:
                    partition.check_min_isr()
                if id(data) in verified.refusals:
                    raise verified.refusals[id(data)]
                end_offset = _append_one(
                    partition,
                    data,
                    answer,
                    context.version,
                    now_ms,
                    opened.get(id(data)),
                    verified.verifications.get(id(data)),
                )
            except (OttlaError, OSError) as error:
                answer_with(error, answer)
                hints.in_produce(topic.name, answer, response)
                if partition is not None:
                    partition.note_refused(data.records, now_ms)
                named += len(answer.record_errors)
                if named > RECORD_ERRORS_MAX:
                    answer.record_errors = []
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
    opened: Opened | None,
    verification: Verification | None,
) -> int:
    """Appends one partition's batch and returns the offset that must be committed."""
    records: Buffer | None = data.records
    if records is None:
        raise InvalidRecord("the request has no records for this partition")
    if version < ZSTD_VERSION and read_header(records).compression == Compression.ZSTD:
        raise UnsupportedCompression("zstd needs produce version 7 or later")
    appended = partition.append(records, now_ms, opened, verification)
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = now_ms if partition.is_append_time else -1
    answer.log_start_offset = partition.start_offset
    return appended.end_offset


def _wait(pending: PendingProduce, response: ProduceResponse, request: ProduceRequest) -> Outcome:
    acks, waits = request.acks, pending.waits
    is_late = acks != ACKS_ALL and any(wait[0].flusher.is_overloaded for wait in waits)
    if acks == ACKS_NONE:
        _close_on_error(response)
        if not is_late:
            return None
        pending.response = None
    if not waits:
        return response
    pending.arm(request.timeout_ms / 1000)
    for partition, end_offset, answer in waits:
        if acks == ACKS_ALL or partition.flusher.is_overloaded:
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
