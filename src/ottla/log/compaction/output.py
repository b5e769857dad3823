"""The new segment that compaction writes beside those it will replace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.errors import StorageFailed
from ottla.log.compaction.job import CompactionJob
from ottla.log.index import Indexes
from ottla.log.scan import SCAN_BYTES
from ottla.log.segment import CLEANED, LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, path_of
from ottla.ports import Disk, File
from ottla.wire.records import BatchHeader, read_header
from ottla.wire.schema import Buffer

_BUFFERS_MAX: Final = 512
# Synced in pieces: who syncs a message beside it does not wait for a whole segment.
SYNC_BYTES: Final = 4 * 1024 * 1024


class CleanedSegment(NamedTuple):
    """What came of a group: `size` bytes under the first of these base offsets.

    Nothing was written when all of a single segment stays as it is (`is_changed`).
    """

    bases: tuple[int, ...]
    size: int
    is_changed: bool
    removed_batches: int
    aborted_bytes: int = 0


class Output:
    """Batches in order; the file is begun when it is certain to differ from the old one."""

    def __init__(self, disk: Disk, job: CompactionJob, bases: Sequence[int]) -> None:
        self._disk = disk
        self._directory = job.directory
        self._interval_bytes = job.index_interval_bytes
        self._bases = tuple(bases)
        self._indexes = Indexes()
        self._buffers: list[Buffer] = []
        self._buffered_bytes = 0
        self._unsynced_bytes = 0
        self._size = 0
        self._file: File | None = None
        self._next_offset = self._bases[0]
        self._source_next_offset = self._bases[0]
        self._removed_batches = 0
        self._is_changed = False
        if len(self._bases) > 1:
            self._change()

    def keep(self, header: BatchHeader, batch: Buffer) -> None:
        """The batch stays, byte for byte."""
        self._source_next_offset = header.next_offset
        self._add(header, batch)

    def replace(self, header: BatchHeader, batch: bytearray) -> None:
        """Something else takes the place of the batch."""
        self._source_next_offset = header.next_offset
        self._change()
        self._add(read_header(batch), batch)

    def drop(self, header: BatchHeader) -> None:
        """Nothing is left of the batch."""
        self._source_next_offset = header.next_offset
        self._change()
        self._removed_batches += 1

    def _add(self, header: BatchHeader, batch: Buffer) -> None:
        offset = header.last_offset - self._bases[0]
        size = len(batch)
        self._indexes.add(offset, self._size, size, header.max_timestamp, self._interval_bytes)
        self._size += size
        self._next_offset = header.next_offset
        if self._is_changed:
            self._buffers.append(batch)
            self._buffered_bytes += size
            if self._buffered_bytes >= SCAN_BYTES or len(self._buffers) >= _BUFFERS_MAX:
                self._flush()

    def _change(self) -> None:
        if self._is_changed:
            return
        self._is_changed = True
        self._file = file = self._create(LOG)
        source = self._disk.open(path_of(self._directory, self._bases[0], LOG))
        try:
            for position in range(0, self._size, SCAN_BYTES):
                data = source.read(min(SCAN_BYTES, self._size - position), position)
                file.write([data], position)
        finally:
            source.close()

    def _create(self, suffix: str) -> File:
        path = path_of(self._directory, self._bases[0], suffix) + CLEANED
        # A file of that name is from a run that did not come to its end.
        self._disk.remove(path)
        return self._disk.open(path, create=True)

    def _flush(self) -> None:
        if self._buffers and self._file is not None:
            self._file.write(self._buffers, self._size - self._buffered_bytes)
            self._unsynced_bytes += self._buffered_bytes
            self._buffers = []
            self._buffered_bytes = 0
            if self._unsynced_bytes >= SYNC_BYTES:
                self._file.sync()
                self._unsynced_bytes = 0

    def finish(self, end: int, aborted: bytes = b"") -> CleanedSegment:
        """Blocking: all of it is on stable storage, except the names.

        `aborted` is what its transaction index still has to tell.
        """
        if self._next_offset != self._source_next_offset or self._next_offset > end:
            raise StorageFailed(
                f"{self._directory}: a compacted segment would end at {self._next_offset}, "
                f"not at {self._source_next_offset}"
            )
        if self._is_changed and self._file is not None:
            self._flush()
            self._file.sync()
            self._write_index(OFFSET_INDEX, self._indexes.encode_offsets())
            self._write_index(TIME_INDEX, self._indexes.encode_times())
            if aborted:
                self._write_index(TXN_INDEX, aborted)
            else:
                self._disk.remove(path_of(self._directory, self._bases[0], TXN_INDEX) + CLEANED)
        return CleanedSegment(
            self._bases, self._size, self._is_changed, self._removed_batches, len(aborted)
        )

    def _write_index(self, suffix: str, data: bytes) -> None:
        file = self._create(suffix)
        try:
            file.write([data], 0)
            file.sync()
        finally:
            file.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
