"""What spares recovery most of its reading, written from time to time for a log in use.

The indexes of the segment being written to are in memory, and so is the state of the producers.
Recovery could only build them from all batches of the segment. With this much in files, it begins
at the last snapshot. The files are hints: none of them is believed without a look at the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.log.epochs import Epochs
from ottla.log.handles import Handle
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY, Indexes
from ottla.log.producer_state import ProducerState
from ottla.log.segment import SNAPSHOT, Segment, path_of
from ottla.log.unsynced import SyncTicket, Unsynced

ENCODED_MAX: Final = 1000


class Hints:
    """Copies of what a log knew when it was written up to `offset`."""

    __slots__ = ("_producers", "data", "offset", "segment", "starts", "tail")

    def __init__(
        self,
        segment: Segment,
        offset: int,
        starts: tuple[int, int],
        tail: Indexes,
        producers: ProducerState,
    ) -> None:
        self.segment: Final = segment
        self.offset: Final = offset
        # How many entries the files have already, of offsets and of times.
        self.starts: Final = starts
        self.tail: Final = tail
        self._producers = producers
        self.data: bytes | None = None

    @property
    def is_large(self) -> bool:
        """Whether `encode` should come before `Saving.run`, for which batches have to wait."""
        return len(self._producers) > ENCODED_MAX

    def encode(self) -> bytes:
        """The producers' snapshot. Takes its time when they are many: once, in any thread."""
        if self.data is None:
            self.data = self._producers.encode()
        return self.data


class Saving:
    """Hints on their way to the files; as `Writing`, the only one at the log's files meanwhile."""

    __slots__ = (
        "_directory",
        "_epochs",
        "_unsynced",
        "hints",
        "is_abandoned",
        "is_done",
        "outdated",
        "synced",
    )

    def __init__(
        self,
        unsynced: Unsynced,
        directory: str,
        hints: Hints,
        epochs: Epochs,
        outdated: Sequence[int],
    ) -> None:
        self._unsynced = unsynced
        self._directory = directory
        self._epochs = epochs
        self.outdated = outdated
        self.hints = hints
        self.is_done = False
        self.synced: list[SyncTicket] = []
        self.is_abandoned = False

    def run(self) -> None:
        """Blocking, in whichever thread."""
        self._save_indexes()
        snapshot = Handle(path_of(self._directory, self.hints.offset, SNAPSHOT))
        self._unsynced.write_away(snapshot, self.hints.encode())
        self._epochs.save(self._unsynced, self._directory, self.hints.offset)
        for offset in self.outdated:
            self._unsynced.handles.disk.remove(path_of(self._directory, offset, SNAPSHOT))
        self.is_done = True

    def _save_indexes(self) -> None:
        files = self.hints.segment.index_files(self.hints.tail)
        if not any(self.hints.starts):
            self._unsynced.write_whole(files)
            return
        sizes = (OFFSET_ENTRY.size, TIME_ENTRY.size)
        for (handle, data), count, size in zip(files, self.hints.starts, sizes, strict=True):
            self._unsynced.to_create(handle).write([data], count * size)


class Progress:
    """How far the files of a log are.

    Two snapshots are kept: the recovery point may still lie before the newer one.
    """

    __slots__ = ("_directory", "_segment", "_snapshots", "_starts", "offset")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._segment: Segment | None = None
        self._starts = (0, 0)
        self.offset = 0
        self._snapshots: list[int] = []

    def hints(self, active: Segment, offset: int, producers: ProducerState) -> Hints | None:
        """The log is written up to `offset`; None when the files say so already."""
        indexes = active.indexes
        if indexes is None or offset in (self.offset, active.base_offset):
            return None
        starts = self._starts if active is self._segment else (0, 0)
        return Hints(active, offset, starts, indexes.tail(*starts), producers.copy())

    def saving(
        self, unsynced: Unsynced, hints: Hints, segments: Sequence[Segment], epochs: Epochs
    ) -> Saving:
        outdated = set(self._snapshots[:-1]) - {segment.base_offset for segment in segments}
        return Saving(unsynced, self._directory, hints, epochs, sorted(outdated))

    def saved(self, saving: Saving, snapshots: dict[int, int]) -> None:
        """`snapshots` is what the log knows of those in its directory."""
        hints, tail = saving.hints, saving.hints.tail
        counts = (len(tail.offsets), len(tail.timestamps))
        self._segment = hints.segment
        self._starts = (hints.starts[0] + counts[0], hints.starts[1] + counts[1])
        self.offset = hints.offset
        for offset in saving.outdated:
            snapshots.pop(offset, None)
        snapshots[hints.offset] = len(hints.encode())
        self._snapshots = [*self._snapshots[-1:], hints.offset]
