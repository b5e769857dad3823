"""What spares recovery most of its reading, written from time to time for a log in use.

The indexes of the segment being written to are in memory, and so is the state of the producers.
Recovery could only build them from all batches of the segment. With this much in files, it begins
at the last snapshot. The files are hints: none of them is believed without a look at the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.log.epochs import Epochs
from ottla.log.handles import Handle
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY
from ottla.log.producer_state import ProducerState
from ottla.log.segment import SNAPSHOT, Segment, path_of
from ottla.log.unsynced import Unsynced
from ottla.ports import Disk


class Progress:
    """How far the files of a log are.

    Two snapshots are kept: the recovery point may still lie before the newer one.
    """

    __slots__ = (
        "_directory",
        "_disk",
        "_entries",
        "_segment",
        "_snapshots",
        "_time_entries",
        "offset",
    )

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._segment: Segment | None = None
        self._entries = 0
        self._time_entries = 0
        self.offset = 0
        self._snapshots: list[int] = []

    def save(
        self,
        unsynced: Unsynced,
        segments: Sequence[Segment],
        offset: int,
        producers: ProducerState,
        epochs: Epochs,
        snapshots: dict[int, int],
    ) -> bool:
        """The log is written up to `offset`; False when the files say so already."""
        active = segments[-1]
        if active.indexes is None or offset in (self.offset, active.base_offset):
            return False
        self._save_indexes(unsynced, active)
        data = producers.encode()
        unsynced.write_away(Handle(path_of(self._directory, offset, SNAPSHOT)), data)
        snapshots[offset] = len(data)
        epochs.save(unsynced, self._directory, offset)
        self.offset = offset
        self._remove_outdated(segments, snapshots)
        self._snapshots.append(offset)
        return True

    def _remove_outdated(self, segments: Sequence[Segment], snapshots: dict[int, int]) -> None:
        gone, self._snapshots = self._snapshots[:-1], self._snapshots[-1:]
        for offset in set(gone) - {segment.base_offset for segment in segments}:
            self._disk.remove(path_of(self._directory, offset, SNAPSHOT))
            snapshots.pop(offset, None)

    def _save_indexes(self, unsynced: Unsynced, segment: Segment) -> None:
        indexes = segment.indexes
        assert indexes is not None
        if segment is not self._segment:
            self._segment, self._entries, self._time_entries = segment, 0, 0
        files = segment.index_files(indexes.tail(self._entries, self._time_entries))
        if self._entries or self._time_entries:
            starts = (self._entries * OFFSET_ENTRY.size, self._time_entries * TIME_ENTRY.size)
            for (handle, data), start in zip(files, starts, strict=True):
                unsynced.to_create(handle).write([data], start)
        else:
            unsynced.write_whole(files)
        self._entries, self._time_entries = len(indexes.offsets), len(indexes.timestamps)
