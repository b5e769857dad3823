"""Committed positions: who may commit, what is kept, and for how long."""

import pytest

from ottla.coordinators.group_states import GroupState
from ottla.errors import ErrorCode
from ottla.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def reader(shard, reads):
    """A stable consumer of topic t: its member id."""
    (member,) = shard.stable(1, protocols=[("range", reads("t"))], session_ms=1_800_000)
    return member


def beat(shard, member, ms):
    """Time passes, and the member stays alive."""
    while ms > 0:
        step = min(ms, 1_500_000)
        shard.advance(step)
        shard.heartbeat(member, shard.group().generation)
        ms -= step


# ----------------------------------------------------------------------------------------- commits


def test_a_simple_consumer_commits_without_a_group(shard):
    assert shard.commit(42, metadata="here") is ErrorCode.NONE
    assert shard.committed() == 42
    assert shard.group().state is GroupState.EMPTY
    assert shard.group().protocol_type is None


def test_a_member_commits_in_its_generation(shard, reader):
    assert shard.commit(7, member=reader, generation=1) is ErrorCode.NONE
    assert shard.committed() == 7


def test_a_stranger_cannot_commit_into_a_group_that_has_members(shard, reader):
    assert shard.commit(7) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.commit(7, member="x", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shard.committed() == -1


def test_another_generation_cannot_commit(shard, reader):
    assert shard.commit(7, member=reader, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert shard.commit(7, member=reader, generation=-1) is ErrorCode.ILLEGAL_GENERATION


def test_a_commit_for_a_group_that_is_gone_says_so_as_each_version_can(shard):
    late = {"member": "x", "generation": 3}
    assert shard.commit(7, **late, version=8) is ErrorCode.ILLEGAL_GENERATION
    assert shard.commit(7, **late, version=9) is ErrorCode.GROUP_ID_NOT_FOUND
    assert shard.machine.groups == {}


def test_members_may_still_commit_while_the_next_rebalance_prepares(shard, reader):
    shard.enter(protocols=[("range", b"")])
    assert shard.group().state is GroupState.PREPARING_REBALANCE
    assert shard.commit(7, member=reader, generation=1) is ErrorCode.NONE


def test_nobody_commits_between_join_and_sync(shard):
    member, _ = shard.enter()
    shard.run_timers()
    assert shard.commit(7, member=member, generation=1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_the_session_alive(shard):
    (member,) = shard.stable(1, session_ms=10_000)
    for offset in range(5):
        shard.advance(9_000)
        assert shard.commit(offset, member=member, generation=1) is ErrorCode.NONE


def test_metadata_over_the_limit_fails_its_partition_only(make_shard):
    shard = make_shard(offset_metadata_max=10)
    assert shard.commit(1, partition=0, metadata="x" * 11) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert shard.commit(2, partition=1, metadata="x" * 10) is ErrorCode.NONE
    assert (shard.committed(partition=0), shard.committed(partition=1)) == (-1, 2)


def test_metadata_that_no_record_can_hold_is_too_large_whatever_the_limit(make_shard):
    shard = make_shard(offset_metadata_max=10**6)
    code = shard.commit(1, metadata="\N{SNOWMAN}" * 20_000)
    assert code is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_a_commit_to_a_partition_that_does_not_exist_is_refused(shard):
    code = shard.commit(1, exists=lambda topic, partition: False)
    assert code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shard.log == []


def test_the_empty_group_id_may_commit_for_old_times_sake(shard):
    assert shard.commit(1, group="") is ErrorCode.NONE
    assert shard.committed(group="") == 1


# ------------------------------------------------------------------------------------------- reads


def test_a_position_that_is_not_there_is_minus_one_and_no_error(shard):
    request = OffsetFetchRequestGroup(
        group_id="nobody", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0, 5])]
    )
    found = shard.machine.fetch_offsets(request)
    assert found.error_code == 0
    partitions = found.topics[0].partitions
    assert [p.partition_index for p in partitions] == [0, 5]
    assert {(p.committed_offset, p.metadata, p.error_code) for p in partitions} == {(-1, "", 0)}


def test_null_topics_read_every_position(shard):
    shard.commit(1, "a", 0, metadata="m")
    shard.commit(2, "a", 3)
    shard.commit(3, "b", 0)
    shard.commit(9, "a", 0, group="other")
    found = shard.machine.fetch_offsets(OffsetFetchRequestGroup(group_id="g", topics=None))
    assert {
        (topic.name, p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata)
        for topic in found.topics
        for p in topic.partitions
    } == {("a", 0, 1, 3, "m"), ("a", 3, 2, 3, ""), ("b", 0, 3, 3, "")}
    nothing = shard.machine.fetch_offsets(OffsetFetchRequestGroup(group_id="x", topics=None))
    assert (nothing.error_code, nothing.topics) == (0, [])


def test_lag_can_be_computed_from_the_positions(shard):
    shard.commit(1, "a", 0)
    shard.commit(2, "b", 1, group="h")
    assert sorted(shard.machine.positions()) == [("g", "a", 0, 1), ("h", "b", 1, 2)]


# ---------------------------------------------------------------------------------------- deletion


def codes(reply):
    return [ErrorCode(p.error_code) for t in reply.topics for p in t.partitions]


def test_positions_of_an_empty_group_can_be_deleted(shard):
    shard.commit(5)
    assert codes(shard.delete_offset()) == [ErrorCode.NONE]
    assert shard.committed() == -1
    assert codes(shard.delete_offset()) == [ErrorCode.NONE], "deleting nothing is fine"


def test_positions_in_topics_that_the_group_reads_stay(shard, reader):
    shard.commit(5, member=reader, generation=1)
    shard.commit(6, "old", member=reader, generation=1)
    assert codes(shard.delete_offset("t")) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert codes(shard.delete_offset("old")) == [ErrorCode.NONE]
    assert (shard.committed("t"), shard.committed("old")) == (5, -1)


def test_a_subscription_that_cannot_be_read_protects_every_topic(shard):
    shard.stable(1, protocols=[("range", b"\xff")])
    assert codes(shard.delete_offset()) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_a_group_of_another_protocol_must_be_empty_for_a_deletion(shard):
    shard.stable(1, protocol_type="connect")
    assert shard.delete_offset().error_code == ErrorCode.NON_EMPTY_GROUP


def test_deleting_in_unknown_groups_and_partitions(shard):
    assert shard.delete_offset(group="x").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert shard.delete_offset(group="").error_code == ErrorCode.INVALID_GROUP_ID
    shard.commit(5)
    unknown = codes(shard.delete_offset(partition=100))
    assert unknown == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_deleted_topic_takes_its_positions_with_it(shard):
    shard.commit(1, "gone", 0)
    shard.commit(2, "gone", 1, group="h")
    shard.commit(3, "kept", 0)
    call = shard.submit(lambda m, now, ticket: m.topics_deleted({"gone"}, ticket))
    assert call.reply == 2
    assert list(shard.machine.positions()) == [("g", "kept", 0, 3)]
    shard.fail_append()
    assert list(shard.machine.positions()) == [("g", "kept", 0, 3)]


# ------------------------------------------------------------------------------------------ expiry


def test_positions_expire_a_week_after_the_group_became_empty_not_after_the_commit(shard, reader):
    shard.commit(5, member=reader, generation=1)
    beat(shard, reader, 10 * DAY_MS)
    assert shard.committed() == 5
    shard.leave(reader)
    shard.advance(7 * DAY_MS - 1)
    assert shard.committed() == 5
    shard.advance(HOUR_MS)
    assert shard.committed() == -1
    assert "g" not in shard.machine.groups
    assert shard.group_records()[-1].value is None


def test_a_stable_group_loses_only_positions_in_topics_it_no_longer_reads(shard, reader):
    shard.commit(5, "t", member=reader, generation=1)
    shard.commit(6, "old", member=reader, generation=1)
    beat(shard, reader, 7 * DAY_MS + HOUR_MS)
    assert (shard.committed("t"), shard.committed("old")) == (5, -1)
    assert shard.group().state is GroupState.STABLE


def test_a_rebalancing_group_loses_nothing(shard, reader):
    shard.commit(6, "old", member=reader, generation=1)
    beat(shard, reader, 6 * DAY_MS)
    shard.group().members[reader].rebalance_timeout_ms = 30 * DAY_MS
    shard.enter(protocols=[("range", b"")], session_ms=1_800_000)
    shard.wall_ms += 7 * DAY_MS
    shard.advance(600_000)
    assert shard.group().state is GroupState.PREPARING_REBALANCE
    assert shard.committed("old") == 6


def test_positions_of_a_simple_consumer_expire_a_week_after_each_commit(shard):
    shard.commit(1, "a")
    shard.advance(4 * DAY_MS)
    shard.commit(2, "b")
    shard.advance(3 * DAY_MS + HOUR_MS)
    assert (shard.committed("a"), shard.committed("b")) == (-1, 2)
    shard.advance(4 * DAY_MS)
    assert shard.machine.groups == {}


def test_an_old_client_can_ask_for_a_shorter_time(shard):
    shard.commit(1, retention_ms=HOUR_MS, version=4)
    shard.advance(HOUR_MS - 1)
    assert shard.committed() == 1
    shard.fail_append()
    assert shard.committed() == 1
    shard.advance(HOUR_MS)
    assert shard.committed() == -1


def test_an_empty_group_without_positions_goes_at_the_next_check(make_shard):
    shard = make_shard(offset_check_interval_ms=60_000)
    (member,) = shard.stable(1)
    shard.leave(member)
    shard.advance(59_000)
    assert "g" in shard.machine.groups
    shard.advance(1_000)
    assert shard.machine.groups == {}
    assert shard.machine.snapshot() == shard.replayed().snapshot()


def test_a_group_that_only_promised_an_id_leaves_no_trace(make_shard):
    shard = make_shard(offset_check_interval_ms=60_000)
    shard.join(session_ms=6_000)
    shard.advance(120_000)
    assert shard.machine.groups == {}
    assert shard.log == []


def test_a_group_that_somebody_is_about_to_join_is_not_swept_away(make_shard):
    shard = make_shard(offset_check_interval_ms=60_000)
    shard.advance(59_000)
    promised = shard.join().reply.member_id
    shard.advance(2_000)
    assert shard.join(member=promised).is_parked


def test_thousands_of_groups_are_swept_a_part_at_a_time(make_shard):
    shard = make_shard(offset_check_interval_ms=60_000, offset_retention_ms=30_000)
    for index in range(1_200):
        shard.commit(index, group=f"g{index}")
    shard._set_clock(shard.steady_ms + 60_000)
    left = []
    while (due_ms := shard.machine.next_deadline_ms()) is not None and due_ms <= shard.steady_ms:
        shard.carry_out(shard.machine.on_deadline(shard.now))
        left.append(len(shard.machine.groups))
    assert left == [700, 200, 0]
