"""How members come into a classic group."""

from ottla.coordinators.group_states import GroupState
from ottla.errors import ErrorCode


def test_a_new_member_is_first_told_its_id_and_must_come_back_with_it(shard):
    first = shard.join(client="app")
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    assert first.reply.member_id.startswith("app-")
    assert len(first.reply.member_id) == len("app-") + 36
    second = shard.join(member=first.reply.member_id)
    shard.run_timers()
    assert second.error is ErrorCode.NONE
    assert second.reply.member_id == first.reply.member_id


def test_an_old_client_joins_at_once(shard):
    call = shard.join(version=3)
    shard.run_timers()
    assert call.error is ErrorCode.NONE
    assert call.reply.generation_id == 1


def test_an_id_that_nobody_claims_is_forgotten_after_its_session(shard):
    member = shard.join(session_ms=6_000).reply.member_id
    shard.advance(6_000)
    assert shard.join(member=member).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_member_leads_and_learns_who_is_in_the_group(shard):
    one, first = shard.enter(protocols=[("range", b"one")])
    two, second = shard.enter(protocols=[("range", b"two")])
    shard.run_timers()
    assert first.reply.leader == second.reply.leader == one
    assert [(m.member_id, m.metadata) for m in first.reply.members] == [
        (one, b"one"),
        (two, b"two"),
    ]
    assert second.reply.members == []


def test_the_reply_names_protocol_type_and_protocol(shard):
    _, call = shard.enter(protocol_type="connect", protocols=[("sessioned", b"")])
    shard.run_timers()
    assert (call.reply.protocol_type, call.reply.protocol_name) == ("connect", "sessioned")


def test_an_empty_group_id_is_invalid(shard):
    assert shard.join("").error is ErrorCode.INVALID_GROUP_ID


def test_a_session_timeout_outside_the_bounds_is_refused(make_shard):
    shard = make_shard(session_timeout_min_ms=6_000, session_timeout_max_ms=10_000)
    assert shard.join(session_ms=5_999).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert shard.join(session_ms=10_001).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert shard.join(session_ms=10_000).error is ErrorCode.MEMBER_ID_REQUIRED


def test_a_member_id_that_nobody_gave_out_is_unknown(shard):
    assert shard.join(member="made-up").error is ErrorCode.UNKNOWN_MEMBER_ID
    shard.stable(1)
    assert shard.join(member="made-up").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_without_protocols_or_type_is_inconsistent_and_leaves_no_group_behind(shard):
    assert shard.join(protocols=[]).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert shard.join(protocol_type="").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert shard.machine.groups == {}


def test_another_protocol_type_or_no_common_protocol_is_inconsistent(shard):
    shard.stable(1)
    other = shard.join(protocol_type="connect")
    assert other.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    strange = shard.join(protocols=[("sticky", b"")])
    assert strange.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_that_most_members_prefer_is_chosen(shard):
    ab, ba = [("a", b""), ("b", b"")], [("b", b""), ("a", b"")]
    _, call = shard.enter(protocols=ab)
    shard.enter(protocols=ba)
    shard.enter(protocols=ba)
    shard.run_timers()
    assert call.reply.protocol_name == "b"


def test_a_protocol_that_one_member_lacks_is_never_chosen(shard):
    _, call = shard.enter(protocols=[("a", b""), ("b", b"")])
    shard.enter(protocols=[("a", b""), ("b", b"")])
    shard.enter(protocols=[("b", b"")])
    shard.run_timers()
    assert call.reply.protocol_name == "b"


def test_the_first_rebalance_waits_for_more_members(make_shard):
    shard = make_shard(initial_rebalance_delay_ms=3_000)
    _, first = shard.enter()
    shard.advance(2_999)
    assert first.is_parked
    shard.advance(1)
    assert first.reply.generation_id == 1


def test_the_delay_is_extended_while_members_keep_coming_and_ends_at_the_rebalance_timeout(
    make_shard,
):
    shard = make_shard(initial_rebalance_delay_ms=3_000)
    _, first = shard.enter(rebalance_ms=7_000)
    arrivals = []
    for _ in range(3):
        shard.advance(2_000)
        assert first.is_parked
        arrivals.append(shard.enter(rebalance_ms=7_000)[1])
    shard.advance(999)
    assert first.is_parked
    shard.advance(1)
    assert {call.reply.generation_id for call in [first, *arrivals]} == {1}


def test_only_the_first_rebalance_of_an_empty_group_is_delayed(make_shard):
    shard = make_shard(initial_rebalance_delay_ms=3_000)
    one, first = shard.enter()
    shard.advance(3_000)
    shard.sync_all([one], [first])
    _, second = shard.enter()
    again = shard.join(member=one)
    assert second.reply.generation_id == again.reply.generation_id == 2


def test_a_group_at_its_largest_size_takes_no_more(make_shard):
    shard = make_shard(members_max=2)
    members = shard.stable(2)
    refused = shard.join()
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused.reply.member_id == ""
    assert list(shard.group().members) == members
    assert shard.join(member=members[0]).is_parked


def test_the_last_to_rejoin_an_oversized_group_is_turned_away_and_nobody_waits_for_it(make_shard):
    shard = make_shard()
    one, two, three = shard.stable(3)
    shard.fail_append(members_max=2)
    assert shard.group().state is GroupState.PREPARING_REBALANCE
    calls = [shard.join(member=one), shard.join(member=two)]
    assert shard.join(member=three).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [call.reply.generation_id for call in calls] == [2, 2]
    assert set(shard.group().members) == {one, two}


def test_ids_handed_out_and_never_used_are_bounded(make_shard, monkeypatch):
    monkeypatch.setattr("ottla.coordinators.classic.PENDING_MEMBERS_MAX", 3)
    shard = make_shard()
    for _ in range(3):
        assert shard.join().error is ErrorCode.MEMBER_ID_REQUIRED
    assert shard.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_waits_for_those_to_whom_it_promised_an_id(shard):
    (one,) = shard.stable(1)
    pending = shard.join().reply.member_id
    rejoin = shard.join(member=one)
    assert rejoin.is_parked
    joined = shard.join(member=pending)
    assert rejoin.reply.generation_id == joined.reply.generation_id == 2


def test_a_promised_id_that_is_never_used_does_not_hold_the_group_up_for_longer_than_its_session(
    shard,
):
    (one,) = shard.stable(1)
    shard.join(session_ms=6_000)
    rejoin = shard.join(member=one)
    shard.advance(5_999)
    assert rejoin.is_parked
    shard.advance(1)
    assert rejoin.reply.generation_id == 2


def test_a_join_sent_twice_answers_the_earlier_ticket_too(make_shard):
    shard = make_shard(initial_rebalance_delay_ms=3_000)
    member, earlier = shard.enter()
    later = shard.join(member=member)
    assert earlier.error is ErrorCode.REBALANCE_IN_PROGRESS
    shard.advance(3_000)
    assert later.reply.generation_id == 1


def test_strings_that_no_record_can_hold_are_refused_and_harm_nobody(shard):
    (member,) = shard.stable(1)
    long = "x" * 40_000
    assert shard.join(long).error is ErrorCode.INVALID_GROUP_ID
    assert shard.join("h", instance=long).error is ErrorCode.INVALID_REQUEST
    assert shard.join("h", protocols=[(long, b"")]).error is ErrorCode.INVALID_REQUEST
    assert shard.join("h", protocol_type=long).error is ErrorCode.INVALID_REQUEST
    assert shard.heartbeat(member, 1) is ErrorCode.NONE


def test_joining_writes_nothing_before_the_group_has_an_assignment(shard):
    shard.enter()
    shard.enter()
    shard.run_timers()
    assert shard.log == []


def test_a_new_member_that_hangs_in_its_first_join_is_dropped_after_five_minutes(shard):
    (one,) = shard.stable(1, rebalance_ms=1_000_000, session_ms=1_000_000)
    _, hanging = shard.enter()
    shard.advance(299_999)
    assert hanging.is_parked
    shard.advance(1)
    assert hanging.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(shard.group().members) == [one]
