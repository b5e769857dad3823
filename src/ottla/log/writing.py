"""Giving queued batches to the disk, in this thread or in another.

A `Writing` is all that was queued at one moment. Its log goes on taking batches meanwhile, but it
begins no other writing, and starts no sync, before this one is back: finished or taken back.

Taking back goes to the mark, which is how the log was before the first batch of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.log.epochs import Epochs
from ottla.log.handles import Handle, Handles
from ottla.log.index import IndexMark
from ottla.log.producer_state import ProducerState
from ottla.log.segment import SNAPSHOT, Segment, path_of
from ottla.log.unsynced import SyncTicket, Unsynced
from ottla.log.values import LogPosition
from ottla.ports import File
from ottla.wire.schema import Buffer

# A segment as it was before the first batch of a queue: its size, and how far its indexes went.
Mark = tuple[Segment, int, IndexMark, int]


class Queue(NamedTuple):
    """What a segment is to get: batches from `position` on, and entries of its transaction index.

    They are written and synced together.
    """

    batches: list[Buffer]
    position: int
    aborted: Sequence[bytes]
    aborted_at: int


class Roll(NamedTuple):
    """A segment that is finished once its queue is written, and the state after it."""

    segment: Segment
    queue: Queue
    next_base: int
    producers: ProducerState


class Writing:
    __slots__ = (
        "_epochs",
        "_unsynced",
        "change_count",
        "created",
        "directory",
        "is_abandoned",
        "is_left_over",
        "mark",
        "place",
        "queue",
        "rolls",
        "segment",
        "snapshots",
        "synced",
    )

    def __init__(
        self,
        unsynced: Unsynced,
        epochs: Epochs,
        directory: str,
        rolls: list[Roll],
        segment: Segment,
        queue: Queue,
        place: LogPosition,
        mark: Mark,
        change_count: int,
    ) -> None:
        self._unsynced = unsynced
        self._epochs = epochs
        self.directory = directory
        self.rolls = rolls
        self.segment = segment
        self.queue = queue
        self.place = place
        self.mark = mark
        self.change_count = change_count
        self.created: list[str] = []
        # How long the snapshots of the producers became, by their offsets.
        self.snapshots: dict[int, int] = {}
        # Tickets that came back meanwhile: the files they let go may be those written to.
        self.synced: list[SyncTicket] = []
        self.is_abandoned = False
        self.is_left_over = False

    def run(self) -> None:
        """Blocking, in whichever thread. Where it fails nothing is left of it on disk, if it can.

        Cutting off what has arrived may have to wait for the disk as well.
        """
        try:
            self._write_all()
        except OSError:
            try:
                if not self.is_abandoned:
                    remove_traces(self._unsynced, self.mark, self.created)
            except OSError:
                self.is_left_over = True
            raise

    def _write_all(self) -> None:
        for roll in self.rolls:
            self._finish_segment(roll)
        # A segment begun without a batch gets its file all the same: once the others are
        # deleted, its name is what tells where the log ends.
        self._write_queue(self.segment, self.queue)

    def _write_queue(self, segment: Segment, queue: Queue) -> None:
        if segment.is_created:
            file = self._unsynced.to_write(segment.handle)
        else:
            file = self._create(segment.handle)
            segment.is_created = True
        file.write(queue.batches, queue.position)
        if queue.aborted:
            handle = segment.aborted_handle
            opened = self._unsynced.to_write if queue.aborted_at else self._create
            opened(handle).write(queue.aborted, queue.aborted_at)

    def _finish_segment(self, roll: Roll) -> None:
        segment, indexes = roll.segment, roll.segment.indexes
        if roll.queue.batches:
            self._write_queue(segment, roll.queue)
        if indexes is not None:
            self._unsynced.write_whole(segment.index_files(indexes))
        handle = Handle(path_of(self.directory, roll.next_base, SNAPSHOT))
        self._create(handle)
        data = roll.producers.encode()
        self._unsynced.write_away(handle, data)
        self.snapshots[roll.next_base] = len(data)
        self._epochs.save(self._unsynced, self.directory, roll.next_base)

    def _create(self, handle: Handle) -> File:
        file = self._unsynced.to_create(handle)
        self.created.append(handle.path)
        return file


class Probing:
    """Finds out whether the disk takes so many bytes more; nothing is left of them."""

    __slots__ = ("_byte_count", "_segment", "_unsynced", "is_abandoned", "is_left_over", "synced")

    def __init__(self, unsynced: Unsynced, segment: Segment, byte_count: int) -> None:
        self._unsynced = unsynced
        self._segment = segment
        self._byte_count = byte_count
        self.is_left_over = False
        self.synced: list[SyncTicket] = []
        self.is_abandoned = False

    def run(self) -> None:
        """Blocking, in whichever thread."""
        file, size = self._unsynced.to_write(self._segment.handle), self._segment.size
        try:
            file.write([bytes(self._byte_count)], size)
        finally:
            try:
                file.truncate(size)
            except OSError:
                self.is_left_over = True


def go_back(segments: Sequence[Segment], handles: Handles, mark: Mark) -> list[Segment]:
    """The segments as they were at the mark, in memory; those begun since then are closed."""
    active, size, index_mark, aborted_bytes = mark
    for segment in segments:
        if segment.base_offset > active.base_offset:
            handles.drop(segment.handle)
    if active.indexes is not None:
        active.indexes.restore(index_mark)
    active.size = size
    active.aborted_bytes = aborted_bytes
    return [segment for segment in segments if segment.base_offset <= active.base_offset]


def remove_traces(unsynced: Unsynced, mark: Mark, created: Sequence[str]) -> None:
    """Blocking: what has reached the disk since the mark is cut off, files created are removed."""
    handles, (active, size, _, aborted_bytes) = unsynced.handles, mark
    # The last first: a log that has lost its beginning in a crash would begin in the middle.
    for path in reversed(created):
        handles.disk.remove(path)
        unsynced.names_changed()
    if active.handle.path in created:
        handles.drop(active.handle)
        active.handle = Handle(active.handle.path)
        active.is_created = False
    elif active.is_created:
        unsynced.to_write(active.handle).truncate(size)
        if aborted_bytes:
            unsynced.to_write(active.aborted_handle).truncate(aborted_bytes)
