"""Which leader epoch began at which offset: the `leader-epoch-checkpoint` of a partition."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from ottla.log.checkpoints import format_lines, parse_lines
from ottla.log.handles import Handle
from ottla.log.unsynced import Unsynced
from ottla.ports import Disk
from ottla.types import NO_EPOCH, NO_OFFSET, LeaderEpoch

FILE_NAME: Final = "leader-epoch-checkpoint"

# The epoch and the offset of its first batch: mixed up, they would cut a log at random.
Entry = tuple[LeaderEpoch, int]


class Epochs:
    """Epochs and their start offsets, both growing.

    The file is written when a segment is finished or the log is closed, and not at every new
    epoch: recovery reads the unfinished segment anyway, and its batches carry their epochs.
    """

    __slots__ = ("_entries", "_saved", "latest")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._saved: list[Entry] = []
        self.latest: LeaderEpoch = NO_EPOCH

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries)

    @classmethod
    def load(cls, disk: Disk, directory: str) -> Epochs:
        path = f"{directory}/{FILE_NAME}"
        epochs = cls()
        epochs._entries = [
            (LeaderEpoch(int(epoch)), int(offset))
            for epoch, offset in parse_lines(disk, path, field_count=2)
        ]
        epochs._saved = list(epochs._entries)
        epochs._renew()
        return epochs

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Epochs:
        """Epochs that are in no file of their own."""
        epochs = cls()
        epochs._entries = list(entries)
        epochs._renew()
        return epochs

    def save(
        self, unsynced: Unsynced, directory: str, end_offset: int, *, is_doubted: bool = False
    ) -> None:
        """Does nothing when the file says the same already; the next sync makes it durable.

        Unless `is_doubted`: after a crash what the file says may not be what is on disk.
        """
        entries = [entry for entry in self._entries if entry[1] < end_offset]
        if entries != self._saved or is_doubted:
            unsynced.write_away(Handle(f"{directory}/{FILE_NAME}"), format_lines(entries))
            self._saved = entries

    def assign(self, epoch: LeaderEpoch, start_offset: int) -> None:
        """From this offset on batches carry this epoch; what contradicts that gives way."""
        if epoch == self.latest and self._entries and self._entries[-1][1] <= start_offset:
            return
        while self._entries and (
            self._entries[-1][0] >= epoch or self._entries[-1][1] >= start_offset
        ):
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        self._renew()

    def retreat(self, end_offset: int) -> None:
        """The log ends here after all; its latest epoch stays, with nothing in it yet."""
        latest = self.latest
        self.cut_end(end_offset)
        if latest != self.latest:
            self.assign(latest, end_offset)

    def cut_end(self, end_offset: int) -> None:
        """Forgets the epochs that began at or after `end_offset`."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()
        self._renew()

    def cut_start(self, start_offset: int) -> None:
        """Forgets what ended before `start_offset`."""
        ended = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        if ended:
            self._entries[:ended] = [(self._entries[ended - 1][0], start_offset)]

    def epoch_at(self, offset: int) -> LeaderEpoch:
        at = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[at - 1][0] if at else NO_EPOCH

    def end_offset_for(self, epoch: LeaderEpoch, end_offset: int) -> Entry:
        """The largest known epoch up to `epoch`, and where it ends (KIP-101, KIP-320)."""
        if epoch == NO_EPOCH or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, end_offset
        at = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        known = self._entries[at - 1][0] if at else epoch
        return known, self._entries[at][1]

    def _renew(self) -> None:
        self.latest = self._entries[-1][0] if self._entries else NO_EPOCH
