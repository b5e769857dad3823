"""Static membership: an instance that restarts takes its own place (KIP-345, KIP-814)."""

import pytest

from ottla.coordinators.group_states import GroupState
from ottla.errors import ErrorCode


@pytest.fixture
def pair(shard):
    """A stable group of two instances: (leader's id, follower's id)."""
    (one, first), (two, second) = shard.enter(instance="i1"), shard.enter(instance="i2")
    shard.run_timers()
    return shard.sync_all([one, two], [first, second])


def test_an_instance_needs_no_second_join_for_its_id(shard):
    member, call = shard.enter(instance="i1")
    shard.run_timers()
    assert call.error is ErrorCode.NONE
    assert member.startswith("i1-")
    assert call.reply.members[0].group_instance_id == "i1"


def test_a_follower_that_restarts_gets_its_assignment_without_a_rebalance(shard, pair):
    leader, old = pair
    back = shard.join(instance="i2")
    assert back.reply.generation_id == 1
    new = back.reply.member_id
    assert new != old
    assert (back.reply.leader, back.reply.members) == (leader, [])
    assert shard.sync(new, 1, instance="i2").reply.assignment == b"share of " + old.encode()
    assert shard.heartbeat(leader, 1, instance="i1") is ErrorCode.NONE
    assert shard.group().state is GroupState.STABLE


def test_the_new_id_is_in_the_log_before_it_is_told(shard, pair):
    back = shard.join(instance="i2")
    written = {m.group_instance_id: m.member_id for m in shard.group_records()[-1].value.members}
    assert written["i2"] == back.reply.member_id


def test_the_old_id_of_an_instance_is_fenced_everywhere(shard, pair):
    _, old = pair
    shard.join(instance="i2")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert shard.heartbeat(old, 1, instance="i2") is fenced
    assert shard.sync(old, 1, instance="i2").error is fenced
    assert shard.join(member=old, instance="i2").error is fenced
    assert shard.commit(5, member=old, generation=1, instance="i2") is fenced


def test_an_unknown_instance_is_an_unknown_member(shard, pair):
    leader, _ = pair
    assert shard.heartbeat(leader, 1, instance="i9") is ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.join(member=leader, instance="i9").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_restarts_is_told_that_it_leads_and_need_not_assign(shard, pair):
    back = shard.join(instance="i1", version=9)
    assert back.reply.leader == back.reply.member_id
    assert back.reply.skip_assignment is True
    assert {m.group_instance_id for m in back.reply.members} == {"i1", "i2"}
    assert back.reply.generation_id == 1


def test_a_leader_that_restarts_with_an_older_client_must_not_assign(shard, pair):
    old, _ = pair
    back = shard.join(instance="i1", version=8)
    assert back.reply.leader == old != back.reply.member_id
    assert back.reply.skip_assignment is False
    assert back.reply.members == []
    assert shard.group().leader == back.reply.member_id


def test_a_follower_that_restarts_is_not_told_to_skip(shard, pair):
    assert shard.join(instance="i2", version=9).reply.skip_assignment is False


def test_a_restart_that_changes_the_chosen_protocol_rebalances(shard):
    both = [("a", b""), ("b", b"")]
    (one, first), (two, second) = (
        shard.enter(instance="i1", protocols=both),
        shard.enter(instance="i2", protocols=both),
    )
    shard.run_timers()
    shard.sync_all([one, two], [first, second])
    assert shard.group().protocol == "a"
    back = shard.join(instance="i2", protocols=[("b", b"")])
    assert back.is_parked
    assert shard.join(member=one, instance="i1", protocols=both).reply.protocol_name == "b"
    assert back.reply.generation_id == 2


def test_a_restart_between_join_and_sync_starts_over(shard):
    (one, _), (two, _) = shard.enter(instance="i1"), shard.enter(instance="i2")
    shard.run_timers()
    back = shard.join(instance="i2")
    assert back.is_parked
    assert shard.sync(one, 1, {one: b"A"}, instance="i1").error is ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.join(member=one, instance="i1").reply.generation_id == 2
    assert back.reply.generation_id == 2
    assert two not in shard.group().members


def test_a_duplicate_instance_fences_the_one_that_waits_in_a_join(make_shard):
    shard = make_shard(initial_rebalance_delay_ms=3_000)
    old, first = shard.enter(instance="i1")
    second = shard.join(instance="i1")
    assert first.error is ErrorCode.FENCED_INSTANCE_ID
    assert first.reply.member_id == old
    shard.advance(3_000)
    assert second.reply.generation_id == 1
    assert len(shard.group().members) == 1


def test_a_duplicate_instance_fences_the_one_that_waits_in_a_sync(shard):
    shard.enter(instance="i1")
    two, _ = shard.enter(instance="i2")
    shard.run_timers()
    parked = shard.sync(two, 1, instance="i2")
    shard.join(instance="i2")
    assert parked.error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_misses_a_rebalance_stays_until_its_session_ends(shard):
    (one, first), (two, second) = (
        shard.enter(instance="i1", session_ms=200_000, rebalance_ms=20_000),
        shard.enter(instance="i2", session_ms=200_000, rebalance_ms=20_000),
    )
    shard.run_timers()
    shard.sync_all([one, two], [first, second])
    again = shard.join(member=one, instance="i1", session_ms=200_000, rebalance_ms=20_000)
    shard.advance(20_000)
    assert again.reply.generation_id == 2
    assert {m.group_instance_id for m in again.reply.members} == {"i1", "i2"}


def test_a_group_of_silent_static_members_waits_for_their_sessions(shard):
    (one, first), (two, second) = (
        shard.enter(instance="i1", session_ms=100_000, rebalance_ms=20_000),
        shard.enter(instance="i2", session_ms=150_000, rebalance_ms=20_000),
    )
    shard.run_timers()
    shard.sync_all([one, two], [first, second])
    shard.advance(100_000)
    assert shard.group().state is GroupState.PREPARING_REBALANCE
    shard.advance(49_999)
    assert list(shard.group().members) == [two]
    shard.advance(1)
    assert shard.group().state is GroupState.EMPTY


def test_an_instance_may_restart_in_a_full_group(make_shard):
    shard = make_shard(members_max=1)
    shard.stable(1, instance="i1")
    assert shard.join(instance="i1").error is ErrorCode.NONE
    assert shard.join(instance="i2").error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_restart_shows_where_the_instance_now_runs(shard, pair):
    shard.join(instance="i2", client="moved")
    described = shard.machine.describe("g", 6)
    clients = {m.group_instance_id: m.client_id for m in described.members}
    assert clients == {"i1": "app", "i2": "moved"}


def test_an_instance_id_for_a_promised_dynamic_id_is_refused(shard):
    pending = shard.join().reply.member_id
    assert shard.join(member=pending, instance="i1").error is ErrorCode.INVALID_REQUEST
