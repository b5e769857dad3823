"""A stretch of the log in a file of its own, with its indexes beside it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from ottla.log.handles import Handle, Handles
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY, Indexes, Read, search
from ottla.log.scan import batches
from ottla.log.values import NO_TIMESTAMP
from ottla.wire.records import BATCH_HEADER_BYTES, read_header

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
SNAPSHOT: Final = ".snapshot"
DELETED: Final = ".deleted"


def path_of(directory: str, offset: int, suffix: str) -> str:
    return f"{directory}/{offset:020d}{suffix}"


class Segment:
    """`indexes` is there while the segment is written to; without it they are in their files.

    `size` counts what is queued, too. The file exists once bytes were written (`is_created`).
    """

    __slots__ = (
        "_largest",
        "_offset_handle",
        "_time_handle",
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
        self._offset_handle: Handle | None = None
        self._time_handle: Handle | None = None
        self._largest: tuple[int, int] | None = None

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

    def load_indexes(self, handles: Handles) -> Indexes:
        """Blocking, once before the first append to a segment of an earlier run."""
        if not self.size:
            self.indexes = Indexes()
            return self.indexes
        files = (
            handles.read(handle, handles.size(handle), 0, cached_only=False)
            for handle in (self.offset_handle, self.time_handle)
        )
        indexes = Indexes.decode(*files)
        header = handles.read(self.handle, BATCH_HEADER_BYTES, 0, cached_only=False)
        indexes.first_timestamp = read_header(header).max_timestamp
        handles.drop(self.offset_handle)
        handles.drop(self.time_handle)
        self._offset_handle = self._time_handle = None
        self.indexes = indexes
        return indexes

    def seal(self) -> None:
        """The indexes are in their files now."""
        if self.indexes is not None:
            largest = (self.indexes.max_timestamp, self.indexes.max_timestamp_at)
            self._largest = (largest[0], self.base_offset + largest[1])
            self.indexes = None

    def handles(self) -> Sequence[Handle]:
        return [h for h in (self.handle, self._offset_handle, self._time_handle) if h is not None]

    def waited_ms(self, now_ms: int, timestamp: int) -> int:
        """How old the segment is, measured as Kafka does: by the first batch's own clock."""
        first = NO_TIMESTAMP if self.indexes is None else self.indexes.first_timestamp
        return timestamp - first if first >= 0 else now_ms - self.created_ms

    def position_before(self, offset: int, handles: Handles, *, cached_only: bool) -> int:
        """A position at or before the batch that contains `offset`."""
        relative = offset - self.base_offset
        indexes = self.indexes
        if indexes is not None:
            return indexes.position_before(relative)
        if relative <= 0 or not self.size:
            return 0
        handle = self.offset_handle
        read = self._reader(handles, handle, cached_only=cached_only)
        entry = search(read, handles.size(handle), OFFSET_ENTRY, relative)
        return entry[1] if entry is not None else 0

    def offset_before(self, timestamp: int, handles: Handles) -> int:
        """Blocking. No record of the segment before this offset is as young as `timestamp`."""
        indexes = self.indexes
        if indexes is not None:
            return self.base_offset + indexes.offset_before(timestamp)
        if not self.size:
            return self.base_offset
        handle = self.time_handle
        read = self._reader(handles, handle, cached_only=False)
        entry = search(read, handles.size(handle), TIME_ENTRY, timestamp)
        return self.base_offset + (entry[1] if entry is not None else 0)

    def largest_timestamp(self, handles: Handles) -> tuple[int, int]:
        """Blocking. (timestamp, last offset of the first batch that has it); (-1, …) if none."""
        indexes = self.indexes
        if indexes is not None:
            return indexes.max_timestamp, self.base_offset + indexes.max_timestamp_at
        if self._largest is None:
            last = self._last_entry(self.time_handle, TIME_ENTRY, handles) if self.size else None
            timestamp, offset = last or (NO_TIMESTAMP, 0)
            self._largest = (timestamp, self.base_offset + offset)
        return self._largest

    def has_sane_indexes(self, handles: Handles) -> bool:
        """Blocking. A crash may leave zeros where entries were; none of those can be zero."""
        if not self.size:
            return True
        offset_entry = self._last_entry(self.offset_handle, OFFSET_ENTRY, handles)
        time_entry = self._last_entry(self.time_handle, TIME_ENTRY, handles)
        return (
            offset_entry is None or (offset_entry[0] > 0 and 0 < offset_entry[1] < self.size)
        ) and (time_entry is None or (time_entry[0] > 0 and time_entry[1] >= 0))

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
        indexes = Indexes()
        read = self.reader(handles)
        for position, header, _ in batches(read, 0, self.size):
            offset = header.last_offset - self.base_offset
            indexes.add(offset, position, header.size, header.max_timestamp, interval_bytes)
        return indexes

    def reader(self, handles: Handles, *, cached_only: bool = False) -> Read:
        return self._reader(handles, self.handle, cached_only=cached_only)

    def _reader(self, handles: Handles, handle: Handle, *, cached_only: bool) -> Read:
        return lambda count, position: handles.read(
            handle, count, position, cached_only=cached_only
        )
