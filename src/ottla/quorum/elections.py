"""Votes asked for, given, refused and counted (KIP-595, KIP-996)."""

from __future__ import annotations

from typing import Final

from ottla.errors import ErrorCode
from ottla.quorum.decisions import AskVote, Lead
from ottla.quorum.events import VoteAnswered, VoteAsked
from ottla.quorum.node import Node
from ottla.quorum.requests import check_epoch_request
from ottla.quorum.roles import Role
from ottla.quorum.voters import BEFORE_THE_LOG, ReplicaKey
from ottla.types import NO_NODE, Offset

BACKOFF_BASE_MS: Final = 100
PRE_VOTES_PER_ELECTION: Final = 4


def vote_asked(node: Node, event: VoteAsked) -> None:
    # A candidate has made its epoch, so nothing of it can be in a log; a prospective has not.
    epoch_before = event.epoch if event.pre_vote else event.epoch - 1
    if not (0 <= event.last_epoch <= epoch_before and event.last_offset >= 0):
        node.answer(ErrorCode.INVALID_REQUEST)
        return
    if not check_epoch_request(node, event.cluster_id, event.candidate.id, event.epoch):
        return
    if event.epoch > node.epoch:
        node.become_unattached(event.epoch)
    if event.voter is not None and not is_meant(node, event.voter):
        node.answer(ErrorCode.INVALID_VOTER_KEY)
        return
    is_complete = _is_complete(node, event)
    if event.pre_vote:
        node.answer(granted=is_complete and not _believes_in_its_leader(node))
        return
    granted = _grants(node, event.candidate, is_complete)
    if granted and node.vote is None:
        node.give_vote(event.candidate)
    node.answer(granted=granted)


def _is_complete(node: Node, event: VoteAsked) -> bool:
    """Whether the candidate's log has all that this voter knows of.

    A disk that was empty may have had more: until it has caught up with a leader it votes only
    where nobody has anything yet, as when a cluster begins.
    """
    if node.is_blank and not _is_beginning(event.last_epoch, event.last_offset):
        return False
    log = node.log
    return (event.last_epoch, event.last_offset) >= (log.last_epoch, log.end_offset)


def _is_beginning(last_epoch: int, end_offset: int) -> bool:
    """Whether a log has at most the entries with which its epochs were opened."""
    return end_offset <= last_epoch


def is_meant(node: Node, voter: ReplicaKey) -> bool:
    """Whether a request is for this node with the disk that it has."""
    own = node.own.key
    return voter.id == own.id and voter in (own, ReplicaKey(own.id))


def _believes_in_its_leader(node: Node) -> bool:
    return node.role is Role.LEADER or (node.role is Role.FOLLOWER and node.has_fetched)


def _grants(node: Node, candidate: ReplicaKey, is_complete: bool) -> bool:
    if node.role not in (Role.UNATTACHED, Role.VOTED, Role.PROSPECTIVE):
        return False
    if node.vote is not None:
        return node.vote == candidate
    return node.leader_id == NO_NODE and candidate.id != node.own.key.id and is_complete


def vote_answered(node: Node, event: VoteAnswered) -> None:
    node.learn(event.epoch, event.leader_id, event.endpoints)
    asks_now = Role.PROSPECTIVE if event.pre_vote else Role.CANDIDATE
    if node.role is not asks_now or event.asked_epoch != node.epoch:
        return
    if event.error is not ErrorCode.NONE and event.error is not ErrorCode.INVALID_VOTER_KEY:
        return
    assert node.ballot is not None
    node.ballot.record(event.peer, granted=event.granted and event.error is ErrorCode.NONE)
    if event.pre_vote and event.leader_id == event.peer == node.leader_id:
        # The leader that was thought dead has answered.
        node.become_follower(node.epoch, event.peer, node.leader_endpoints)
    elif node.ballot.is_won:
        (run if event.pre_vote else win)(node)
    elif node.ballot.is_lost:
        (stand_down if event.pre_vote else back_off)(node)
    elif event.granted or not event.pre_vote:
        node.calls.answered(event.peer)
    else:
        # It may lose its trust in the leader a moment after us.
        pause_ms = node.times.election_timeout_ms // PRE_VOTES_PER_ELECTION
        node.calls.repeat(event.peer, node.now_ms + pause_ms)


def ask_for_votes(node: Node, peers: list[ReplicaKey]) -> None:
    node.out.extend(
        AskVote(
            peer,
            node.epoch,
            node.role is Role.PROSPECTIVE,
            node.log.last_epoch,
            node.log.end_offset,
        )
        for peer in peers
    )


def stand(node: Node) -> None:
    """No leader for too long: ask whether we would be elected."""
    is_beginning = _is_beginning(node.log.last_epoch, node.log.end_offset)
    if not node.is_voter or (node.is_blank and not is_beginning):
        seek(node)
        return
    node.become_prospective()
    if node.ballot is not None and node.ballot.is_won:
        run(node)


def seek(node: Node) -> None:
    """An observer does not stand, nor does who has lost what it knew: it asks around who has won.

    It may be a voter that does not know it yet, so it must not trust the silent leader further.
    """
    node.is_seeking, node.has_fetched = True, False
    node.deadline_ms = node.now_ms + node.times.fetch_timeout_ms


def run(node: Node) -> None:
    """A majority would elect us: a new epoch, our own vote, and the real question."""
    node.become_candidate()
    if node.ballot is not None and node.ballot.is_won:
        win(node)


def win(node: Node) -> None:
    assert node.ballot is not None
    granting = node.ballot.granting
    leadership = node.become_leader()
    node.out.append(Lead(node.epoch, leadership.start_offset, node.voters.keys, granting))
    node.calls.begin(node.others, node.now_ms)
    _write_voters(node)


def _write_voters(node: Node) -> None:
    """The voters that no record tells yet, or with us somewhere else than the record says."""
    standing = node.history.last
    if not node.history.can_change:
        return
    if standing.offset == BEFORE_THE_LOG or is_moved(node):
        voters = standing.voters.updated(node.own) if is_moved(node) else standing.voters
        assert voters is not None
        node.append_voters(Offset(node.log.end_offset + 1), voters)


def is_moved(node: Node) -> bool:
    """Whether this voter listens somewhere else than its record says, as far as it knows where."""
    listed = node.voters.get(node.own.key.id)
    if listed is None or not node.is_voter:
        return False
    return bool(node.own.endpoints) and listed.endpoints != node.own.endpoints


def stand_down(node: Node) -> None:
    """We would not be elected: back to the leader, if there is one."""
    if node.leader_id != NO_NODE:
        node.become_follower(node.epoch, node.leader_id, node.leader_endpoints)
    elif node.vote is not None:
        node.give_vote(node.vote)
    else:
        node.become_unattached(node.epoch)


def back_off(node: Node) -> None:
    """An election is lost: wait a while that differs from node to node, and longer each time."""
    steps = node.random.below(2 ** min(node.elections, 20)) + 1
    pause_ms = min(BACKOFF_BASE_MS * steps, node.times.election_backoff_max_ms)
    node.deadline_ms = node.now_ms + pause_ms
    node.calls.begin((), node.now_ms)
