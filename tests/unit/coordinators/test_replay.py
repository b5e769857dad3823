"""A shard is the fold over its records: what a restart keeps, and what it may forget."""

import struct

import pytest

from ottla.coordinators.group_records import (
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from ottla.coordinators.group_states import GroupState
from ottla.errors import ErrorCode, UnsupportedVersion
from ottla.wire.codec import MalformedMessage, encode
from ottla.wire.messages.group_records import (
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)


def test_a_stable_group_goes_on_after_a_restart_with_fresh_sessions(shard):
    one, two = shard.stable(2, session_ms=10_000)
    shard.advance(9_000)
    shard.fail_append()
    shard.advance(9_000)
    assert shard.heartbeat(one, 1) is shard.heartbeat(two, 1) is ErrorCode.NONE
    assert shard.sync(two, 1).reply.assignment == b"share of " + two.encode()
    assert shard.group().state is GroupState.STABLE


def test_a_member_that_does_not_survive_the_restart_is_found_out(shard):
    one, two = shard.stable(2, session_ms=10_000)
    shard.fail_append()
    shard.advance(9_999)
    shard.heartbeat(one, 1)
    shard.advance(1)
    assert list(shard.group().members) == [one]
    assert shard.heartbeat(two, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_that_was_under_way_is_forgotten_and_begins_anew(shard):
    one, two = shard.stable(2)
    _, new = shard.enter()
    rejoined = shard.join(member=one)
    assert set(shard.fail_append()) == {new, rejoined}
    assert shard.group().state is GroupState.STABLE
    assert set(shard.group().members) == {one, two}
    again = [shard.join(member=one), shard.join(member=two)]
    assert [call.reply.generation_id for call in again] == [2, 2]


def test_a_generation_without_an_assignment_does_not_survive(shard):
    one, two = shard.stable(2)
    again = [shard.join(member=one), shard.join(member=two)]
    assert again[0].reply.generation_id == 2
    parked = shard.sync(two, 2)
    assert shard.fail_append() == [parked]
    assert shard.sync(two, 2).error is ErrorCode.ILLEGAL_GENERATION
    assert shard.heartbeat(two, 1) is ErrorCode.NONE


def test_everybody_who_waits_is_handed_back_when_the_shard_is_abandoned(shard):
    one, two = shard.stable(2, group="a")
    parked = [shard.join("a", one)]
    (three, _), (four, _) = shard.enter("b"), shard.enter("b")
    shard.run_timers()
    parked.append(shard.sync(four, 1, group="b"))
    assert three != four
    assert set(shard.machine.abandon()) == set(parked)
    assert shard.machine.groups == {}
    assert shard.machine.next_deadline_ms() is None
    assert list(shard.machine.positions()) == []
    assert two


def test_an_abandoned_machine_can_read_the_log_again(shard):
    shard.stable(2)
    shard.commit(1, "t", group="simple")
    before = shard.machine.snapshot()
    shard.machine.abandon()
    shard._replay_into(shard.machine)
    assert shard.machine.snapshot() == before
    assert shard.group().state is GroupState.STABLE
    assert shard.machine.groups["simple"].state is GroupState.EMPTY


def test_a_static_member_is_recognised_after_a_restart(shard):
    (old,) = shard.stable(1, instance="i1")
    shard.fail_append()
    back = shard.join(instance="i1")
    assert back.reply.generation_id == 1
    assert shard.heartbeat(old, 1, instance="i1") is ErrorCode.FENCED_INSTANCE_ID


def test_the_time_since_a_group_is_empty_survives(shard):
    (member,) = shard.stable(1)
    shard.commit(5, member=member, generation=1)
    shard.leave(member)
    since = shard.group().state_since_wall_ms
    shard.advance(1_000_000)
    shard.fail_append()
    assert shard.group().state_since_wall_ms == since


def test_a_group_over_its_largest_size_shrinks_after_a_restart(shard):
    members = shard.stable(3)
    shard.fail_append(members_max=2)
    assert shard.heartbeat(members[0], 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_only_the_latest_record_of_a_group_counts(shard):
    (member,) = shard.stable(1)
    shard.leave(member)
    assert shard.replayed().groups["g"].state is GroupState.EMPTY
    shard.delete_groups("g")
    assert shard.replayed().groups == {}


# ------------------------------------------------------------------------------------------- bytes


def test_records_have_kafkas_bytes():
    key, value = encode_record(OffsetRecord("g", "t", 2, OffsetCommitValue(offset=9, metadata="m")))
    assert key == b"\x00\x01" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x02"
    assert value is not None
    assert value[:2] == b"\x00\x03"
    assert value[2:10] == (9).to_bytes(8, "big")
    key, value = encode_record(GroupRecord("g", GroupMetadataValue(protocol_type="consumer")))
    assert key == b"\x00\x02\x00\x01g"
    assert value is not None
    assert value[:2] == b"\x00\x03"
    assert encode_record(GroupRecord("g", None)) == (key, None)


def test_records_come_back_as_they_went():
    member = MemberMetadata(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="h",
        rebalance_timeout=1,
        session_timeout=2,
        subscription=b"s",
        assignment=b"a",
    )
    group = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m",
        current_state_timestamp=4,
        members=[member],
    )
    expiring = OffsetCommitValue(offset=1, commit_timestamp=2, expire_timestamp=3)
    for record in [
        GroupRecord("g", group),
        GroupRecord("g", None),
        OffsetRecord("g", "t", 0, OffsetCommitValue(offset=1, leader_epoch=5, metadata="x")),
        OffsetRecord("g", "t", 0, expiring),
        OffsetRecord("g", "t", 0, None),
    ]:
        assert decode_record(*encode_record(record)) == record


def test_records_of_older_brokers_are_read():
    key = struct.pack(">h", 0) + encode(OffsetCommitKey(group="g", topic="t", partition=1), 0)
    for version in (0, 1, 2, 3, 4):
        value = struct.pack(">h", version) + encode(OffsetCommitValue(offset=7), version)
        record = decode_record(key, value)
        assert isinstance(record, OffsetRecord)
        assert record.value is not None
        assert record.value.offset == 7


@pytest.mark.parametrize("key", [b"\x00\x03\x00\x01g", b"\x00\x63"], ids=repr)
def test_what_is_not_ours_is_skipped(key):
    assert decode_record(key, b"anything") is None


@pytest.mark.parametrize(
    "key", [None, b"", b"\x00", b"\x00\x01\xff", b"\x00\x02\x00\x09g"], ids=repr
)
def test_a_key_that_is_none_is_refused(key):
    with pytest.raises(MalformedMessage):
        decode_record(key, b"anything")


def test_a_value_that_is_no_record_is_refused_as_is_a_newer_one():
    key, _ = encode_record(GroupRecord("g", None))
    for value in (b"\x00\x03\xff", b""):
        with pytest.raises(MalformedMessage):
            decode_record(key, value)
    with pytest.raises(UnsupportedVersion):
        decode_record(key, b"\x00\x63")


@pytest.mark.parametrize("names", [("a", "a", None, None), ("a", "b", "i", "i")], ids=repr)
def test_members_that_cannot_be_told_apart_are_refused(names):
    """Nobody could be removed from such a group without breaking it."""
    ids, instances = names[:2], names[2:]
    members = [
        MemberMetadata(member_id=id, group_instance_id=instance)
        for id, instance in zip(ids, instances, strict=True)
    ]
    key, value = encode_record(GroupRecord("g", GroupMetadataValue(members=members)))
    with pytest.raises(MalformedMessage):
        decode_record(key, value)
