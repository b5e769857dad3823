"""The two sparse indexes of a segment.

    .index      int32 offset - base, int32 position     the last offset of a batch, and its start
    .timeindex  int64 timestamp, int32 offset - base    no record up to this offset is younger

About every `index.interval.bytes` a batch gets an entry. While a segment is written to, its
indexes are arrays in memory; afterwards they are files, searched where they lie.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import le, lt
from typing import Final

from ottla.log.values import NO_TIMESTAMP
from ottla.wire.schema import Buffer

OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")

_ENTRIES_PER_PAGE: Final = 256

Read = Callable[[int, int], Buffer]


# How far an index was, so that it can go back there; a plain tuple, as one is made per write.
IndexMark = tuple[int, int, int, int, int, int]


class Indexes:
    """Both indexes of a segment that is written to; all offsets are relative to its base.

    A reader in a thread may look while an entry is added, so what it searches in grows last.
    """

    __slots__ = (
        "first_timestamp",
        "is_from_files",
        "max_timestamp",
        "max_timestamp_at",
        "offsets",
        "positions",
        "time_offsets",
        "timestamps",
        "unindexed_bytes",
    )

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")
        self.timestamps = array("q")
        self.time_offsets = array("i")
        self.unindexed_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_at = 0
        self.first_timestamp = NO_TIMESTAMP
        self.is_from_files = False

    def add(self, offset: int, position: int, size: int, timestamp: int, interval: int) -> None:
        """Takes note of a batch by its last offset, and indexes it if it is its turn."""
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_at = offset
        if position == 0:
            self.first_timestamp = timestamp
        if self.unindexed_bytes > interval:
            self.positions.append(position)
            self.offsets.append(offset)
            if self.max_timestamp > self._last_timestamp():
                self.time_offsets.append(self.max_timestamp_at)
                self.timestamps.append(self.max_timestamp)
            self.unindexed_bytes = 0
        self.unindexed_bytes += size

    def position_before(self, offset: int) -> int:
        """A position at or before the batch that contains `offset`."""
        return self.entry_before(offset)[1]

    def entry_before(self, offset: int) -> tuple[int, int]:
        """(last offset of a batch, its position), at or before the batch that has `offset`."""
        entry = bisect_right(self.offsets, offset) - 1
        return (self.offsets[entry], self.positions[entry]) if entry >= 0 else (0, 0)

    def boundary_before(self, position: int) -> int:
        """A batch begins there, at or before `position`."""
        entry = bisect_right(self.positions, position) - 1
        return self.positions[entry] if entry >= 0 else 0

    def offset_before(self, timestamp: int) -> int:
        """No record before this offset is as young as `timestamp`."""
        return self.time_before(timestamp)[1]

    def time_before(self, timestamp: int) -> tuple[int, int]:
        """(the time, the offset) before which no record is as young as `timestamp`."""
        entry = bisect_right(self.timestamps, timestamp) - 1
        return (self.timestamps[entry], self.time_offsets[entry]) if entry >= 0 else (0, 0)

    def largest_before(self, offset: int) -> tuple[int, int]:
        """(timestamp, offset) of the youngest up to the last entry before `offset`; (-1, -1)."""
        entry = bisect_left(self.offsets, offset) - 1
        if entry < 0:
            return NO_TIMESTAMP, -1
        at = bisect_right(self.time_offsets, self.offsets[entry]) - 1
        return (self.timestamps[at], self.time_offsets[at]) if at >= 0 else (NO_TIMESTAMP, -1)

    def is_full(self, index_bytes: int) -> bool:
        """The time index keeps one entry free for the largest timestamp at the end."""
        return (
            len(self.offsets) >= index_bytes // OFFSET_ENTRY.size
            or len(self.timestamps) >= index_bytes // TIME_ENTRY.size - 1
        )

    def mark(self) -> IndexMark:
        return (
            len(self.offsets),
            len(self.timestamps),
            self.unindexed_bytes,
            self.max_timestamp,
            self.max_timestamp_at,
            self.first_timestamp,
        )

    def restore(self, mark: IndexMark) -> None:
        """Copies instead of cutting: a reader in a thread may be searching the arrays."""
        entry_count, time_entry_count, unindexed_bytes, timestamp, at, first_timestamp = mark
        self.offsets = self.offsets[:entry_count]
        self.positions = self.positions[:entry_count]
        self.timestamps = self.timestamps[:time_entry_count]
        self.time_offsets = self.time_offsets[:time_entry_count]
        self.unindexed_bytes = unindexed_bytes
        self.max_timestamp = timestamp
        self.max_timestamp_at = at
        self.first_timestamp = first_timestamp

    def tail(self, entry_count: int, time_entry_count: int) -> Indexes:
        """Those after so many entries, without the last one of a finished segment."""
        tail = Indexes()
        tail.offsets = self.offsets[entry_count:]
        tail.positions = self.positions[entry_count:]
        tail.timestamps = self.timestamps[time_entry_count:]
        tail.time_offsets = self.time_offsets[time_entry_count:]
        return tail

    def cut_before(self, offset: int, interval: int) -> int:
        """Leaves out what comes after the last entry up to `offset`; returns its position.

        The batch there is to be added again: it gets its entry anew.
        """
        entry = bisect_right(self.offsets, offset) - 1
        if entry < 0:
            return 0
        position = self.positions[entry]
        known = bisect_right(self.time_offsets, self.offsets[entry])
        self.offsets, self.positions = self.offsets[:entry], self.positions[:entry]
        self.timestamps = self.timestamps[:known]
        self.time_offsets = self.time_offsets[:known]
        self.max_timestamp = self._last_timestamp()
        self.max_timestamp_at = self.time_offsets[-1] if known else 0
        self.unindexed_bytes = interval + 1
        return position

    def encode_offsets(self) -> bytes:
        words = array("i", bytes(len(self.offsets) * OFFSET_ENTRY.size))
        words[0::2] = self.offsets
        words[1::2] = self.positions
        return _to_big_endian(words).tobytes()

    def encode_times(self) -> bytes:
        """With a last entry for the largest timestamp, by which a closed segment is judged."""
        timestamps, offsets = self.timestamps[:], self.time_offsets[:]
        if self.max_timestamp > self._last_timestamp():
            timestamps.append(self.max_timestamp)
            offsets.append(self.max_timestamp_at)
        halves = array("i", _to_big_endian(timestamps).tobytes())
        words = array("i", bytes(len(offsets) * TIME_ENTRY.size))
        words[0::3] = halves[0::2]
        words[1::3] = halves[1::2]
        words[2::3] = _to_big_endian(offsets)
        return words.tobytes()

    @classmethod
    def decode(cls, offset_entries: Buffer, time_entries: Buffer) -> Indexes:
        """From whole files; half an entry at an end is left out."""
        indexes = cls()
        indexes.is_from_files = True
        words = array("i", bytes(_whole(offset_entries, OFFSET_ENTRY)))
        words = _to_big_endian(words)
        indexes.offsets, indexes.positions = words[0::2], words[1::2]
        words = array("i", bytes(_whole(time_entries, TIME_ENTRY)))
        halves = array("i", bytes(len(words) // 3 * 8))
        halves[0::2], halves[1::2] = words[0::3], words[1::3]
        indexes.timestamps = _to_big_endian(array("q", halves.tobytes()))
        indexes.time_offsets = _to_big_endian(words[2::3])
        if indexes.timestamps:
            indexes.max_timestamp = indexes.timestamps[-1]
            indexes.max_timestamp_at = indexes.time_offsets[-1]
        return indexes

    @property
    def is_rising(self) -> bool:
        """Whether all four columns are as they should be; bytes from a file may be anything."""
        return all(
            not column or (column[0] >= 0 and all(map(lt, column, column[1:])))
            for column in (self.offsets, self.positions, self.timestamps)
        ) and all(map(le, self.time_offsets, self.time_offsets[1:]))

    def _last_timestamp(self) -> int:
        return self.timestamps[-1] if self.timestamps else NO_TIMESTAMP


def search(read: Read, file_bytes: int, entry: struct.Struct, key: int) -> tuple[int, int] | None:
    """The last entry of an index file whose first field is at most `key`, if there is one."""
    count = file_bytes // entry.size
    low, high = 0, (count + _ENTRIES_PER_PAGE - 1) // _ENTRIES_PER_PAGE
    while low < high:
        middle = (low + high) // 2
        first, _ = entry.unpack(read(entry.size, middle * _ENTRIES_PER_PAGE * entry.size))
        if first <= key:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return None
    page_at = (low - 1) * _ENTRIES_PER_PAGE
    page = read(min(_ENTRIES_PER_PAGE, count - page_at) * entry.size, page_at * entry.size)
    entries = list(entry.iter_unpack(_whole(page, entry)))
    at = bisect_right(entries, key, key=lambda fields: fields[0])
    return entries[at - 1]


def _whole(data: Buffer, entry: struct.Struct) -> memoryview:
    return memoryview(data)[: len(data) // entry.size * entry.size]


def _to_big_endian(words: array[int]) -> array[int]:
    """Or back: a copy with the bytes of every word turned around, where the machine needs that."""
    if sys.byteorder == "little":
        words = words[:]
        words.byteswap()
    return words
