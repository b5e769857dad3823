"""This node in the quorum of the metadata log: what `ottla.quorum` decides is carried out here.

Events go in one at a time. Most decisions are carried out at once; one that has to wait (for the
disk, for a cut) holds up those after it, and all later events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.control.admission import Admission
from ottla.broker.control.confirmations import Confirmations
from ottla.broker.control.control_batches import leader_change_batch, voters_batch
from ottla.broker.control.quorum_voters import LISTENER
from ottla.broker.control.voter_changes import VoterChanges
from ottla.broker.control.voter_records import snapshot_voters, voters_in, voters_record
from ottla.broker.storage.partition import Partition
from ottla.cluster.snapshot_file import SnapshotId
from ottla.errors import NotController, OttlaError
from ottla.ports import Clock
from ottla.quorum.decisions import (
    AnnounceEpoch,
    Answer,
    AnswerChange,
    AppendVoters,
    AskUpdate,
    AskVote,
    BeginAfter,
    Commit,
    Decision,
    EndEpoch,
    Follow,
    Hold,
    Lead,
    Save,
    Seek,
    StepDown,
    TakeRecords,
    TakeSnapshot,
    Truncate,
    WakeAt,
)
from ottla.quorum.description import Description
from ottla.quorum.events import (
    Event,
    LogMoved,
    ResignAsked,
    Started,
    TimePassed,
    VotersAppended,
)
from ottla.quorum.node import LogEnd
from ottla.quorum.quorum import Quorum
from ottla.quorum.state import QuorumState
from ottla.quorum.voters import Endpoint, Voter, VoterSet
from ottla.types import NO_NODE, LeaderEpoch, NodeId, Offset
from ottla.wire.codec import MalformedMessage
from ottla.wire.records import read_header
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.control.doubles import Doubles
    from ottla.broker.control.metadata_fetcher import MetadataFetcher
    from ottla.broker.control.quorum_peers import QuorumPeers
    from ottla.broker.control.runtime import Runtime
    from ottla.broker.control.snapshots import MetadataSnapshots
    from ottla.broker.storage.truncation import Truncation
    from ottla.cluster.controller import Controller
    from ottla.cluster.snapshot_file import Snapshot

logger = logging.getLogger(__name__)

RESIGN_S_MAX: Final = 0.5


class Told(NamedTuple):
    """An event, what came with it, and who waits until all that follows from it is done."""

    event: Event
    records: Buffer
    done: asyncio.Future[Answer | None] | None


class MetadataQuorum:
    """Is the CommitRule of the metadata partition, and the `Leadership` that others ask."""

    doubles: Doubles

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        partition: Partition,
        make: Callable[[QuorumState], Quorum],
        state: QuorumState,
        save: Callable[[QuorumState], Awaitable[None]],
        snapshots: MetadataSnapshots,
        new_peers: Callable[[], QuorumPeers],
        give_up: Callable[[str], None],
    ) -> None:
        """The only voter speaks to nobody: it makes its peers when it gets some."""
        self._loop = loop
        self._clock = clock
        self.partition = partition
        self._make = make
        self._quorum = make(state)
        self._state = state
        self._save_state = save
        self.snapshots = snapshots
        # One that has come from the leader, until the log begins after it.
        self.fetched: Snapshot | None = None
        self._new_peers = new_peers
        self._peers: QuorumPeers | None = None
        self._fetcher: MetadataFetcher | None = None
        self._known_voters = self._quorum.voters
        self._give_up = give_up
        self._controller: Runtime[Controller] | None = None
        self._truncation: Truncation | None = None
        self._told: deque[Told] = deque()
        self._decisions: deque[Decision] = deque()
        self._current = Told(Started(), b"", None)
        self._answer: Answer | None = None
        self._is_busy = False
        self._is_closed = False
        self._waiting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._committed = Offset(partition.high_watermark.offset)
        self._known = (NO_NODE, -1)
        self._listeners: list[Callable[[], None]] = []
        self._own_endpoint: Endpoint | None = None
        self.admission = Admission(
            partition.node_id, clock, lambda: self._quorum, self.address_of, self._addresses
        )
        self.changes = VoterChanges(loop, partition.node_id, self.tell)
        if self.has_others:
            self._reach()
        self.confirmations = Confirmations(self._other_voters, partition.waiters.wake_fetches)
        partition.commit_by(self)

    def _reach(self) -> QuorumPeers:
        """The others, as soon as there may be some."""
        if self._peers is None:
            from ottla.broker.control.metadata_fetcher import MetadataFetcher

            peers = self._peers = self._new_peers()
            peers.own = self._quorum.own
            peers.on_stranger = self.admission.meet_stranger
            self._fetcher = MetadataFetcher(self._loop, self, peers)
            peers.set_voters(self._quorum.voters)
        return self._peers

    # ---------------------------------------------------------------------------- being asked

    @property
    def node_id(self) -> NodeId:
        return self.partition.node_id

    @property
    def leader_id(self) -> NodeId:
        return self._quorum.leader_id

    @property
    def leader_epoch(self) -> int:
        return self._quorum.epoch

    @property
    def is_leader(self) -> bool:
        return self.partition.is_leader

    @property
    def own(self) -> Voter:
        return self._quorum.own

    @property
    def listener_name(self) -> str:
        """By which the voters know each other's endpoints."""
        endpoints = self._quorum.own.endpoints
        return endpoints[0].name if endpoints else LISTENER

    @property
    def voters(self) -> VoterSet:
        """As the log has them, committed or not."""
        return self._quorum.voters

    @property
    def kraft_version(self) -> int:
        """1 where the voters are records in the log, 0 where they are a setting."""
        return int(self._quorum.can_change)

    def voters_at(self, end_offset: int) -> VoterSet | None:
        return self._quorum.voters_at(end_offset)

    def forget_voters_before(self, offset: int) -> None:
        self._quorum.forget_voters_before(offset)

    def _other_voters(self) -> list[int]:
        return [voter.key.id for voter in self._quorum.voters if voter.key.id != self.node_id]

    @property
    def voter_ids(self) -> set[int]:
        return {key.id for key in self._quorum.voters.keys}

    @property
    def has_others(self) -> bool:
        """Whether anybody else has a say; the only voter may still be followed."""
        return not (self._quorum.is_voter and len(self._quorum.voters) == 1)

    def _addresses(self) -> str:
        return "" if self._peers is None else self._peers.addresses()

    def address_of(self, node_id: NodeId) -> str | None:
        """Where the quorum's requests to this node go; None when nobody has said."""
        return None if self._peers is None else self._peers.address_of(node_id)

    def endpoint_of(self, node_id: NodeId) -> Endpoint | None:
        known = None if self._peers is None else self._peers.endpoint_of(node_id)
        return self._own_endpoint if known is None and node_id == self.node_id else known

    def serves_at(self, name: str, host: str, port: int) -> None:
        """Where others find this node, as far as no list of voters says so."""
        self._own_endpoint = Endpoint(name, host, port)
        if self._quorum.can_change or not self._quorum.own.endpoints:
            self._quorum.listens_at((self._own_endpoint,))
            if self._peers is not None:
                self._peers.own = self._quorum.own
            if self._known[1] >= 0:
                self.tell(TimePassed())

    def on_leader_change(self, callback: Callable[[], None]) -> None:
        """Told when another node leads, under another epoch, or nobody does."""
        self._listeners.append(callback)

    @property
    def high_watermark(self) -> int:
        """As the leader tells it; -1 before it has committed anything in its epoch."""
        return -1 if self._quorum.high_watermark is None else self._quorum.high_watermark

    def describe(self) -> Description:
        return self._quorum.describe(self.log_end(), self._clock.now().steady_ms)

    def log_end(self) -> LogEnd:
        partition = self.partition
        last_epoch = partition.last_batch_epoch
        if last_epoch < 0:
            # Nothing is in the log but what the snapshot stands for, if there is one.
            last_epoch = self.snapshots.newest_id.epoch
        return LogEnd(Offset(partition.end_offset), last_epoch, Offset(partition.synced_offset))

    # ---------------------------------------------------------------------- starting, stopping

    def run_for(self, controller: Runtime[Controller]) -> None:
        """From now on this decides when this node leads, and hears of what is committed."""
        self._controller = controller
        if not self.partition.is_leader:
            controller.stop_leading(NotController("another node is the controller"))

    def cut_with(self, truncation: Truncation) -> None:
        self._truncation = truncation

    async def start(self) -> None:
        """Returns when a saved epoch is taken up; the only voter leads then."""
        await self.ask(Started())

    def log_renewed(self) -> None:
        """The log was opened anew after a failed sync, and may have lost what was not synced."""
        if self.has_others:
            self.tell(LogMoved())
        else:
            # As after a start: nobody has to be waited for, and the old epoch must not go on.
            self._quorum = self._make(self._state)
            if self._own_endpoint is not None:
                self._quorum.listens_at((self._own_endpoint,))
            self.tell(Started())

    async def resign(self) -> None:
        """Returns when this node does not lead any more."""
        if self._is_closed:
            return
        await self.ask(ResignAsked())
        if self._peers is not None:
            await self._peers.all_answered(RESIGN_S_MAX)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._fetcher is not None:
            self._fetcher.stop()
        if self._peers is not None:
            self._peers.close()
        self.changes.close()
        for told in self._told:
            if told.done is not None and not told.done.done():
                told.done.set_exception(NotController("this node stops"))
        self._told.clear()

    # --------------------------------------------------------------------- events and decisions

    def tell(self, event: Event, records: Buffer = b"") -> None:
        self._take(Told(event, records, None))

    async def ask(self, event: Event, records: Buffer = b"") -> Answer | None:
        """Returns when all that follows from the event is done, with the answer if it has one."""
        done: asyncio.Future[Answer | None] = self._loop.create_future()
        self._take(Told(event, records, done))
        return await done

    async def answer(self, event: Event) -> Answer:
        """To a request of another voter; what it rests on is saved by then."""
        answer = await self.ask(event)
        assert answer is not None, f"{event} has no answer"
        return answer

    def _take(self, told: Told) -> None:
        if self._is_closed:
            if told.done is not None:
                told.done.set_exception(NotController("this node stops"))
            return
        self._told.append(told)
        if not self._is_busy:
            self._is_busy = True
            self._go_on()

    def _go_on(self) -> None:
        """Until there is nothing to do, or something to wait for."""
        try:
            while not self._is_closed:
                if self._decisions:
                    waits = self._carry_out(self._decisions.popleft())
                    if waits is not None:
                        self._waiting = self._loop.create_task(self._wait(waits))
                        return
                elif self._told:
                    self._current, self._answer = self._told.popleft(), None
                    now_ms = self._clock.now().steady_ms
                    self._decisions.extend(
                        self._quorum.handle(self._current.event, self.log_end(), now_ms)
                    )
                    if self._quorum.voters is not self._known_voters:
                        self._meet_voters()
                if not self._decisions:
                    self._finish()
                    if not self._told:
                        break
        except Exception as error:
            self._break(error)
        self._is_busy = False

    def _finish(self) -> None:
        done = self._current.done
        if done is not None and not done.done():
            done.set_result(self._answer)
        known = (self._quorum.leader_id, self._quorum.epoch)
        if known != self._known:
            self._known = known
            for listener in self._listeners:
                listener()

    def _meet_voters(self) -> None:
        """Others vote from now on, or somewhere else: by a record, or because one was cut off."""
        voters, before = self._quorum.voters, self._known_voters
        self._known_voters = voters
        if self.has_others or self._peers is not None:
            self._reach().set_voters(voters)
        if voters.keys != before.keys and (len(voters) > 1 or len(before) > 1):
            ids = ", ".join(str(key.id) for key in voters.keys)
            logger.info("the voters of the metadata log are %s", ids)

    async def _wait(self, waits: Awaitable[object]) -> None:
        try:
            await waits
        except Exception as error:
            self._break(error)
        else:
            if not self._decisions:
                self._finish()
            self._go_on()

    def _break(self, error: Exception) -> None:
        """What rests on a decision that could not be carried out must not happen."""
        logger.error("the metadata quorum cannot go on", exc_info=error)
        self._decisions.clear()
        self.confirmations.lost()
        self.close()
        if self.partition.is_leader and self._controller is not None:
            self._controller.stop_leading(NotController("the metadata quorum is broken here"))
        done = self._current.done
        if done is not None and not done.done():
            done.set_exception(error)
        self._give_up(f"the metadata quorum cannot go on: {error}")

    def _carry_out(self, decision: Decision) -> Awaitable[object] | None:
        waits: Awaitable[object] | None = _CARRIED_OUT[type(decision)](self, decision)
        return waits

    # ------------------------------------------------------------------------- each decision

    def _save(self, decision: Save) -> Awaitable[object]:
        self._state = decision.state
        return self._save_state(decision.state)

    def _lead(self, decision: Lead) -> None:
        now, voters = self._clock.now(), [key.id for key in decision.voters]
        partition = self.partition
        if self.has_others:
            logger.info("this node leads the metadata log under epoch %d", decision.epoch)
        partition.lead(LeaderEpoch(decision.epoch), voters, voters, 0, now.steady_ms)
        granting = [key.id for key in decision.granting]
        batch = memoryview(leader_change_batch(self.node_id, voters, granting, now.wall_ms))
        try:
            appended = partition.append_own(batch, read_header(batch), now.wall_ms)
        except (OttlaError, OSError) as error:
            self.failed(decision.epoch, error)
            return
        assert appended.base_offset == decision.start_offset, "the epoch begins somewhere else"
        partition.wait_durable(self, decision.epoch)
        if self._controller is not None:
            self._controller.start_leading().add_done_callback(self._became_ready)

    # As the WriteWaiter of what a leader writes for the quorum itself.

    def succeeded(self, epoch: int) -> None:
        """It is on disk here; when it is committed, the quorum says."""

    def failed(self, epoch: int, error: Exception) -> None:
        """A leader that cannot write would be followed in silence: another one may do better."""
        if self.is_leader and self._quorum.epoch == epoch and self.has_others:
            logger.error("the metadata log cannot be led: %s", error)
            # After this turn: whoever tells may be in the middle of a change of roles.
            self._loop.call_soon(self.tell, ResignAsked())

    def _append_voters(self, decision: AppendVoters) -> None:
        now_ms, partition = self._clock.now().wall_ms, self.partition
        record = voters_record(decision.voters)
        batch = memoryview(voters_batch(record, now_ms, is_first=decision.is_first))
        header = read_header(batch)
        try:
            appended = partition.append_own(batch, header, now_ms)
        except (OttlaError, OSError) as error:
            self.failed(self._quorum.epoch, error)
            return
        partition.wait_durable(self, self._quorum.epoch)
        offset = Offset(appended.base_offset + header.count - 1)
        self._told.appendleft(Told(VotersAppended(offset, decision.voters), b"", None))

    def _step_down(self, decision: StepDown) -> None:
        if self.has_others:
            logger.info("this node leads the metadata log no more, epoch %d", decision.epoch)
        self.confirmations.lost()
        if self._controller is not None:
            self._controller.stop_leading(NotController("another node is the controller now"))
        self.partition.follow(LeaderEpoch(max(decision.epoch, self._quorum.epoch)), NO_NODE)

    def _follow(self, decision: Follow) -> None:
        self.partition.follow(LeaderEpoch(decision.epoch), decision.leader_id)
        self._reach().learn(decision.leader_id, decision.endpoints)
        assert self._fetcher is not None
        self._fetcher.fetch_from(decision.leader_id, decision.epoch)

    def _seek(self, decision: Seek) -> None:
        self.partition.follow(LeaderEpoch(decision.epoch), NO_NODE)
        if self._fetcher is not None:
            self._fetcher.fetch_from(NO_NODE, decision.epoch)

    def _hold(self, decision: Hold) -> None:
        if self._fetcher is not None:
            self._fetcher.stop()
        if not self.partition.is_leader:
            self.partition.follow(LeaderEpoch(decision.epoch), NO_NODE)

    def _truncate(self, decision: Truncate) -> Awaitable[object]:
        assert self._truncation is not None
        epoch = LeaderEpoch(decision.epoch)
        logger.info(
            "the metadata log parts from its leader's: epoch %d ends there at offset %d",
            decision.epoch,
            decision.end_offset,
        )
        return self._truncation.truncate_to(self.partition, epoch, decision.end_offset)

    def _take_records(self, decision: TakeRecords) -> None:
        partition, now_ms = self.partition, self._clock.now().wall_ms
        try:
            found = list(voters_in(self._current.records))
            taken = partition.append_replicated(self._current.records, now_ms)
        except (OttlaError, MalformedMessage, OSError) as error:
            # It is fetched again.
            logger.error("what the leader of the metadata log has sent is not taken: %s", error)
            return
        partition.metrics.bytes_in += taken
        for offset, voters in reversed(found):
            if offset < partition.end_offset:
                self._told.appendleft(Told(VotersAppended(offset, voters), b"", None))

    def _take_snapshot(self, decision: TakeSnapshot) -> None:
        assert self._fetcher is not None
        id = SnapshotId(decision.end_offset, LeaderEpoch(decision.epoch))
        logger.info("the metadata before offset %d is fetched as a snapshot", id.end_offset)
        self._fetcher.take_snapshot(id)

    async def _begin_after(self, decision: BeginAfter) -> None:
        """The snapshot is durable under its name before the log that it stands for goes."""
        snapshot, self.fetched = self.fetched, None
        assert self._truncation is not None
        assert snapshot is not None
        assert (snapshot.end_offset, snapshot.id.epoch) == (decision.end_offset, decision.epoch)
        await self.snapshots.adopt(snapshot)
        await self._truncation.restart_at(self.partition, decision.end_offset)
        self._committed = max(self._committed, snapshot.end_offset)
        self._told.appendleft(Told(LogMoved(), b"", None))
        told = snapshot_voters(snapshot)
        if told is not None:
            self._told.appendleft(Told(VotersAppended(*told), b"", None))
        self._advance()

    def _commit(self, decision: Commit) -> None:
        self._committed = max(self._committed, decision.offset)
        self._advance()
        if self.partition.is_leader:
            # A majority may have synced what this node has not: the others need not wait for it.
            self.partition.waiters.arrived(self.partition, 0)

    def _advance(self) -> None:
        """Commits what is committed, as far as it is synced here."""
        self.partition.commit_to(self._committed)
        if self._controller is not None and not self.partition.is_leader:
            self._controller.tell_committed()

    def _keep_answer(self, decision: Answer) -> None:
        self._answer = decision

    def _wake_at(self, decision: WakeAt) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(0, decision.at_ms - self._clock.now().steady_ms)
        self._timer = self._loop.call_later(delay_ms / 1000, self.tell, TimePassed())

    def _send(self, decision: AskVote | AnnounceEpoch | EndEpoch | AskUpdate) -> None:
        self._reach().send(decision, self.tell)

    def _answer_change(self, decision: AnswerChange) -> None:
        self.changes.answered(decision)

    # ------------------------------------------------------------------------ as the commit rule

    def durable(self, offset: Offset) -> Offset:
        """The leader has synced more."""
        self.tell(LogMoved())
        return self._committed

    # ------------------------------------------------------------------ told by the follower's loop

    def synced(self) -> None:
        """A follower has synced what it took."""
        self.tell(LogMoved())
        self._advance()

    def caught_up(self) -> None:
        """All that the leader said to be committed is known here."""
        told = None if self._controller is None else self._controller.tell_committed()
        if told is None:
            self.admission.let_in()
        else:
            told.add_done_callback(self._became_ready)

    def _became_ready(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.admission.let_in()


_CARRIED_OUT: Final[Mapping[type[Decision], Callable[[MetadataQuorum, Any], Any]]] = {
    Save: MetadataQuorum._save,
    Lead: MetadataQuorum._lead,
    StepDown: MetadataQuorum._step_down,
    Follow: MetadataQuorum._follow,
    Seek: MetadataQuorum._seek,
    Hold: MetadataQuorum._hold,
    Truncate: MetadataQuorum._truncate,
    TakeRecords: MetadataQuorum._take_records,
    TakeSnapshot: MetadataQuorum._take_snapshot,
    BeginAfter: MetadataQuorum._begin_after,
    Commit: MetadataQuorum._commit,
    Answer: MetadataQuorum._keep_answer,
    WakeAt: MetadataQuorum._wake_at,
    AskVote: MetadataQuorum._send,
    AnnounceEpoch: MetadataQuorum._send,
    EndEpoch: MetadataQuorum._send,
    AskUpdate: MetadataQuorum._send,
    AppendVoters: MetadataQuorum._append_voters,
    AnswerChange: MetadataQuorum._answer_change,
}
