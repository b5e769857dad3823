"""Compaction: the last value of each key stays, with its offset.

First the keys of the dirty range are read into a map of bounded size, as far as it reaches. Then
the segments from the log's start to the end of that range are read again, and each group of small
neighbours is written into one new segment without the records that the map knows a newer one of.
What is said here about which batches stay is Kafka's rule book; one line is added: the last batch
of a new segment stays even when empty, so that a segment still ends where the next one begins and
recovery can tell a gap that compaction left from data that was lost.

Nothing here replaces a file: new ones are written beside the old, named `.cleaned`, and synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ottla.errors import CorruptBatch, StorageFailed
from ottla.log.aborted import decode_entries
from ottla.log.compaction.job import CompactionJob, Source
from ottla.log.compaction.key_map import KeyMap
from ottla.log.compaction.output import CleanedSegment, Output
from ottla.log.compaction.records import (
    HORIZON_MS_MAX,
    Outline,
    keys_and_deltas,
    outlines,
    with_records,
    without_records,
)
from ottla.log.compaction.transactions import Outcomes, Transactions, read_outcomes
from ottla.log.scan import OFFSET_DELTA_MAX, SCAN_BYTES
from ottla.log.segment import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, path_of
from ottla.ports import Disk, File
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    CONTROL_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    crc_matches,
    read_header,
)

# The old segments of a group are renamed in one step of the event loop.
GROUP_SEGMENTS_MAX: Final = 32
_TRANSACTION_BITS: Final = CONTROL_BIT | TRANSACTIONAL_BIT

Progress = Callable[[int], None]


class KeyMapTooSmall(StorageFailed):
    """Not even one batch fits: log.cleaner.dedupe.buffer.size has to grow."""


class Compaction:
    """One pass over a log. `cleaned_to` is known once `build_map` is through."""

    def __init__(self, disk: Disk, job: CompactionJob, progress: Progress = lambda _: None) -> None:
        self._disk = disk
        self._job = job
        self._progress = progress
        self._outcomes: Outcomes | None = None
        self._map = KeyMap(job.map_bytes, job.end - job.first_dirty)
        self._ends = [*(source.base_offset for source in job.sources[1:]), job.end]
        self._transactions: Transactions | None = None
        self.cleaned_to = job.first_dirty

    def run(self) -> Iterator[CleanedSegment]:
        """Blocking. The next group is begun only when the caller asks for it."""
        self.build_map()
        if self.cleaned_to == self._job.first_dirty:
            return
        transactions: Transactions | None = None
        for group in self._groups():
            output = Output(self._disk, self._job, [source.base_offset for source in group])
            try:
                transactions = self._rewrite(group, output, transactions)
                end = self._ends[self._job.sources.index(group[-1])]
                cleaned = output.finish(end, self._still_aborted(group))
            finally:
                output.close()
            yield cleaned

    # ------------------------------------------------------------------------------- the map

    def build_map(self) -> None:
        """Takes in the dirty range batch by batch, to its end or until the map is full."""
        job = self._job
        for source, end in zip(job.sources, self._ends, strict=True):
            if end <= job.first_dirty:
                continue
            for header, batch in self.batches_of(source):
                if header.last_offset < job.first_dirty:
                    continue
                if header.attributes & _TRANSACTION_BITS and self._is_undecided(header):
                    return
                if not self._take_in(header, batch):
                    self._check_progress(header.base_offset)
                    return
                self.cleaned_to = header.next_offset
            self.cleaned_to = max(self.cleaned_to, end)

    @property
    def key_count(self) -> int:
        return self._map.count

    def _is_undecided(self, header: BatchHeader) -> bool:
        """The first batch of a transaction without an end: the mapped range stops before it."""
        is_data = not header.is_control
        return is_data and self._known_outcomes().undecided_from == header.base_offset

    def _take_in(self, header: BatchHeader, batch: memoryview) -> bool:
        """False when there is no room in the map."""
        if header.attributes & _TRANSACTION_BITS and (
            self._mapped_transactions().lets_go(header, batch) or header.is_control
        ):
            return True
        try:
            keys, deltas = keys_and_deltas(batch, header)
        except CorruptBatch:
            # Its CRC is right: it was written so, nobody can read it, and it stays as it is.
            return True
        base_offset = header.base_offset
        offsets = [base_offset + delta for delta in deltas]
        return self._map.put_all(keys, offsets, self._job.first_dirty)

    def _check_progress(self, offset: int) -> None:
        if self.cleaned_to == self._job.first_dirty:
            raise KeyMapTooSmall(
                f"{self._job.directory}: the batch at offset {offset} has more keys than the "
                f"{self._map.keys_max} that log.cleaner.dedupe.buffer.size has room for"
            )

    def _known_outcomes(self) -> Outcomes:
        """Read once, and only for logs that have transactions in them."""
        if self._outcomes is None:
            batches = (pair for source in self._job.sources for pair in self.batches_of(source))
            self._outcomes = read_outcomes(batches, self._job.first_dirty)
        return self._outcomes

    def _mapped_transactions(self) -> Transactions:
        if self._transactions is None:
            self._transactions = Transactions(self._known_outcomes())
        return self._transactions

    # ---------------------------------------------------------------------------- rewriting

    def _groups(self) -> Iterator[list[Source]]:
        """Neighbours that together make one segment of the size that the topic asks for."""
        job = self._job
        sizes = dict(self._disk.sizes(job.directory))
        group: list[Source] = []
        total = [0, 0, 0]
        for source, end in zip(job.sources, self._ends, strict=True):
            if source.base_offset >= self.cleaned_to:
                break
            own = [source.size, *(sizes.get(name, 0) for name in _index_names(source))]
            total = [one + other for one, other in zip(total, own, strict=True)]
            is_too_much = (
                total[0] > job.segment_bytes
                or max(total[1:]) > job.segment_index_bytes
                or len(group) >= GROUP_SEGMENTS_MAX
                or (group and source.size and end - 1 - group[0].base_offset > OFFSET_DELTA_MAX)
            )
            if group and is_too_much:
                yield group
                group, total = [], own
            group.append(source)
        if group:
            yield group

    def _rewrite(
        self, group: Sequence[Source], output: Output, transactions: Transactions | None
    ) -> Transactions | None:
        """Transactions are followed from one group to the next."""
        last = max((source for source in group if source.size), default=None)
        for source in group:
            position = 0
            for header, batch in self.batches_of(source):
                position += len(batch)
                if header.base_offset >= self.cleaned_to:
                    output.keep(header, batch)
                    continue
                can_go = False
                if header.attributes & _TRANSACTION_BITS:
                    if transactions is None:
                        transactions = Transactions(self._known_outcomes())
                    can_go = transactions.lets_go(header, batch)
                must_stay = (
                    position == source.size and source is last
                ) or self._is_last_of_producer(header)
                self._put_batch(header, batch, output, can_go=can_go, must_stay=must_stay)
        return transactions

    def _still_aborted(self, group: Sequence[Source]) -> bytes:
        """Of what was aborted before the end of the cleaned range no record is left."""
        entries = bytearray()
        for source in group:
            try:
                data = self._disk.read_file(
                    path_of(self._job.directory, source.base_offset, TXN_INDEX)
                )
            except FileNotFoundError:
                continue
            for entry in decode_entries(data):
                if entry.marker_offset >= self.cleaned_to:
                    entries += entry.encode()
        return bytes(entries)

    def _put_batch(
        self,
        header: BatchHeader,
        batch: memoryview,
        output: Output,
        *,
        can_go: bool,
        must_stay: bool,
    ) -> None:
        job = self._job
        horizon_ms = header.delete_horizon_ms
        is_overdue = horizon_ms is not None and job.now_ms >= horizon_ms
        if header.is_control:
            is_discarded = can_go and is_overdue
            kept: Sequence[Outline] = ()
            if header.count and not is_discarded:
                if not can_go or horizon_ms is not None:
                    output.keep(header, batch)
                    return
                data, kept = outlines(batch, header)
                output.replace(header, with_records(header, data, kept, self._horizon_ms()))
                return
        elif not can_go:
            try:
                data, records = outlines(batch, header)
            except CorruptBatch:
                output.keep(header, batch)
                return
            kept = self._kept(header, records, is_overdue=is_overdue)
            needs_horizon = horizon_ms is None and not all(record[7] for record in kept)
            if kept:
                if len(kept) == len(records) and not needs_horizon:
                    output.keep(header, batch)
                else:
                    horizon = self._horizon_ms() if needs_horizon else None
                    output.replace(header, with_records(header, data, kept, horizon))
                return
        if not must_stay:
            output.drop(header)
        elif header.count:
            output.replace(header, without_records(header))
        else:
            output.keep(header, batch)

    def _kept(
        self, header: BatchHeader, records: Sequence[Outline], *, is_overdue: bool
    ) -> list[Outline]:
        """The newest of their keys; a deletion marker no longer than its horizon."""
        newest = self._map.newest([record[6] for record in records])
        base_offset = header.base_offset
        return [
            record
            for record, newest_offset in zip(records, newest, strict=True)
            if record[6] is not None
            and (record[7] or not is_overdue)
            and base_offset + record[5] >= newest_offset
        ]

    def _horizon_ms(self) -> int:
        """From now on readers have the topic's time to see the deletion markers."""
        return min(self._job.now_ms + self._job.delete_retention_ms, HORIZON_MS_MAX)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """It tells the producer's last sequence, or at least its epoch, to who replays the log."""
        known = self._job.producers.get(header.producer_id)
        if known is None:
            return False
        last_offset, epoch = known
        if last_offset >= 0:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == epoch

    # ------------------------------------------------------------------------------- reading

    def batches_of(self, source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Whole batches, none of them believed without its CRC."""
        if not source.size:
            return
        file = self._disk.open(path_of(self._job.directory, source.base_offset, LOG))
        try:
            yield from self._batches_in(file, source.size)
        finally:
            file.close()

    def _batches_in(self, file: File, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        position = 0
        wanted = SCAN_BYTES
        while position < end:
            count = min(max(wanted, SCAN_BYTES), end - position)
            buffer = memoryview(file.read(count, position))
            self._progress(len(buffer))
            at, wanted = 0, SCAN_BYTES
            while len(buffer) - at >= BATCH_HEADER_BYTES:
                header = read_header(buffer, at)
                size = header.size
                if header.magic != MAGIC or not BATCH_HEADER_BYTES <= size <= end - position - at:
                    raise CorruptBatch(f"{file.path}: no batch at position {position + at}")
                batch = buffer[at : at + size]
                if len(batch) < size:
                    wanted = size
                    break
                if not crc_matches(batch, 0, header):
                    raise CorruptBatch(f"{file.path}: a wrong CRC at position {position + at}")
                yield header, batch
                at += size
            if at == 0 and wanted <= count:
                raise CorruptBatch(f"{file.path}: half a batch at position {position}")
            position += at


def _index_names(source: Source) -> Iterator[str]:
    for suffix in (OFFSET_INDEX, TIME_INDEX):
        yield path_of("", source.base_offset, suffix).removeprefix("/")
