"""What a leader knows of its replicas: who is in sync, how far each has come, what is committed.

A replica asks for an offset once everything before it is synced there, so a fetch is also the
report of what that replica can no longer lose. An offset is committed when all in-sync replicas
have it. The in-sync replicas are the controller's to decide: what the leader wishes to change is
*proposed* until the metadata says so. Meanwhile a replica that is to join already counts, and one
that is to leave still does: whichever answer comes, nothing was committed that it does not cover.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ottla.types import NO_OFFSET, NodeId, Offset

NO_BROKER_EPOCH = -1


@dataclass(slots=True)
class Progress:
    """What one follower has told by its fetches in this leader epoch."""

    end_offset: Offset = NO_OFFSET
    # Where its log begins.
    start_offset: int = 0
    broker_epoch: int = NO_BROKER_EPOCH
    fetched_ms: int = 0
    # Where the leader's log ended when the follower last asked.
    leader_end: Offset = NO_OFFSET
    caught_up_ms: int = 0


class ReplicaSet:
    """The replicas of one partition, as its leader sees them in one leader epoch."""

    __slots__ = ("_followers", "_proposed", "isr", "own", "partition_epoch", "replicas")

    def __init__(
        self,
        own: NodeId,
        replicas: Iterable[int],
        isr: Iterable[int],
        partition_epoch: int,
        now_ms: int,
    ) -> None:
        self.own = own
        self.replicas: frozenset[int] = frozenset()
        self.isr: frozenset[int] = frozenset()
        self.partition_epoch = partition_epoch
        self._proposed: frozenset[int] | None = None
        self._followers: dict[int, Progress] = {}
        self.decided(replicas, isr, partition_epoch, now_ms)

    def decided(
        self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int, now_ms: int
    ) -> None:
        """The metadata says who the replicas are, and which of them are in sync."""
        assert partition_epoch >= self.partition_epoch, "the metadata went back"
        if partition_epoch > self.partition_epoch:
            # The controller takes a proposal in one partition epoch only: that one is over. What
            # is said again of the same epoch says nothing of a proposal that was made in it.
            self._proposed = None
        self.replicas, self.isr = frozenset(replicas), frozenset(isr)
        self.partition_epoch = partition_epoch
        # Nobody lags before there was time to fetch.
        self._followers = {
            replica: self._followers.get(replica) or Progress(caught_up_ms=now_ms)
            for replica in sorted(self.replicas - {self.own})
        }

    # -------------------------------------------------------------------- what the fetches say

    def fetched(
        self,
        replica: int,
        broker_epoch: int,
        offset: Offset,
        leader_end: Offset,
        now_ms: int,
        start_offset: int = 0,
    ) -> bool:
        """A follower has all before `offset`; False when it is none, or of an earlier life."""
        progress = self._followers.get(replica)
        if progress is None or broker_epoch < progress.broker_epoch:
            return False
        if broker_epoch > progress.broker_epoch:
            # It was started anew: what it said before, it may have lost.
            progress.end_offset = progress.leader_end = NO_OFFSET
            progress.broker_epoch = broker_epoch
        if offset >= leader_end:
            progress.caught_up_ms = now_ms
        elif offset >= progress.leader_end >= 0:
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
        progress.end_offset = offset
        progress.start_offset = start_offset
        progress.leader_end = leader_end
        progress.fetched_ms = now_ms
        return True

    def forget_progress(self) -> None:
        """The leader's own log is another: what followers have of the one before says nothing."""
        for progress in self._followers.values():
            progress.end_offset = progress.leader_end = NO_OFFSET

    def committed(self, own_offset: Offset, in_sync_min: int) -> Offset:
        """What all in-sync replicas have; NO_OFFSET when that is unknown, or too few are in sync.

        With too few in sync nothing is committed, also not what was written with acks=1: only so
        may a replica that has left last be elected again (KIP-966).
        """
        if len(self.isr) < min(in_sync_min, len(self.replicas)):
            return NO_OFFSET
        offset = own_offset
        for replica in self._counted():
            if replica != self.own:
                offset = min(offset, self._followers[replica].end_offset)
        return offset

    def _counted(self) -> frozenset[int]:
        return self.isr if self._proposed is None else self.isr | self._proposed

    # ------------------------------------------------------------------------ who is in sync

    @property
    def is_proposing(self) -> bool:
        return self._proposed is not None

    def proposal(
        self,
        leader_end: Offset,
        committed: Offset,
        epoch_start: Offset,
        now_ms: int,
        lag_ms_max: int,
        lease_ms_max: int = 0,
    ) -> frozenset[int] | None:
        """The in-sync replicas as they should be; None when they are, or an answer is awaited.

        Who is to join must have all that is committed, and reach the beginning of this epoch.
        """
        # Idle partitions are not asked for in every round: who has all of it is caught up now.
        for progress in self._followers.values():
            if progress.end_offset == leader_end:
                progress.caught_up_ms = now_ms
        if self._proposed is not None:
            return None
        gone = self.lagging(leader_end, now_ms, lag_ms_max, lease_ms_max)
        gone |= self.forgetful(committed)
        wanted = (self.isr - gone) | self.joinable(Offset(max(committed, epoch_start)))
        return None if wanted == self.isr else wanted

    def lagging(
        self, leader_end: Offset, now_ms: int, lag_ms_max: int, lease_ms_max: int = 0
    ) -> frozenset[int]:
        """In-sync followers that have not been at the end of the log for too long.

        Who has not fetched from this leader at all may not know yet that it leads no more: what it
        lacks is committed only when its lease is over, or consumers would be told of less again.
        """
        unheard_ms_max = max(lag_ms_max, lease_ms_max)
        return frozenset(
            replica
            for replica, progress in self._followers.items()
            if replica in self.isr
            and progress.end_offset != leader_end
            and now_ms - progress.caught_up_ms
            > (unheard_ms_max if progress.end_offset == NO_OFFSET else lag_ms_max)
        )

    def forgetful(self, committed: Offset) -> frozenset[int]:
        """In-sync followers whose disk has lost what they had told of: they must not lead."""
        return frozenset(
            replica
            for replica, progress in self._followers.items()
            if replica in self.isr and 0 <= progress.end_offset < committed
        )

    def joinable(self, reached: Offset) -> frozenset[int]:
        """Whether they are still alive, and in the same life, is for the controller to know."""
        return frozenset(
            replica
            for replica, progress in self._followers.items()
            if replica not in self.isr and progress.end_offset >= reached
        )

    def is_misplaced(self, replica: int, committed: Offset, epoch_start: Offset) -> bool:
        """Whether what one follower has told is enough to ask for a change."""
        if self._proposed is not None and replica in self._counted():
            return False
        end_offset = self._followers[replica].end_offset
        if replica in self.isr:
            return 0 <= end_offset < committed
        return end_offset >= max(committed, epoch_start)

    def propose(self, isr: Collection[int]) -> None:
        """The controller is being asked; who is to join counts from now on."""
        assert self._proposed is None, "one proposal at a time"
        assert self.own in isr, "a leader stays in sync with itself"
        self._proposed = frozenset(isr)

    def withdraw(self) -> None:
        """No controller has made the change, nor will: things stay as the metadata has them."""
        self._proposed = None

    def broker_epoch(self, replica: int) -> int:
        """In which life the replica fetched last."""
        progress = self._followers.get(replica)
        return NO_BROKER_EPOCH if progress is None else progress.broker_epoch

    def progress(self) -> dict[int, Progress]:
        """By follower how far it has come, for metrics and status."""
        return self._followers
