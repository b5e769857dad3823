"""Opening a log after a crash.

What was synced is known up to the recovery point. From that point's segment on every batch is
looked at; what lies behind the point must prove itself by its CRC. The log ends at the first batch
that is not intact. Indexes, producer state and epochs of what was looked at are built anew, and
everything that is kept is synced before anybody is told about it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator

from ottla.errors import StorageFailed
from ottla.log.epochs import Epochs
from ottla.log.handles import Handle
from ottla.log.index import Indexes
from ottla.log.listing import (
    Found,
    Loaded,
    Site,
    producers_at,
)
from ottla.log.scan import OFFSET_DELTA_MAX, batches, is_intact
from ottla.log.segment import SNAPSHOT, Segment
from ottla.log.unsynced import Unsynced
from ottla.log.values import LogPosition
from ottla.types import NO_EPOCH
from ottla.wire.records import BatchHeader

logger = logging.getLogger(__name__)


def recover(site: Site, found: Found, recovery_point: int) -> Loaded:
    """Blocking."""
    return Recovery(site, found, recovery_point).run()


class Recovery:
    def __init__(self, site: Site, found: Found, recovery_point: int) -> None:
        self._site = site
        self._recovery_point = recovery_point
        self._segments = found.segments
        self._snapshots = found.snapshots
        self._has_epochs = found.has_epochs
        self._unindexed = found.unindexed
        self._unsynced = Unsynced(site.handles, site.directory)

    def run(self) -> Loaded:
        segments = self._segments
        bases = [segment.base_offset for segment in segments]
        first = max(0, bisect_right(bases, self._recovery_point) - 1)
        for segment in segments[:first]:
            if segment in self._unindexed or not segment.has_sane_indexes(self._site.handles):
                interval = self._site.config.index_interval_bytes
                indexes = segment.rebuild_indexes(self._site.handles, interval)
                self._unsynced.write_whole(segment.index_files(indexes))
        self._epochs = self._load_epochs(segments[:first])
        self._producers = producers_at(
            self._site, segments[: first + 1], self._snapshots, segments[first].base_offset
        )
        self._end_offset = segments[first].base_offset
        self._drop_snapshots_behind(segments[first].base_offset)
        self._check_from(first)
        self._epochs.cut_end(self._end_offset)
        self._epochs.save(self._unsynced, self._site.directory, self._end_offset)
        last = segments[-1]
        position = LogPosition(self._end_offset, last.base_offset, last.size)
        self._site.make_durable(self._unsynced, position)
        return Loaded(
            segments, self._end_offset, self._producers, self._epochs, dict(self._snapshots)
        )

    def _check_from(self, first: int) -> None:
        """Checks segment by segment; the last one kept is the one to be written to."""
        segments = self._segments
        for at in range(first, len(segments)):
            segment = segments[at]
            if at > first:
                if not self._follows(segment):
                    self._cut(at)
                    break
                self._write_out(segments[at - 1], segment.base_offset)
            checked_bytes = self._check(segment)
            if checked_bytes < segment.size:
                self._shorten(segment, checked_bytes)
                self._cut(at + 1)
                break

    def _follows(self, segment: Segment) -> bool:
        """No hole before it: an end that was not synced is lost while the next file survives.

        Compaction leaves such holes as well; it has to move the recovery point behind them first.
        """
        return segment.base_offset == self._end_offset

    def _check(self, segment: Segment) -> int:
        """Takes in the intact batches; returns how many bytes they are."""
        indexes = segment.indexes = Indexes()
        checked_bytes = 0
        self._end_offset = segment.base_offset
        for position, header in self._intact(segment):
            offset = header.last_offset - segment.base_offset
            if header.base_offset < self._end_offset or offset > OFFSET_DELTA_MAX:
                break
            interval = self._site.config.index_interval_bytes
            indexes.add(offset, position, header.size, header.max_timestamp, interval)
            self._producers.replay(header, self._site.now_ms)
            if header.leader_epoch > self._epochs.latest:
                self._epochs.assign(header.leader_epoch, header.base_offset)
            self._end_offset = header.next_offset
            checked_bytes = position + header.size
        if self._end_offset > self._recovery_point and checked_bytes:
            self._unsynced.to_write(segment.handle)
            self._unsynced.names_changed()
        return checked_bytes

    def _intact(self, segment: Segment) -> Iterator[tuple[int, BatchHeader]]:
        read = segment.reader(self._site.handles)
        position = 0
        for position, header, _ in batches(read, 0, segment.size):
            if header.last_offset >= self._recovery_point:
                break
            yield position, header
            position += header.size
        for at, header, batch in batches(read, position, segment.size):
            if not is_intact(read, at, header, batch):
                return
            yield at, header

    def _write_out(self, segment: Segment, next_base: int) -> None:
        """A segment that is not the last gets its files as after a roll."""
        if segment.indexes is not None:
            self._unsynced.write_whole(segment.index_files(segment.indexes))
            segment.seal()
        data = self._producers.encode()
        self._unsynced.write_away(Handle(self._site.path(next_base, SNAPSHOT)), data)
        self._snapshots[next_base] = len(data)

    def _shorten(self, segment: Segment, size: int) -> None:
        logger.warning(
            "%s: the log ends at offset %d, %d bytes behind it are not intact",
            segment.handle.path,
            self._end_offset,
            segment.size - size,
        )
        self._unsynced.to_write(segment.handle).truncate(size)
        segment.size = size

    def _cut(self, at: int) -> None:
        """Segments behind the end go, the last first: a crash in between leaves no hole."""
        for segment in reversed(self._segments[at:]):
            logger.warning("%s: behind the end of the log, removed", segment.handle.path)
            self._site.remove_segment(segment)
            self._snapshots.pop(segment.base_offset, None)
            self._unsynced.names_changed()
        del self._segments[at:]

    def _drop_snapshots_behind(self, offset: int) -> None:
        """They tell of batches that may be gone."""
        for behind in [at for at in self._snapshots if at > offset]:
            self._site.disk.remove(self._site.path(behind, SNAPSHOT))
            del self._snapshots[behind]
            self._unsynced.names_changed()

    def _load_epochs(self, older: list[Segment]) -> Epochs:
        try:
            if self._has_epochs:
                known = Epochs.load(self._site.disk, self._site.directory)
                if known.latest != NO_EPOCH or not older:
                    return known
        except StorageFailed as error:
            logger.warning("%s; it is built anew", error)
        epochs = Epochs()
        for segment in older:
            read = segment.reader(self._site.handles)
            for _, header, _ in batches(read, 0, segment.size):
                if header.leader_epoch > epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
        return epochs
