"""Writing: Spark hands Arrow batches to a task, the task leaves record batches in the topics.

At least once: a task that is tried again writes its rows again. Within an attempt each record
batch is in its log once and in order, whatever happens to brokers and connections meanwhile.
Nothing waits for the driver's commit, so neither commit nor abort has anything to do yet; the
commit message says what was written where, and has a place for the transaction to come.

Encoding runs in Spark's thread and sending in the client's, so that each has the next piece ready
while the other works. A producer goes from one task of a process to the next: each new one would
leave its mark in every partition it writes to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ottla.client.blocking import Blocking, shared, wait_for
from ottla.client.producer import (
    Producer,
    ProducerSettings,
    TooLarge,
    Written,
    borrow,
    give_back,
    partitions_to_write,
)
from ottla.errors import OttlaError
from ottla.spark.encoding.encoder import ArrowEncoder, Encoded
from ottla.spark.encoding.sink_columns import find_columns
from ottla.spark.options.sink import SinkOptions
from ottla.spark.versions import Shipped, own_version
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.client.cluster import Cluster

log = logging.getLogger(__name__)

# Small Arrow batches are put together until there is this much for each partition: each would make
# tiny record batches, whose price for a broker is about the same as that of large ones.
PARTITION_BYTES: Final = 128 * 1024
GATHER_BYTES_MIN: Final = 4 * 1024 * 1024
GATHER_BYTES_MAX: Final = 32 * 1024 * 1024
# What is encoded before it is handed to the sender.
PIECE_BYTES: Final = 2 * 1024 * 1024
SPECULATION: Final = "spark.speculation"
# The producer keeps its own deadline; this is for a client that does not come back at all.
GRACE_S: Final = 30.0


class CannotWrite(OttlaError):
    """A write that failed or cannot be begun; the message is one line for a person."""


class RowsTooLarge(CannotWrite):
    """A row is more than its topic takes."""


class Span(NamedTuple):
    """What a task wrote to one partition; offsets are -1 with acks=0, since no broker told them.

    Rows of others may lie between the first and the last offset.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int


@dataclass(frozen=True)
class WrittenByTask(WriterCommitMessage):
    """What a task tells the driver."""

    spans: tuple[Span, ...]
    version: str
    # The producer's transaction, once the driver's commit is to complete it.
    transaction: tuple[str, int, int] | None = None

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans)


class OttlaWriter(Shipped, DataSourceArrowWriter):
    """`df.write.format("ottla")`: appends, as there is nothing else to do with a topic."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenByTask:
        return write_rows(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log.info("the write is complete: %s", describe(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the write failed; in the topics stays %s", describe(messages))


class OttlaStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """`df.writeStream.format("ottla")`. Spark makes several of these for each micro-batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenByTask:
        return write_rows(self._options, iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        log.info("batch %d is complete: %s", batchId, describe(messages))

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        log.warning("batch %d failed; in the topics stays %s", batchId, describe(messages))


def make_writer(options: SinkOptions, schema: StructType, *, overwrite: bool) -> OttlaWriter:
    """On the driver, before any task runs: what cannot be written is refused here."""
    if overwrite:
        raise CannotWrite('a topic can only be appended to: write with mode("append")')
    _check_schema(options, schema)
    return OttlaWriter(options)


def make_stream_writer(
    options: SinkOptions, schema: StructType, *, overwrite: bool
) -> OttlaStreamWriter:
    """In complete mode Spark sets `overwrite`; each result is appended then, as by Kafka's sink."""
    _check_schema(options, schema)
    return OttlaStreamWriter(options)


def _check_schema(options: SinkOptions, schema: StructType) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    find_columns(to_arrow_schema(schema), options.topic)


def describe(messages: Iterable[WriterCommitMessage | None]) -> str:
    """For the driver's log. A task that failed has no message."""
    rows: dict[TopicPartition, int] = {}
    for message in messages:
        if isinstance(message, WrittenByTask):
            for span in message.spans:
                partition = TopicPartition(span.topic, span.partition)
                rows[partition] = rows.get(partition, 0) + span.rows
    topics = sorted({partition.topic for partition in rows})
    return f"{sum(rows.values())} rows in {len(rows)} partitions of {', '.join(topics) or 'none'}"


def check_for_speculation() -> None:
    """Of two attempts that run at once each writes its rows, and neither can be taken back.

    In a task, since the settings of the application are not told where a write is planned.
    """
    context = TaskContext.get()
    setting = None if context is None else context.getLocalProperty(SPECULATION)
    if setting is not None and setting.lower() == "true":
        raise CannotWrite(
            f"{SPECULATION} is true: Spark would run a slow task twice at once, and both would "
            f"write its rows; start the application with {SPECULATION}=false"
        )


def write_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> WrittenByTask:
    """The whole of a task. Errors of the client become one line; those of `batches` stay."""
    check_for_speculation()
    blocking = shared(options.client)
    with _Sender(blocking, options) as sender:
        encoder: ArrowEncoder | None = None
        topics = _Topics(blocking, options)
        for rows in gathered(batches, topics.gather_bytes):
            try:
                encoder = encoder or _encoder(options, rows.schema, topics)
                for piece in _pieces(encoder.encode(rows)):
                    sender.send(piece)
            except (OttlaError, TimeoutError) as error:
                raise _cannot_write(options, error) from None
        try:
            return WrittenByTask(sender.finish(), own_version())
        except (OttlaError, TimeoutError) as error:
            raise _cannot_write(options, error) from None


def _cannot_write(options: SinkOptions, error: Exception) -> CannotWrite:
    if isinstance(error, CannotWrite):
        return error
    where = ", ".join(options.client.bootstrap)
    kind = RowsTooLarge if isinstance(error, TooLarge) else CannotWrite
    return kind(f"cannot write to {where}: {error or 'the client does not answer'}")


def gathered(
    batches: Iterable[pa.RecordBatch], enough_bytes: Callable[[], int]
) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= enough_bytes():
            yield from _together(held)
            held, size = [], 0
    if held:
        yield from _together(held)


def _together(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def _pieces(encoded: Iterable[Encoded]) -> Iterator[list[Encoded]]:
    """Several record batches at a time: each hand-over wakes a thread."""
    piece: list[Encoded] = []
    size = 0
    for one in encoded:
        piece.append(one)
        size += len(one.batch)
        if size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _encoder(options: SinkOptions, schema: pa.Schema, topics: _Topics) -> ArrowEncoder:
    return ArrowEncoder(
        schema,
        topic=options.topic,
        compression=options.compression,
        partitions_of=topics.partitions_of,
        batch_bytes=options.batch_bytes,
        now_ms=lambda: time.time_ns() // 1_000_000,
        # Tasks and micro-batches should not all begin with the same partition.
        sticky_start=Random().randrange(1 << 16),
    )


class _Topics:
    """The topics that a task writes to, each asked for once."""

    def __init__(self, blocking: Blocking, options: SinkOptions) -> None:
        self._blocking = blocking
        self._settings = options.client
        self._counts: dict[str, int] = {}

    def gather_bytes(self) -> int:
        wanted = PARTITION_BYTES * sum(self._counts.values())
        return max(GATHER_BYTES_MIN, min(wanted, GATHER_BYTES_MAX))

    def partitions_of(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._ask(topic)
        return count

    def _ask(self, topic: str) -> int:
        settings = self._settings
        count = self._blocking.run(
            lambda cluster: partitions_to_write(cluster, topic),
            settings.retry_timeout_s + settings.request_timeout_s + GRACE_S,
        )
        if not count:
            raise CannotWrite(
                f"the topic {topic} does not exist on {', '.join(settings.bootstrap)}, "
                "and its brokers do not create topics by themselves: create it first"
            )
        return count


class _Sender:
    """A producer in the client's thread, handed one piece at a time."""

    def __init__(self, blocking: Blocking, options: SinkOptions) -> None:
        self._blocking = blocking
        self._settings = ProducerSettings(
            options.acks, options.idempotent, options.in_flight_bytes, options.delivery_timeout_s
        )
        self._timeout_s = options.delivery_timeout_s + GRACE_S
        self._producer: Producer | None = None
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A producer that did not finish is in an unknown state: the next task gets a new one."""
        if self._last is not None:
            self._last.cancel()
        if self._producer is not None:
            producer = self._producer
            self._blocking.submit(lambda _: producer.close())

    def send(self, piece: Sequence[Encoded]) -> None:
        """Returns when the piece before this one has found room."""
        self._wait_for_last()
        self._last = self._blocking.submit(lambda cluster: self._send(cluster, piece))

    def finish(self) -> tuple[Span, ...]:
        """Returns when everything is acknowledged."""
        self._wait_for_last()
        written = self._blocking.run(self._finish, self._timeout_s)
        return tuple(
            Span(*partition, one.first_offset, one.last_offset, one.count)
            for partition, one in sorted(written.items())
        )

    def _wait_for_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            wait_for(last, self._timeout_s)

    async def _send(self, cluster: Cluster, piece: Sequence[Encoded]) -> None:
        if self._producer is None:
            self._producer = borrow(cluster, self._settings)
        await self._producer.send(*piece)

    async def _finish(self, cluster: Cluster) -> dict[TopicPartition, Written]:
        producer = self._producer
        if producer is None:
            return {}
        await producer.flush()
        written = producer.take_written()
        self._producer = None
        await give_back(cluster, producer)
        return written
