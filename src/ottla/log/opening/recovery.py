"""Opening a log after a crash.

What was synced is known up to the recovery point: if it is not there, the log is damaged and is
left as it lies. From that point's segment on every batch is looked at; what lies after the point
must prove itself by its CRC. The log ends at the first batch that is not intact. Indexes, producer
state and epochs of what was looked at are built anew, and everything that is kept is synced before
anybody is told about it.

What was found after the point is written once more before that sync. It may have been read from
the page cache after a sync that failed: then the kernel shows it to everybody and takes it for
clean, and no sync would ever bring it to the disk.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ottla.errors import StorageFailed
from ottla.log.aborted import entries_before
from ottla.log.corruption import UNKNOWN_END, Corruption, examine, survey
from ottla.log.epochs import Epochs
from ottla.log.handles import Handle, Handles
from ottla.log.index import Indexes
from ottla.log.opening.listing import (
    Found,
    Loaded,
    aborted_in,
    producers_at,
    read_snapshot,
)
from ottla.log.scan import OFFSET_DELTA_MAX, SCAN_BYTES, batches, is_intact, whole
from ottla.log.segment import SNAPSHOT, TXN_INDEX, Segment, end_by_indexes, ends_well
from ottla.log.site import Site
from ottla.log.unsynced import Unsynced
from ottla.log.values import LogPosition
from ottla.types import LeaderEpoch
from ottla.wire.records import BatchHeader

logger = logging.getLogger(__name__)


class Damaged(Exception):
    """Something that was synced is not there; nothing has been changed on disk."""

    def __init__(self, corruption: Corruption) -> None:
        super().__init__(str(corruption))
        self.corruption = corruption


class _Contradiction(Exception):
    """A file that was to spare us some reading does not agree with the log."""


class _Beginning(NamedTuple):
    """A walk over a segment begins at `position`; what comes before `offset` is known already."""

    offset: int
    position: int
    indexes: Indexes


def recover(site: Site, found: Found, recovery_point: int, start_offset: int = 0) -> Loaded:
    """Blocking. Raises Damaged."""
    return Recovery(site, found, recovery_point, start_offset).run()


def epochs_in(segments: Sequence[Segment], handles: Handles) -> Epochs:
    """Blocking: as the batches themselves tell them."""
    epochs = Epochs()
    for segment in segments:
        for _, header, _ in batches(segment.reader(handles), 0, segment.size):
            if header.leader_epoch > epochs.latest:
                epochs.assign(LeaderEpoch(header.leader_epoch), header.base_offset)
    return epochs


class Recovery:
    def __init__(self, site: Site, found: Found, recovery_point: int, start_offset: int) -> None:
        self._site = site
        self._recovery_point = recovery_point
        self._start_offset = start_offset
        self._segments = found.segments
        self._snapshots = found.snapshots
        self._has_epochs = found.has_epochs
        self._unindexed = found.unindexed
        self._unsynced = Unsynced(site.handles, site.directory)
        self._doubted_from = 0
        self._has_doubted = False
        self._snapshot = b""
        # By base offset, of those segments that were looked at.
        self._aborted: dict[int, bytes] = {}

    def run(self) -> Loaded:
        segments = self._segments
        first = self._first_in_doubt()
        rebuilt = self._check_older(first)
        if self._is_quiet(first):
            self._take_as_synced()
            self._write_indexes(rebuilt)
        else:
            self._walk_from(first, rebuilt)
        self._write_aborted()
        self._epochs.cut_end(self._end_offset)
        self._epochs.save(
            self._unsynced, self._site.directory, self._end_offset, is_doubted=self._has_doubted
        )
        last = segments[-1]
        for segment in segments[max(0, first - 1) :]:
            if segment.is_created:
                # What was cut off before the crash must stay away, too.
                self._unsynced.to_write(segment.handle).truncate(segment.size)
                self._unsynced.names_changed()
        position = LogPosition(self._end_offset, last.base_offset, last.size)
        self._site.make_durable(self._unsynced, position)
        return Loaded(
            segments, self._end_offset, self._producers, self._epochs, dict(self._snapshots)
        )

    def _is_quiet(self, first: int) -> bool:
        """Nothing lies after the recovery point, and the files of a clean stop are there.

        Most logs are like that after a crash: then a look at the end of the file is enough. An
        empty segment has no end to look at, and indexes beside it may tell of what was lost.
        """
        last, point = self._segments[-1], self._recovery_point
        return (
            first == len(self._segments) - 1
            and last.size > 0
            and point in self._snapshots
            and last not in self._unindexed
            and end_by_indexes(last, self._site.handles) == point
        )

    def _take_as_synced(self) -> None:
        point, segments = self._recovery_point, self._segments
        self._end_offset = point
        self._epochs = self._load_epochs(segments)
        self._producers = producers_at(self._site, segments, self._snapshots, point)
        self._aborted[segments[-1].base_offset] = self._aborted_before(segments[-1], point)
        self._drop_snapshots_after(point)

    def _write_indexes(self, rebuilt: list[tuple[Segment, Indexes]]) -> None:
        for segment, indexes in rebuilt:
            self._unsynced.write_whole(segment.index_files(indexes))

    def _walk_from(self, first: int, rebuilt: list[tuple[Segment, Indexes]]) -> None:
        segments = self._segments
        begin = self._beginning(segments[first])
        try:
            checked_bytes = self._check_first(first, begin)
        except _Contradiction:
            begin = _Beginning(segments[first].base_offset, 0, Indexes())
            checked_bytes = self._check_first(first, begin)
        self._check_point_is_there(segments[first], checked_bytes)
        self._write_indexes(rebuilt)
        self._drop_snapshots_after(begin.offset)
        if first and begin.offset not in self._snapshots:
            self._write_snapshot(begin.offset, self._snapshot)
        self._check_from(first, checked_bytes)

    def _beginning(self, segment: Segment) -> _Beginning:
        """Where to begin in the segment of the recovery point: at the last snapshot before it.

        It was written while the log was in use, with the indexes of that moment.
        """
        base_offset, site = segment.base_offset, self._site
        if segment not in self._unindexed:
            usable = (at for at in self._snapshots if base_offset < at <= self._recovery_point)
            for offset in sorted(usable, reverse=True):
                if read_snapshot(site, offset, self._snapshots[offset]) is None:
                    continue
                interval = site.config.index_interval_bytes
                # One batch before it is looked at, by which the epochs can be told to be right.
                found = segment.indexes_before(offset - 1, site.handles, interval)
                if found is not None:
                    return _Beginning(offset, found[1], found[0])
        return _Beginning(base_offset, 0, Indexes())

    def _check_first(self, first: int, begin: _Beginning) -> int:
        """All that later segments build on: epochs and producers as they were at the beginning."""
        segments = self._segments
        self._epochs = self._load_epochs(segments[:first])
        # From here on the batches tell: the file may be about others that once were there. Where
        # there are none before, all of it may be, as in a log that has begun anew at its start.
        is_from_start = begin.offset == segments[0].base_offset
        self._epochs.cut_end(0 if is_from_start else begin.offset)
        self._producers = producers_at(
            self._site, segments[: first + 1], self._snapshots, begin.offset
        )
        self._snapshot = self._producers.encode()
        return self._check(segments[first], begin)

    def _first_in_doubt(self) -> int:
        """The segment of the recovery point; or the one before it, if it was not finished.

        A point at the very beginning of a segment says that the messages before it were synced,
        not the roll: a failed write may have left bytes after them, and no indexes.
        """
        segments, point = self._segments, self._recovery_point
        bases = [segment.base_offset for segment in segments]
        first = max(0, bisect_right(bases, point) - 1)
        if first and bases[first] == point and not self._ends_well(first - 1):
            first -= 1
        return first

    def _ends_well(self, at: int) -> bool:
        segment, next_base = self._segments[at], self._segments[at + 1].base_offset
        return segment not in self._unindexed and ends_well(segment, next_base, self._site.handles)

    def _check_older(self, first: int) -> list[tuple[Segment, Indexes]]:
        """Segments that were synced in whole: their ends are looked at, and their indexes.

        Returns indexes that have to be written again.
        """
        handles, rebuilt = self._site.handles, []
        for at in range(first):
            segment, next_base = self._segments[at], self._segments[at + 1].base_offset
            if self._ends_well(at):
                if len(self._aborted_before(segment, next_base)) != segment.aborted_bytes:
                    self._aborted[segment.base_offset] = self._rebuilt_aborted(at)
                continue
            examined = examine(segment, segment.reader(handles), segment.size, next_base)
            if examined.corruption is not None:
                raise Damaged(examined.corruption)
            interval = self._site.config.index_interval_bytes
            rebuilt.append((segment, segment.rebuild_indexes(handles, interval)))
            self._aborted[segment.base_offset] = self._rebuilt_aborted(at)
        return rebuilt

    def _rebuilt_aborted(self, at: int) -> bytes:
        return aborted_in(self._site, self._segments, self._snapshots, at)

    def _check_point_is_there(self, segment: Segment, checked_bytes: int) -> None:
        """The segment of the recovery point has to be whole up to there."""
        if self._end_offset >= self._recovery_point:
            return
        if checked_bytes < segment.size:
            corruption = survey([segment], self._site.handles).corruption
            if corruption is not None and corruption.offset < self._recovery_point:
                raise Damaged(corruption)
            reason = f"no batch in the {segment.size - checked_bytes} bytes from here on"
        elif self._recovery_point > self._start_offset:
            reason = f"the log ends here, though it was synced up to {self._recovery_point}"
        else:
            return
        place = (segment.handle.path, checked_bytes, self._end_offset)
        raise Damaged(Corruption(*place, UNKNOWN_END, reason, wanted_end=self._recovery_point))

    def _check_from(self, first: int, checked_bytes: int) -> None:
        """Checks segment by segment; the last one kept is the one to be written to.

        Nothing is kept after the first batch that is missing, intact as it may be: the disk writes
        files in any order, and a log with a hole would give a consumer later messages, not earlier.
        """
        segments = self._segments
        for at in range(first, len(segments)):
            segment = segments[at]
            if at > first:
                if not self._follows(segment):
                    self._cut(at)
                    break
                self._write_out(segments[at - 1], segment.base_offset)
                begin = _Beginning(segment.base_offset, 0, Indexes())
                checked_bytes = self._check(segment, begin)
            self._write_again(segment, checked_bytes)
            if checked_bytes < segment.size:
                self._shorten(segment, checked_bytes)
                self._cut(at + 1)
                break

    def _follows(self, segment: Segment) -> bool:
        """No hole before it: an end that was not synced is lost while the next file survives.

        Compaction leaves such holes as well; it has to move the recovery point past them first.
        """
        return segment.base_offset == self._end_offset

    def _check(self, segment: Segment, begin: _Beginning) -> int:
        """Takes in the intact batches; returns how many bytes they are."""
        indexes = segment.indexes = begin.indexes
        checked_bytes = self._doubted_from = begin.position
        self._end_offset = segment.base_offset
        read = segment.reader(self._site.handles)
        aborted = bytearray(self._aborted_before(segment, begin.offset))
        for position, header, batch in self._intact(segment, begin.position):
            offset = header.last_offset - segment.base_offset
            if header.base_offset < self._end_offset or offset > OFFSET_DELTA_MAX:
                break
            interval = self._site.config.index_interval_bytes
            indexes.add(offset, position, header.size, header.max_timestamp, interval)
            if header.base_offset >= begin.offset:
                all_of_it = whole(read, position, header, batch) if header.is_control else batch
                ended = self._producers.replay(header, all_of_it, self._site.now_ms)
                aborted += b"" if ended is None else ended.encode()
                if header.leader_epoch > self._epochs.latest:
                    self._epochs.assign(LeaderEpoch(header.leader_epoch), header.base_offset)
            elif self._epochs.epoch_at(header.base_offset) != header.leader_epoch:
                raise _Contradiction
            self._end_offset = header.next_offset
            checked_bytes = position + header.size
            if header.next_offset <= self._recovery_point:
                self._doubted_from = checked_bytes
        self._aborted[segment.base_offset] = bytes(aborted)
        return checked_bytes

    def _aborted_before(self, segment: Segment, offset: int) -> bytes:
        """Of its transaction index what was synced, or cannot be wrong."""
        data = segment.read_aborted(self._site.handles)
        return entries_before(data, segment.base_offset, offset)

    def _write_aborted(self) -> None:
        """The transaction indexes of what was looked at, as the batches tell them."""
        for segment in self._segments:
            data = self._aborted.get(segment.base_offset)
            if data:
                self._unsynced.write_whole([(segment.aborted_handle, data)])
            elif data is not None and segment.aborted_bytes:
                self._site.handles.drop(segment.aborted_handle)
                self._site.disk.remove(segment.path(TXN_INDEX))
                self._unsynced.names_changed()
            if data is not None:
                segment.aborted_bytes = len(data)

    def _write_again(self, segment: Segment, checked_bytes: int) -> None:
        """What lies after the recovery point is made dirty, so that the sync will write it."""
        if self._doubted_from < checked_bytes:
            self._has_doubted = True
            file = self._unsynced.to_write(segment.handle)
            self._unsynced.names_changed()
            for position in range(self._doubted_from, checked_bytes, SCAN_BYTES):
                data = file.read(min(SCAN_BYTES, checked_bytes - position), position)
                file.write([data], position)

    def _intact(
        self, segment: Segment, begin_at: int
    ) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        read, position = segment.reader(self._site.handles), begin_at
        point, end_offset = self._recovery_point, segment.base_offset
        for position, header, batch in batches(read, begin_at, segment.size):
            if header.last_offset >= point:
                break
            yield position, header, batch
            position += header.size
            end_offset = header.next_offset
        for at, header, batch in batches(read, position, segment.size):
            # An offset is not covered by the CRC: where the batches do not reach the point, the
            # next one lies about its own. Where they do, a follower may have been given a gap.
            if at == position and end_offset < point < header.base_offset:
                return
            if not is_intact(read, at, header, batch):
                return
            yield at, header, batch

    def _write_out(self, segment: Segment, next_base: int) -> None:
        """A segment that is not the last gets its files as after a roll."""
        if segment.indexes is not None:
            self._unsynced.write_whole(segment.index_files(segment.indexes))
            segment.seal()
        self._write_snapshot(next_base, self._producers.encode())

    def _write_snapshot(self, offset: int, data: bytes) -> None:
        self._unsynced.write_away(Handle(self._site.path(offset, SNAPSHOT)), data)
        self._snapshots[offset] = len(data)

    def _shorten(self, segment: Segment, size: int) -> None:
        logger.warning(
            "%s: the log ends at offset %d, %d bytes after it are not intact",
            segment.handle.path,
            self._end_offset,
            segment.size - size,
        )
        self._unsynced.to_write(segment.handle).truncate(size)
        segment.size = size

    def _cut(self, at: int) -> None:
        """Segments after the end go, the last first: a crash in between leaves no hole."""
        for segment in reversed(self._segments[at:]):
            logger.warning("%s: after the end of the log, removed", segment.handle.path)
            self._site.remove_segment(segment)
            self._snapshots.pop(segment.base_offset, None)
            self._unsynced.names_changed()
        del self._segments[at:]

    def _drop_snapshots_after(self, offset: int) -> None:
        """They tell of batches that may be gone."""
        for later in [at for at in self._snapshots if at > offset]:
            self._site.disk.remove(self._site.path(later, SNAPSHOT))
            del self._snapshots[later]
            self._unsynced.names_changed()

    def _load_epochs(self, older: list[Segment]) -> Epochs:
        try:
            if self._has_epochs:
                known = Epochs.load(self._site.disk, self._site.directory)
                filled = [segment for segment in older if segment.size]
                if not filled or self._knows_the_end_of(filled[-1], known):
                    return known
        except StorageFailed as error:
            logger.warning("%s; it is built anew", error)
        self._has_doubted = True
        return epochs_in(older, self._site.handles)

    def _knows_the_end_of(self, segment: Segment, epochs: Epochs) -> bool:
        """The file is written when a segment is finished: a crash may have taken just that."""
        handles = self._site.handles
        far = segment.base_offset + OFFSET_DELTA_MAX
        position = segment.position_before(far, handles, cached_only=False)
        is_known = True
        for _, header, _ in batches(segment.reader(handles), position, segment.size):
            is_known = epochs.epoch_at(header.base_offset) == header.leader_epoch
        return is_known
