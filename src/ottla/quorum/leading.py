"""What a leader does: counts fetches, commits, keeps its voters, and resigns without them."""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.quorum import changes
from ottla.quorum.decisions import AnnounceEpoch, EndEpoch
from ottla.quorum.events import FetchAsked, ResignAsked
from ottla.quorum.node import Node
from ottla.quorum.requests import leader_error
from ottla.quorum.roles import Role
from ottla.quorum.voters import ReplicaKey


def fetch_asked(node: Node, event: FetchAsked) -> None:
    error = leader_error(node, event.cluster_id, event.epoch)
    if error is ErrorCode.NONE and (event.offset < 0 or event.replica.id == node.own.key.id):
        error = ErrorCode.INVALID_REQUEST
    if error is not ErrorCode.NONE:
        node.answer(error)
        return
    assert node.leadership is not None
    replica = node.voters.key_of(event.replica) or event.replica
    is_held = event.matches and event.offset <= node.log.end_offset
    node.leadership.fetched(
        replica, event.offset if is_held else None, node.log.end_offset, node.now_ms
    )
    node.calls.answered(replica.id)
    advance(node)
    # Resigning answers as well: whoever has removed itself is no leader any more.
    node.answer(leader_error(node, None, event.epoch))


def advance(node: Node) -> None:
    """Commits what a majority has synced by now."""
    if node.leadership is None:
        return
    offset = node.leadership.committed(node.voters, node.log.synced_offset)
    if offset is not None:
        node.commit(offset)
        _finish_change(node)


def _finish_change(node: Node) -> None:
    assert node.high_watermark is not None
    if node.change is not None and node.high_watermark > node.change.offset:
        node.answer_change(node.change.ticket, ErrorCode.NONE)
        node.change = None
    if not node.is_voter and node.history.last.offset < node.high_watermark:
        resign(node)


def look_after_epoch(node: Node) -> None:
    """Time has passed for a leader."""
    assert node.leadership is not None
    lost_ms = node.leadership.lost_at_ms(node.voters, node.times.check_quorum_ms)
    if lost_ms is not None and node.now_ms >= lost_ms:
        resign(node)
        return
    if node.change is not None and node.now_ms >= node.change.expires_ms:
        node.answer_change(node.change.ticket, ErrorCode.REQUEST_TIMED_OUT)
        node.change = None
    changes.keep_own_record(node)
    if node.now_ms >= node.leadership.announce_ms:
        node.leadership.announce_ms = node.now_ms + node.times.announce_ms
        for key in node.others:
            if node.now_ms - node.leadership.of(key).fetched_ms >= node.times.announce_ms:
                node.calls.add(key, node.now_ms)


def leader_wake_ms(node: Node) -> int:
    """When the leader has to look next."""
    assert node.leadership is not None
    lost_ms = node.leadership.lost_at_ms(node.voters, node.times.check_quorum_ms)
    expires_ms = None if node.change is None else node.change.expires_ms
    times = (node.leadership.announce_ms, lost_ms, expires_ms)
    return min(at_ms for at_ms in times if at_ms is not None)


def resign_asked(node: Node, _event: ResignAsked) -> None:
    if node.role is Role.LEADER:
        resign(node)


def resign(node: Node) -> None:
    assert node.leadership is not None
    node.become_resigned(node.leadership.successors(node.voters))


def announce(node: Node, peers: list[ReplicaKey]) -> None:
    node.out.extend(AnnounceEpoch(peer, node.epoch) for peer in peers)


def tell_the_end(node: Node, peers: list[ReplicaKey]) -> None:
    node.out.extend(EndEpoch(peer, node.epoch, node.successors) for peer in peers)


def leave_epoch(node: Node) -> None:
    """Nobody has followed a resigned leader: it may not vote in its old epoch, so go on."""
    node.become_unattached(node.epoch + 1)
