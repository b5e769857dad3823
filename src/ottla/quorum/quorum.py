"""One node of the metadata quorum: events in, decisions out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.ports import Random
from ottla.quorum import changes, elections, following, leading
from ottla.quorum.decisions import Decision
from ottla.quorum.description import Description, describe
from ottla.quorum.events import (
    Acknowledged,
    AddVoterAsked,
    EpochBegun,
    EpochEnded,
    Event,
    FetchAnswered,
    FetchAsked,
    LeaderUnreachable,
    LogMoved,
    RemoveVoterAsked,
    RequestFailed,
    ResignAsked,
    SnapshotFetched,
    Started,
    TimePassed,
    UpdateAnswered,
    UpdateVoterAsked,
    UpgradeAsked,
    VoteAnswered,
    VoteAsked,
    VotersAppended,
)
from ottla.quorum.node import LogEnd, Node
from ottla.quorum.roles import Role
from ottla.quorum.state import QuorumState
from ottla.quorum.times import Times
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from ottla.types import NO_NODE, NodeId, Offset


class Quorum:
    """See the package for how it is to be run."""

    def __init__(
        self,
        own: Voter,
        cluster_id: str,
        voters: VoterHistory,
        state: QuorumState,
        times: Times,
        random: Random,
    ) -> None:
        self._node = Node(own, cluster_id, times, random, voters, state)

    def handle(self, event: Event, log: LogEnd, now_ms: int) -> list[Decision]:
        """`log` is the local log at this moment, `now_ms` the steady clock."""
        node = self._node
        node.begin_call(log, now_ms)
        HANDLERS[type(event)](node, event)
        _pass_time(node)
        call = CALLS.get(node.role)
        if call is not None:
            call(node, node.calls.take_due(now_ms))
        return node.end_call(_wake_ms(node))

    @property
    def fetch_timeout_ms(self) -> int:
        return self._node.times.fetch_timeout_ms

    @property
    def role(self) -> Role:
        return self._node.role

    @property
    def epoch(self) -> int:
        return self._node.epoch

    @property
    def leader_id(self) -> NodeId:
        return self._node.leader_id

    @property
    def voters(self) -> VoterSet:
        """As the log has them, committed or not."""
        return self._node.voters

    @property
    def is_voter(self) -> bool:
        return self._node.is_voter

    @property
    def can_change(self) -> bool:
        """Whether the voters are records in the log (kraft.version 1), and not a setting."""
        return self._node.history.can_change

    def voters_at(self, end_offset: int) -> VoterSet | None:
        """Those of the log before this offset; None while they are a setting."""
        return self._node.history.at(end_offset)

    def forget_voters_before(self, offset: int) -> None:
        """A snapshot up to there is on disk, and tells them."""
        self._node.history.forget_before(offset)

    @property
    def own(self) -> Voter:
        return self._node.own

    def listens_at(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Where others find this node; its record is put right when time passes."""
        self._node.own = Voter(self._node.own.key, endpoints)

    @property
    def high_watermark(self) -> Offset | None:
        """None until a leader has committed something in its epoch, or has told."""
        return self._node.high_watermark

    def describe(self, log: LogEnd, now_ms: int) -> Description:
        """What DescribeQuorum tells; complete at the leader only."""
        return describe(self._node, log, now_ms)


def _start(node: Node, _event: Started) -> None:
    """Takes up the role that the saved state stands for."""
    state = node.saved
    node.epoch = state.leader_epoch
    node.leader_id = state.leader_id
    node.is_blank = state.is_blank or _may_have_forgotten(node)
    if state.voted_id != NO_NODE:
        node.vote = ReplicaKey(state.voted_id, state.voted_directory_id)
        node.role = Role.VOTED
    node.deadline_ms = node.now_ms + node.first_timeout_ms()
    if node.log.last_epoch > node.epoch:
        node.become_unattached(node.log.last_epoch)
    elif state.leader_id == node.own.key.id:
        # Another leader of this epoch there cannot be, and what we wrote in it may be lost.
        node.role = Role.RESIGNED
        node.calls.begin(node.others, node.now_ms)
    elif state.leader_id != NO_NODE:
        node.role = Role.FOLLOWER
        node.deadline_ms = node.now_ms + node.times.fetch_timeout_ms
    if node.is_voter and len(node.voters) == 1:
        _elect_the_only_voter(node)


def _may_have_forgotten(node: Node) -> bool:
    """An empty disk of a voter that is known by its id alone may be another than it was."""
    is_empty = node.saved == QuorumState() and not node.log.end_offset
    is_one_of_several = node.is_voter and len(node.voters) > 1
    return is_empty and is_one_of_several and not node.history.can_change


def _elect_the_only_voter(node: Node) -> None:
    """Nobody is there to be asked or waited for."""
    if node.role is Role.RESIGNED:
        # The epoch in between is never saved: the one that is won comes in the same call.
        node.role = Role.UNATTACHED
    elections.stand(node)


def _pass_time(node: Node) -> None:
    if node.role is Role.LEADER:
        leading.look_after_epoch(node)
    elif node.deadline_ms is not None and node.now_ms >= node.deadline_ms:
        EXPIRED[node.role](node)


def _wake_ms(node: Node) -> int | None:
    own_ms = leading.leader_wake_ms(node) if node.role is Role.LEADER else node.deadline_ms
    times = [at_ms for at_ms in (own_ms, node.calls.next_ms) if at_ms is not None]
    return min(times, default=None)


def _voters_appended(node: Node, event: VotersAppended) -> None:
    node.history.append(event.offset, event.voters)
    if node.change is not None and event.offset > node.change.offset:
        node.change.offset = event.offset
    leading.advance(node)


def _request_failed(node: Node, event: RequestFailed) -> None:
    node.calls.failed(event.peer, node.now_ms)


HANDLERS: Final[Mapping[type[Event], Callable[[Node, Any], None]]] = {
    Started: _start,
    TimePassed: lambda _node, _event: None,
    LogMoved: lambda node, _event: leading.advance(node),
    VotersAppended: _voters_appended,
    ResignAsked: leading.resign_asked,
    VoteAsked: elections.vote_asked,
    EpochBegun: following.epoch_begun,
    EpochEnded: following.epoch_ended,
    FetchAsked: leading.fetch_asked,
    VoteAnswered: elections.vote_answered,
    Acknowledged: following.acknowledged,
    RequestFailed: _request_failed,
    FetchAnswered: following.fetch_answered,
    SnapshotFetched: following.snapshot_fetched,
    LeaderUnreachable: following.leader_unreachable,
    AddVoterAsked: changes.add_voter_asked,
    RemoveVoterAsked: changes.remove_voter_asked,
    UpdateVoterAsked: changes.update_voter_asked,
    UpdateAnswered: following.update_answered,
    UpgradeAsked: changes.upgrade_asked,
}

# What becomes of a role that has lasted too long.
EXPIRED: Final[Mapping[Role, Callable[[Node], None]]] = {
    Role.UNATTACHED: elections.stand,
    Role.VOTED: elections.stand,
    Role.PROSPECTIVE: elections.stand_down,
    Role.CANDIDATE: elections.stand,
    Role.FOLLOWER: elections.stand,
    Role.RESIGNED: leading.leave_epoch,
}

# What a role sends to the voters that have not answered yet.
CALLS: Final[Mapping[Role, Callable[[Node, list[ReplicaKey]], None]]] = {
    Role.PROSPECTIVE: elections.ask_for_votes,
    Role.CANDIDATE: elections.ask_for_votes,
    Role.LEADER: leading.announce,
    Role.RESIGNED: leading.tell_the_end,
}
