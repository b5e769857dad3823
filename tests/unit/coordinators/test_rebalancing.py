"""Generations: how a group agrees, and what it does about members that fall silent."""

import itertools

import pytest

from ottla.coordinators.group_states import NEXT, GroupEvent, GroupState
from ottla.errors import ErrorCode


def test_followers_wait_until_the_leader_has_sent_the_assignment(shard):
    (one, first), (two, _) = shard.enter(), shard.enter()
    shard.run_timers()
    follower = shard.sync(two, 1)
    assert follower.is_parked
    leader = shard.sync(one, 1, {one: b"A", two: b"B"})
    assert (leader.reply.assignment, follower.reply.assignment) == (b"A", b"B")
    assert first.reply.leader == one
    assert shard.group().state is GroupState.STABLE


def test_the_assignment_is_written_before_anybody_gets_it(shard):
    member, _ = shard.enter()
    shard.run_timers()
    decided = []
    shard.carry_out = lambda decision: decided.append(decision)
    shard.sync(member, 1, {member: b"A"})
    (decision,) = decided
    assert [reply.assignment for _, reply in decision.replies] == [b"A"]
    (record,) = decision.records
    assert record.value.generation == 1
    assert [(m.member_id, m.assignment) for m in record.value.members] == [(member, b"A")]


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment(shard):
    (one, _), (two, _) = shard.enter(), shard.enter()
    shard.run_timers()
    follower = shard.sync(two, 1)
    shard.sync(one, 1, {one: b"A", "somebody else": b"X"})
    assert follower.error is ErrorCode.NONE
    assert follower.reply.assignment == b""


def test_a_follower_that_syncs_late_gets_its_assignment_from_the_stable_group(shard):
    (one, _), (two, _) = shard.enter(), shard.enter()
    shard.run_timers()
    shard.sync(one, 1, {two: b"B"})
    assert shard.sync(two, 1).reply.assignment == b"B"


def test_sync_is_refused_to_strangers_and_to_other_generations(shard):
    assert shard.sync("x", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.sync("x", 1, group="").error is ErrorCode.INVALID_GROUP_ID
    (member,) = shard.stable(1)
    assert shard.sync("x", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.sync(member, 0).error is ErrorCode.ILLEGAL_GENERATION
    assert shard.sync(member, 2).error is ErrorCode.ILLEGAL_GENERATION


def test_sync_with_another_protocol_is_inconsistent(shard):
    (member,) = shard.stable(1)
    wrong_type = shard.sync(member, 1, protocol_type="connect")
    assert wrong_type.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong_name = shard.sync(member, 1, protocol="sticky")
    assert wrong_name.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert shard.sync(member, 1, protocol_type=None, protocol=None).error is ErrorCode.NONE


def test_sync_during_a_rebalance_sends_the_member_back_to_join(shard):
    one, two = shard.stable(2)
    shard.enter()
    assert shard.sync(one, 1).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.heartbeat(two, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_sent_twice_answers_the_earlier_ticket_too(shard):
    (one, _), (two, _) = shard.enter(), shard.enter()
    shard.run_timers()
    earlier, later = shard.sync(two, 1), shard.sync(two, 1)
    assert earlier.error is ErrorCode.REBALANCE_IN_PROGRESS
    shard.sync(one, 1, {two: b"B"})
    assert later.reply.assignment == b"B"


def test_a_newcomer_starts_a_rebalance_that_is_over_when_all_have_rejoined(shard):
    one, two = shard.stable(2)
    _, new = shard.enter()
    again = [shard.join(member=one)]
    assert new.is_parked
    again.append(shard.join(member=two))
    assert [call.reply.generation_id for call in [new, *again]] == [2, 2, 2]
    assert shard.group().state is GroupState.COMPLETING_REBALANCE


def test_a_newcomer_before_the_sync_makes_the_waiting_ones_rejoin(shard):
    (one, _), (two, _) = shard.enter(), shard.enter()
    shard.run_timers()
    parked = shard.sync(two, 1)
    shard.enter()
    assert parked.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.sync(one, 1, {one: b"A"}).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_do_not_rejoin_in_time_are_left_behind(shard):
    one, two = shard.stable(2, rebalance_ms=20_000, session_ms=100_000)
    _, new = shard.enter(rebalance_ms=20_000)
    shard.join(member=one, rebalance_ms=20_000)
    shard.advance(19_999)
    assert new.is_parked
    shard.advance(1)
    assert new.reply.generation_id == 2
    assert two not in shard.group().members
    assert shard.heartbeat(two, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_in_the_group_counts(shard):
    one, first = shard.enter(rebalance_ms=10_000, session_ms=100_000)
    two, second = shard.enter(rebalance_ms=50_000, session_ms=100_000)
    shard.run_timers()
    shard.sync_all([one, two], [first, second])
    _, new = shard.enter(rebalance_ms=10_000)
    shard.advance(49_999)
    assert new.is_parked
    shard.advance(1)
    assert new.reply.generation_id == 2


def test_a_leader_that_does_not_rejoin_loses_its_place(shard):
    leader, follower = shard.stable(2, session_ms=100_000)
    shard.enter()
    rejoined = shard.join(member=follower)
    shard.advance(60_000)
    assert rejoined.reply.leader == follower
    assert len(rejoined.reply.members) == 2
    assert leader not in shard.group().members


def test_a_follower_that_repeats_its_join_gets_the_same_generation_again(shard):
    leader, follower = shard.stable(2)
    again = shard.join(member=follower)
    assert again.reply.generation_id == 1
    assert again.reply.members == []
    assert shard.group().state is GroupState.STABLE
    assert shard.join(member=leader).is_parked, "a leader asks for a rebalance"


def test_a_follower_with_another_subscription_starts_a_rebalance(shard):
    leader, follower = shard.stable(2)
    changed = shard.join(member=follower, protocols=[("range", b"other topics")])
    assert changed.is_parked
    again = shard.join(member=leader)
    assert again.reply.generation_id == 2
    assert {m.metadata for m in again.reply.members} == {b"r", b"other topics"}


def test_a_join_repeated_before_the_sync_is_answered_for_the_same_generation(shard):
    one, first = shard.enter()
    two, _ = shard.enter()
    shard.run_timers()
    again = shard.join(member=one)
    assert again.reply.generation_id == 1
    assert [m.member_id for m in again.reply.members] == [one, two]
    assert first.reply.generation_id == 1


def test_changed_metadata_before_the_sync_starts_over(shard):
    (one, _), (two, _) = shard.enter(), shard.enter()
    shard.run_timers()
    changed = shard.join(member=two, protocols=[("range", b"new")])
    assert changed.is_parked
    assert shard.join(member=one).reply.generation_id == 2
    assert changed.reply.generation_id == 2


def test_a_member_without_heartbeats_is_dropped_and_the_rest_rebalances(shard):
    one, two = shard.stable(2, session_ms=10_000)
    for _ in range(3):
        shard.advance(5_000)
        assert shard.heartbeat(one, 1) is shard.heartbeat(two, 1) is ErrorCode.NONE
    shard.advance(5_000)
    shard.heartbeat(one, 1)
    shard.advance(5_000)
    assert list(shard.group().members) == [one]
    assert shard.heartbeat(one, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.heartbeat(two, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_write_nothing(shard):
    (member,) = shard.stable(1)
    before = len(shard.log)
    for _ in range(10):
        shard.heartbeat(member, 1)
    assert len(shard.log) == before


def test_heartbeats_are_refused_to_strangers_and_other_generations(shard):
    assert shard.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.heartbeat("x", 1, group="") is ErrorCode.INVALID_GROUP_ID
    (member,) = shard.stable(1)
    assert shard.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.heartbeat(member, 7) is ErrorCode.ILLEGAL_GENERATION


def test_heartbeats_between_join_and_sync_count(shard):
    (one, _), (two, _) = shard.enter(), shard.enter()
    shard.run_timers()
    for _ in range(4):
        shard.advance(9_000)
        assert shard.heartbeat(one, 1) is shard.heartbeat(two, 1) is ErrorCode.NONE


def test_who_waits_in_a_join_needs_no_heartbeats(shard):
    one, two = shard.stable(2, session_ms=10_000)
    rejoined = shard.join(member=one)
    for _ in range(5):
        shard.advance(9_000)
        shard.heartbeat(two, 1)
    assert rejoined.is_parked
    assert one in shard.group().members


def test_who_waits_in_a_sync_needs_no_heartbeats_and_gets_a_fresh_session(shard):
    (one, _), (two, _) = shard.enter(session_ms=10_000), shard.enter(session_ms=10_000)
    shard.run_timers()
    parked = shard.sync(two, 1)
    for _ in range(3):
        shard.advance(9_000)
        shard.heartbeat(one, 1)
    shard.sync(one, 1, {two: b"B"})
    assert parked.reply.assignment == b"B"
    shard.advance(9_999)
    assert two in shard.group().members
    shard.advance(1)
    assert two not in shard.group().members


def test_members_that_join_but_never_sync_are_dropped(shard):
    _, (two, _) = (
        shard.enter(session_ms=1_000_000, rebalance_ms=30_000),
        shard.enter(session_ms=1_000_000, rebalance_ms=30_000),
    )
    shard.run_timers()
    parked = shard.sync(two, 1)
    shard.advance(29_999)
    assert parked.is_parked
    shard.advance(1)
    assert parked.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(shard.group().members) == [two]
    assert shard.group().state is GroupState.PREPARING_REBALANCE


def test_a_follower_that_never_syncs_is_dropped_from_the_stable_group(shard):
    (one, _), (two, _) = (
        shard.enter(session_ms=1_000_000, rebalance_ms=30_000),
        shard.enter(session_ms=1_000_000, rebalance_ms=30_000),
    )
    shard.run_timers()
    shard.sync(one, 1, {one: b"A", two: b"B"})
    shard.advance(30_000)
    assert list(shard.group().members) == [one]
    assert shard.heartbeat(one, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_once_all_have_synced_nobody_is_dropped_for_it(shard):
    members = shard.stable(2, session_ms=1_000_000, rebalance_ms=30_000)
    shard.advance(500_000)
    assert list(shard.group().members) == members


def test_a_group_whose_members_all_fell_silent_is_empty_and_says_so_in_the_log(shard):
    shard.stable(2)
    shard.advance(10_000 + 60_000)
    assert shard.group().state is GroupState.EMPTY
    last = shard.group_records()[-1].value
    assert (last.generation, last.members, last.protocol, last.leader) == (2, [], None, None)
    assert last.protocol_type == "consumer"


def test_a_rebalance_during_the_wait_does_not_disturb_the_next_generation(shard):
    one, two = shard.stable(2)
    _, new = shard.enter()
    calls = [shard.join(member=one), shard.join(member=two), new]
    shard.sync_all([call.reply.member_id for call in calls], calls)
    shard.advance(9_999)
    assert shard.group().state is GroupState.STABLE
    assert len(shard.group().members) == 3


@pytest.mark.parametrize(
    ("state", "event"), list(itertools.product(GroupState, GroupEvent)), ids=str
)
def test_the_table_of_states_never_leaves_the_dead_and_knows_what_kafka_allows(state, event):
    allowed = {
        GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
        GroupState.PREPARING_REBALANCE: {
            GroupState.STABLE,
            GroupState.COMPLETING_REBALANCE,
            GroupState.EMPTY,
        },
        GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
        GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
        GroupState.DEAD: set(GroupState),
    }
    following = NEXT.get((state, event))
    if following is not None:
        assert state in allowed[following]
        assert state is not GroupState.DEAD
