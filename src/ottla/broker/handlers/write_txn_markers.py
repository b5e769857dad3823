"""WriteTxnMarkers, versions 1 and 2 (KIP-98): transactions end in the partitions that we lead.

Sent by the coordinators of transactions, and by Kafka's tool that aborts hanging ones (KIP-664). A
marker is answered when all in-sync replicas have it on disk. Version 2 says by which version of
transactions its coordinator goes: from 2 on (KIP-890) a marker has an epoch of its own, and one
that comes late or twice ends nothing. A marker that is in the log already is not written again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.partition import Partition
from ottla.errors import InvalidRequest, OttlaError, RequestTimedOut, code_of
from ottla.machine import Decision, TransactionEnded
from ottla.types import METADATA_TOPIC, OFFSETS_TOPIC
from ottla.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def handle(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    response = WriteTxnMarkersResponse()
    pending = PendingMarkers()
    try:
        async with asyncio.timeout(services.config.request_timeout_ms / 1000):
            await _warm_up(services, request)
            for marker in request.markers:
                response.markers.append(_append_all(services, marker, pending))
            await pending.done()
    except TimeoutError:
        pending.expire()
    return response


async def _warm_up(services: Services, request: WriteTxnMarkersRequest) -> None:
    """The first append after a start would have to wait for the disk."""
    for topic, index in _named(request):
        partition = (services.partitions.in_topic(topic) or {}).get(index)
        if partition is not None and partition.is_cold:
            try:
                await partition.warm_up(services.stores.of(partition).run)
            except (OttlaError, OSError):
                continue  # The append meets it as well.


def _named(request: WriteTxnMarkersRequest) -> Iterator[tuple[str, int]]:
    for marker in request.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                yield topic.name, index


def _append_all(
    services: Services, marker: WritableTxnMarker, pending: PendingMarkers
) -> WritableTxnMarkerResult:
    result = WritableTxnMarkerResult(marker.producer_id)
    for topic in marker.topics:
        answers: list[WritableTxnMarkerPartitionResult] = []
        result.topics.append(WritableTxnMarkerTopicResult(topic.name, answers))
        for index in topic.partition_indexes:
            answer = WritableTxnMarkerPartitionResult(index)
            answers.append(answer)
            try:
                if topic.name == METADATA_TOPIC or marker.producer_id < 0:
                    raise InvalidRequest(f"no producer has transactions in {topic.name}")
                if topic.name == OFFSETS_TOPIC:
                    pending.add_decided(_end_offsets(services, index, marker), answer)
                    continue
                partition = services.partitions.get(topic.name, index)
                end_offset = _append(services, partition, marker)
            except (OttlaError, OSError) as error:
                answer.error_code = code_of(error)
            else:
                pending.add(partition, end_offset, answer)
    return result


def _append(services: Services, partition: Partition, marker: WritableTxnMarker) -> int:
    """Returns the offset that must be committed."""
    partition.check_leader()
    partition.check_min_isr()
    return partition.append_marker(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        services.clock.wall_ms(),
        is_commit=marker.transaction_result,
        version=marker.transaction_version,
    ).end_offset


def _end_offsets(services: Services, index: int, marker: WritableTxnMarker) -> asyncio.Future[None]:
    """The groups whose positions were committed in the transaction have to know, too."""
    ended = TransactionEnded(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version,
    )
    shard = services.groups.shard_at(index)
    shard.partition.check_min_isr()
    return shard.submit(lambda machine, now, ticket: Decision([ended], [(ticket, None)]))


class PendingMarkers:
    """Those that are appended, and wait to be committed."""

    def __init__(self) -> None:
        self._open: dict[int, WritableTxnMarkerPartitionResult] = {}
        self._done: asyncio.Future[None] | None = None

    def add(
        self, partition: Partition, end_offset: int, answer: WritableTxnMarkerPartitionResult
    ) -> None:
        self._open[id(answer)] = answer
        partition.wait_committed(end_offset, self, answer)

    def add_decided(
        self, decided: asyncio.Future[None], answer: WritableTxnMarkerPartitionResult
    ) -> None:
        """A marker that a coordinator's runtime has appended."""
        self._open[id(answer)] = answer

        def answered(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, Exception):
                self.failed(answer, error)
            else:
                self.succeeded(answer)

        decided.add_done_callback(answered)

    async def done(self) -> None:
        if self._open:
            self._done = asyncio.get_running_loop().create_future()
            await self._done

    def succeeded(self, item: WritableTxnMarkerPartitionResult) -> None:
        self._open.pop(id(item), None)
        if not self._open and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def failed(self, item: WritableTxnMarkerPartitionResult, error: Exception) -> None:
        if id(item) in self._open:
            item.error_code = code_of(error)
        self.succeeded(item)

    def expire(self) -> None:
        """What is late may still be committed: the answer of those is settled."""
        late, self._open = self._open, {}
        for answer in late.values():
            answer.error_code = code_of(RequestTimedOut("the marker was not on disk in time"))
