"""The stream: which offsets each micro-batch reads.

Spark keeps the END of every batch in its offset log and gives the previous end as the start of the
next. What that means for this reader:

- Batch 0 has no previous end: Spark asks `initialOffset` for its start, several times, and once
  more when it runs the batch again after a crash. A start that moves with the log (`latest`) would
  skip what came in between. So the first batch of such a query is empty: it ends where it begins,
  and with that the beginning is in Spark's log.
- The start that is given to `latestOffset` is what Spark has finished. After the last batch of an
  availableNow query this is the only word of it, so a group's progress is committed from there too.
- Spark compares offsets as text (`offsets.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.spark.asker import Asker, Ends
from ottla.spark.data_loss import Loss, late_beginnings, losses, report, within
from ottla.spark.group_progress import GroupProgress
from ottla.spark.offsets import OffsetDocument, from_document, to_document
from ottla.spark.options.source import SourceOptions
from ottla.spark.planning import MaximumRows, MinimumRows, Offsets, Resolved, split
from ottla.spark.read_task import OffsetTask, read_task
from ottla.spark.versions import Shipped
from ottla.types import TopicPartition


class OttlaStreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """On the driver one object lives as long as the query; what executors get is unused before."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._query: Query | None = None

    @property
    def _driver(self) -> Query:
        # Made at the first question: what is pickled for the executors must hold settings only.
        if self._query is None:
            self._query = Query(self._options)
        return self._query

    def initialOffset(self) -> OffsetDocument:  # noqa: N802
        return to_document(self._driver.initial().offsets)

    def latestOffset(self, start: OffsetDocument, limit: ReadLimit) -> OffsetDocument:  # noqa: N802
        is_limited = not isinstance(limit, ReadAllAvailable)
        return to_document(self._driver.end_of_batch(from_document(start), is_limited=is_limited))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark has one limit for Python sources; our two are applied together in latestOffset.
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> OffsetDocument | None:  # noqa: N802
        return to_document(self._driver.latest) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.ends_by_itself = True

    def partitions(self, start: OffsetDocument, end: OffsetDocument) -> list[InputPartition]:
        return self._driver.tasks(from_document(start), from_document(end))

    def commit(self, end: OffsetDocument) -> None:
        self._driver.finished(from_document(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, partition)


class Query:
    """What the driver knows about a running query."""

    def __init__(self, options: SourceOptions) -> None:
        self.ends_by_itself = False
        self.latest: dict[TopicPartition, int] = {}
        self._options = options
        self._asker = Asker(options)
        self._initial: Resolved | None = None
        self._is_pinned = False
        # With availableNow: what there was at the first batch, and nothing that came later.
        self._frozen: Ends | None = None
        self._maximum = (
            MaximumRows(options.max_offsets_per_trigger)
            if options.max_offsets_per_trigger is not None
            else None
        )
        self._minimum = (
            MinimumRows(options.min_offsets_per_trigger, options.max_trigger_delay_ms, _steady_ms)
            if options.min_offsets_per_trigger is not None
            else None
        )
        self._progress = (
            GroupProgress(lambda: self._asker.blocking, options.group_id)
            if options.group_id is not None
            else None
        )

    def initial(self) -> Resolved:
        """Where the query begins, resolved once."""
        if self._initial is None:
            ends = self._asker.ends(fresh=True)
            self._asker.check_topics_exist(some=True)
            self._initial = self._asker.resolve(self._options.starting, ends, is_start=True)
        return self._initial

    def finished(self, offsets: Offsets) -> None:
        """Spark has processed everything before these."""
        if self._progress is not None:
            is_last = self._frozen is not None and offsets == _latest(self._frozen)
            self._progress.commit(offsets, is_last=is_last)

    def end_of_batch(self, start: Offsets, *, is_limited: bool) -> Offsets:
        self.finished(start)
        if self._pins(start):
            return start
        ends = self._ends_for(start)
        self.latest = _latest(ends)
        new = {partition: found for partition, found in ends.items() if partition not in start}
        report(
            [*losses(start, ends), *late_beginnings(new)]
            if self._options.fail_on_data_loss
            else [],
            fail=True,
        )
        if not is_limited:
            return self.latest
        # What is gone takes nothing of a batch's share.
        begin = {p: max(start.get(p, 0), found.earliest) for p, found in ends.items()}
        if self._minimum is not None and not self.ends_by_itself:
            rows = sum(max(self.latest[p] - begin[p], 0) for p in ends)
            if self._minimum.waits(rows):
                return start
        return self.latest if self._maximum is None else self._maximum.limited(begin, self.latest)

    def tasks(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        ends = self._asker.settled_ends(end, fresh=True)
        new = {p: ends[p] for p in end if p not in start and p in ends}
        begin = {**start, **{p: found.earliest for p, found in new.items()}}
        kept, lost = within(begin, end, ends)
        lost += late_beginnings(new)
        lost += [Loss(p, start[p], None) for p in start if p not in end and p not in ends]
        if not self._begins_at(start):
            lost += [Loss(p, start[p], ends.get(p)) for p in end if start.get(p, 0) > end[p]]
        report(lost, fail=self._options.fail_on_data_loss)
        pieces = split(
            kept,
            tasks_min=self._options.min_partitions,
            offsets_max=self._options.max_records_per_partition,
        )
        return [OffsetTask(piece) for piece in pieces]

    def _pins(self, start: Offsets) -> bool:
        """Whether this batch is the empty one that puts a moving start into Spark's log."""
        if self._is_pinned or self._initial is None or self._initial.repeatable:
            return False
        self._is_pinned = True
        return self._begins_at(start)

    def _begins_at(self, start: Offsets) -> bool:
        return self._initial is not None and self._initial.offsets == start

    def _ends_for(self, start: Offsets) -> Ends:
        if not self.ends_by_itself:
            return self._asker.settled_ends(start)
        if self._frozen is None:
            self._frozen = self._asker.settled_ends(start, fresh=True)
        return self._frozen


def _latest(ends: Ends) -> dict[TopicPartition, int]:
    return {partition: found.latest for partition, found in ends.items()}


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000
