"""Following a leader: its records, its cuts, its silence and its end."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.quorum import decisions as do
from ottla.quorum import events as on
from ottla.quorum.node import BrokenQuorum
from ottla.quorum.roles import Role
from ottla.quorum.state import QuorumState
from ottla.quorum.voters import Endpoint
from ottla.types import NO_NODE, NO_OFFSET, NodeId, Offset
from unit.quorum.stage import TIMES, Stage, key, kinds, only, voter, voter_set

THREE = voter_set(1, 2, 3)
ANSWER = on.FetchAnswered(Offset(10), 3, ErrorCode.NONE, 4, NodeId(2), Offset(8), True)


def answer(**fields: Any) -> on.FetchAnswered:
    """The same, but for these."""
    return on.FetchAnswered(**{**vars(ANSWER), **fields})


def follower() -> Stage:
    """Node 1 follows node 2 in epoch 4, with ten entries."""
    state = QuorumState(leader_id=NodeId(2), leader_epoch=4)
    stage = Stage(voter(1), THREE, state, end=10, last_epoch=3)
    stage.start()
    return stage


def observer() -> Stage:
    stage = Stage(voter(9), THREE, end=0)
    assert stage.start() == [do.Seek(0)]
    return stage


def test_records_of_the_leader_are_taken_and_its_mark_is_committed() -> None:
    assert follower().tell(ANSWER) == [do.TakeRecords(), do.Commit(Offset(8))]


def test_diverging_log_is_cut_where_the_leader_says() -> None:
    parted = answer(has_records=False, diverging=(2, Offset(7)))
    assert follower().tell(parted) == [do.Truncate(2, Offset(7))]


def test_follower_that_is_too_far_away_loads_the_snapshot() -> None:
    begun_anew = answer(has_records=False, snapshot=(Offset(50), 3))
    assert follower().tell(begun_anew) == [do.TakeSnapshot(Offset(50), 3)]


@pytest.mark.parametrize("asked", [{"asked_offset": Offset(9)}, {"asked_last_epoch": 2}])
def test_answer_to_a_fetch_from_another_end_of_the_log_is_not_taken(asked: dict[str, int]) -> None:
    assert follower().tell(answer(**asked)) == []


def test_answer_of_an_older_epoch_is_not_taken() -> None:
    assert follower().tell(answer(epoch=3, leader_id=NodeId(3))) == []


def test_answer_does_not_come_into_a_log_that_is_not_synced() -> None:
    stage = follower()
    stage.grow(2, synced=False)
    assert stage.tell(answer(asked_offset=Offset(12), asked_last_epoch=4)) == []


def test_cut_below_what_is_committed_stops_the_node() -> None:
    stage = follower()
    stage.tell(ANSWER)
    with pytest.raises(BrokenQuorum):
        stage.tell(answer(diverging=(2, Offset(7))))


def test_each_answer_of_the_leader_puts_the_election_off() -> None:
    stage = follower()
    stage.wait(TIMES.fetch_timeout_ms - 1)
    stage.fetched(2)
    stage.wait(TIMES.fetch_timeout_ms - 1)
    assert stage.quorum.role is Role.FOLLOWER
    stage.wait(1)
    assert stage.quorum.role is Role.PROSPECTIVE


def test_new_leader_is_followed_in_a_higher_epoch() -> None:
    stage = follower()
    save, answer, follow = stage.tell(on.EpochBegun(6, NodeId(3), voter=key(1)))
    assert save == do.Save(QuorumState(leader_id=NodeId(3), leader_epoch=6))
    assert answer == do.Answer(ErrorCode.NONE, 6, NodeId(3))
    assert follow == do.Follow(6, NodeId(3), ())


def test_first_successor_stands_at_once_and_the_others_grant_it() -> None:
    stage = follower()
    stage.fetched(2)
    decisions = stage.tell(on.EpochEnded(4, NodeId(2), (key(1), key(3))))
    assert stage.quorum.role is Role.PROSPECTIVE
    assert do.AskVote in kinds(decisions)

    second = follower()
    second.fetched(2)
    second.tell(on.EpochEnded(4, NodeId(2), (key(3), key(1))))
    assert second.quorum.role is Role.FOLLOWER
    asked = on.VoteAsked(4, key(3), 3, Offset(10), pre_vote=True)
    assert only(do.Answer, second.tell(asked)).granted
    second.wait(TIMES.election_backoff_max_ms // 2)
    assert second.quorum.role is Role.PROSPECTIVE


def test_observer_seeks_and_finds_the_leader() -> None:
    stage = observer()
    told = on.FetchAnswered(Offset(0), 0, ErrorCode.FENCED_LEADER_EPOCH, 4, NodeId(2), NO_OFFSET)
    assert only(do.Follow, stage.tell(told)).leader_id == 2


def test_observer_of_a_silent_leader_asks_around_and_never_stands() -> None:
    stage = observer()
    stage.fetched(2, epoch=4)
    assert stage.wait(TIMES.fetch_timeout_ms) == [do.Seek(4)]
    not_leader = on.FetchAnswered(
        Offset(0), 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 4, NodeId(2), NO_OFFSET
    )
    assert kinds(stage.tell(not_leader)) == [do.Follow]
    assert stage.wait(TIMES.fetch_timeout_ms) == [do.Seek(4)]
    assert stage.quorum.leader_id == 2


def test_observer_that_has_lost_its_leader_grants_pre_votes() -> None:
    """It may be a voter that does not know it yet, and the one whose voice is missing."""
    stage = observer()
    stage.fetched(2, epoch=4)
    asked = on.VoteAsked(4, key(3), 4, Offset(1), pre_vote=True)
    assert not only(do.Answer, stage.tell(asked)).granted
    stage.wait(TIMES.fetch_timeout_ms)
    assert only(do.Answer, stage.tell(asked)).granted


def test_voter_that_has_moved_tells_its_leader_where_it_is() -> None:
    state = QuorumState(leader_id=NodeId(2), leader_epoch=4)
    stage = Stage(voter(1, port=7777), THREE, state)
    stage.start()
    update = only(do.AskUpdate, stage.fetched(2))
    assert update.voter.endpoints == (Endpoint("CONTROLLER", "host1", 7777),)
    assert stage.fetched(2) == []


def test_epoch_without_a_leader_is_taken_from_an_answer() -> None:
    stage = follower()
    told = on.Acknowledged(NodeId(3), ErrorCode.FENCED_LEADER_EPOCH, 8, NO_NODE)
    assert stage.tell(told)[0] == do.Save(QuorumState(leader_epoch=8))
    assert stage.quorum.role is Role.UNATTACHED
