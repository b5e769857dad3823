"""A stretch of the log in a file of its own, with its indexes beside it."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import Final

from ottla.log.aborted import AbortedTransaction, collect
from ottla.log.handles import Handle, Handles, NotCached
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY, Indexes, Read, search
from ottla.log.scan import batches, is_plausible
from ottla.log.values import NO_TIMESTAMP
from ottla.wire.records import BATCH_HEADER_BYTES, read_header

logger = logging.getLogger(__name__)

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
DELETED: Final = ".deleted"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"

REPAIRED_INTERVAL_BYTES: Final = 4096


def path_of(directory: str, offset: int, suffix: str) -> str:
    return f"{directory}/{offset:020d}{suffix}"


class _WrongIndex(Exception):
    """An entry of an index leads to another batch than it says, or to none."""


class Segment:
    """`indexes` is there while the segment is written to; without it they are in their files.

    `size` counts what is queued, too. The file exists once bytes were written (`is_created`). So
    does `aborted_bytes`, the size of the transaction index, which has a file once it has an entry.
    """

    __slots__ = (
        "_aborted_handle",
        "_largest",
        "_offset_handle",
        "_repaired",
        "_time_handle",
        "aborted_bytes",
        "base_offset",
        "created_ms",
        "handle",
        "indexes",
        "is_created",
        "size",
    )

    def __init__(self, directory: str, base_offset: int, size: int, created_ms: int) -> None:
        self.base_offset = base_offset
        self.size = size
        self.created_ms = created_ms
        self.handle = Handle(path_of(directory, base_offset, LOG))
        self.indexes: Indexes | None = None
        self.is_created = False
        self.aborted_bytes = 0
        self._aborted_handle: Handle | None = None
        self._offset_handle: Handle | None = None
        self._time_handle: Handle | None = None
        self._largest: tuple[int, int] | None = None
        self._repaired: Indexes | None = None

    def path(self, suffix: str) -> str:
        return self.handle.path.removesuffix(LOG) + suffix

    @property
    def offset_handle(self) -> Handle:
        if self._offset_handle is None:
            self._offset_handle = Handle(self.path(OFFSET_INDEX))
        return self._offset_handle

    @property
    def time_handle(self) -> Handle:
        if self._time_handle is None:
            self._time_handle = Handle(self.path(TIME_INDEX))
        return self._time_handle

    @property
    def aborted_handle(self) -> Handle:
        if self._aborted_handle is None:
            self._aborted_handle = Handle(self.path(TXN_INDEX))
        return self._aborted_handle

    def aborted_in(
        self, offset: int, end_offset: int, handles: Handles, *, cached_only: bool
    ) -> tuple[list[AbortedTransaction], bool]:
        """As `collect`, by the markers in this segment. Raises NotCached."""
        if not self.aborted_bytes:
            return [], False
        read = self._reader(handles, self.aborted_handle, cached_only=cached_only)
        return collect(read, self.aborted_bytes, offset, end_offset)

    def read_aborted(self, handles: Handles) -> bytes:
        """Blocking: the file as it is."""
        if not self.aborted_bytes:
            return b""
        data = handles.read(self.aborted_handle, self.aborted_bytes, 0, cached_only=False)
        return bytes(data)

    def load_indexes(self, handles: Handles) -> Indexes:
        """Blocking, once before the first append to a segment of an earlier run."""
        if not self.size:
            self.indexes = Indexes()
            return self.indexes
        return self.take_indexes(self.fetch_indexes(handles), handles)

    def fetch_indexes(self, handles: Handles) -> Indexes:
        """Blocking, and fit for a thread: what the files say, or else the batches."""
        indexes = self._repaired or self._read_indexes(handles)
        if indexes is None:
            indexes = self.rebuild_indexes(handles, REPAIRED_INTERVAL_BYTES)
        header = handles.read(self.handle, BATCH_HEADER_BYTES, 0, cached_only=False)
        indexes.first_timestamp = read_header(header).max_timestamp
        return indexes

    def take_indexes(self, indexes: Indexes, handles: Handles) -> Indexes:
        """From here on they are kept in memory, and grow there."""
        handles.drop(self.offset_handle)
        handles.drop(self.time_handle)
        self._offset_handle = self._time_handle = None
        self.indexes = indexes
        return indexes

    def indexes_before(
        self, offset: int, handles: Handles, interval_bytes: int
    ) -> tuple[Indexes, int] | None:
        """Blocking. Its files up to a batch at or before `offset`, and that batch's position.

        None when they cannot be right, or are of no use.
        """
        try:
            files = [
                handles.read(handle, handles.size(handle), 0, cached_only=False)
                for handle in (self.offset_handle, self.time_handle)
            ]
            if not self._indexed_position(offset, handles, cached_only=False):
                return None
        except (FileNotFoundError, _WrongIndex):
            return None
        indexes = Indexes.decode(*files)
        if not indexes.is_rising:
            return None
        position = indexes.cut_before(offset - self.base_offset, interval_bytes)
        header = handles.read(self.handle, BATCH_HEADER_BYTES, 0, cached_only=False)
        indexes.first_timestamp = read_header(header).max_timestamp
        return indexes, position

    def _read_indexes(self, handles: Handles) -> Indexes | None:
        """Blocking. None when the files are not there, or cannot be right."""
        try:
            files = (
                handles.read(handle, handles.size(handle), 0, cached_only=False)
                for handle in (self.offset_handle, self.time_handle)
            )
            indexes = Indexes.decode(*files)
        except FileNotFoundError:
            return None
        return indexes if indexes.is_rising and self._has_right_times(handles) else None

    def seal(self) -> None:
        """The indexes are in their files now."""
        if self.indexes is not None:
            largest = (self.indexes.max_timestamp, self.indexes.max_timestamp_at)
            self._largest = (largest[0], self.base_offset + largest[1])
            self.indexes = None

    def handles(self) -> Sequence[Handle]:
        known = (self.handle, self._offset_handle, self._time_handle, self._aborted_handle)
        return [handle for handle in known if handle is not None]

    def relocate(self, directory: str) -> Sequence[Handle]:
        """Its files lie there from now on; returns the handles of the old ones."""
        old = self.handles()
        self.handle = Handle(path_of(directory, self.base_offset, LOG))
        self._offset_handle = self._time_handle = self._aborted_handle = None
        return old

    def waited_ms(self, now_ms: int, timestamp: int) -> int:
        """How old the segment is, measured as Kafka does: by the first batch's own clock."""
        first = NO_TIMESTAMP if self.indexes is None else self.indexes.first_timestamp
        return timestamp - first if first >= 0 else now_ms - self.created_ms

    def position_before(self, offset: int, handles: Handles, *, cached_only: bool) -> int:
        """A position at or before the batch that contains `offset`.

        The batch there is looked at: an index that leads astray is built again from the log.
        """
        try:
            return self._indexed_position(offset, handles, cached_only=cached_only)
        except _WrongIndex:
            if cached_only:
                raise NotCached from None
        self.repair_indexes(handles)
        # While a segment is written to, its index cannot be replaced: then all is searched.
        return 0 if self.indexes is not None else self._entry_before(offset, handles)[1]

    def _indexed_position(self, offset: int, handles: Handles, *, cached_only: bool) -> int:
        """Raises _WrongIndex. An entry may lead too far to the front, never too far back."""
        entry_offset, position = self._entry_before(offset, handles, cached_only=cached_only)
        indexes = self.indexes or self._repaired
        if not position or (indexes is not None and not indexes.is_from_files):
            return position
        if not 0 < position <= self.size - BATCH_HEADER_BYTES:
            raise _WrongIndex
        head = handles.read(self.handle, BATCH_HEADER_BYTES, position, cached_only=cached_only)
        if len(head) < BATCH_HEADER_BYTES:
            raise _WrongIndex
        header = read_header(head)
        first = header.base_offset - self.base_offset
        if not is_plausible(header) or not 0 <= first <= entry_offset:
            raise _WrongIndex
        return position

    def _entry_before(
        self, offset: int, handles: Handles, *, cached_only: bool = False
    ) -> tuple[int, int]:
        """(last offset of a batch, its position), the offset relative; a position of 0 is any."""
        relative = offset - self.base_offset
        indexes = self.indexes or self._repaired
        if indexes is not None:
            return indexes.entry_before(relative)
        if relative <= 0 or not self.size:
            return 0, 0
        handle = self.offset_handle
        read = self._reader(handles, handle, cached_only=cached_only)
        if cached_only:
            handles.check_quick(handle)
        return self._search(read, handle, OFFSET_ENTRY, relative, handles)

    def _search(
        self, read: Read, handle: Handle, entry: struct.Struct, key: int, handles: Handles
    ) -> tuple[int, int]:
        try:
            return search(read, handles.size(handle), entry, key) or (0, 0)
        except (struct.error, IndexError):
            raise _WrongIndex from None
        except FileNotFoundError:
            if handles.disk.exists(self.handle.path):
                raise _WrongIndex from None
            raise  # The whole segment is gone.

    def repair_indexes(self, handles: Handles) -> None:
        """Blocking, and fit for a thread. The files are left as they are until the next start."""
        if self.indexes is None:
            logger.warning("%s: its index is wrong, the log is asked", self.handle.path)
            self._repaired = self.rebuild_indexes(handles, REPAIRED_INTERVAL_BYTES)
            self._largest = None

    def offset_before(self, timestamp: int, handles: Handles) -> int:
        """Blocking. No record of the segment before this offset is as young as `timestamp`."""
        if not self.size:
            return self.base_offset
        try:
            found, offset = self._time_before(timestamp, handles)
            is_true = not offset or self._is_moment(found, offset, handles)
        except _WrongIndex:
            is_true = False
        if is_true:
            return self.base_offset + offset
        self.repair_indexes(handles)
        if self.indexes is not None:
            return self.base_offset
        return self.base_offset + self._time_before(timestamp, handles)[1]

    def _time_before(self, timestamp: int, handles: Handles) -> tuple[int, int]:
        indexes = self.indexes or self._repaired
        if indexes is not None:
            return indexes.time_before(timestamp)
        read = self._reader(handles, self.time_handle, cached_only=False)
        return self._search(read, self.time_handle, TIME_ENTRY, timestamp, handles)

    def _is_moment(self, timestamp: int, offset: int, handles: Handles) -> bool:
        """Blocking. Whether the batch with this (relative) offset has this largest timestamp."""
        indexes = self.indexes or self._repaired
        if indexes is not None and not indexes.is_from_files:
            return True
        offset += self.base_offset
        position = self.position_before(offset, handles, cached_only=False)
        for _, header, _ in batches(self.reader(handles), position, self.size):
            if header.last_offset >= offset:
                return header.base_offset <= offset and header.max_timestamp == timestamp
        return False

    def largest_timestamp(self, handles: Handles) -> tuple[int, int]:
        """Blocking. (timestamp, last offset of the first batch that has it); (-1, …) if none."""
        indexes = self.indexes or self._repaired
        if indexes is not None:
            return indexes.max_timestamp, self.base_offset + indexes.max_timestamp_at
        if self._largest is None:
            if not self.size:
                return NO_TIMESTAMP, self.base_offset
            if not self._has_right_times(handles):
                self.repair_indexes(handles)
                return self.largest_timestamp(handles)
            timestamp, offset = self.last_entries(handles)[1]
            self._largest = (timestamp, self.base_offset + offset)
        return self._largest

    def youngest_ms(self, handles: Handles) -> int:
        """Blocking. The largest timestamp, or, where no record has one, the time of the file."""
        timestamp, _ = self.largest_timestamp(handles)
        return timestamp if timestamp >= 0 else handles.disk.modified_ms(self.handle.path)

    def _has_right_times(self, handles: Handles) -> bool:
        """Blocking. Whether the last entry of the time index is true, and nothing is younger.

        What is looked at is that entry's batch and the last ones of the segment: with clocks that
        run forward an index without its end is found by that.
        """
        try:
            timestamp, offset = self.last_entries(handles)[1]
            if timestamp == NO_TIMESTAMP:
                return ends_well(self, None, handles)
            return ends_well(self, None, handles) and self._is_moment(timestamp, offset, handles)
        except (_WrongIndex, struct.error):
            return False
        except FileNotFoundError:
            if handles.disk.exists(self.handle.path):
                return False
            raise

    def last_entries(self, handles: Handles) -> tuple[tuple[int, int], tuple[int, int]]:
        """Blocking. (offset, position) and (timestamp, offset), both offsets relative."""
        offset_entry = self._last_entry(self.offset_handle, OFFSET_ENTRY, handles)
        time_entry = self._last_entry(self.time_handle, TIME_ENTRY, handles)
        return offset_entry or (0, 0), time_entry or (NO_TIMESTAMP, 0)

    def has_entries(self, handles: Handles) -> bool:
        """Blocking."""
        return handles.size(self.offset_handle) >= OFFSET_ENTRY.size

    def _last_entry(
        self, handle: Handle, entry: struct.Struct, handles: Handles
    ) -> tuple[int, int] | None:
        count = handles.size(handle) // entry.size
        if not count:
            return None
        read = self._reader(handles, handle, cached_only=False)
        first, second = entry.unpack(read(entry.size, (count - 1) * entry.size))
        return first, second

    def index_files(self, indexes: Indexes) -> list[tuple[Handle, bytes]]:
        """What is to be written when the segment is finished."""
        return [
            (self.offset_handle, indexes.encode_offsets()),
            (self.time_handle, indexes.encode_times()),
        ]

    def rebuild_indexes(self, handles: Handles, interval_bytes: int) -> Indexes:
        """Blocking: from the headers of all batches. The caller decides where they go."""
        indexes, next_offset = Indexes(), self.base_offset
        read = self.reader(handles)
        for position, header, _ in batches(read, 0, self.size):
            if header.base_offset < next_offset:
                break  # Damage. What is indexed has to be in order.
            next_offset = header.next_offset
            offset = header.last_offset - self.base_offset
            indexes.add(offset, position, header.size, header.max_timestamp, interval_bytes)
        return indexes

    def reader(self, handles: Handles, *, cached_only: bool = False) -> Read:
        return self._reader(handles, self.handle, cached_only=cached_only)

    def _reader(self, handles: Handles, handle: Handle, *, cached_only: bool) -> Read:
        return lambda count, position: handles.read(
            handle, count, position, cached_only=cached_only
        )


def ends_well(segment: Segment, next_base: int | None, handles: Handles) -> bool:
    """Blocking. As `end_by_indexes`, and no batch belongs into the next segment."""
    end_offset = end_by_indexes(segment, handles)
    return end_offset is not None and (next_base is None or end_offset <= next_base)


def end_by_indexes(segment: Segment, handles: Handles) -> int | None:
    """Blocking. The end offset, if the last entries of the indexes lead to the end of the file.

    A few small reads, which find a file that was cut short, and indexes that are no indexes.
    """
    if not segment.size:
        return segment.base_offset
    (offset, position), (timestamp, _) = segment.last_entries(handles)
    # After a crash there may be zeros where entries were; the first batch never has one.
    if not 0 <= position < segment.size or (not position and segment.has_entries(handles)):
        return None
    next_offset, first_at_most = segment.base_offset, segment.base_offset + offset
    for at, header, _ in batches(segment.reader(handles), position, segment.size):
        if header.base_offset < next_offset or header.max_timestamp > timestamp:
            return None
        if next_offset == segment.base_offset and position and header.base_offset > first_at_most:
            return None
        next_offset, position = header.next_offset, at + header.size
    return next_offset if position == segment.size else None
