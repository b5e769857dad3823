"""One node of a quorum on a stage: the test speaks for everybody else."""

from __future__ import annotations

from typing import TypeVar

from ottla.errors import ErrorCode
from ottla.quorum import decisions as do
from ottla.quorum import events as on
from ottla.quorum.node import LogEnd
from ottla.quorum.quorum import Quorum
from ottla.quorum.state import QuorumState
from ottla.quorum.times import Times
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from ottla.types import NO_NODE, NodeId, Offset

TIMES = Times()
D = TypeVar("D", bound=do.Decision)


def key(node_id: int, disk: int = 0) -> ReplicaKey:
    """The replica on its first disk, or on a later one."""
    return ReplicaKey(NodeId(node_id), bytes([disk + 1]) * 16)


def voter(node_id: int, port: int = 9093) -> Voter:
    return Voter(key(node_id), (Endpoint("CONTROLLER", f"host{node_id}", port),))


def voter_set(*ids: int) -> VoterSet:
    return VoterSet(voter(node_id) for node_id in ids)


class Fixed:
    """Chance that always says the same."""

    def bytes(self, count: int) -> bytes:
        return bytes(count)

    def below(self, _bound: int) -> int:
        return 0


class Stage:
    def __init__(
        self,
        own: Voter,
        voters: VoterSet,
        state: QuorumState | None = None,
        *,
        end: int = 0,
        last_epoch: int = 0,
        can_change: bool = True,
        times: Times = TIMES,
    ) -> None:
        history = VoterHistory(voters, can_change=can_change)
        self.now_ms = 1000
        self.log = LogEnd(Offset(end), last_epoch, Offset(end))
        self.quorum = Quorum(own, "c", history, state or QuorumState(), times, Fixed())

    def tell(self, event: on.Event) -> list[do.Decision]:
        """What the node decides, without the times at which it wants to be woken."""
        decisions = self.quorum.handle(event, self.log, self.now_ms)
        return [decision for decision in decisions if not isinstance(decision, do.WakeAt)]

    def start(self) -> list[do.Decision]:
        return self.tell(on.Started())

    def wait(self, duration_ms: int) -> list[do.Decision]:
        self.now_ms += duration_ms
        return self.tell(on.TimePassed())

    def grow(self, count: int, *, synced: bool = True) -> list[do.Decision]:
        end = Offset(self.log.end_offset + count)
        kept = end if synced else self.log.synced_offset
        self.log = LogEnd(end, self.quorum.epoch, kept)
        return self.tell(on.LogMoved())

    def sync(self) -> list[do.Decision]:
        self.log = LogEnd(self.log.end_offset, self.log.last_epoch, self.log.end_offset)
        return self.tell(on.LogMoved())

    def vote(self, peer: int, *, granted: bool = True, pre: bool = False) -> list[do.Decision]:
        return self.tell(
            on.VoteAnswered(
                peer=NodeId(peer),
                asked_epoch=self.quorum.epoch,
                pre_vote=pre,
                error=ErrorCode.NONE,
                epoch=self.quorum.epoch,
                leader_id=NO_NODE,
                granted=granted,
            )
        )

    def fetch(self, replica: ReplicaKey, offset: int, *, matches: bool = True) -> do.Answer:
        asked = on.FetchAsked(replica, self.quorum.epoch, Offset(offset), matches)
        return only(do.Answer, self.tell(asked))

    def fetched(
        self, leader: int, *, epoch: int | None = None, mark: int = -1
    ) -> list[do.Decision]:
        return self.tell(
            on.FetchAnswered(
                asked_offset=self.log.end_offset,
                asked_last_epoch=self.log.last_epoch,
                error=ErrorCode.NONE,
                epoch=self.quorum.epoch if epoch is None else epoch,
                leader_id=NodeId(leader),
                high_watermark=Offset(mark),
            )
        )

    def win(self) -> list[do.Decision]:
        """Wins an election of three with the voice of node 2, and has its first entry synced."""
        self.wait(TIMES.election_timeout_ms * 2)
        self.vote(2, pre=True)
        decisions = self.vote(2)
        self.grow(1)
        return decisions


def only(kind: type[D], decisions: list[do.Decision]) -> D:
    """The one decision of this kind."""
    (found,) = (decision for decision in decisions if isinstance(decision, kind))
    return found


def kinds(decisions: list[do.Decision]) -> list[type[do.Decision]]:
    return [type(decision) for decision in decisions]
