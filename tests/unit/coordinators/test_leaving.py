"""How members go."""

from ottla.coordinators.group_states import GroupState
from ottla.errors import ErrorCode
from ottla.wire.messages.leave_group import MemberIdentity


def codes(reply):
    return [ErrorCode(member.error_code) for member in reply.members]


def test_the_rest_rebalances_at_once_when_a_member_leaves(shard):
    one, two = shard.stable(2)
    assert codes(shard.leave(two)) == [ErrorCode.NONE]
    assert shard.heartbeat(one, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert shard.join(member=one).reply.generation_id == 2


def test_the_last_to_leave_empties_the_group(shard):
    (member,) = shard.stable(1)
    shard.leave(member)
    assert shard.group().state is GroupState.EMPTY
    assert shard.group_records()[-1].value.members == []


def test_several_leave_in_one_request_and_one_rebalance_follows(shard):
    one, two, three = shard.stable(3)
    reply = shard.leave(two, "stranger", three)
    assert codes(reply) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert [m.member_id for m in reply.members] == [two, "stranger", three]
    assert shard.join(member=one).reply.generation_id == 2


def test_an_old_client_leaves_alone_and_gets_the_error_at_the_top(shard):
    (member,) = shard.stable(1)
    assert shard.leave("stranger", version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    reply = shard.leave(member, version=2)
    assert (reply.error_code, reply.members) == (ErrorCode.NONE, [])


def test_leaving_an_unknown_group_is_an_error_of_each_member(shard):
    assert codes(shard.leave("x", group="nowhere")) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert shard.leave("x", group="").error_code == ErrorCode.INVALID_GROUP_ID


def test_a_member_that_leaves_while_parked_is_answered(shard):
    one, two = shard.stable(2)
    parked = shard.join(member=one)
    shard.leave(one)
    assert parked.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(shard.group().members) == [two]


def test_a_member_that_leaves_while_it_waits_for_its_assignment_is_answered(shard):
    (one, _), (two, _) = shard.enter(), shard.enter()
    shard.run_timers()
    parked = shard.sync(two, 1)
    shard.leave(two)
    assert parked.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.join(member=one).reply.generation_id == 2


def test_the_last_one_missing_leaves_and_the_rebalance_is_complete(shard):
    one, two = shard.stable(2)
    parked = shard.join(member=one)
    shard.leave(two)
    assert parked.reply.generation_id == 2


def test_a_promised_id_can_be_given_back(shard):
    (one,) = shard.stable(1)
    pending = shard.join().reply.member_id
    parked = shard.join(member=one)
    assert codes(shard.leave(pending)) == [ErrorCode.NONE]
    assert parked.reply.generation_id == 2


def test_an_administrator_removes_a_static_member_by_its_instance(shard):
    shard.stable(1, instance="i1")
    gone = MemberIdentity(member_id="", group_instance_id="i1", reason="replaced")
    wrong = MemberIdentity(member_id="", group_instance_id="i2")
    assert codes(shard.leave(gone, wrong)) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert shard.group().state is GroupState.EMPTY


def test_a_fenced_instance_cannot_make_its_successor_leave(shard):
    (old,) = shard.stable(1, instance="i1")
    shard.join(instance="i1")
    identity = MemberIdentity(member_id=old, group_instance_id="i1")
    assert codes(shard.leave(identity)) == [ErrorCode.FENCED_INSTANCE_ID]
