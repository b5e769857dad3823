"""What must be true of every history, whatever has failed in it."""

from __future__ import annotations

from collections import defaultdict

from unit.quorum.model_log import Entry, ModelLog


class Broken(AssertionError):
    """A rule of Raft is broken."""


class History:
    """All that the nodes of a world have done so far."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.committed: list[Entry] = []
        self._marks: defaultdict[str, int] = defaultdict(int)
        self._epochs: defaultdict[str, int] = defaultdict(int)

    def leads(self, node: str, epoch: int, log: ModelLog) -> None:
        if self.leaders.setdefault(epoch, node) != node:
            raise Broken(f"two leaders of epoch {epoch}: {self.leaders[epoch]} and {node}")
        if log.entries[: len(self.committed)] != self.committed:
            raise Broken(f"the leader {node} of epoch {epoch} lacks what is committed")

    def commits(self, node: str, log: ModelLog, mark: int) -> None:
        """`node` shows everything before `mark` to those who read from it."""
        for offset in range(self._marks[node], mark):
            if offset == len(self.committed):
                self.committed.append(log.entries[offset])
            elif log.entries[offset] != self.committed[offset]:
                raise Broken(f"{node} has committed something else at {offset}")
        self._marks[node] = max(self._marks[node], mark)

    def says(self, node: str, epoch: int) -> None:
        """`node` has sent a message of this epoch."""
        self._epochs[node] = max(self._epochs[node], epoch)

    def starts(self, node: str, epoch: int) -> None:
        if epoch < self._epochs[node]:
            raise Broken(f"{node} starts in epoch {epoch} and was in {self._epochs[node]}")
        self._marks[node] = 0

    def keeps(self, node: str, log: ModelLog) -> None:
        """At the end each node has all of it."""
        if log.entries[: len(self.committed)] != self.committed:
            raise Broken(f"{node} has lost something that was committed")


def check_matching(logs: list[ModelLog]) -> None:
    """Where two logs have an entry of one epoch at one offset, they are equal up to there."""
    for one in logs:
        for other in logs:
            both = min(len(one), len(other))
            last = next((n for n in range(both, 0, -1) if _agree(one, other, n - 1)), 0)
            if one.entries[:last] != other.entries[:last]:
                raise Broken("two logs agree at an offset and differ before it")


def _agree(one: ModelLog, other: ModelLog, offset: int) -> bool:
    return one.entries[offset].epoch == other.entries[offset].epoch
