"""A task: one range of one partition, from the broker's bytes to Arrow batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ottla.client.blocking import Blocking, shared
from ottla.client.failures import OffsetOutOfRange
from ottla.client.range_reader import read_range
from ottla.errors import OttlaError
from ottla.spark.data_loss import DataLost, Loss, report
from ottla.spark.decoding.decoder import ArrowDecoder
from ottla.spark.formats.typed_columns import ERROR_COLUMN, typed_batch
from ottla.spark.options.letters import CannotPost
from ottla.spark.options.source import SourceOptions
from ottla.spark.planning import CannotRead, LogEnds, OffsetRange
from ottla.types import TopicPartition

# How long a log may be shorter than the driver found it.
SHORT_LOG_WAIT_S: Final = 5.0
SHORT_LOG_PAUSE_S: Final = 0.2


class OffsetTask(InputPartition):
    """A range of offsets as Spark carries it to an executor."""

    def __init__(self, part: OffsetRange) -> None:
        super().__init__((*part.partition, part.start, part.end))

    @property
    def part(self) -> OffsetRange:
        topic, partition, start, end = self.value
        return OffsetRange(TopicPartition(topic, partition), start, end)


def read_task(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task; what goes wrong is one line that names the partition."""
    if not isinstance(partition, OffsetTask):
        # Spark makes a task with nothing in it when there is nothing to read.
        return
    part = partition.part
    try:
        for batch in _decoded(shared(options.client), options, part):
            typed = _typed(batch, options)
            if typed.num_rows:
                yield typed
    except (OttlaError, OSError, TimeoutError) as error:
        if isinstance(error, DataLost | CannotPost):
            raise
        raise CannotRead(
            f"cannot read topic {part.partition.topic} partition {part.partition.partition}, "
            f"offsets {part.start} to {part.end}: {error or type(error).__name__}"
        ) from None


def _decoded(
    blocking: Blocking, options: SourceOptions, part: OffsetRange
) -> Iterator[pa.RecordBatch]:
    begun_s = time.monotonic()
    start = part.start
    while start < part.end:
        # A new one for each start: of a batch that begins before it the first rows are deleted.
        decoder = ArrowDecoder(
            part.partition,
            start,
            part.end,
            options.kafka_columns,
            read_committed=options.read_committed,
        )
        fetches = read_range(
            blocking,
            part.partition,
            start,
            part.end,
            read_committed=options.read_committed,
            fetch_bytes=options.fetch_bytes,
            patience_s=options.poll_timeout_s,
        )
        try:
            for fetched in fetches:
                yield from decoder.feed(fetched.records, fetched.aborted)
            start = part.end
        except OffsetOutOfRange as gone:
            start = _go_on_at(options, part, gone, begun_s)
        yield from decoder.finish()


def _typed(batch: pa.RecordBatch, options: SourceOptions) -> pa.RecordBatch:
    if options.key_format is None and options.value_format is None:
        return batch
    if options.letters is None:
        return typed_batch(batch, options.columns, options.key_format, options.value_format)
    others = tuple(name for name in options.columns if name != ERROR_COLUMN)
    typed = typed_batch(batch, (*others, ERROR_COLUMN), options.key_format, options.value_format)
    errors = typed.column(ERROR_COLUMN)
    if errors.null_count < len(errors):
        # Most tasks have none, and what writes is slow to import.
        from ottla.spark.dead_letters import write_letters

        # Before the rows go on: what Spark has taken it may commit, and then it is not read again.
        write_letters(options.letters, batch, errors)
    return typed.select(list(options.columns))


def _go_on_at(
    options: SourceOptions, part: OffsetRange, gone: OffsetOutOfRange, begun_s: float
) -> int:
    """Where to read on when the loss is accepted; otherwise the one line that names it."""
    is_short = gone.offset >= gone.log_start
    if is_short and time.monotonic() - begun_s < SHORT_LOG_WAIT_S:
        # A new leader learns its end a moment later than it answers.
        time.sleep(SHORT_LOG_PAUSE_S)
        return gone.offset
    wanted = part.end if is_short else gone.offset
    loss = Loss(part.partition, wanted, LogEnds(gone.log_start, gone.high_watermark))
    report([loss], fail=options.fail_on_data_loss)
    return part.end if is_short else gone.log_start
