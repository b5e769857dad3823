"""Voters of a setting become records, records follow their voters, and what is cut is undone."""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.quorum import decisions as do
from ottla.quorum import events as on
from ottla.quorum.roles import Role
from ottla.quorum.state import QuorumState
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from ottla.types import NodeId, Offset
from unit.quorum.stage import TIMES, Stage, key, only, voter, voter_set

# Voters as a setting names them: without their disks.
NAMED = VoterSet(Voter(ReplicaKey(NodeId(n)), voter(n).endpoints) for n in (1, 2, 3))
THREE = voter_set(1, 2, 3)


def leader_of_a_setting() -> Stage:
    """With everything committed, and nobody has told of itself."""
    stage = Stage(
        voter(1), NAMED, QuorumState(leader_epoch=4), end=10, last_epoch=3, can_change=False
    )
    stage.start()
    stage.win()
    stage.fetch(key(2), 11)
    assert stage.quorum.high_watermark == 11
    return stage


def tell_of(stage: Stage, *ids: int) -> None:
    for node_id in ids:
        asked = on.UpdateVoterAsked(node_id, stage.quorum.epoch, voter(node_id))
        assert only(do.AnswerChange, stage.tell(asked)).error is ErrorCode.NONE


def test_a_history_knows_who_voted_where() -> None:
    history = VoterHistory(NAMED, can_change=False)
    history.append(Offset(5), THREE)
    history.append(Offset(9), voter_set(1, 2))
    assert (history.at(5), history.at(6), history.at(9)) == (None, THREE, THREE)
    assert history.at(10) == voter_set(1, 2)
    history.forget_before(9)
    assert (history.at(9), history.at(10)) == (THREE, voter_set(1, 2))


def test_a_history_that_is_cut_before_its_first_record_is_a_setting_again() -> None:
    history = VoterHistory(NAMED, can_change=False)
    history.append(Offset(5), THREE)
    assert history.can_change
    history.cut(Offset(5))
    assert (history.can_change, history.last.voters) == (False, NAMED)


def test_voters_of_a_setting_become_records_when_all_have_told_of_their_disks() -> None:
    stage = leader_of_a_setting()
    answer = only(do.AnswerChange, stage.tell(on.UpgradeAsked(1, 1000)))
    assert answer.error is ErrorCode.INVALID_UPDATE_VERSION
    tell_of(stage, 2, 3)
    assert stage.tell(on.UpgradeAsked(2, 1000, True)) == [do.AnswerChange(2, ErrorCode.NONE)]
    decisions = stage.tell(on.UpgradeAsked(3, 1000))
    assert decisions == [do.AppendVoters(THREE, is_first=True)]
    stage.tell(on.VotersAppended(Offset(12), THREE))
    stage.grow(2)
    done = stage.tell(on.FetchAsked(key(2), 5, Offset(13), True))
    assert do.AnswerChange(3, ErrorCode.NONE) in done
    assert stage.tell(on.UpgradeAsked(4, 1000)) == [do.AnswerChange(4, ErrorCode.NONE)]


def test_a_leader_does_not_lose_its_voters_by_their_becoming_records() -> None:
    stage = leader_of_a_setting()
    stage.now_ms += 10 * TIMES.check_quorum_ms
    stage.fetch(key(2), 11)
    tell_of(stage, 2, 3)
    stage.tell(on.UpgradeAsked(3, 1000))
    stage.tell(on.VotersAppended(Offset(12), THREE))
    stage.wait(TIMES.check_quorum_ms - 1)
    assert stage.quorum.role is Role.LEADER


def test_a_voter_that_does_not_know_records_holds_up_the_upgrade() -> None:
    stage = leader_of_a_setting()
    tell_of(stage, 2)
    old = Voter(key(3), voter(3).endpoints, 0, 0)
    stage.tell(on.UpdateVoterAsked(9, 5, old))
    answer = only(do.AnswerChange, stage.tell(on.UpgradeAsked(1, 1000)))
    assert answer.message == "voter 3 does not know kraft.version 1"


def test_a_voter_of_a_setting_tells_each_leader_once() -> None:
    stage = Stage(voter(1), NAMED, end=5, last_epoch=1, can_change=False)
    stage.start()
    stage.tell(on.EpochBegun(2, NodeId(2)))
    asked = only(do.AskUpdate, stage.fetched(2))
    assert asked.voter == voter(1)
    stage.now_ms += TIMES.fetch_timeout_ms
    assert any(isinstance(each, do.AskUpdate) for each in stage.fetched(2))
    stage.tell(on.UpdateAnswered(NodeId(2), 2, ErrorCode.NONE))
    stage.now_ms += TIMES.fetch_timeout_ms
    assert not any(isinstance(each, do.AskUpdate) for each in stage.fetched(2))


def lone_leader() -> Stage:
    alone = VoterSet([Voter(key(1))])
    stage = Stage(Voter(key(1)), alone)
    first = stage.start()
    assert only(do.AppendVoters, first) == do.AppendVoters(alone, is_first=True)
    stage.tell(on.VotersAppended(Offset(2), alone))
    stage.grow(3)
    return stage


def test_a_leader_writes_where_it_listens_when_it_knows() -> None:
    stage = lone_leader()
    stage.quorum.listens_at((Endpoint("CONTROLLER", "here", 1),))
    (append,) = stage.tell(on.TimePassed())
    assert isinstance(append, do.AppendVoters)
    assert [each.endpoints[0].host for each in append.voters] == ["here"]
    stage.tell(on.VotersAppended(Offset(3), append.voters))
    stage.grow(1)
    assert stage.tell(on.TimePassed()) == []


def test_an_observer_neither_stands_nor_is_counted() -> None:
    stage = Stage(voter(4), THREE, end=5, last_epoch=1)
    stage.start()
    decisions = stage.wait(10 * TIMES.election_timeout_ms)
    assert not any(isinstance(each, do.AskVote | do.Lead) for each in decisions)
    assert stage.quorum.role is Role.UNATTACHED


def test_an_update_that_changes_nothing_writes_nothing() -> None:
    stage = Stage(voter(1), THREE, QuorumState(leader_epoch=4), end=10, last_epoch=3)
    stage.start()
    stage.win()
    stage.tell(on.VotersAppended(Offset(11), THREE))
    stage.grow(1)
    stage.fetch(key(2), 12)
    assert stage.tell(on.UpdateVoterAsked(1, 5, voter(3))) == [do.AnswerChange(1, ErrorCode.NONE)]


def test_a_voter_without_which_no_majority_is_heard_is_not_removed() -> None:
    stage = Stage(voter(1), THREE, QuorumState(leader_epoch=4), end=10, last_epoch=3)
    stage.start()
    stage.win()
    stage.tell(on.VotersAppended(Offset(11), THREE))
    stage.grow(1)
    stage.now_ms += TIMES.check_quorum_ms
    stage.fetch(key(2), 12)
    refused = only(do.AnswerChange, stage.tell(on.RemoveVoterAsked(1, key(2))))
    assert refused.error is ErrorCode.REQUEST_TIMED_OUT
    assert stage.quorum.role is Role.LEADER
    assert any(
        isinstance(each, do.AppendVoters) for each in stage.tell(on.RemoveVoterAsked(2, key(3)))
    )
