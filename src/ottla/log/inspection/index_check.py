"""Whether the index files of a segment agree with its batches, as a walk brings them along."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import Final

from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY
from ottla.log.inspection.findings import Finding, Trouble
from ottla.log.values import NO_TIMESTAMP
from ottla.wire.records import BatchHeader

# version, producer id, first offset, last offset, last stable offset
TRANSACTION_ENTRY: Final = struct.Struct(">hqqqq")


def entries_of(data: bytes, entry: struct.Struct) -> list[tuple[int, ...]]:
    """The whole entries; the zeros with which Kafka fills the rest of an active index are none."""
    used = -(-len(data.rstrip(b"\0")) // entry.size) * entry.size
    return list(
        entry.iter_unpack(memoryview(data)[: min(used, len(data) // entry.size * entry.size)])
    )


class IndexCheck(ABC):
    """What both indexes have in common: a file of entries, each told of once when it is wrong."""

    trouble = Trouble.INDEX
    entry = OFFSET_ENTRY

    def __init__(self, path: str, data: bytes, base_offset: int, *, is_last: bool) -> None:
        self.path = path
        self.base_offset = base_offset
        self.is_last = is_last
        self.entries = entries_of(data, self.entry)
        self.findings: list[Finding] = []
        self._next = 0
        self._check_form(len(data))

    @abstractmethod
    def take(self, position: int, header: BatchHeader) -> None:
        """A batch that is intact."""

    @abstractmethod
    def skip(self, position: int, size: int) -> None:
        """Bytes that are no batch: nothing is known about entries that point there."""

    @abstractmethod
    def finish(self, size: int, last_offset: int) -> None:
        """The walk is over."""

    def _check_form(self, file_bytes: int) -> None:
        extra = file_bytes % self.entry.size
        # The broker writes the last segment's indexes anew before it trusts them.
        if extra and not self.is_last:
            whole = file_bytes - extra
            self._tell(whole // self.entry.size, f"its last entry has only {extra} bytes")
        for at, (before, entry) in enumerate(zip(self.entries, self.entries[1:], strict=False), 1):
            if entry[0] <= before[0] or entry[1] < before[1]:
                self._tell(at, f"entry {self._words(entry)} comes after {self._words(before)}")
                del self.entries[at:]
                return

    def _tell(self, at: int, what: str, offset: int | None = None) -> None:
        self.findings.append(Finding(self.trouble, self.path, what, at * self.entry.size, offset))

    def _words(self, entry: tuple[int, ...]) -> str:
        raise NotImplementedError


class OffsetIndexCheck(IndexCheck):
    """An entry is a batch's position, with the last offset of it or of one written with it."""

    def __init__(self, path: str, data: bytes, base_offset: int, *, is_last: bool) -> None:
        super().__init__(path, data, base_offset, is_last=is_last)
        self._awaited: tuple[int, int] | None = None

    def take(self, position: int, header: BatchHeader) -> None:
        while self._next < len(self.entries) and self.entries[self._next][1] <= position:
            relative, at = self.entries[self._next]
            offset = self.base_offset + relative
            if at < position:
                self._tell(self._next, f"no batch begins at {at}", offset)
            else:
                self._awaited = (self._next, offset)
            self._next += 1
        if self._awaited is not None and header.last_offset >= self._awaited[1]:
            entry, offset = self._awaited
            if header.last_offset != offset:
                self._tell(entry, f"no batch ends with offset {offset}", offset)
            self._awaited = None

    def skip(self, position: int, size: int) -> None:
        self._awaited = None
        while self._next < len(self.entries) and self.entries[self._next][1] < position + size:
            self._next += 1

    def finish(self, size: int, last_offset: int) -> None:
        if self._next < len(self.entries):
            relative, at = self.entries[self._next]
            what = f"an entry points to {at}, the segment has {size} bytes"
            self._tell(self._next, what, self.base_offset + relative)
        elif self._awaited is not None:
            entry, offset = self._awaited
            self._tell(entry, f"offset {offset} is after the segment's last, {last_offset}", offset)

    def _words(self, entry: tuple[int, ...]) -> str:
        return f"(offset {self.base_offset + entry[0]}, position {entry[1]})"


class TimeIndexCheck(IndexCheck):
    """An entry is the largest timestamp so far, and an offset in the first batch that has it."""

    trouble = Trouble.TIME_INDEX
    entry = TIME_ENTRY

    def __init__(self, path: str, data: bytes, base_offset: int, *, is_last: bool) -> None:
        super().__init__(path, data, base_offset, is_last=is_last)
        self._largest = NO_TIMESTAMP
        self._is_whole = True

    def take(self, position: int, header: BatchHeader) -> None:
        self._largest = max(self._largest, header.max_timestamp)
        while self._next < len(self.entries):
            timestamp, relative = self.entries[self._next]
            offset = self.base_offset + relative
            if offset > header.last_offset:
                return
            if timestamp != self._largest and self._is_whole:
                self._is_whole = False
                what = f"it says {timestamp} up to offset {offset}, the log says {self._largest}"
                self._tell(self._next, what, offset)
            self._next += 1

    def skip(self, position: int, size: int) -> None:
        self._is_whole = False

    def finish(self, size: int, last_offset: int) -> None:
        if not self._is_whole:
            # After damage, or after the first entry that is wrong, no other proves anything.
            return
        if self._next < len(self.entries):
            offset = self.base_offset + self.entries[self._next][1]
            what = f"offset {offset} is after the segment's last, {last_offset}"
            self._tell(self._next, what, offset)
            return
        youngest = self.entries[-1][0] if self.entries else NO_TIMESTAMP
        if not self.is_last and youngest < self._largest:
            what = f"its youngest entry is {youngest}, the log's youngest batch {self._largest}"
            self._tell(len(self.entries), what)

    def _words(self, entry: tuple[int, ...]) -> str:
        return f"(time {entry[0]}, offset {self.base_offset + entry[1]})"
