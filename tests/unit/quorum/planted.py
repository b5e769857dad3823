"""Bugs to be planted into the quorum, one at a time: each must be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.quorum import changes, elections, following, leading, quorum
from ottla.quorum.ballot import Ballot
from ottla.quorum.decisions import Decision, Save
from ottla.quorum.events import (
    EpochBegun,
    EpochEnded,
    FetchAnswered,
    Started,
    VoteAnswered,
    VoteAsked,
)
from ottla.quorum.node import LogEnd, Node
from ottla.quorum.progress import Leadership
from ottla.quorum.roles import Role
from ottla.quorum.voters import ReplicaKey, VoterSet
from ottla.types import Offset
from unit.quorum.world import World

Plant = Callable[[pytest.MonkeyPatch], None]


def vote_before_its_save(patch: pytest.MonkeyPatch) -> None:
    honest = Node.end_call

    def end_call(node: Node, wake_ms: int | None) -> list[Decision]:
        decisions = honest(node, wake_ms)
        return sorted(decisions, key=lambda decision: isinstance(decision, Save))

    patch.setattr(Node, "end_call", end_call)


def second_vote_in_an_epoch(patch: pytest.MonkeyPatch) -> None:
    def grants(node: Node, candidate: ReplicaKey, is_complete: bool) -> bool:
        return is_complete and node.role in (Role.UNATTACHED, Role.VOTED, Role.PROSPECTIVE)

    patch.setattr(elections, "_grants", grants)


def vote_for_a_shorter_log(patch: pytest.MonkeyPatch) -> None:
    def vote_asked(node: Node, event: Any) -> None:
        log, node.log = node.log, LogEnd(Offset(0), 0, Offset(0))
        elections.vote_asked(node, event)
        node.log = log

    _handle(patch, VoteAsked, vote_asked)


def _handle(patch: pytest.MonkeyPatch, kind: type[Any], handler: Callable[..., None]) -> None:
    patch.setattr(quorum, "HANDLERS", {**quorum.HANDLERS, kind: handler})


def no_pre_vote(patch: pytest.MonkeyPatch) -> None:
    def stand(node: Node) -> None:
        if node.is_voter:
            node.become_prospective()
            elections.run(node)
        else:
            elections.seek(node)

    acts = quorum.EXPIRED.items()
    expired = {role: stand if act is elections.stand else act for role, act in acts}
    patch.setattr(quorum, "EXPIRED", expired)


def followers_that_grant_every_pre_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "_believes_in_its_leader", lambda node: False)


def commit_without_an_entry_of_the_own_epoch(patch: pytest.MonkeyPatch) -> None:
    honest = Leadership.committed

    def committed(leadership: Leadership, voters: VoterSet, synced: Offset) -> Offset | None:
        start, leadership.start_offset = leadership.start_offset, Offset(-1)
        offset = honest(leadership, voters, synced)
        leadership.start_offset = start
        return offset

    patch.setattr(Leadership, "committed", committed)


def leader_that_counts_what_it_has_not_synced(patch: pytest.MonkeyPatch) -> None:
    honest = leading.advance

    def advance(node: Node) -> None:
        log, node.log = node.log, _all_synced(node.log)
        honest(node)
        node.log = log

    patch.setattr(leading, "advance", advance)


def _all_synced(log: LogEnd) -> LogEnd:
    return LogEnd(log.end_offset, log.last_epoch, log.end_offset)


def fetch_of_what_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """Here it is the shell that errs; what would keep its answers out is taken away as well."""

    def fetch_answered(node: Node, event: Any) -> None:
        log, node.log = node.log, _all_synced(node.log)
        following.fetch_answered(node, event)
        node.log = log

    _handle(patch, FetchAnswered, fetch_answered)
    honest = World.start

    def start(world: World) -> None:
        for node in world.nodes.values():
            node.fetches_unsynced = True
        honest(world)

    patch.setattr(World, "start", start)


def late_answer_taken(patch: pytest.MonkeyPatch) -> None:
    def fetch_answered(node: Node, event: Any) -> None:
        asked = LogEnd(event.asked_offset, event.asked_last_epoch, event.asked_offset)
        log, node.log = node.log, asked
        following.fetch_answered(node, event)
        node.log = log

    _handle(patch, FetchAnswered, fetch_answered)


def late_announcement_believed(patch: pytest.MonkeyPatch) -> None:
    """Whoever says that it leads does, whatever its epoch."""

    def epoch_begun(node: Node, event: Any) -> None:
        following.epoch_begun(node, EpochBegun(**{**vars(event), "epoch": _now(node, event)}))

    _handle(patch, EpochBegun, epoch_begun)


def late_end_believed(patch: pytest.MonkeyPatch) -> None:
    def epoch_ended(node: Node, event: Any) -> None:
        following.epoch_ended(node, EpochEnded(**{**vars(event), "epoch": _now(node, event)}))

    _handle(patch, EpochEnded, epoch_ended)


def _now(node: Node, event: Any) -> int:
    return max(node.epoch, event.epoch)


def votes_of_an_earlier_election_counted(patch: pytest.MonkeyPatch) -> None:
    def vote_answered(node: Node, event: Any) -> None:
        asked = {"asked_epoch": node.epoch, "pre_vote": node.role is Role.PROSPECTIVE}
        elections.vote_answered(node, VoteAnswered(**{**vars(event), **asked}))

    _handle(patch, VoteAnswered, vote_answered)


def two_changes_of_voters_at_once(patch: pytest.MonkeyPatch) -> None:
    honest = changes._refusal

    def refusal(node: Node, *asked: Any) -> changes.Refusal:
        error, message = honest(node, *asked)
        if error is ErrorCode.REQUEST_TIMED_OUT:
            return changes.FINE
        return error, message

    patch.setattr(changes, "_refusal", refusal)


def emptied_disk_that_votes(patch: pytest.MonkeyPatch) -> None:
    def key_of(voters: VoterSet, replica: ReplicaKey) -> ReplicaKey | None:
        voter = voters.get(replica.id)
        return None if voter is None else voter.key

    patch.setattr(VoterSet, "key_of", key_of)
    patch.setattr(elections, "is_meant", lambda node, voter: True)
    patch.setattr(following, "is_meant", lambda node, voter: True)


def leader_that_goes_on_in_its_epoch_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    honest = quorum._start

    def start(node: Node, event: Any) -> None:
        honest(node, event)
        if node.role is Role.RESIGNED:
            node.role = Role.CANDIDATE
            node.ballot = Ballot(node.voters, node.own.key)
            elections.win(node)

    _handle(patch, Started, start)
