"""A leader's word: its epoch begins and ends, and its log is fetched."""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.quorum.decisions import AskUpdate, BeginAfter, TakeRecords, TakeSnapshot, Truncate
from ottla.quorum.elections import is_meant, is_moved
from ottla.quorum.events import (
    Acknowledged,
    EpochBegun,
    EpochEnded,
    FetchAnswered,
    LeaderUnreachable,
    SnapshotFetched,
    UpdateAnswered,
)
from ottla.quorum.node import BrokenQuorum, Node
from ottla.quorum.requests import check_epoch_request
from ottla.quorum.roles import Role
from ottla.types import Offset


def epoch_begun(node: Node, event: EpochBegun) -> None:
    if not check_epoch_request(node, event.cluster_id, event.leader_id, event.epoch):
        return
    node.learn(event.epoch, event.leader_id, event.endpoints)
    if event.voter is not None and not is_meant(node, event.voter):
        node.answer(ErrorCode.INVALID_VOTER_KEY)
        return
    node.answer()


def epoch_ended(node: Node, event: EpochEnded) -> None:
    if not check_epoch_request(node, event.cluster_id, event.leader_id, event.epoch):
        return
    node.learn(event.epoch, event.leader_id, event.endpoints)
    if node.role is Role.FOLLOWER and node.leader_id == event.leader_id:
        node.has_fetched = False
        node.deadline_ms = node.now_ms + _pause_before_standing_ms(node, event)
    node.answer()


def _pause_before_standing_ms(node: Node, event: EpochEnded) -> int:
    """The first successor stands at once; each next one waits twice as long as the one before."""
    longest_ms = node.times.election_backoff_max_ms
    if not event.successors:
        return node.random.below(longest_ms + 1)
    for position, successor in enumerate(event.successors):
        if is_meant(node, successor):
            if position == 0:
                return 0
            shortest_ms = longest_ms >> (len(event.successors) - 1)
            return min(longest_ms, shortest_ms << (position - 1))
    return longest_ms


def fetch_answered(node: Node, event: FetchAnswered) -> None:
    log = node.log
    node.learn(event.epoch, event.leader_id, event.endpoints)
    is_from_our_leader = (
        node.role is Role.FOLLOWER
        and event.error is ErrorCode.NONE
        and (event.epoch, event.leader_id) == (node.epoch, node.leader_id)
    )
    if not is_from_our_leader:
        return
    node.deadline_ms = node.now_ms + node.times.fetch_timeout_ms
    node.has_fetched = True
    # An answer that comes twice or late was meant for another end of this log.
    asked, end = (event.asked_offset, event.asked_last_epoch), (log.end_offset, log.last_epoch)
    if asked == end and log.synced_offset == log.end_offset:
        _take(node, event)
    _tell_where_we_are(node)


def _take(node: Node, event: FetchAnswered) -> None:
    if event.diverging is not None:
        epoch, end_offset = event.diverging
        if node.high_watermark is not None and end_offset < node.high_watermark:
            raise BrokenQuorum(f"cut at {end_offset}, but {node.high_watermark} is committed")
        node.out.append(Truncate(epoch, end_offset))
    elif event.snapshot is not None:
        _check_covers(node, event.snapshot[0])
        node.out.append(TakeSnapshot(*event.snapshot))
    else:
        if event.has_records:
            node.out.append(TakeRecords())
        if event.high_watermark >= 0:
            node.commit(event.high_watermark)
            if node.log.synced_offset >= event.high_watermark > 0:
                # Whatever an emptied disk had, as far as it counts it is here again.
                node.is_blank = False


def _check_covers(node: Node, end_offset: Offset) -> None:
    """A leader's snapshot reaches as far as whatever is committed here, or it is no leader's."""
    known = -1 if node.high_watermark is None else min(node.high_watermark, node.log.end_offset)
    if end_offset < known:
        raise BrokenQuorum(f"a snapshot up to {end_offset}, but {known} is committed")


def snapshot_fetched(node: Node, event: SnapshotFetched) -> None:
    """It may come late: another leader may have sent records meanwhile."""
    is_ours = (event.epoch, event.leader_id) == (node.epoch, node.leader_id)
    if node.role is Role.FOLLOWER and is_ours:
        _check_covers(node, event.end_offset)
        node.out.append(BeginAfter(event.end_offset, event.snapshot_epoch))


def leader_unreachable(node: Node, event: LeaderUnreachable) -> None:
    """Asks for an election soon. A leader that lives is protected by the others' pre-votes."""
    is_ours = (event.epoch, event.leader_id) == (node.epoch, node.leader_id)
    if node.role is Role.FOLLOWER and is_ours and node.is_voter:
        node.has_fetched = False
        soon_ms = node.now_ms + node.random.below(node.times.doubt_ms + 1)
        node.deadline_ms = min(soon_ms, node.deadline_ms or soon_ms)


def _tell_where_we_are(node: Node) -> None:
    """The record of a voter that has moved is put right by the leader.

    Where there is no record yet, the leader is told once: from what all have told it can make one.
    """
    is_known = not is_moved(node) if node.history.can_change else node.told_epoch == node.epoch
    if node.is_voter and not is_known and node.now_ms >= node.update_ms:
        node.update_ms = node.now_ms + node.times.fetch_timeout_ms
        node.out.append(AskUpdate(node.leader_id, node.epoch, node.own))


def update_answered(node: Node, event: UpdateAnswered) -> None:
    if event.error is ErrorCode.NONE and (event.leader_id, event.epoch) == (
        node.leader_id,
        node.epoch,
    ):
        node.told_epoch = event.epoch


def acknowledged(node: Node, event: Acknowledged) -> None:
    epoch = node.epoch
    node.learn(event.epoch, event.leader_id, event.endpoints)
    if event.epoch == epoch and event.error is ErrorCode.NONE:
        node.calls.answered(event.peer)
