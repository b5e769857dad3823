"""The votes of one election."""

from __future__ import annotations

from ottla.quorum.voters import ReplicaKey, VoterSet
from ottla.types import NodeId


class Ballot:
    def __init__(self, voters: VoterSet, own: ReplicaKey) -> None:
        self.voters = voters
        self._granted = {own.id}
        self._refused: set[NodeId] = set()

    def record(self, voter_id: NodeId, *, granted: bool) -> None:
        """The last word of a voter counts; who does not vote has none."""
        if all(key.id != voter_id for key in self.voters.keys):
            return
        (self._granted if granted else self._refused).add(voter_id)
        (self._refused if granted else self._granted).discard(voter_id)

    @property
    def granting(self) -> tuple[ReplicaKey, ...]:
        return tuple(key for key in self.voters.keys if key.id in self._granted)

    @property
    def is_won(self) -> bool:
        return len(self.granting) >= self.voters.majority

    @property
    def is_lost(self) -> bool:
        return len(self.voters) - len(self._refused) < self.voters.majority
