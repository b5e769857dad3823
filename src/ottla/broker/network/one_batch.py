"""Produce requests with one batch for one partition, on a way of their own.

It does what the router and `handlers/produce` do for every other shape, with one object per
request instead of twenty; `tests/unit/broker/test_one_batch.py` holds the two to the same bytes
and the same counts. It takes only what will be appended or refused by the partition itself:
anything that has to be explained to the client before that is left to the general path.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.broker.network.exchange import Exchange
from ottla.broker.network.leader_hints import LeaderHints
from ottla.broker.network.waiting import answer_with
from ottla.broker.storage.partitions import NO_PARTITIONS
from ottla.errors import OttlaError, RequestTimedOut
from ottla.wire.codec import decode
from ottla.wire.framing import frame_reply
from ottla.wire.messages.produce import ProduceResponse
from ottla.wire.one_batch import (
    CORRELATION_AT,
    FLEXIBLE_VERSION,
    PREFIX_AT,
    REPLY_BODY_AT,
    ProduceShape,
    read_shape,
    records_in,
)
from ottla.wire.scanning import QUICK_RECORDS_MAX, records_to_scan
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.counters import ApiMetrics
    from ottla.broker.network.connection import Connection
    from ottla.broker.network.router import HandedServices

ACKS_LEADER, ACKS_ALL = 1, -1
NO_BUCKET: Final = -1
_CORRELATION: Final = struct.Struct(">i")


class OneBatchExchange(Exchange):
    """Such a request while its batch is not yet as durable as it asked for.

    Its reply is written when the batch has its offset. Should it come to nothing after all, that
    reply is read again and turned into a refusal.
    """

    __slots__ = (
        "_bucket",
        "_connection",
        "_failure",
        "_produces",
        "_reply",
        "_shape",
    )

    def __init__(
        self,
        produces: OneBatchProduces,
        connection: Connection,
        shape: ProduceShape,
        reply: bytes,
        byte_count: int,
        started_s: float,
    ) -> None:
        # Not by way of the base class: this runs for every request.
        self.metrics = produces.metrics
        self.byte_count = byte_count
        self.started_s = started_s
        self.is_done = False
        self._produces = produces
        self._connection: Connection | None = connection
        self._shape = shape
        self._reply = reply
        self._bucket = NO_BUCKET
        self._failure: Exception | None = None

    def reply_chunks(self) -> list[Buffer]:
        if self._failure is None:
            return [self._reply]
        version, reply = self._shape.version, self._reply
        is_flexible = version >= FLEXIBLE_VERSION
        (correlation_id,) = _CORRELATION.unpack_from(reply, CORRELATION_AT)
        response = decode(ProduceResponse, reply, version, REPLY_BODY_AT + is_flexible)
        answer = response.responses[0].partition_responses[0]
        answer_with(self._failure, answer)
        if self._connection is not None:
            hints = LeaderHints(self._produces.metadata, self._connection.listener)
            hints.in_produce(self._shape.topic, answer, response)
        return frame_reply(correlation_id, is_flexible, response, version)

    def expire_after(self, seconds: float) -> None:
        self._bucket = self._produces.deadlines.add(self, seconds)

    def succeeded(self, item: object) -> None:
        if self._bucket != NO_BUCKET:
            self._produces.deadlines.forget(self, self._bucket)
        if self._connection is not None:
            self._connection.finished(self)

    def failed(self, item: object, error: Exception) -> None:
        self._failure = error
        self.succeeded(item)

    def expire(self) -> None:
        """The disk was too slow."""
        self.failed(None, RequestTimedOut("the batch was not on disk in time"))

    def abandon(self) -> None:
        self._connection = None


class OneBatchProduces:
    """Begins them, for the connections of one router."""

    def __init__(
        self,
        services: HandedServices,
        metrics: ApiMetrics,
        count_unforeseen: Callable[[Exception], object],
    ) -> None:
        self.metrics = metrics
        self.deadlines = services.deadlines
        self.metadata = services.metadata
        self._services = services
        self._partitions = services.partitions
        self._clock = services.clock
        self._count_unforeseen = count_unforeseen

    def begin(self, connection: Connection, frame: bytearray, started_s: float) -> bool:
        """Whether the frame was taken; if not, nothing has happened."""
        shape = connection.shape
        if (
            shape is None
            or not frame.startswith(shape.head)
            or not frame.startswith(shape.prefix, PREFIX_AT)
        ):
            shape = read_shape(frame)
            if shape is None or (shape.acks != ACKS_LEADER and shape.acks != ACKS_ALL):
                return False
            connection.shape = shape
        partitions, topic = self._partitions, shape.topic
        if not partitions.is_ready_for(topic):
            return False
        partition = (partitions.in_topic(topic) or NO_PARTITIONS).get(shape.index)
        records = records_in(frame, shape)
        if partition is None or records is None or partition.is_cold or not partition.is_leader:
            return False
        if partition.is_compacted and records_to_scan(records) > QUICK_RECORDS_MAX:
            return False
        self.metrics.count += 1
        partition.metrics.produce_requests += 1
        (correlation_id,) = _CORRELATION.unpack_from(frame, CORRELATION_AT)
        now_ms = self._clock.wall_ms()
        try:
            if shape.acks == ACKS_ALL:
                partition.check_min_isr()
            base_offset, end_offset, _, _ = partition.append(records, now_ms)
        except (OttlaError, OSError) as error:
            partition.note_refused(records, now_ms)
            self._services.metrics.topic(topic).produce_errors += 1
            reply = shape.pack(shape.size, correlation_id, shape.before, -1, -1, -1, shape.after)
            exchange = OneBatchExchange(self, connection, shape, reply, len(frame), started_s)
            connection.exchanges.append(exchange)
            exchange.failed(None, error)
            return True
        except Exception as error:
            self._count_unforeseen(error)
            raise
        reply = shape.pack(
            shape.size,
            correlation_id,
            shape.before,
            base_offset,
            now_ms if partition.is_append_time else -1,
            partition.start_offset,
            shape.after,
        )
        exchange = OneBatchExchange(self, connection, shape, reply, len(frame), started_s)
        connection.exchanges.append(exchange)
        exchange.expire_after(shape.timeout_ms / 1000)
        if shape.acks == ACKS_ALL or partition.flusher.is_overloaded:
            partition.wait_committed(end_offset, exchange, None)
        else:
            partition.wait_written(exchange, None)
        return True
