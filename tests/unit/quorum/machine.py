"""The shell of a node as it is meant: one event at a time, each decision before the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random as Chance
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.errors import ErrorCode
from ottla.quorum import decisions as do
from ottla.quorum import events as on
from ottla.quorum.quorum import Quorum
from ottla.quorum.roles import Role
from ottla.quorum.state import QuorumState
from ottla.quorum.times import Times
from ottla.quorum.voters import ReplicaKey, Voter, VoterHistory, VoterSet
from ottla.types import NO_OFFSET, NodeId, Offset
from unit.quorum.model_log import Entry, ModelLog

if TYPE_CHECKING:
    from unit.quorum.world import World

CLUSTER_ID = "the-cluster"
TIMES = Times(
    election_timeout_ms=30,
    fetch_timeout_ms=80,
    election_backoff_max_ms=30,
    request_timeout_ms=50,
    retry_backoff_ms=5,
)
IDLE_FETCH_MS = 20
Reply = Callable[[on.Event, object], None]


class FetchOf(NamedTuple):
    """Fetch as it is on the wire."""

    replica: ReplicaKey
    epoch: int
    offset: Offset
    last_epoch: int


class ModelRandom:
    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def bytes(self, count: int) -> bytes:
        return self._chance.randbytes(count)

    def below(self, bound: int) -> int:
        return int(self._chance.random() * bound)


class Machine:
    """A node on a disk that forgets what was not synced."""

    def __init__(self, world: World, node_id: int, directory_id: bytes, first: VoterSet) -> None:
        self.world = world
        self.chance = world.chance
        self.id = NodeId(node_id)
        self.key = ReplicaKey(self.id, directory_id)
        self.first_voters = first
        self.log = ModelLog()
        self.state = QuorumState()
        self.quorum: Quorum | None = None
        self.answers: dict[int, ErrorCode] = {}
        self.fetches_unsynced = False
        self.sync_ms_max = world.chance.choice((2, 5, 60))
        self._forget()

    def _forget(self) -> None:
        self.life = getattr(self, "life", 0) + 1
        self.inbox: deque[tuple[Any, Any, Any]] = deque()
        self.is_busy = False
        self.source: do.Follow | do.Seek | do.Hold | None = None
        self.fetch_number = 0
        self.wake_number = 0
        self._todo: deque[do.Decision] = deque()
        self._current: tuple[on.Event, Any, Any] | None = None
        self.committed = self.mark = 0

    @property
    def name(self) -> str:
        """Of the node with this disk."""
        return f"node {self.id} (disk {int.from_bytes(self.key.directory_id[:2], 'big')})"

    # Lives

    def start(self) -> None:
        voters = VoterHistory(self.first_voters, can_change=True)
        for offset, entry in enumerate(self.log.entries):
            if entry.voters is not None:
                voters.append(Offset(offset), entry.voters)
        own = Voter(self.key)
        random = ModelRandom(self.chance)
        self.quorum = Quorum(own, CLUSTER_ID, voters, self.state, TIMES, random)
        self.hand_in(on.Started())
        self.world.history.starts(self.name, self.quorum.epoch)

    def crash(self) -> None:
        """A Save under way may have reached the disk, and so may a part of the log."""
        save = self._todo[0] if self.is_busy else None
        if isinstance(save, do.Save) and self.chance.random() < 0.5:
            self.state = save.state
        self.log.cut(self.chance.randint(self.log.synced, len(self.log)))
        self.log.synced = len(self.log)
        self.quorum = None
        self._forget()

    def wipe(self, directory_id: bytes) -> None:
        """Another disk, empty."""
        self.crash()
        self.key = ReplicaKey(self.id, directory_id)
        self.log, self.state = ModelLog(), QuorumState()

    def later(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Unless the node has died meanwhile."""
        life = self.life
        self.world.at(delay_ms, lambda: call() if self.life == life else None)

    # Events and decisions

    def hand_in(self, event: Any, reply: Reply | None = None, cargo: object = None) -> None:
        if self.quorum is not None:
            self.inbox.append((event, reply, cargo))
            self._work()

    def _work(self) -> None:
        while not self.is_busy and self.inbox and self.quorum is not None:
            self._current = self._opened(*self.inbox.popleft())
            decisions = self.quorum.handle(self._current[0], self.log.end, self.world.now_ms)
            self._todo = deque(decisions)
            self._carry_on()

    def _opened(self, event: Any, reply: Any, cargo: Any) -> tuple[on.Event, Any, Any]:
        """What our log knows of the offset of a fetch goes in with it, as it is at this moment."""
        if not isinstance(event, FetchOf):
            return event, reply, cargo
        matches = self.log.matches(event.offset, event.last_epoch)
        asked = on.FetchAsked(event.replica, event.epoch, event.offset, matches, CLUSTER_ID)
        return asked, reply, event.last_epoch

    def _carry_on(self) -> None:
        while self._todo:
            decision = self._todo[0]
            if isinstance(decision, do.Save):
                self.is_busy = True
                self.later(self.chance.randint(1, 4), self._saved)
                return
            self._todo.popleft()
            CARRY_OUT[type(decision)](self, decision)

    def _saved(self) -> None:
        save = self._todo.popleft()
        assert isinstance(save, do.Save)
        assert save.state.leader_epoch >= self.state.leader_epoch
        self.state = save.state
        self.is_busy = False
        self._carry_on()
        self._work()

    def _ask(self, peer: ReplicaKey, epoch: int, event: on.Event, then: Reply) -> None:
        self.world.history.says(self.name, epoch)
        self.world.send(self, peer.id, event, then)

    def _ask_vote(self, ask: do.AskVote) -> None:
        def answered(answer: Any, _cargo: object) -> None:
            event = on.VoteAnswered(
                peer=ask.peer.id,
                asked_epoch=ask.epoch,
                pre_vote=ask.pre_vote,
                error=answer.error,
                epoch=answer.epoch,
                leader_id=answer.leader_id,
                granted=answer.granted,
            )
            self.hand_in(event)

        event = on.VoteAsked(
            ask.epoch,
            self.key,
            ask.last_epoch,
            ask.last_offset,
            ask.pre_vote,
            ask.peer,
            CLUSTER_ID,
        )
        self._ask(ask.peer, ask.epoch, event, answered)

    def _acknowledged(self, peer: ReplicaKey) -> Reply:
        def answered(answer: Any, _cargo: object) -> None:
            ack = on.Acknowledged(peer.id, answer.error, answer.epoch, answer.leader_id)
            self.hand_in(ack)

        return answered

    def _announce(self, announce: do.AnnounceEpoch) -> None:
        event = on.EpochBegun(announce.epoch, self.id, (), announce.peer, CLUSTER_ID)
        self._ask(announce.peer, announce.epoch, event, self._acknowledged(announce.peer))

    def _end_epoch(self, end: do.EndEpoch) -> None:
        event = on.EpochEnded(end.epoch, self.id, end.successors, (), CLUSTER_ID)
        self._ask(end.peer, end.epoch, event, self._acknowledged(end.peer))

    def _answer(self, answer: do.Answer) -> None:
        assert self._current is not None
        event, reply, last_epoch = self._current
        self.world.history.says(self.name, answer.epoch)
        is_fetch = isinstance(event, on.FetchAsked) and answer.error is ErrorCode.NONE
        reply(answer, self._records_for(event, last_epoch) if is_fetch else None)

    def _answer_change(self, answer: do.AnswerChange) -> None:
        self.answers[answer.ticket] = answer.error

    def _wake_at(self, wake: do.WakeAt) -> None:
        self.wake_number += 1
        number = self.wake_number

        def wake_up() -> None:
            if number == self.wake_number:
                self.hand_in(on.TimePassed())

        self.later(max(0, wake.at_ms - self.world.now_ms), wake_up)

    # Leading

    def _lead(self, lead: do.Lead) -> None:
        assert lead.start_offset == len(self.log)
        self.world.history.leads(self.name, lead.epoch, self.log)
        self._append([Entry(lead.epoch, ("leader", self.id))])
        self.world.on_lead(self)

    def _step_down(self, _step: do.StepDown) -> None:
        assert self.quorum is not None

    def _append_voters(self, append: do.AppendVoters) -> None:
        assert self.quorum is not None
        self._append([Entry(self.quorum.epoch, "voters", append.voters)])

    def write(self, value: object) -> None:
        if self.leads:
            assert self.quorum is not None
            self._append([Entry(self.quorum.epoch, value)])

    @property
    def leads(self) -> bool:
        return self.quorum is not None and self.quorum.role is Role.LEADER and not self.is_busy

    def _append(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.log.entries.append(entry)
            if entry.voters is not None:
                offset = Offset(len(self.log) - 1)
                self.inbox.appendleft((on.VotersAppended(offset, entry.voters), None, None))
        end = len(self.log)
        self.later(self.chance.randint(1, self.sync_ms_max), lambda: self._synced(end))

    def _synced(self, end: int) -> None:
        self.log.synced = max(self.log.synced, min(end, len(self.log)))
        self._show()
        self.hand_in(on.LogMoved())
        self._fetch()

    def _records_for(self, event: on.FetchAsked, last_epoch: int) -> dict[str, Any]:
        assert self.quorum is not None
        mark = self.quorum.high_watermark
        content: dict[str, Any] = {"high_watermark": NO_OFFSET if mark is None else mark}
        if not event.matches:
            content["diverging"] = self.log.end_of_epoch(last_epoch)
            return content
        end = event.offset + self.world.entries_per_fetch
        content["entries"] = self.log.entries[event.offset : end]
        return content

    def _commit(self, commit: do.Commit) -> None:
        self.mark = commit.offset
        self._show()

    def _show(self) -> None:
        """As far as it is committed and on this disk."""
        self.committed = max(self.committed, min(self.mark, self.log.synced))
        self.world.history.commits(self.name, self.log, self.committed)

    # Following

    def _fetch_from(self, source: do.Follow | do.Seek | do.Hold) -> None:
        self.source = source
        self.fetch_number += 1
        self.later(1, self._fetch)

    def _fetch(self) -> None:
        """One request at a time, from the synced end."""
        is_synced = self.log.synced == len(self.log) or self.fetches_unsynced
        if self.quorum is None or not is_synced or isinstance(self.source, do.Hold | None):
            return
        self.fetch_number += 1
        number = self.fetch_number
        offset = Offset(len(self.log))
        last_epoch = self.log.epoch_before(offset)
        if isinstance(self.source, do.Follow):
            peer = self.source.leader_id
        else:
            peer = self.chance.choice(self.quorum.voters.keys).id

        def answered(answer: Any, cargo: Any) -> None:
            asked = (offset, last_epoch)
            self.hand_in(self._fetch_answer(asked, answer, cargo or {}), cargo=cargo)
            if number == self.fetch_number:
                is_urgent = self.fetches_unsynced or "diverging" in (cargo or {})
                self.later(1 if is_urgent else IDLE_FETCH_MS, again)

        def again() -> None:
            if number == self.fetch_number:
                self._fetch()

        event = FetchOf(self.key, self.quorum.epoch, offset, last_epoch)
        self.world.history.says(self.name, self.state.leader_epoch)
        self.world.send(self, peer, event, answered)
        self.later(TIMES.request_timeout_ms, again)

    def _fetch_answer(
        self, asked: tuple[Offset, int], answer: Any, cargo: dict[str, Any]
    ) -> on.Event:
        return on.FetchAnswered(
            asked_offset=asked[0],
            asked_last_epoch=asked[1],
            error=answer.error,
            epoch=answer.epoch,
            leader_id=answer.leader_id,
            high_watermark=cargo.get("high_watermark", NO_OFFSET),
            has_records=bool(cargo.get("entries")),
            diverging=cargo.get("diverging"),
        )

    def _truncate(self, truncate: do.Truncate) -> None:
        self.log.cut(self.log.cut_for(truncate.epoch, truncate.end_offset))
        self.inbox.appendleft((on.LogMoved(), None, None))

    def _take_records(self, _take: do.TakeRecords) -> None:
        assert self._current is not None
        self._append(self._current[2]["entries"])


CARRY_OUT: dict[type[do.Decision], Callable[[Machine, Any], None]] = {
    do.AskVote: Machine._ask_vote,
    do.AnnounceEpoch: Machine._announce,
    do.EndEpoch: Machine._end_epoch,
    do.Answer: Machine._answer,
    do.AnswerChange: Machine._answer_change,
    do.WakeAt: Machine._wake_at,
    do.Lead: Machine._lead,
    do.StepDown: Machine._step_down,
    do.AppendVoters: Machine._append_voters,
    do.Commit: Machine._commit,
    do.Follow: Machine._fetch_from,
    do.Seek: Machine._fetch_from,
    do.Hold: Machine._fetch_from,
    do.Truncate: Machine._truncate,
    do.TakeRecords: Machine._take_records,
}
