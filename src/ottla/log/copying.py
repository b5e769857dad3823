"""A copy of a log's files in another directory, byte for byte, while the log is written to.

It takes what is written; what is written later is added. Whatever became of a segment meanwhile
(compaction, retention, a cut) makes it another one, whose copy begins anew. So in the end the
directory is what the log's own is, and a start would find the same in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.log.directory import MOVED, PARTITION_METADATA
from ottla.log.log import Log
from ottla.log.segment import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    path_of,
)
from ottla.ports import Disk, File

SYNC_BYTES: Final = 16 * 1024 * 1024
READ_BYTES_MAX: Final = 1024 * 1024
_BESIDE: Final = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
_PASSING: Final = (DELETED, CLEANED, SWAP, ".tmp")


class SourceChanged(OSError):
    """The log has lost what was to be copied; the next look knows more."""


class Part(NamedTuple):
    """A segment, and how much of it is written."""

    segment: Segment
    byte_count: int
    is_finished: bool


class Contents(NamedTuple):
    """A log at one moment. Under the same key only segments are added, grow, go or are replaced."""

    key: tuple[Log, int]
    parts: list[Part]
    end_offset: int


def contents_of(log: Log) -> Contents:
    written, parts = log.written, []
    for segment in log.segments:
        if segment.base_offset < written.segment_base:
            parts.append(Part(segment, segment.size, is_finished=True))
        elif segment.base_offset == written.segment_base and segment.is_created:
            parts.append(Part(segment, written.bytes_in_segment, is_finished=False))
    return Contents((log, log.cuts), parts, written.offset)


@dataclass(slots=True)
class _Copied:
    segment: Segment
    byte_count: int = 0
    unsynced_bytes: int = 0
    is_finished: bool = False


class LogCopy:
    """All but the figures blocks, and is for one thread at a time."""

    def __init__(self, disk: Disk, source: str, target: str) -> None:
        self._disk = disk
        self._source = source
        self._target = target
        self._key: tuple[Log, int] | None = None
        self._copied: dict[int, _Copied] = {}

    # ------------------------------------------------------------------------------ in figures

    @property
    def byte_count(self) -> int:
        return sum(copied.byte_count for copied in tuple(self._copied.values()))

    def lacks_bytes(self, contents: Contents) -> int:
        return sum(part.byte_count - self._bytes_of(contents, part) for part in contents.parts)

    def end_offset(self, contents: Contents) -> int:
        """All before it is copied."""
        for part in contents.parts:
            if self._bytes_of(contents, part) < part.byte_count:
                return part.segment.base_offset
        return contents.end_offset

    def _bytes_of(self, contents: Contents, part: Part) -> int:
        copied = self._copied.get(part.segment.base_offset)
        is_same = contents.key == self._key and copied and copied.segment is part.segment
        return copied.byte_count if copied and is_same else 0

    # --------------------------------------------------------------------------------- copying

    def add(self, contents: Contents, byte_count_max: int) -> int:
        """Copies so much of what it lacks; returns how many bytes that were."""
        self._let_go(contents)
        added = 0
        for part in contents.parts:
            base_offset = part.segment.base_offset
            copied = self._copied.get(base_offset)
            if copied is None:
                copied = self._copied[base_offset] = _Copied(part.segment)
                self._disk.open(self._path(base_offset, LOG), create=True).close()
            lacking = part.byte_count - copied.byte_count
            if lacking:
                added += self._extend(copied, part, min(lacking, byte_count_max - added))
            if part.is_finished and copied.byte_count == part.byte_count:
                self._finish_segment(copied)
            if added >= byte_count_max:
                break
        return added

    def complete(self, contents: Contents, *, is_only_other: bool) -> None:
        """While nobody writes to the log: all of it is there, synced, and marked as the one that
        counts, should a crash leave both. `is_only_other`: there is no third one.
        """
        while self.add(contents, READ_BYTES_MAX):
            pass
        files = [self._disk.open(self._path(base, LOG)) for base in self._copied]
        try:
            for name in self._small_files(self._target):
                self._disk.remove(f"{self._target}/{name}")
            files.extend(map(self._copy_small, self._small_files(self._source)))
            files.append(self._disk.open(f"{self._target}/{MOVED}", create=True))
            self._clear_mark_of_source(is_only_other=is_only_other)
            self._disk.sync_many(files, [self._target])
        finally:
            for file in files:
                file.close()

    def clear(self) -> None:
        """Nothing is copied."""
        for name, _ in tuple(self._disk.sizes(self._target)):
            if name != PARTITION_METADATA:
                self._disk.remove(f"{self._target}/{name}")
        self._copied = {}
        self._key = None

    def _let_go(self, contents: Contents) -> None:
        """What is not the log's any more."""
        if contents.key != self._key:
            self.clear()
            self._key = contents.key
        current = {part.segment.base_offset: part.segment for part in contents.parts}
        for base_offset, copied in tuple(self._copied.items()):
            if current.get(base_offset) is not copied.segment:
                for suffix in (LOG, *_BESIDE):
                    self._disk.remove(self._path(base_offset, suffix))
                del self._copied[base_offset]

    def _extend(self, copied: _Copied, part: Part, byte_count: int) -> int:
        base_offset, done = part.segment.base_offset, 0
        source = self._disk.open(path_of(self._source, base_offset, LOG))
        target = self._disk.open(self._path(base_offset, LOG))
        try:
            while done < byte_count:
                count = min(byte_count - done, READ_BYTES_MAX)
                data = source.read(count, copied.byte_count)
                if len(data) < count:
                    raise SourceChanged(f"{source.path} is shorter than it was")
                target.write([data], copied.byte_count)
                copied.byte_count += count
                copied.unsynced_bytes += count
                done += count
            if copied.unsynced_bytes >= SYNC_BYTES:
                # Not all at once in the end, when the partition waits for it.
                target.sync()
                copied.unsynced_bytes = 0
        finally:
            source.close()
            target.close()
        return done

    def _finish_segment(self, copied: _Copied) -> None:
        """Nothing more is written to it: its indexes are in files, and the state before it."""
        if copied.is_finished:
            return
        base_offset = copied.segment.base_offset
        file = self._disk.open(self._path(base_offset, LOG))
        try:
            file.sync()
        finally:
            file.close()
        for suffix in _BESIDE:
            name = f"{base_offset:020d}{suffix}"
            if self._disk.exists(f"{self._source}/{name}"):
                written = self._copy_small(name)
                written.sync()
                written.close()
        copied.is_finished = True

    def _small_files(self, directory: str) -> list[str]:
        """All but the segments, and what came with those that are finished."""
        names: list[str] = []
        if not self._disk.exists(directory):
            return names  # Nothing was ever written to it.
        for name, _ in tuple(self._disk.sizes(directory)):
            if name.endswith((LOG, *_PASSING)) or name in (PARTITION_METADATA, MOVED):
                continue
            digits = name[:20]
            copied = self._copied.get(int(digits)) if digits.isdecimal() else None
            if copied is None or not copied.is_finished:
                names.append(name)
        return names

    def _copy_small(self, name: str) -> File:
        data = self._disk.read_file(f"{self._source}/{name}")
        file = self._disk.open(f"{self._target}/{name}", create=True)
        try:
            file.write([data], 0)
            file.truncate(len(data))
        except OSError:
            file.close()
            raise
        return file

    def _clear_mark_of_source(self, *, is_only_other: bool) -> None:
        """It may have moved before: of two that are marked nobody could say which one counts."""
        mark = f"{self._source}/{MOVED}"
        if self._disk.exists(mark):
            if not is_only_other:
                raise SourceChanged(f"{self._source} has moved, and may be elsewhere as well")
            self._disk.remove(mark)
            self._disk.sync_directory(self._source)

    def _path(self, base_offset: int, suffix: str) -> str:
        return path_of(self._target, base_offset, suffix)
