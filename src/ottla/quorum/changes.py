"""Voters added, removed and moved, one at a time (KIP-853).

Two sets of voters of which one has one voter more always have a voter in every pair of majorities
in common; with two changes under way they need not. So a change waits for the one before it, and
for an entry of the leader's own epoch, after which no older change can come back.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ottla.errors import ErrorCode
from ottla.quorum.elections import is_moved
from ottla.quorum.events import AddVoterAsked, RemoveVoterAsked, UpdateVoterAsked, UpgradeAsked
from ottla.quorum.node import Change, Node
from ottla.quorum.requests import leader_error
from ottla.quorum.state import NO_DIRECTORY_ID
from ottla.quorum.voters import ReplicaKey, Voter, VoterSet

Refusal: TypeAlias = tuple[ErrorCode, str | None]
FINE: Final[Refusal] = (ErrorCode.NONE, None)


def add_voter_asked(node: Node, event: AddVoterAsked) -> None:
    error, message = _refusal(node, event.cluster_id, node.epoch, event.voter.key)
    if error is ErrorCode.NONE:
        error, message = _refusal_to_add(node, event.voter)
    if error is not ErrorCode.NONE or event.validate_only:
        node.answer_change(event.ticket, error, message)
        return
    voters = node.voters.with_voter(event.voter)
    _append(node, voters, event.ticket, event.timeout_ms, waits=event.wait_for_commit)
    node.calls.add(event.voter.key, node.now_ms)


def remove_voter_asked(node: Node, event: RemoveVoterAsked) -> None:
    error, message = _refusal(node, event.cluster_id, node.epoch, event.voter)
    if error is ErrorCode.NONE:
        error, message = _refusal_to_remove(node, event.voter)
    if error is not ErrorCode.NONE:
        node.answer_change(event.ticket, error, message)
        return
    voters = node.voters.without(event.voter.id)
    node.calls.answered(event.voter.id)
    _append(node, voters, event.ticket, node.times.request_timeout_ms, waits=True)


def update_voter_asked(node: Node, event: UpdateVoterAsked) -> None:
    if not node.history.can_change:
        node.answer_change(event.ticket, *_note_told(node, event))
        return
    error, message = _refusal(node, event.cluster_id, event.epoch, event.voter.key)
    voters = node.voters.updated(event.voter)
    if error is ErrorCode.NONE and voters is None:
        error, message = ErrorCode.VOTER_NOT_FOUND, f"{event.voter.key.id} is no voter"
    if error is ErrorCode.NONE and not _speaks_ours(event.voter):
        error, message = ErrorCode.INVALID_REQUEST, "kraft.version 1 is not supported"
    if error is not ErrorCode.NONE or voters is None:
        node.answer_change(event.ticket, error, message)
        return
    if voters == node.voters:
        node.answer_change(event.ticket, ErrorCode.NONE)
        return
    _append(node, voters, event.ticket, node.times.request_timeout_ms, waits=False)


def _note_told(node: Node, event: UpdateVoterAsked) -> Refusal:
    """Where the voters are a setting it is kept for the day when they become records."""
    error = leader_error(node, event.cluster_id, event.epoch)
    if error is not ErrorCode.NONE:
        return error, None
    if node.voters.key_of(event.voter.key) is None:
        return ErrorCode.VOTER_NOT_FOUND, f"{event.voter.key.id} is no voter"
    assert node.leadership is not None
    node.leadership.told[event.voter.key.id] = event.voter
    return FINE


def upgrade_asked(node: Node, event: UpgradeAsked) -> None:
    """The same voters, each with its disk from now on: kraft.version 0 becomes 1."""
    error, message = _refusal_now(node, None, node.epoch)
    voters = node.voters
    if error is ErrorCode.NONE and not node.history.can_change:
        voters, message = _with_directories(node)
        error = ErrorCode.NONE if message is None else ErrorCode.INVALID_UPDATE_VERSION
    if error is not ErrorCode.NONE or event.validate_only or node.history.can_change:
        node.answer_change(event.ticket, error, message)
        return
    assert node.leadership is not None
    node.leadership.rename(voters)
    _append(node, voters, event.ticket, event.timeout_ms, waits=True)


def _with_directories(node: Node) -> tuple[VoterSet, str | None]:
    """The voters of the setting as they have told of themselves, or why they are not known."""
    assert node.leadership is not None
    known = {**node.leadership.told, node.own.key.id: node.own}
    found: list[Voter] = []
    for listed in node.voters:
        told = known.get(listed.key.id)
        if told is None:
            return node.voters, f"voter {listed.key.id} has not told which kraft.version it knows"
        if not _speaks_ours(told):
            return node.voters, f"voter {listed.key.id} does not know kraft.version 1"
        found.append(
            Voter(
                told.key,
                told.endpoints or listed.endpoints,
                told.kraft_version_min,
                told.kraft_version_max,
            )
        )
    return VoterSet(found), None


def keep_own_record(node: Node) -> None:
    """A leader that listens somewhere else than its record says puts it right itself."""
    if is_moved(node) and _refusal(node, None, node.epoch, node.own.key) == FINE:
        voters = node.voters.updated(node.own)
        assert voters is not None
        node.append_voters(node.log.end_offset, voters)


def _refusal(node: Node, cluster_id: str | None, epoch: int, voter: ReplicaKey) -> Refusal:
    """Why this change of the voters cannot be made now, whatever it is."""
    error, message = _refusal_now(node, cluster_id, epoch)
    if error is not ErrorCode.NONE:
        return error, message
    if voter.id < 0 or voter.directory_id == NO_DIRECTORY_ID:
        return ErrorCode.INVALID_REQUEST, "the voter has no id or no directory id"
    if not node.history.can_change:
        return ErrorCode.UNSUPPORTED_VERSION, "kraft.version is 0: the voters are a setting"
    return FINE


def _refusal_now(node: Node, cluster_id: str | None, epoch: int) -> Refusal:
    """Why no change can be made now."""
    error = leader_error(node, cluster_id, epoch)
    if error is not ErrorCode.NONE:
        return error, None
    if node.change is not None:
        return ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is under way"
    if node.high_watermark is None:
        return ErrorCode.REQUEST_TIMED_OUT, "the leader has not committed anything in its epoch yet"
    if node.history.last.offset >= node.high_watermark:
        return ErrorCode.REQUEST_TIMED_OUT, "the change of the voters before is not committed yet"
    return FINE


def _refusal_to_add(node: Node, voter: Voter) -> Refusal:
    assert node.leadership is not None
    if node.voters.get(voter.key.id) is not None:
        return ErrorCode.DUPLICATE_VOTER, f"{voter.key.id} is a voter already"
    if not _speaks_ours(voter):
        return ErrorCode.INVALID_REQUEST, f"{voter.key.id} does not support kraft.version 1"
    progress = node.leadership.of(voter.key)
    is_alive = node.now_ms - progress.fetched_ms < node.times.check_quorum_ms
    if progress.caught_up_ms < 0 or not is_alive:
        return ErrorCode.REQUEST_TIMED_OUT, f"{voter.key.id} has not caught up with the leader"
    return FINE


def _refusal_to_remove(node: Node, voter: ReplicaKey) -> Refusal:
    if node.voters.key_of(voter) is None:
        return ErrorCode.VOTER_NOT_FOUND, f"{voter.id} with this directory is no voter"
    if len(node.voters) == 1:
        return ErrorCode.INVALID_REQUEST, f"{voter.id} is the only voter"
    assert node.leadership is not None
    left = node.voters.without(voter.id)
    lost_ms = node.leadership.lost_at_ms(left, node.times.check_quorum_ms)
    if lost_ms is not None and node.now_ms >= lost_ms:
        return ErrorCode.REQUEST_TIMED_OUT, "no majority of the voters that would be left is heard"
    return FINE


def _speaks_ours(voter: Voter) -> bool:
    return voter.kraft_version_min <= 1 <= voter.kraft_version_max


def _append(node: Node, voters: VoterSet, ticket: int, timeout_ms: int, *, waits: bool) -> None:
    offset = node.log.end_offset
    node.append_voters(offset, voters)
    if waits:
        node.change = Change(ticket, offset, node.now_ms + timeout_ms)
    else:
        node.answer_change(ticket, ErrorCode.NONE)
