"""Leading: what is committed, who has to be heard, how it ends, and voters that change."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.quorum import decisions as do
from ottla.quorum import events as on
from ottla.quorum.roles import Role
from ottla.quorum.state import QuorumState
from ottla.quorum.voters import ReplicaKey, Voter
from ottla.types import NO_NODE, NodeId, Offset
from unit.quorum.stage import TIMES, Stage, key, kinds, only, voter, voter_set

THREE = voter_set(1, 2, 3)


def leader(*, end: int = 10) -> Stage:
    """Node 1 leads epoch 5 from offset `end`; its LeaderChange is synced, and nobody has it."""
    stage = Stage(voter(1), THREE, QuorumState(leader_epoch=4), end=end, last_epoch=3)
    stage.start()
    stage.win()
    assert stage.quorum.role is Role.LEADER
    return stage


def settled() -> Stage:
    """The same with everything committed, its voters' record included, and node 4 watching."""
    stage = leader()
    stage.tell(on.VotersAppended(Offset(11), THREE))
    stage.grow(1)
    stage.fetch(key(2), 12)
    stage.fetch(key(4), 12)
    assert stage.quorum.high_watermark == 12
    return stage


def test_entries_of_older_epochs_are_committed_with_one_of_the_own_only() -> None:
    stage = leader()
    stage.fetch(key(2), 10)
    stage.fetch(key(3), 10)
    assert stage.quorum.high_watermark is None
    stage.fetch(key(2), 11)
    assert stage.quorum.high_watermark == 11


def test_leader_counts_itself_as_far_as_it_has_synced() -> None:
    stage = leader()
    stage.fetch(key(2), 11)
    stage.grow(3, synced=False)
    stage.fetch(key(2), 14)
    assert stage.quorum.high_watermark == 11
    assert stage.sync() == [do.Commit(Offset(14))]


def test_fetch_of_a_log_that_is_another_counts_as_a_sign_of_life_only() -> None:
    stage = leader()
    assert stage.fetch(key(2), 11, matches=False).error is ErrorCode.NONE
    assert stage.quorum.high_watermark is None


def test_fetch_from_another_disk_or_from_an_observer_does_not_count() -> None:
    stage = leader()
    stage.fetch(key(2, disk=1), 11)
    stage.fetch(key(9), 11)
    assert stage.quorum.high_watermark is None
    description = stage.quorum.describe(stage.log, stage.now_ms)
    assert {view.key for view in description.observers} == {key(2, disk=1), key(9)}


def test_leader_without_a_majority_resigns_and_names_its_successors() -> None:
    stage = leader()
    stage.fetch(key(3), 11)
    stage.wait(TIMES.check_quorum_ms - 1)
    assert stage.quorum.role is Role.LEADER
    decisions = stage.wait(1)
    assert decisions[0] == do.StepDown(5)
    ends = [end for end in decisions if isinstance(end, do.EndEpoch)]
    assert [end.peer for end in ends] == [key(2), key(3)]
    assert ends[0].successors == (key(3), key(2))


def test_one_fetching_voter_of_three_keeps_the_leader() -> None:
    stage = leader()
    for _ in range(5):
        stage.wait(TIMES.check_quorum_ms - 1)
        stage.fetch(key(2), 11)
    assert stage.quorum.role is Role.LEADER


def test_voter_that_does_not_fetch_is_told_of_the_epoch_again() -> None:
    stage = leader()
    for peer in (2, 3):
        stage.tell(on.Acknowledged(NodeId(peer), ErrorCode.NONE, 5, NodeId(1)))
    stage.wait(TIMES.announce_ms - 1)
    stage.fetch(key(2), 11)
    assert stage.wait(1) == [do.AnnounceEpoch(key(3), 5)]


def test_leader_steps_down_before_an_epoch_after_its_own() -> None:
    stage = leader()
    asked = on.VoteAsked(6, key(3), 5, Offset(11))
    decisions = stage.tell(asked)
    assert kinds(decisions) == [do.StepDown, do.Save, do.Answer, do.Seek]
    assert only(do.Answer, decisions).granted


def test_leader_that_is_asked_to_resign_hands_over() -> None:
    stage = leader()
    decisions = stage.tell(on.ResignAsked())
    assert kinds(decisions) == [do.StepDown, do.EndEpoch, do.EndEpoch]
    assert stage.fetch(key(2), 11).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_voter_is_added_when_its_record_is_committed_by_the_new_majority() -> None:
    stage = settled()
    asked = on.AddVoterAsked(7, voter(4), 1000)
    decisions = stage.tell(asked)
    assert decisions[0] == do.AppendVoters(voter_set(1, 2, 3, 4))
    stage.grow(1)
    stage.fetch(key(2), 13)
    assert stage.quorum.high_watermark == 12
    done = stage.tell(on.FetchAsked(key(4), 5, Offset(13), True))
    assert done[:2] == [do.Commit(Offset(13)), do.AnswerChange(7, ErrorCode.NONE)]


def test_second_change_waits_for_the_first() -> None:
    stage = settled()
    stage.tell(on.AddVoterAsked(7, voter(4), 1000))
    stage.grow(1)
    (answer,) = stage.tell(on.RemoveVoterAsked(8, key(3)))
    assert isinstance(answer, do.AnswerChange)
    assert answer.error is ErrorCode.REQUEST_TIMED_OUT
    stage.now_ms += 1000
    stage.fetch(key(2), 12)
    assert stage.tell(on.TimePassed()) == []
    (answer,) = stage.tell(on.RemoveVoterAsked(9, key(3)))
    assert isinstance(answer, do.AnswerChange)
    assert answer.error is ErrorCode.REQUEST_TIMED_OUT


def test_new_leader_changes_no_voters_before_it_has_committed_something() -> None:
    stage = leader()
    answer = only(do.AnswerChange, stage.tell(on.RemoveVoterAsked(8, key(3))))
    assert answer.error is ErrorCode.REQUEST_TIMED_OUT


def test_leader_that_removes_itself_leads_until_that_is_committed() -> None:
    stage = settled()
    stage.tell(on.RemoveVoterAsked(7, key(1)))
    stage.grow(1)
    stage.fetch(key(2), 13)
    assert stage.quorum.role is Role.LEADER
    decisions = stage.tell(on.FetchAsked(key(3), 5, Offset(13), True))
    assert decisions[0] == do.StepDown(5)
    assert do.AnswerChange(7, ErrorCode.NONE) in decisions
    assert only(do.Answer, decisions).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    stage.wait(TIMES.election_timeout_ms * 2)
    assert (stage.quorum.role, stage.quorum.is_voter) == (Role.UNATTACHED, False)


def test_change_under_way_is_answered_when_the_lead_is_lost() -> None:
    stage = settled()
    stage.tell(on.AddVoterAsked(7, voter(4), 1000))
    answer = do.AnswerChange(7, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert answer in stage.tell(on.EpochBegun(9, NodeId(2)))


def test_record_of_voters_that_is_cut_off_counts_no_more() -> None:
    stage = Stage(voter(1), THREE, end=5, last_epoch=1)
    stage.start()
    stage.tell(on.VotersAppended(Offset(4), voter_set(1, 2, 3, 4)))
    assert len(stage.quorum.voters) == 4
    stage.log = type(stage.log)(Offset(4), 1, Offset(4))
    stage.tell(on.LogMoved())
    assert stage.quorum.voters == THREE


UNSUPPORTED = Voter(key(4), (), 0, 0)
WITHOUT_A_DISK = Voter(ReplicaKey(NodeId(4)))


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (on.AddVoterAsked(1, voter(3), 9), ErrorCode.DUPLICATE_VOTER),
        (on.AddVoterAsked(1, voter(8), 9), ErrorCode.REQUEST_TIMED_OUT),
        (on.AddVoterAsked(1, UNSUPPORTED, 9), ErrorCode.INVALID_REQUEST),
        (on.AddVoterAsked(1, voter(4), 9, True, "d"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (on.AddVoterAsked(1, WITHOUT_A_DISK, 9), ErrorCode.INVALID_REQUEST),
        (on.RemoveVoterAsked(1, key(9)), ErrorCode.VOTER_NOT_FOUND),
        (on.RemoveVoterAsked(1, key(3, disk=1)), ErrorCode.VOTER_NOT_FOUND),
        (on.UpdateVoterAsked(1, 5, voter(4)), ErrorCode.VOTER_NOT_FOUND),
        (on.UpdateVoterAsked(1, 4, voter(3)), ErrorCode.FENCED_LEADER_EPOCH),
        (on.UpdateVoterAsked(1, 5, voter(3, port=1)), ErrorCode.NONE),
    ],
)
def test_what_is_wrong_with_a_change_has_kafkas_code(event: on.Event, error: ErrorCode) -> None:
    assert only(do.AnswerChange, settled().tell(event)).error is error


def test_voters_of_a_setting_cannot_be_changed() -> None:
    stage = Stage(voter(1), voter_set(1), can_change=False)
    stage.start()
    stage.grow(1)
    answer = only(do.AnswerChange, stage.tell(on.RemoveVoterAsked(1, key(1))))
    assert answer.error is ErrorCode.UNSUPPORTED_VERSION


def test_follower_changes_no_voters() -> None:
    stage = Stage(voter(1), THREE)
    stage.start()
    answer = only(do.AnswerChange, stage.tell(on.RemoveVoterAsked(1, key(3))))
    assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_leader_describes_who_has_come_how_far() -> None:
    stage = settled()
    stage.grow(3, synced=False)
    described = stage.quorum.describe(stage.log, stage.now_ms)
    assert (described.leader_id, described.epoch, described.high_watermark) == (1, 5, 12)
    assert [(view.key.id, view.log_end_offset) for view in described.voters] == [
        (1, 15),
        (2, 12),
        (3, -1),
    ]
    assert [view.caught_up_ms for view in described.observers] == [stage.now_ms]


def test_follower_describes_the_voters_alone() -> None:
    stage = Stage(voter(1), THREE)
    stage.start()
    described = stage.quorum.describe(stage.log, stage.now_ms)
    assert described.leader_id == NO_NODE
    assert [view.log_end_offset for view in described.voters] == [-1, -1, -1]
