"""Describing, listing and deleting groups."""

from ottla.errors import ErrorCode


def test_a_stable_group_is_described_with_its_members(shard, reads):
    subscription = reads("t")
    (member,) = shard.stable(1, protocols=[("range", subscription)], instance="i1")
    found = shard.machine.describe("g", 5)
    assert (found.error_code, found.group_state) == (ErrorCode.NONE, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    (described,) = found.members
    assert (described.member_id, described.group_instance_id) == (member, "i1")
    assert (described.client_id, described.client_host) == ("app", "10.0.0.7")
    assert described.member_metadata == subscription
    assert described.member_assignment == b"share of " + member.encode()


def test_a_rebalancing_group_is_described_without_what_is_not_certain(shard):
    shard.stable(1)
    shard.enter()
    found = shard.machine.describe("g", 5)
    assert (found.group_state, found.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in found.members] == [b"", b""]


def test_an_unknown_group_is_dead_and_newer_clients_are_told_that_it_is_not_found(shard):
    old = shard.machine.describe("x", 5)
    assert (old.error_code, old.group_state) == (ErrorCode.NONE, "Dead")
    new = shard.machine.describe("x", 6)
    assert (new.error_code, new.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert new.error_message == "Group x not found."


def listed(shard, states=(), types=()):
    return {group.group_id for group in shard.machine.list_groups(states, types)}


def test_groups_are_listed_by_state_and_type_in_any_case(shard):
    shard.stable(1, group="s")
    shard.enter("p")
    shard.commit(1, group="e")
    assert listed(shard) == {"s", "p", "e"}
    assert listed(shard, ["STABLE"]) == {"s"}
    assert listed(shard, ["empty", " preparingRebalance "]) == {"e", "p"}
    assert listed(shard, types=["Classic"]) == {"s", "p", "e"}
    assert listed(shard, types=["consumer", "share"]) == set()
    assert listed(shard, ["Stable"], ["consumer"]) == set()
    (stable,) = shard.machine.list_groups(["stable"], [])
    assert (stable.protocol_type, stable.group_state, stable.group_type) == (
        "consumer",
        "Stable",
        "classic",
    )


def test_an_empty_group_is_deleted_with_its_positions(shard):
    (member,) = shard.stable(1)
    shard.commit(5, member=member, generation=1)
    assert shard.delete_groups("g") == [ErrorCode.NON_EMPTY_GROUP]
    shard.leave(member)
    assert shard.delete_groups("g") == [ErrorCode.NONE]
    assert shard.delete_groups("g") == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert shard.committed() == -1
    assert shard.replayed().snapshot() == {"groups": {}, "offsets": {}, "pending": {}}


def test_a_group_without_members_is_deleted_too(shard):
    shard.commit(5)
    assert shard.delete_groups("g", "x", "g") == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert shard.machine.groups == {}


def test_a_group_of_which_the_log_knows_nothing_needs_no_tombstone(shard):
    shard.join()
    assert shard.delete_groups("g") == [ErrorCode.NONE]
    assert shard.log == []


def test_a_deleted_group_starts_again_from_its_first_generation(shard):
    (member,) = shard.stable(1)
    shard.leave(member)
    shard.delete_groups("g")
    _, call = shard.enter()
    shard.run_timers()
    assert call.reply.generation_id == 1


def test_a_member_of_a_deleted_group_is_unknown(shard):
    pending = shard.join().reply.member_id
    shard.delete_groups("g")
    assert shard.join(member=pending).error is ErrorCode.UNKNOWN_MEMBER_ID
    shard.advance(60_000)
