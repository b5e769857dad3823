"""A replicated log as it is meant: a list of entries, of which the first few are on disk."""

from __future__ import annotations

from typing import NamedTuple

from ottla.quorum.node import LogEnd
from ottla.quorum.voters import VoterSet
from ottla.types import Offset


class Entry(NamedTuple):
    epoch: int
    value: object
    voters: VoterSet | None = None


class ModelLog:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.synced = 0

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def end(self) -> LogEnd:
        return LogEnd(Offset(len(self)), self.epoch_before(len(self)), Offset(self.synced))

    def epoch_before(self, offset: int) -> int:
        return self.entries[offset - 1].epoch if offset > 0 else 0

    def matches(self, offset: int, last_epoch: int) -> bool:
        return offset <= len(self) and self.epoch_before(offset) == last_epoch

    def end_of_epoch(self, epoch: int) -> tuple[int, Offset]:
        """The largest epoch up to this one, and where it ends."""
        end = next((n for n, entry in enumerate(self.entries) if entry.epoch > epoch), len(self))
        return self.epoch_before(end), Offset(end)

    def cut(self, end: int) -> None:
        del self.entries[end:]
        self.synced = min(self.synced, end)

    def cut_for(self, epoch: int, end_offset: int) -> int:
        return min(end_offset, self.end_of_epoch(epoch)[1])
