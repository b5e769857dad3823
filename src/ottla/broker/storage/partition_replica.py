"""A partition as one of several replicas: who leads, what is committed, and a follower's log.

A leader commits by a rule: what all in-sync replicas have, or for the metadata what a majority has.
A follower commits what its leader says is committed, as far as it has it itself.

High watermarks stand where writes of this node ended, so that a reader never meets half a batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.broker.storage.partition_writes import PartitionWrites
from ottla.broker.storage.waiters import PLENTY_BYTES, WriteWaiter, told
from ottla.cluster.replicas import ReplicaSet
from ottla.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
    StorageFailed,
)
from ottla.log.emptying import emptied
from ottla.log.log import Log, LogPosition
from ottla.types import NO_NODE, LeaderEpoch, NodeId, Offset, TopicPartition
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.storage.flusher import Flusher
    from ottla.broker.storage.partition_files import Home

logger = logging.getLogger(__name__)

# Ends of writes that are remembered until they are committed.
ENDS_MAX: Final = 1024


class CommitRule(Protocol):
    """By which a leader commits."""

    def durable(self, offset: Offset) -> Offset:
        """This node has all before `offset`, durably; what is committed by now, or NO_OFFSET."""


class PartitionReplica(PartitionWrites):
    __slots__ = (
        "_ends",
        "_epoch_start",
        "_in_sync_min",
        "_is_suspended",
        "_is_without_lease",
        "_lead_after_cut",
        "_leader_high_watermark",
        "_planned_end",
        "_replicas",
        "_rule",
        "is_in_sync",
        "is_leader",
        "leader_epoch",
        "leader_id",
        "node_id",
        "refills",
    )

    def __init__(
        self,
        name: TopicPartition,
        log: Log,
        flusher: Flusher,
        home: Home,
        node_id: NodeId,
        leader_epoch: LeaderEpoch,
        high_watermark: LogPosition | None,
    ) -> None:
        super().__init__(name, log, flusher, home)
        if high_watermark is not None:
            self.high_watermark = high_watermark
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.leader_id = NO_NODE
        self.is_leader = False
        # Whether the metadata counts this follower among those in sync.
        self.is_in_sync = True
        self._is_suspended = False
        self._is_without_lease = False
        self._alone = False
        self._rule: CommitRule | None = None
        self._replicas: ReplicaSet | None = None
        self._in_sync_min = 1
        self._ends: deque[LogPosition] = deque([log.written])
        self._epoch_start = 0
        self._leader_high_watermark = 0
        self._lead_after_cut: tuple[Any, ...] | None = None
        self._planned_end: int | None = None
        # How often it was copied anew after damage.
        self.refills = 0

    # ---------------------------------------------------------------------------------- roles

    def lead(
        self,
        epoch: LeaderEpoch,
        replicas: Collection[int],
        isr: Collection[int],
        partition_epoch: int,
        now_ms: int,
    ) -> None:
        """Leads under this epoch; under the one it leads already, with these replicas from now on.

        Whoever waits under an earlier epoch is told to ask the leader. That may be this node again,
        and what they sent may be in the log: they send it once more.
        """
        if self._is_cut_under_way and not self._is_paused:
            self._lead_after_cut = (epoch, replicas, isr, partition_epoch, now_ms)
            return
        assert epoch >= self.leader_epoch, f"{self.name}: leader epoch {epoch} is a past one"
        known = self._replicas if self.is_elected and epoch == self.leader_epoch else None
        if known is None:
            self._begin_leading(epoch)
            known = ReplicaSet(self.node_id, replicas, isr, partition_epoch, now_ms)
            self._replicas = known
        elif partition_epoch >= known.partition_epoch:
            # Else the metadata comes later than what the controller has answered since.
            before = known.isr
            known.decided(replicas, isr, partition_epoch, now_ms)
            self._count_isr(before, known.isr)
            self.waiters.have_news(self)
        self._alone = self._rule is None and known.replicas == {self.node_id}
        written = self._log.written
        if not self._alone and (not self._ends or self._ends[-1].offset < written.offset):
            self._ends.append(written)
        self._commit()
        self._tell_too_few()

    def _count_isr(self, before: frozenset[int], after: frozenset[int]) -> None:
        """Other replicas are in sync, under the same leader."""

    def _begin_leading(self, epoch: LeaderEpoch) -> None:
        self._change_role(epoch, self.node_id)
        self.is_leader = True
        self._log.start_epoch(epoch)
        self._epoch_start = self._log.end_offset

    def follow(self, epoch: LeaderEpoch, leader_id: NodeId, *, is_in_sync: bool = True) -> None:
        """Takes what this leader sends; NO_NODE: there is none just now."""
        assert epoch >= self.leader_epoch, f"{self.name}: leader epoch {epoch} is a past one"
        self._lead_after_cut = None
        if self.is_elected or epoch > self.leader_epoch:
            self._change_role(epoch, leader_id)
        self.leader_id = leader_id
        self.is_in_sync = is_in_sync

    def _change_role(self, epoch: LeaderEpoch, leader_id: NodeId) -> None:
        self.leader_epoch, self.leader_id = epoch, leader_id
        self.is_leader = self._is_suspended = self._alone = False
        self._replicas = None
        self._leader_high_watermark = 0
        self.waiters.fail_all(
            NotLeader(f"{self.name} is at leader epoch {epoch}, led by {leader_id}")
        )
        if not (self._log.fenced and leader_id == self.node_id):
            # A leader that is fenced opens its log again, and only then knows what to say.
            self.waiters.wake_fetches()

    @property
    def is_elected(self) -> bool:
        """Whether the metadata names this node as the leader; `is_leader` says that it may act."""
        return self.is_leader or self._is_suspended

    def suspend(self) -> None:
        """Without its lease this node may have been replaced, and would not know: it takes, tells
        and acknowledges nothing until `resume`, or until the metadata says more.
        """
        self._is_without_lease = True
        if not self.is_leader:
            return
        self.is_leader, self._is_suspended = False, True
        self.waiters.fail_all(NotLeader(f"{self.name}: this node has lost its controller"))
        self.waiters.wake_fetches()

    def resume(self) -> None:
        """Nobody else has led meanwhile."""
        self._is_without_lease = False
        if self._is_suspended:
            self.is_leader, self._is_suspended = True, False
            self._commit()

    def check_leader(self) -> None:
        if self.is_offline:
            raise StorageFailed(f"{self.name} is offline: {self.failure}")
        if not self.is_leader:
            raise NotLeader(f"{self.name} is led by node {self.leader_id}")

    def commit_by(self, rule: CommitRule) -> None:
        """From now on another rule than that of the in-sync replicas holds, whoever leads."""
        self._rule = rule
        self._alone = False

    # ------------------------------------------------------------------------- what is committed

    def _commit(self) -> None:
        """Something more is durable here, or at another replica."""
        log = self._log
        bound = log.synced if self.is_synced_eagerly else log.written
        if self._alone:
            if bound.offset > self.high_watermark.offset:
                self._advance(bound)
            return
        if not self.is_leader:
            committed = min(self._leader_high_watermark, bound.offset)
        elif self._rule is not None:
            committed = self._rule.durable(Offset(bound.offset))
        else:
            assert self._replicas is not None
            committed = self._replicas.committed(Offset(bound.offset), self._in_sync_min)
        self.commit_to(committed)

    def commit_to(self, offset: int) -> None:
        """All before `offset` is committed, as far as it is durable here. It never goes back."""
        if offset <= self.high_watermark.offset:
            return
        log = self._log
        bound = log.synced if self.is_synced_eagerly else log.written
        offset = min(offset, bound.offset)
        reached: LogPosition | None = None
        ends = self._ends
        while ends and ends[0].offset <= offset:
            reached = ends.popleft()
        if reached is not None and reached.offset > self.high_watermark.offset:
            self._advance(reached)

    def _note_end(self) -> None:
        """A write has ended: the high watermark may stand here one day."""
        ends, written = self._ends, self._log.written
        before = ends[-1] if ends else self.high_watermark
        ends.append(written)
        if len(ends) > ENDS_MAX:
            # The first and the last one stay: the next step, and all of it, can be committed.
            open_ends = [end for end in ends if end.offset > self.high_watermark.offset]
            self._ends = deque([*open_ends[:-1:2], written])
        is_same_segment = written.segment_base == before.segment_base
        grown = written.bytes_in_segment - before.bytes_in_segment
        self.waiters.written(self, grown if is_same_segment else PLENTY_BYTES)

    @property
    def has_min_isr(self) -> bool:
        """Whether enough replicas are in sync for acks=all."""
        replicas = self._replicas
        if replicas is None or self._alone:
            return True
        return len(replicas.isr) >= min(self._in_sync_min, len(replicas.replicas))

    def check_min_isr(self) -> None:
        if not self.has_min_isr:
            replicas = self._replicas
            in_sync = 0 if replicas is None else len(replicas.isr)
            raise NotEnoughReplicas(
                f"{self.name} has {in_sync} replicas in sync, min.insync.replicas="
                f"{self._in_sync_min}"
            )

    @property
    def is_end_known(self) -> bool:
        """A new leader knows what was committed before it when its followers have told (KIP-207).

        Until then the end that it could name may lie before one that consumers were told already.
        """
        # Asked for every fetch, so what is true of nearly all comes first.
        return self.high_watermark.offset >= self._epoch_start or not self.is_leader

    def check_end_known(self) -> None:
        if not self.is_end_known:
            raise OffsetNotAvailable(
                f"{self.name}: the high watermark is not known yet in leader epoch "
                f"{self.leader_epoch}"
            )

    def must_wait_for_end(self, offset: int) -> bool:
        """Whether a consumer that reads from `offset` on must not be told yet what is committed.

        With too few in sync nobody can say when the end will be known: what is certain is read.
        """
        if self.is_end_known:
            return False
        return self.has_min_isr or offset >= self.high_watermark.offset

    def _tell_too_few(self) -> None:
        """Who waits for acks=all need not wait any longer where too few are left to give it."""
        if not self.has_min_isr:
            self.waiters.fail_commits(
                NotEnoughReplicasAfterAppend(f"{self.name}: too few replicas are in sync by now")
            )

    def _in_sync_min_changed(self) -> None:
        if self.is_leader and not self._alone:
            self._commit()
            self._tell_too_few()

    # --------------------------------------------------------------------- a leader's followers

    @property
    def replicas(self) -> ReplicaSet | None:
        """What a leader knows of its replicas; None for a follower."""
        return self._replicas

    def fetched_by(
        self,
        replica: NodeId,
        broker_epoch: int,
        offset: int,
        now_ms: int,
        start_offset: int = 0,
    ) -> bool:
        """A replica has all before `offset`, durably; False when it is none, or of an earlier life.

        A fetch of an earlier leader epoch says nothing: the caller has compared them.
        """
        replicas = self._replicas
        if replicas is None or not replicas.fetched(
            replica,
            broker_epoch,
            Offset(offset),
            Offset(self._log.end_offset),
            now_ms,
            start_offset,
        ):
            return False
        self._commit()
        return True

    def lags(self) -> dict[int, int]:
        """By follower the messages that it has not copied yet, as far as its fetches tell; one
        that has not fetched from this leader had what was there when it began to lead.
        """
        replicas = self._replicas
        if replicas is None:
            return {}
        end_offset, start = self._log.end_offset, self._epoch_start
        return {
            follower: max(0, end_offset - (at.end_offset if at.end_offset >= 0 else start))
            for follower, at in replicas.progress().items()
        }

    def lags_ms(self, now_ms: int) -> dict[int, int]:
        """By follower for how long it has lacked something; 0 for one that lacks nothing."""
        replicas = self._replicas
        if replicas is None:
            return {}
        progress = replicas.progress()
        return {
            follower: max(0, now_ms - progress[follower].caught_up_ms) if lag else 0
            for follower, lag in self.lags().items()
        }

    @property
    def has_successors(self) -> bool:
        """Whether it leads, and another in-sync replica could."""
        replicas = self._replicas
        return self.is_leader and replicas is not None and len(replicas.isr) > 1

    def has_replica(self, replica: NodeId) -> bool:
        return self._replicas is not None and replica in self._replicas.replicas

    def is_misplaced(self, replica: NodeId) -> bool:
        """Whether a replica that has just fetched should be in sync, or no more."""
        replicas = self._replicas
        return replicas is not None and replicas.is_misplaced(replica, *self._in_sync_bounds)

    def wanted_isr(
        self, now_ms: int, lag_ms_max: int, lease_ms_max: int = 0
    ) -> frozenset[int] | None:
        """The in-sync replicas as they should be; None when there is nothing to ask for."""
        replicas = self._replicas
        if replicas is None or not self.is_leader:
            return None
        end_offset = Offset(self._log.end_offset)
        bounds = self._in_sync_bounds
        return replicas.proposal(end_offset, *bounds, now_ms, lag_ms_max, lease_ms_max)

    @property
    def _in_sync_bounds(self) -> tuple[Offset, Offset]:
        """What a replica must have to be in sync: all that is committed, and this epoch's start."""
        return Offset(self.high_watermark.offset), Offset(self._epoch_start)

    @property
    def written_offset(self) -> int:
        """Up to here a replica may read."""
        return self._log.written.offset

    def read_uncommitted(self, offset: int, max_bytes: int, *, cached_only: bool) -> Buffer | None:
        """As `read`, for replicas: up to the last batch that is written, empty ones included."""
        log = self._log
        return log.read(offset, max_bytes, log.written, cached_only=cached_only, with_empty=True)

    def divergence(self, last_epoch: int, offset: int) -> tuple[LeaderEpoch, int] | None:
        """Where the log of whoever fetches from `offset`, after a batch of `last_epoch`, parts
        from this one; None when it does not (KIP-595).
        """
        epoch, end_offset = self._log.end_offset_for_epoch(last_epoch)
        return (epoch, end_offset) if end_offset < offset or epoch < last_epoch else None

    # -------------------------------------------------------------------------- a follower's log

    def append_replicated(self, data: Buffer, now_ms: int) -> int:
        """Queues whole batches as the leader has them; returns how many bytes were taken."""
        assert not self.is_leader, f"{self.name}: a leader takes batches from nobody"
        assert not self._is_cut_under_way, f"{self.name} is being cut"
        if self.flusher.is_full:
            raise StorageFailed(f"{self.name}: too much waits for the disk already")
        taken = self._log.append_replicated(memoryview(data), self.leader_epoch, now_ms)
        if taken:
            self._queue_bytes(taken)
        return taken

    def wait_durable(self, waiter: WriteWaiter, item: Any) -> None:
        """`waiter` is told when all that is appended now is synced; or written, with
        write.caching. Only then may a follower ask for more: its fetch says that it has this.
        """
        log = self._log
        bound = log.synced if self.is_synced_eagerly else log.written
        if bound.offset >= log.end_offset:
            waiter.succeeded(item)
        elif log.fenced or self.is_retired:
            waiter.failed(item, StorageFailed(f"{self.name} takes no more writes"))
        else:
            self.waiters.durables.append((log.end_offset, waiter, item))

    @property
    def is_empty(self) -> bool:
        return self._log.start_offset == self._log.end_offset

    @property
    def synced_offset(self) -> int:
        """All before it is on stable storage here."""
        return self._log.synced.offset

    @property
    def is_all_synced(self) -> bool:
        return self._log.synced.offset >= self._log.end_offset

    @property
    def is_all_durable(self) -> bool:
        """Whether all that it has been given is as safe as its topic asks, and it takes more."""
        log = self._log
        bound = log.synced if self.is_synced_eagerly else log.written
        return bound.offset >= log.end_offset and not log.fenced

    @property
    def is_being_cut(self) -> bool:
        return self._is_cut_under_way

    def take_leader_high_watermark(self, offset: int) -> None:
        assert not self.is_leader, f"{self.name}: a leader has its own high watermark"
        self._leader_high_watermark = max(self._leader_high_watermark, offset)
        self._commit()

    @property
    def last_batch_epoch(self) -> LeaderEpoch:
        """What a follower's fetch says of its log, for the leader to compare."""
        return self._log.last_batch_epoch

    # ------------------------------------------------------------------------ cutting a log short

    @asynccontextmanager
    async def cutting(self) -> AsyncIterator[None]:
        """In here a thread may cut the log: nobody writes to it, syncs it or appends."""
        epoch = self.leader_epoch
        while not self.is_quiet:
            if self._log.fenced or self.is_retired:
                raise StorageFailed(f"{self.name} takes no more writes")
            await told(self.when_quiet)
        if self.is_elected or self.leader_epoch != epoch:
            # What the leader of another epoch does not have may be what this one has promised.
            raise NotLeader(f"{self.name} is at leader epoch {self.leader_epoch}, not at {epoch}")
        self._is_cut_under_way = True
        try:
            yield
        finally:
            self._is_cut_under_way = False
            self._planned_end = None
            self._was_cut()
            self._tell_not_busy()
            self.flusher.want_sync(self)
            lead, self._lead_after_cut = self._lead_after_cut, None
            if lead is not None:
                self.lead(*lead)
                if self._is_without_lease:
                    self.suspend()

    def plan_end(self, epoch: LeaderEpoch, end_offset: int) -> Offset:
        """Where this log parts from the leader's, in which `epoch` ends there. From here on the
        recovery point that is checkpointed lies no further.
        """
        offset = self._log.cut_for(epoch, end_offset)
        self._planned_end = offset
        return offset

    def plan_restart(self, offset: int) -> None:
        """As `plan_end`, for a log of which nothing stays."""
        self._planned_end = min(offset, self._log.start_offset)

    def truncate(self, offset: int, now_ms: int) -> None:
        """Blocking, while `cutting`, with the recovery point on disk."""
        self._log.truncate(offset, now_ms)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Blocking, while `cutting`, with the new start on disk: all goes, the log begins anew."""
        self._log.restart_at(offset, now_ms)

    def emptied_log(self, now_ms: int) -> Log:
        """Blocking, while `reopening`: a new log where the damaged one was."""
        return emptied(self._log, now_ms)

    def begin_anew(self, log: Log) -> None:
        """With a log that has nothing of what was damaged; whoever leads sends it again."""
        assert not self.is_elected, f"{self.name}: a leader has what nobody else may have"
        logger.warning("%s was damaged, and is copied anew", self.name)
        self._log = log
        self._home.doubt()
        self._failure = None
        self._planned_end = None
        self._queued_bytes = self._syncing_to = self._leader_high_watermark = 0
        self._ends = deque([log.written])
        self.high_watermark = log.written
        self.refills += 1
        self.waiters.went_back(self)

    def _was_cut(self) -> None:
        log = self._log
        self._ends = deque(end for end in self._ends if end.offset < log.written.offset)
        self._ends.append(log.written)
        if log.written.offset < log.end_offset:
            # It came to nothing: what was queued before still is.
            self._queue()
        else:
            self._queued_bytes = 0
        if log.end_offset < self.high_watermark.offset or (
            self.high_watermark.offset < log.start_offset
        ):
            # Only an unclean election, or a leader that has deleted all we had, leads here.
            is_lost = log.end_offset < self.high_watermark.offset
            logger.log(
                logging.ERROR if is_lost else logging.INFO,
                "%s: committed up to %d, it is now [%d, %d)",
                self.name,
                self.high_watermark.offset,
                log.start_offset,
                log.end_offset,
            )
            self.high_watermark = log.written
        self._leader_high_watermark = min(self._leader_high_watermark, log.end_offset)
        self._syncing_to = min(self._syncing_to, log.end_offset)
        self._end_went_back(NotLeader(f"{self.name} was cut to {log.end_offset}"))

    @property
    def recovery_point(self) -> int:
        """Up to here a start after a crash takes everything for synced."""
        point = self._log.recovery_point
        return point if self._planned_end is None else min(point, self._planned_end)

    def _replace_log(self, log: Log, now_ms: int) -> None:
        super()._replace_log(log, now_ms)
        self._ends = deque([log.written])
        if self.is_elected:
            log.start_epoch(self.leader_epoch)
            self._epoch_start = log.end_offset
            if self._replicas is not None:
                self._replicas.forget_progress()
        self._commit()
