"""The state of one node in the quorum, and its moves from role to role.

Whatever must be remembered is compared with what was saved when a call ends, so that a Save comes
before everything that rests on it, whichever way led there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.errors import ErrorCode
from ottla.ports import Random
from ottla.quorum.ballot import Ballot
from ottla.quorum.calls import Calls
from ottla.quorum.decisions import (
    Answer,
    AnswerChange,
    AppendVoters,
    Commit,
    Decision,
    Follow,
    Hold,
    Save,
    Seek,
    StepDown,
    WakeAt,
)
from ottla.quorum.progress import Leadership
from ottla.quorum.roles import NEXT, NEXT_EPOCH, Role
from ottla.quorum.state import NO_DIRECTORY_ID, QuorumState
from ottla.quorum.times import Times
from ottla.quorum.values import Value
from ottla.quorum.voters import (
    BEFORE_THE_LOG,
    Endpoint,
    ReplicaKey,
    Voter,
    VoterHistory,
    VoterSet,
)
from ottla.types import NO_NODE, NodeId, Offset


class BrokenQuorum(Exception):
    """Two leaders of one epoch, or a cut below what is committed: this node must stop."""


class LogEnd(Value):
    """Where the local log ends; `last_epoch` is that of its last batch, 0 without one."""

    end_offset: Offset
    last_epoch: int
    synced_offset: Offset


@dataclass(slots=True)
class Change:
    """A change of the voters that is not committed yet, and who waits for it."""

    ticket: int
    offset: Offset
    expires_ms: int


@dataclass(slots=True)
class Node:
    own: Voter
    cluster_id: str
    times: Times
    random: Random
    history: VoterHistory
    saved: QuorumState

    role: Role = Role.UNATTACHED
    epoch: int = 0
    leader_id: NodeId = NO_NODE
    leader_endpoints: tuple[Endpoint, ...] = ()
    vote: ReplicaKey | None = None
    # The disk was empty, and nothing tells whether it was so before (kraft.version 0).
    is_blank: bool = False
    high_watermark: Offset | None = None
    # When the role has lasted too long: an election, a leader's silence.
    deadline_ms: int | None = None
    elections: int = 0
    ballot: Ballot | None = None
    leadership: Leadership | None = None
    change: Change | None = None
    successors: tuple[ReplicaKey, ...] = ()
    # Whether the leader has answered a fetch since it is followed: then it is believed to live.
    has_fetched: bool = False
    is_seeking: bool = False
    # When to tell the leader again where this voter is, and of which epoch the leader knows it.
    update_ms: int = 0
    told_epoch: int = -1

    now_ms: int = 0
    log: LogEnd = field(default=LogEnd(Offset(0), 0, Offset(0)))
    out: list[Decision] = field(default_factory=list)
    calls: Calls = field(init=False)
    _led_epoch: int | None = None
    _fetching: Follow | Seek | Hold | None = None
    _wake_ms: int | None = None

    def __post_init__(self) -> None:
        self.calls = Calls(self.times)

    @property
    def voters(self) -> VoterSet:
        return self.history.last.voters

    @property
    def is_voter(self) -> bool:
        return self.voters.key_of(self.own.key) is not None

    @property
    def others(self) -> list[ReplicaKey]:
        return [key for key in self.voters.keys if key.id != self.own.key.id]

    @property
    def state(self) -> QuorumState:
        """What must not be forgotten."""
        vote = self.vote or ReplicaKey(NO_NODE, NO_DIRECTORY_ID)
        return QuorumState(self.leader_id, self.epoch, vote.id, vote.directory_id, self.is_blank)

    def election_timeout_ms(self) -> int:
        least = self.times.election_timeout_ms
        return least + self.random.below(max(least, 1))

    def first_timeout_ms(self) -> int:
        """After a start. Where nobody has led yet, as far as we know, it need not be long: others
        that know of a leader refuse their pre-votes.
        """
        least = self.times.first_election_ms
        if least is None or self.epoch or self.vote is not None or self.log.end_offset:
            return self.election_timeout_ms()
        return least + self.random.below(max(least, 1))

    # The moves. Each leaves nothing of the role before it.

    def _become(self, role: Role, epoch: int, leader_id: NodeId, timeout_ms: int | None) -> None:
        allowed = NEXT if epoch == self.epoch else NEXT_EPOCH
        assert epoch >= self.epoch, f"epoch {epoch} after {self.epoch}"
        assert role in allowed[self.role], f"{role} after {self.role}, epoch {epoch}"
        if epoch > self.epoch:
            self.vote = None
        if self.leadership is not None:
            self._leave_leadership()
        self.role, self.epoch, self.leader_id = role, epoch, leader_id
        self.leader_endpoints = ()
        self.deadline_ms = None if timeout_ms is None else self.now_ms + timeout_ms
        self.ballot = None
        self.has_fetched = self.is_seeking = False
        self.calls.begin((), self.now_ms)

    def _leave_leadership(self) -> None:
        self.leadership = None
        if self.change is not None:
            self.answer_change(self.change.ticket, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.change = None

    def become_unattached(self, epoch: int) -> None:
        self._become(Role.UNATTACHED, epoch, NO_NODE, self.election_timeout_ms())

    def give_vote(self, candidate: ReplicaKey) -> None:
        self._become(Role.VOTED, self.epoch, NO_NODE, self.election_timeout_ms())
        self.vote = candidate
        self.elections = 0

    def become_follower(
        self, epoch: int, leader_id: NodeId, endpoints: tuple[Endpoint, ...]
    ) -> None:
        self._become(Role.FOLLOWER, epoch, leader_id, self.times.fetch_timeout_ms)
        self.leader_endpoints = endpoints
        self.elections = 0

    def become_prospective(self) -> None:
        endpoints = self.leader_endpoints
        timeout_ms = self.election_timeout_ms()
        self._become(Role.PROSPECTIVE, self.epoch, self.leader_id, timeout_ms)
        self.leader_endpoints = endpoints
        self._open_ballot()

    def become_candidate(self) -> None:
        timeout_ms = self.election_timeout_ms()
        self._become(Role.CANDIDATE, self.epoch + 1, NO_NODE, timeout_ms)
        self.vote = self.own.key
        self.elections += 1
        self._open_ballot()

    def _open_ballot(self) -> None:
        self.ballot = Ballot(self.voters, self.own.key)
        self.calls.begin(self.others, self.now_ms)

    def become_leader(self) -> Leadership:
        self._become(Role.LEADER, self.epoch, self.own.key.id, None)
        self.elections = 0
        self.is_blank = False
        # The mark of another leader may be ahead of what this one can vouch for.
        self.high_watermark = None
        self.leadership = Leadership(self.own.key, self.log.end_offset, self.now_ms)
        return self.leadership

    def become_resigned(self, successors: tuple[ReplicaKey, ...]) -> None:
        timeout_ms = self.election_timeout_ms()
        self._become(Role.RESIGNED, self.epoch, self.own.key.id, timeout_ms)
        self.successors = successors
        self.calls.begin(self.others, self.now_ms)

    def learn(self, epoch: int, leader_id: NodeId, endpoints: tuple[Endpoint, ...] = ()) -> None:
        """Somebody has spoken of an epoch and perhaps of its leader."""
        if leader_id == self.own.key.id:
            leader_id = NO_NODE
        if epoch > self.epoch and leader_id == NO_NODE:
            self.become_unattached(epoch)
        elif epoch > self.epoch:
            self.become_follower(epoch, leader_id, endpoints)
        elif epoch == self.epoch and leader_id != NO_NODE:
            if self.leader_id == NO_NODE:
                self.become_follower(epoch, leader_id, endpoints)
            elif self.leader_id != leader_id:
                raise BrokenQuorum(f"epoch {epoch} is led by {self.leader_id} and by {leader_id}")
            elif self.role is Role.FOLLOWER and (self.is_seeking or not self.leader_endpoints):
                self.is_seeking = False
                self.leader_endpoints = endpoints or self.leader_endpoints

    # What goes out.

    def answer(self, error: ErrorCode = ErrorCode.NONE, *, granted: bool = False) -> None:
        self.out.append(Answer(error, self.epoch, self.leader_id, granted))

    def answer_change(self, ticket: int, error: ErrorCode, message: str | None = None) -> None:
        self.out.append(AnswerChange(ticket, error, message))

    def commit(self, offset: Offset) -> None:
        if self.high_watermark is None or offset > self.high_watermark:
            self.high_watermark = offset
            self.out.append(Commit(offset))

    def append_voters(self, offset: Offset, voters: VoterSet) -> None:
        """They count from here on, also for the commit of their own record."""
        is_first = self.history.last.offset == BEFORE_THE_LOG
        self.out.append(AppendVoters(voters, is_first))
        self.history.append(offset, voters)

    def begin_call(self, log: LogEnd, now_ms: int) -> None:
        self.now_ms, self.log, self.out = now_ms, log, []
        self._led_epoch = self.epoch if self.role is Role.LEADER else None
        if self.role is not Role.LEADER:
            self.history.cut(log.end_offset)

    def end_call(self, wake_ms: int | None) -> list[Decision]:
        first: list[Decision] = []
        if self._led_epoch is not None and (self.role, self.epoch) != (
            Role.LEADER,
            self._led_epoch,
        ):
            first.append(StepDown(self._led_epoch))
        if self.state != self.saved:
            self.saved = self.state
            first.append(Save(self.saved))
        source = self._source()
        if source != self._fetching:
            self._fetching = source
            self.out.append(source)
        if wake_ms is not None and self._wakes_too_late(wake_ms):
            self._wake_ms = wake_ms
            self.out.append(WakeAt(wake_ms))
        return first + self.out

    def _source(self) -> Follow | Seek | Hold:
        """Whom to fetch from now."""
        if self.role is Role.FOLLOWER and not self.is_seeking:
            return Follow(self.epoch, self.leader_id, self.leader_endpoints)
        if self.role in (Role.FOLLOWER, Role.UNATTACHED, Role.VOTED):
            return Seek(self.epoch)
        return Hold(self.epoch)

    def _wakes_too_late(self, wake_ms: int) -> bool:
        # Deadlines move with every fetch: waking too early is cheaper than a timer each time.
        return self._wake_ms is None or self._wake_ms <= self.now_ms or wake_ms < self._wake_ms
