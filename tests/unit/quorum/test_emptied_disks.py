"""A voter of a setting whose disk is empty: nobody can tell whether it was so before."""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.quorum import decisions as do
from ottla.quorum import events as on
from ottla.quorum.roles import Role
from ottla.quorum.state import QuorumState, decode_state, encode_state
from ottla.types import NO_NODE, NodeId, Offset
from unit.quorum.stage import TIMES, Stage, key, only, voter, voter_set

THREE = voter_set(1, 2, 3)


def emptied(state: QuorumState | None = None, end: int = 0) -> Stage:
    stage = Stage(voter(1), THREE, state, end=end, last_epoch=4 if end else 0, can_change=False)
    stage.start()
    return stage


def asked(last_epoch: int, last_offset: int, *, pre: bool = False, epoch: int = 9) -> on.VoteAsked:
    return on.VoteAsked(epoch, key(2), last_epoch, Offset(last_offset), pre)


def grants(stage: Stage, event: on.VoteAsked) -> bool:
    return only(do.Answer, stage.tell(event)).granted


def test_it_votes_for_nobody_who_has_a_log() -> None:
    assert not grants(emptied(), asked(4, 20))
    assert not grants(emptied(), asked(4, 20, pre=True))


def test_it_votes_where_nobody_has_anything_yet() -> None:
    assert grants(emptied(), asked(0, 0))
    # Two leaders of a cluster that began, and fell before anything was written.
    assert grants(emptied(), asked(2, 2))


def test_what_it_is_survives_a_restart_in_the_middle_of_catching_up() -> None:
    stage = Stage(voter(1), THREE, can_change=False)
    saved = only(do.Save, stage.start()).state
    assert saved.is_blank
    back = emptied(decode_state(encode_state(saved)), end=20)
    assert not grants(back, asked(4, 30))


def test_it_does_not_stand_with_a_part_of_a_log() -> None:
    stage = emptied(QuorumState(is_blank=True), end=20)
    stage.wait(TIMES.election_timeout_ms * 20)
    assert stage.quorum.role is Role.UNATTACHED


def test_it_votes_again_once_it_has_all_that_is_committed() -> None:
    stage = emptied()
    stage.tell(on.EpochBegun(4, NodeId(2)))
    stage.log = type(stage.log)(Offset(20), 4, Offset(20))
    stage.fetched(2, mark=21)
    assert not grants(stage, asked(4, 30, epoch=5))
    stage.tell(on.EpochBegun(6, NodeId(3)))
    saved = only(do.Save, stage.fetched(3, mark=20)).state
    assert not saved.is_blank
    assert grants(stage, asked(4, 20, epoch=7))


def test_a_disk_that_remembers_votes_as_ever() -> None:
    state = QuorumState(leader_epoch=3)
    assert grants(emptied(state), asked(4, 20))
    assert "Blank" not in encode_state(state).decode()


def test_with_directory_ids_an_emptied_disk_is_no_voter_at_all() -> None:
    old = voter_set(1, 2, 3)
    stage = Stage(type(voter(1))(key(1, disk=1)), old)
    stage.start()
    assert not stage.quorum.is_voter
    refused = only(do.Answer, stage.tell(on.VoteAsked(9, key(2), 4, Offset(20), voter=key(1))))
    assert (refused.error, refused.granted) == (ErrorCode.INVALID_VOTER_KEY, False)
    stage.wait(TIMES.election_timeout_ms * 20)
    assert stage.quorum.role is Role.UNATTACHED
    assert stage.quorum.leader_id == NO_NODE
