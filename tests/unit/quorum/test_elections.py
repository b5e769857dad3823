"""Elections, told from the side of one node."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.quorum import decisions as do
from ottla.quorum import events as on
from ottla.quorum.node import BrokenQuorum
from ottla.quorum.roles import Role
from ottla.quorum.state import QuorumState
from ottla.quorum.times import Times
from ottla.quorum.voters import ReplicaKey
from ottla.types import NO_NODE, NodeId, Offset
from unit.quorum.stage import TIMES, Stage, key, kinds, only, voter, voter_set

THREE = voter_set(1, 2, 3)
FOLLOWS_TWO = QuorumState(leader_id=NodeId(2), leader_epoch=4)


def one_of_three(state: QuorumState | None = None, end: int = 0, last_epoch: int = 0) -> Stage:
    stage = Stage(voter(1), THREE, state, end=end, last_epoch=last_epoch)
    stage.start()
    return stage


def ask(
    epoch: int, candidate: int = 3, *, last: tuple[int, int] = (0, 0), pre: bool = False
) -> on.VoteAsked:
    return on.VoteAsked(epoch, key(candidate), last[0], Offset(last[1]), pre, key(1), "c")


def test_the_only_voter_leads_at_its_first_word() -> None:
    stage = Stage(voter(1), voter_set(1))
    decisions = stage.start()
    assert kinds(decisions) == [do.Save, do.Lead, do.AppendVoters, do.Hold]
    assert only(do.Save, decisions).state.leader_epoch == 1
    assert stage.grow(2) == [do.Commit(Offset(2))]


def test_the_only_voter_leads_a_new_epoch_after_each_restart() -> None:
    state = QuorumState(leader_id=NodeId(1), leader_epoch=7)
    stage = Stage(voter(1), voter_set(1), state, end=9, last_epoch=7)
    assert only(do.Lead, stage.start()).epoch == 8


def test_election_goes_from_the_question_over_the_vote_to_the_lead() -> None:
    stage = one_of_three()
    asked = stage.wait(TIMES.election_timeout_ms * 2)
    assert kinds(asked) == [do.AskVote, do.AskVote, do.Hold]
    assert all(ask.pre_vote and ask.epoch == 0 for ask in asked if isinstance(ask, do.AskVote))
    run = stage.vote(2, pre=True)
    assert run[0] == do.Save(QuorumState(NO_NODE, 1, NodeId(1), key(1).directory_id))
    assert kinds(run[1:3]) == [do.AskVote, do.AskVote]
    won = stage.vote(2)
    assert kinds(won[:2]) == [do.Save, do.Lead]
    assert only(do.Lead, won).granting == (key(1), key(2))
    assert do.AnnounceEpoch(key(3), 1) in won


def test_the_first_election_of_a_quorum_comes_soon_and_later_ones_do_not() -> None:
    soon = Times(first_election_ms=100)
    new = Stage(voter(1), THREE, times=soon)
    new.start()
    assert kinds(new.wait(99)) == []
    assert kinds(new.wait(1)) == [do.AskVote, do.AskVote, do.Hold]
    voted = QuorumState(voted_id=NodeId(2), voted_directory_id=key(2).directory_id)
    for state, end in ((voted, 0), (QuorumState(leader_epoch=3), 0), (QuorumState(), 5)):
        known = Stage(voter(1), THREE, state, end=end, times=soon)
        known.start()
        assert kinds(known.wait(soon.election_timeout_ms - 1)) == []


def test_pre_vote_raises_no_epoch_and_leaves_nothing_to_be_saved() -> None:
    stage = one_of_three(FOLLOWS_TWO)
    decisions = stage.wait(TIMES.fetch_timeout_ms)
    assert stage.quorum.role is Role.PROSPECTIVE
    assert stage.quorum.epoch == 4
    assert do.Save not in kinds(decisions)
    assert stage.tell(ask(4, pre=True)) == [do.Answer(ErrorCode.NONE, 4, NodeId(2), granted=True)]


def test_follower_of_a_living_leader_refuses_pre_votes() -> None:
    stage = one_of_three(FOLLOWS_TWO)
    assert only(do.Answer, stage.tell(ask(4, pre=True))).granted
    stage.fetched(2)
    assert not only(do.Answer, stage.tell(ask(4, pre=True))).granted


def test_leader_refuses_pre_votes() -> None:
    stage = one_of_three()
    stage.win()
    assert not only(do.Answer, stage.tell(ask(1, last=(1, 99), pre=True))).granted


def test_prospective_that_hears_from_its_leader_follows_it_again() -> None:
    stage = one_of_three(FOLLOWS_TWO)
    stage.wait(TIMES.fetch_timeout_ms)
    answer = on.VoteAnswered(NodeId(2), 4, True, ErrorCode.NONE, 4, NodeId(2), False)
    assert only(do.Follow, stage.tell(answer)).leader_id == 2
    assert stage.quorum.epoch == 4


def test_refused_pre_vote_is_asked_for_again_while_it_can_be_won() -> None:
    stage = one_of_three(FOLLOWS_TWO)
    stage.wait(TIMES.fetch_timeout_ms)
    assert stage.vote(3, pre=True, granted=False) == []
    again = stage.wait(TIMES.election_timeout_ms // 4)
    assert [ask.peer for ask in again if isinstance(ask, do.AskVote)] == [key(3)]


def test_vote_is_saved_before_it_is_given_and_given_once() -> None:
    stage = one_of_three()
    save, answer, _ = stage.tell(ask(5, candidate=3))
    assert save == do.Save(QuorumState(NO_NODE, 5, NodeId(3), key(3).directory_id))
    assert answer == do.Answer(ErrorCode.NONE, 5, NO_NODE, granted=True)
    assert not only(do.Answer, stage.tell(ask(5, candidate=2))).granted
    assert only(do.Answer, stage.tell(ask(5, candidate=3))).granted


def test_vote_outlives_a_restart() -> None:
    state = QuorumState(NO_NODE, 5, NodeId(3), key(3).directory_id)
    stage = one_of_three(state)
    assert stage.quorum.role is Role.VOTED
    assert not only(do.Answer, stage.tell(ask(5, candidate=2))).granted


def test_candidate_with_a_shorter_log_gets_no_vote_but_its_epoch_is_taken() -> None:
    stage = one_of_three(end=10, last_epoch=3)
    for last in ((3, 9), (2, 50)):
        assert not only(do.Answer, stage.tell(ask(6, last=last))).granted
    assert stage.quorum.epoch == 6
    assert only(do.Answer, stage.tell(ask(6, last=(3, 10)))).granted


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (on.VoteAsked(9, key(3), 0, Offset(0), cluster_id="d"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (on.VoteAsked(3, key(3), 0, Offset(0)), ErrorCode.FENCED_LEADER_EPOCH),
        (on.VoteAsked(9, key(3), 9, Offset(0)), ErrorCode.INVALID_REQUEST),
        (on.VoteAsked(9, key(3), 0, Offset(-1)), ErrorCode.INVALID_REQUEST),
        (on.VoteAsked(9, key(-1), 0, Offset(0)), ErrorCode.INVALID_REQUEST),
        (on.VoteAsked(9, key(3), 0, Offset(0), voter=key(1, disk=1)), ErrorCode.INVALID_VOTER_KEY),
        (on.VoteAsked(9, key(3), 0, Offset(0), voter=key(2)), ErrorCode.INVALID_VOTER_KEY),
        (on.EpochBegun(3, NodeId(2)), ErrorCode.FENCED_LEADER_EPOCH),
        (on.EpochBegun(9, NodeId(2), cluster_id="d"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (on.EpochBegun(9, NodeId(2), voter=key(1, disk=1)), ErrorCode.INVALID_VOTER_KEY),
        (on.EpochEnded(3, NodeId(2)), ErrorCode.FENCED_LEADER_EPOCH),
        (on.FetchAsked(key(2), 4, Offset(0), True), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (on.FetchAsked(key(2), 5, Offset(0), True), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (on.FetchAsked(key(2), 3, Offset(0), True), ErrorCode.FENCED_LEADER_EPOCH),
        (on.FetchAsked(key(2), 4, Offset(0), True, "d"), ErrorCode.INCONSISTENT_CLUSTER_ID),
    ],
)
def test_what_is_wrong_with_a_request_has_kafkas_code(event: on.Event, error: ErrorCode) -> None:
    answer = only(do.Answer, one_of_three(FOLLOWS_TWO).tell(event))
    assert (answer.error, answer.granted) == (error, False)


def test_node_with_an_emptied_disk_is_no_voter_and_does_not_stand() -> None:
    emptied = voter(1)
    stage = Stage(type(emptied)(key(1, disk=1), emptied.endpoints), THREE)
    stage.start()
    assert not stage.quorum.is_voter
    assert do.AskVote not in kinds(stage.wait(TIMES.election_timeout_ms * 2))
    answer = only(do.Answer, stage.tell(ask(1)))
    assert answer.error is ErrorCode.INVALID_VOTER_KEY


def test_lost_election_waits_before_the_next() -> None:
    stage = one_of_three()
    stage.wait(TIMES.election_timeout_ms * 2)
    stage.vote(2, pre=True)
    stage.vote(2, granted=False)
    assert stage.vote(3, granted=False) == []
    assert stage.quorum.role is Role.CANDIDATE
    stage.wait(TIMES.election_backoff_max_ms)
    assert (stage.quorum.role, stage.quorum.epoch) == (Role.PROSPECTIVE, 1)


def test_answer_of_another_election_does_not_count() -> None:
    stage = one_of_three()
    stage.wait(TIMES.election_timeout_ms * 2)
    stage.vote(2, pre=True)
    stage.vote(2, pre=True)
    assert stage.quorum.role is Role.CANDIDATE


def test_request_that_failed_is_sent_again_soon() -> None:
    stage = one_of_three()
    stage.wait(TIMES.election_timeout_ms * 2)
    assert stage.tell(on.RequestFailed(NodeId(2))) == []
    again = stage.wait(TIMES.retry_backoff_ms)
    assert [ask.peer for ask in again if isinstance(ask, do.AskVote)] == [key(2)]


def test_leader_that_starts_again_resigns_its_epoch() -> None:
    state = QuorumState(leader_id=NodeId(1), leader_epoch=4)
    stage = Stage(voter(1), THREE, state, end=3, last_epoch=4)
    decisions = stage.start()
    assert [end.peer for end in decisions if isinstance(end, do.EndEpoch)] == [key(2), key(3)]
    assert not only(do.Answer, stage.tell(ask(4))).granted
    stage.wait(TIMES.election_timeout_ms * 2)
    assert (stage.quorum.role, stage.quorum.epoch) == (Role.UNATTACHED, 5)


def test_log_that_is_ahead_of_the_saved_epoch_raises_it() -> None:
    stage = Stage(voter(1), THREE, end=3, last_epoch=6)
    assert only(do.Save, stage.start()).state.leader_epoch == 6


def test_two_leaders_of_one_epoch_stop_the_node() -> None:
    stage = one_of_three(FOLLOWS_TWO)
    with pytest.raises(BrokenQuorum):
        stage.tell(on.EpochBegun(4, NodeId(3)))


def test_voters_of_a_setting_are_known_by_their_ids() -> None:
    voters = type(THREE)(type(voter(n))(ReplicaKey(NodeId(n))) for n in (1, 2, 3))
    stage = Stage(voter(1), voters, can_change=False)
    stage.start()
    assert stage.quorum.is_voter
    stage.win()
    stage.fetch(key(2), 1)
    assert stage.quorum.high_watermark == 1
