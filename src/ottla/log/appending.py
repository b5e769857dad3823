"""Batches get their place in a log, in memory: offsets, indexes, producers, and a queue.

No IO happens here, but for the indexes of a segment of an earlier run, before the first append.
"""

from __future__ import annotations

from typing import Final

from ottla.errors import StorageFailed
from ottla.log.aborted import ENTRY_BYTES
from ottla.log.handles import Handles
from ottla.log.index import Indexes
from ottla.log.intake import batches_to_take
from ottla.log.markers import Marker, marker_batch
from ottla.log.opening.listing import Loaded
from ottla.log.producer_log import ProducerLog
from ottla.log.producer_state import marker_in
from ottla.log.rolling import must_roll
from ottla.log.segment import Segment
from ottla.log.values import Appended, LogConfig, LogPosition
from ottla.log.verification import Verification
from ottla.log.writing import Mark, Queue, Roll
from ottla.types import LeaderEpoch
from ottla.wire.records import (
    APPEND_TIME_BIT,
    BATCH_OVERHEAD_BYTES,
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
    stamp,
)
from ottla.wire.schema import Buffer

# Half the price of calling the class, and this is the path of every batch.
_new_tuple: Final = tuple.__new__


class AppendingLog(ProducerLog):
    __slots__ = (
        "_aborted",
        "_aborted_at",
        "_active",
        "_mark",
        "_queue",
        "_queue_at",
        "_rolls",
        "fenced",
    )

    def __init__(self, handles: Handles, directory: str, config: LogConfig, loaded: Loaded) -> None:
        super().__init__(handles, directory, config, loaded)
        self.fenced = loaded.corruption is not None
        self._active = active = loaded.segments[-1]
        self._queue: list[Buffer] = []
        self._queue_at = active.size
        # Entries for its transaction index.
        self._aborted: list[bytes] = []
        self._aborted_at = active.aborted_bytes
        self._rolls: list[Roll] = []
        self._mark: Mark | None = None

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
        verification: Verification | None = None,
        marker: Marker | None = None,
        is_own: bool = False,
    ) -> Appended:
        """Gives a batch its offsets, in place, and queues it; `batch` must stay as it is until
        written. A repetition is not queued: it gets the offsets of the first.

        What `is_own` is by a coordinator, and has no sequences even where it is of a producer.
        """
        if self.fenced:
            raise StorageFailed(f"{self.directory} is fenced until it is opened again")
        producer_id, attributes = header.producer_id, header.attributes
        if producer_id >= 0 and marker is None:
            first = self._producers.check(header, is_own)
            if first is not None:
                append_time_ms = first.timestamp if attributes & APPEND_TIME_BIT else -1
                return Appended(first.first_offset, first.last_offset + 1, append_time_ms, True)
            if attributes & TRANSACTIONAL_BIT and self.config.verifies_transactions:
                self._producers.check_verified(header, verification)
        segment = self._active
        indexes = segment.indexes or segment.load_indexes(self._handles)
        base_offset = self.end_offset
        last_offset = base_offset + header.last_offset_delta
        size = len(batch)
        timestamp = header.max_timestamp
        stamp(batch, base_offset, leader_epoch)
        if not self._queue and not self._rolls:
            self._begin_queue(segment, indexes)
        if must_roll(self.config, segment, indexes, last_offset, size, timestamp, now_ms):
            segment = self._roll(now_ms)
            indexes = segment.indexes or segment.load_indexes(self._handles)
        offset, position = last_offset - segment.base_offset, segment.size
        indexes.add(offset, position, size, timestamp, self.config.index_interval_bytes)
        segment.size = position + size
        if leader_epoch != self._epochs.latest:
            self._epochs.assign(LeaderEpoch(leader_epoch), base_offset)
        if producer_id >= 0:
            if attributes & TRANSACTIONAL_BIT:
                self._add_transactional(header, marker, base_offset, position, now_ms)
            else:
                self._producers.add(header, base_offset, now_ms)
        self._queue.append(batch)
        self.end_offset = last_offset + 1
        append_time_ms = timestamp if attributes & APPEND_TIME_BIT else -1
        return _new_tuple(Appended, (base_offset, last_offset + 1, append_time_ms, False))

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: Marker,
        leader_epoch: int,
        now_ms: int,
        version: int,
    ) -> Appended:
        """Ends a producer's transaction, by the rules of this version of transactions.

        A marker that is in the log already, or would change nothing, is not queued again: it gets
        the log's end, and whoever waits for that has waited for the first.
        """
        batch = memoryview(marker_batch(producer_id, producer_epoch, marker, now_ms))
        header = read_header(batch)
        if not self._producers.check_marker(header, marker, version):
            return Appended(self.end_offset, self.end_offset, -1, True)
        return self.append(batch, header, leader_epoch, now_ms, marker=marker)

    def append_replicated(
        self, batches: memoryview, leader_epoch_max: LeaderEpoch, now_ms: int
    ) -> int:
        """Queues whole batches as the leader has them; returns how many bytes were taken.

        `batches` must stay as it is until written. CorruptBatch when no leader can have sent this.
        """
        if self.fenced:
            raise StorageFailed(f"{self.directory} is fenced until it is opened again")
        is_empty = self.end_offset == self.start_offset
        taken = batches_to_take(
            batches, self.end_offset, self.last_batch_epoch, leader_epoch_max, is_empty=is_empty
        )
        if not taken:
            return 0
        segment = self._active
        indexes = segment.indexes or segment.load_indexes(self._handles)
        if not self._queue and not self._rolls:
            self._begin_queue(segment, indexes)
        queued = 0
        for at, header in taken:
            size, timestamp = header.batch_length + BATCH_OVERHEAD_BYTES, header.max_timestamp
            last_offset = header.base_offset + header.last_offset_delta
            if must_roll(self.config, segment, indexes, last_offset, size, timestamp, now_ms):
                if at > queued:
                    self._queue.append(batches[queued:at])
                queued = at
                segment = self._roll(now_ms)
                indexes = segment.indexes or segment.load_indexes(self._handles)
            offset, position = last_offset - segment.base_offset, segment.size
            indexes.add(offset, position, size, timestamp, self.config.index_interval_bytes)
            segment.size = position + size
            if header.leader_epoch != self._epochs.latest:
                # An epoch that this node began as a leader, and wrote nothing in, never was.
                self._epochs.cut_end(self.end_offset)
                self._epochs.assign(LeaderEpoch(header.leader_epoch), header.base_offset)
            if header.producer_id >= 0:
                marker = None
                if header.attributes & CONTROL_BIT:
                    marker = marker_in(batches[at : at + size])
                self._add_transactional(header, marker, header.base_offset, position, now_ms)
            self.end_offset = last_offset + 1
        self._queue.append(batches[queued : at + size])
        return at + size

    def _add_transactional(
        self,
        header: BatchHeader,
        marker: Marker | None,
        base_offset: int,
        position: int,
        now_ms: int,
    ) -> None:
        """What a batch of a producer, transactional or not, makes of its transaction."""
        segment = self._active
        if marker is None:
            place = LogPosition(base_offset, segment.base_offset, position)
            self._producers.add(header, base_offset, now_ms, place)
            return
        aborted = self._producers.add_marker(header, marker, base_offset, now_ms)
        if aborted is not None:
            self._aborted.append(aborted.encode())
            segment.aborted_bytes += ENTRY_BYTES

    @property
    def is_cold(self) -> bool:
        """Whether an append would have to read the indexes of an earlier run first."""
        active = self._active
        return active.indexes is None and active.size > 0

    def fetch_indexes(self) -> tuple[Segment, Indexes]:
        """Blocking, and fit for a thread: what `warm` wants."""
        active = self._active
        return active, active.fetch_indexes(self._handles)

    def warm(self, segment: Segment, indexes: Indexes) -> None:
        """Appends need not read any more; unless another was first."""
        if segment is self._active and segment.indexes is None:
            segment.take_indexes(indexes, self._handles)

    def roll(self, now_ms: int) -> None:
        """Ends the segment, if there is anything in it; the files follow with `write`."""
        segment = self._active
        if self.fenced or not segment.size:
            return
        indexes = segment.indexes or segment.load_indexes(self._handles)
        if not self._queue and not self._rolls:
            self._begin_queue(segment, indexes)
        self._roll(now_ms)

    def _begin_queue(self, segment: Segment, indexes: Indexes) -> None:
        self._queue_at, self._aborted_at = segment.size, segment.aborted_bytes
        self._mark = (segment, segment.size, indexes.mark(), segment.aborted_bytes)

    def _roll(self, now_ms: int) -> Segment:
        """Begins a segment in memory."""
        rolled = self._active
        base_offset = self.end_offset
        queue = Queue(self._queue, self._queue_at, self._aborted, self._aborted_at)
        self._rolls.append(Roll(rolled, queue, base_offset, self._producers.copy()))
        self._active = Segment(self.directory, base_offset, 0, now_ms)
        self._active.indexes = Indexes()
        self._chain.add(self._active)
        self._clear_queue()
        return self._active

    def _clear_queue(self) -> None:
        self._queue, self._aborted = [], []
        self._queue_at, self._aborted_at = self._active.size, self._active.aborted_bytes
