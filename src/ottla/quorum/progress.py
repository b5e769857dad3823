"""What a leader knows about the replicas of its log, and what follows: commits, and its own end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.quorum.voters import ReplicaKey, Voter, VoterSet
from ottla.types import NO_OFFSET, NodeId, Offset

OBSERVERS_MAX: Final = 1000
OBSERVER_SESSION_MS: Final = 300_000


@dataclass(slots=True)
class Progress:
    """Times are of the steady clock."""

    offset: Offset = NO_OFFSET
    fetched_ms: int = -1
    caught_up_ms: int = -1
    leader_end_then: Offset = NO_OFFSET


class Leadership:
    """The epoch that this node leads."""

    def __init__(self, own: ReplicaKey, start_offset: Offset, now_ms: int) -> None:
        self.own = own
        self.start_offset = start_offset
        self.began_ms = now_ms
        self.announce_ms = now_ms
        self.replicas: dict[ReplicaKey, Progress] = {}
        # What voters of the setting have told of themselves: their disks, and where they listen.
        self.told: dict[NodeId, Voter] = {}

    def fetched(
        self, replica: ReplicaKey, offset: Offset | None, leader_end: Offset, now_ms: int
    ) -> None:
        """A replica has fetched; `offset` is None where its log is not ours up to there."""
        progress = self.replicas.get(replica)
        if progress is None:
            self._make_room(now_ms)
            progress = self.replicas[replica] = Progress()
        if offset is not None:
            if offset >= leader_end:
                progress.caught_up_ms = now_ms
            elif offset >= progress.leader_end_then != NO_OFFSET:
                progress.caught_up_ms = progress.fetched_ms
            # An older request that comes late, or a disk that has lost something: believe the less.
            progress.offset = offset
            progress.leader_end_then = leader_end
        progress.fetched_ms = now_ms

    def _make_room(self, now_ms: int) -> None:
        for replica, progress in list(self.replicas.items()):
            if now_ms - progress.fetched_ms > OBSERVER_SESSION_MS:
                del self.replicas[replica]
        while len(self.replicas) >= OBSERVERS_MAX:
            del self.replicas[min(self.replicas, key=lambda key: self.replicas[key].fetched_ms)]

    def of(self, replica: ReplicaKey) -> Progress:
        return self.replicas.get(replica) or Progress(fetched_ms=self.began_ms)

    def rename(self, voters: VoterSet) -> None:
        """Voters that were known by their ids alone have directories from now on."""
        for key in voters.keys:
            progress = self.replicas.pop(ReplicaKey(key.id), None)
            if progress is not None:
                self.replicas[key] = progress

    def committed(self, voters: VoterSet, synced_offset: Offset) -> Offset | None:
        """What a majority has synced; None before an entry of this epoch is among it."""
        own = voters.key_of(self.own)
        offsets = sorted(
            synced_offset if key == own else self.of(key).offset for key in voters.keys
        )
        offset = offsets[len(offsets) - voters.majority]
        return offset if offset > self.start_offset else None

    def lost_at_ms(self, voters: VoterSet, check_quorum_ms: int) -> int | None:
        """When too few voters will have fetched for too long; None for a leader that needs none."""
        own = voters.key_of(self.own)
        needed = voters.majority - (own is not None)
        if needed == 0:
            return None
        others = [self.of(key).fetched_ms for key in voters.keys if key != own]
        return sorted(others)[len(others) - needed] + check_quorum_ms

    def successors(self, voters: VoterSet) -> tuple[ReplicaKey, ...]:
        """The other voters, the one with the longest log first."""
        others = [key for key in voters.keys if key != voters.key_of(self.own)]
        return tuple(sorted(others, key=lambda key: -self.of(key).offset))
