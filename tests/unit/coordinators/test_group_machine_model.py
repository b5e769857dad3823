"""Random lives of groups, with crashes at any step, against what must always hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ottla.coordinators.group_states import GroupState
from ottla.errors import ErrorCode

GROUPS = ("a", "b")
INSTANCES = ("i1", "i2")
PROTOCOLS = (
    (("range", b"\0\0"),),
    (("range", b"\0\1"), ("sticky", b"\0\2")),
    (("sticky", b"\0\3"), ("range", b"\0\4")),
)
YEAR_MS = 365 * 24 * 3_600_000

group_names = st.sampled_from(GROUPS)
indexes = st.integers(0, 7)
# Not the ends of the range: those are what hypothesis tries most.
rarely = st.integers(0, 1_000).map(lambda roll: roll % 20 == 7)


class Member:
    """What a client knows of itself."""

    def __init__(self, group: str, id: str, instance: str | None, protocols: Any) -> None:
        self.group, self.id, self.instance, self.protocols = group, id, instance, protocols
        self.generation = -1
        self.leads = False
        self.others: list[str] = []


def group_lives(make_shard: Any) -> type[RuleBasedStateMachine]:
    class GroupLives(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.shard = make_shard(
                initial_rebalance_delay_ms=500,
                members_max=4,
                offset_retention_ms=100 * YEAR_MS,
                offset_check_interval_ms=200_000,
            )
            self.members: list[Member] = []
            self.offsets: dict[tuple[str, str, int], int] = {}
            self.joins: list[tuple[Member, Any]] = []
            self.syncs: list[tuple[Member, int, Any]] = []
            self.tags: dict[tuple[str, int], bytes] = {}
            self.tag_count = 0

        @initialize(count=st.integers(0, 4), instances=st.integers(0, 2))
        def begin_with_some_members(self, count, instances):
            for index in range(count):
                instance = INSTANCES[index] if index < instances else None
                self.join_as_somebody_new(GROUPS[0], instance, PROTOCOLS[index % 3], 9, False)
            self.clients_read_their_replies()
            self.nearly_everybody_behaves(GROUPS[0], laggard=9)

        # --------------------------------------------------------------------------- the actors

        def act(self, lost: bool, action: Any) -> Any:
            """Carries a request out, or loses its append and starts the shard anew."""
            if not lost:
                return action()
            shard = self.shard
            decided: list[Any] = []
            shard.carry_out = decided.append
            try:
                action()
            except AssertionError:
                pass  # the helper looks at a reply that never comes
            finally:
                del shard.carry_out
            parked = shard.fail_append()
            for call in [ticket for decision in decided for ticket, _ in decision.replies]:
                call.replies.append("abandoned")
            assert all(not call.is_parked for call in parked)
            return None

        def pick(self, index: int) -> Member:
            return self.members[index % len(self.members)]

        @rule(
            group=group_names,
            instance=st.sampled_from((None, None, *INSTANCES)),
            protocols=st.sampled_from(PROTOCOLS),
            version=st.sampled_from((2, 5, 9)),
            lost=rarely,
        )
        def join_as_somebody_new(self, group, instance, protocols, version, lost):
            def action():
                return self.shard.join(
                    group, instance=instance, protocols=protocols, version=version
                )

            call = self.act(lost, action)
            if call is not None:
                self.joins.append((Member(group, "", instance, protocols), call))

        @precondition(lambda self: self.members)
        @rule(index=indexes, protocols=st.sampled_from((None, *PROTOCOLS)), lost=rarely)
        def join_again(self, index, protocols, lost):
            member = self.pick(index)
            member.protocols = protocols or member.protocols
            self.join(member, lost)

        def join(self, member, lost):
            def action():
                return self.shard.join(
                    member.group, member.id, instance=member.instance, protocols=member.protocols
                )

            call = self.act(lost, action)
            if call is not None:
                self.joins.append((member, call))

        @precondition(lambda self: self.members)
        @rule(index=indexes, lost=rarely)
        def sync(self, index, lost):
            self.send_sync(self.pick(index), lost)

        def send_sync(self, member, lost):
            shares = {}
            if member.leads:
                self.tag_count += 1
                tag = b"%d" % self.tag_count
                shares = {other: tag + b"/" + other.encode() for other in member.others}
            generation = member.generation

            def action():
                return self.shard.sync(
                    member.id,
                    generation,
                    shares,
                    member.group,
                    instance=member.instance,
                    protocol=None,
                )

            call = self.act(lost, action)
            if call is not None:
                self.syncs.append((member, generation, call))

        @precondition(lambda self: self.members)
        @rule(index=indexes)
        def heartbeat(self, index):
            member = self.pick(index)
            self.shard.heartbeat(
                member.id, member.generation, member.group, instance=member.instance
            )

        @precondition(lambda self: self.members)
        @rule(index=indexes, lost=rarely)
        def leave(self, index, lost):
            member = self.pick(index)
            self.act(lost, lambda: self.shard.leave(member.id, group=member.group))

        @precondition(lambda self: self.members)
        @rule(index=indexes, partition=st.integers(0, 1), offset=st.integers(0, 99), lost=rarely)
        def commit(self, index, partition, offset, lost):
            member = self.pick(index)

            def action():
                return self.shard.commit(
                    offset,
                    partition=partition,
                    group=member.group,
                    member=member.id,
                    generation=member.generation,
                )

            if self.act(lost, action) is ErrorCode.NONE:
                self.offsets[member.group, "t", partition] = offset

        @rule(group=group_names, offset=st.integers(0, 99), lost=rarely)
        def commit_alone(self, group, offset, lost):
            if self.act(lost, lambda: self.shard.commit(offset, group=group)) is ErrorCode.NONE:
                self.offsets[group, "t", 0] = offset

        @rule(group=group_names, sure=rarely, lost=rarely)
        def delete_group(self, group, sure, lost):
            if sure and self.act(lost, lambda: self.shard.delete_groups(group)) == [ErrorCode.NONE]:
                self.offsets = {key: at for key, at in self.offsets.items() if key[0] != group}

        @rule(group=group_names, laggard=indexes)
        def nearly_everybody_behaves(self, group, laggard):
            """Members rejoin when they are told to, and sync: how groups become stable at all."""
            present = [member for member in self.members if member.group == group]
            present = present[:laggard] + present[laggard + 1 :]
            for member in present:
                name, instance = member.group, member.instance
                code = self.shard.heartbeat(member.id, member.generation, name, instance=instance)
                rejoin = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
                if code in rejoin or member.generation < 0:
                    self.join(member, lost=False)
            self.shard.advance(600)
            self.clients_read_their_replies()
            for member in sorted(present, key=lambda member: member.leads):
                self.send_sync(member, lost=False)

        @rule(ms=st.sampled_from((100, 600, 3_000, 9_000)), long=rarely)
        def wait(self, ms, long):
            self.shard.advance(ms * 40 if long else ms)

        @rule(sure=rarely)
        def crash(self, sure):
            if sure:
                self.shard.fail_append()

        # -------------------------------------------------------------------- what clients learn

        @invariant()
        def clients_read_their_replies(self):
            for member, call in [pair for pair in self.joins if not pair[1].is_parked]:
                self.joins.remove((member, call))
                if call.reply == "abandoned":
                    continue
                if call.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                    # A fenced client may go on for a while; one that is forgotten starts anew.
                    if call.error is ErrorCode.UNKNOWN_MEMBER_ID and member in self.members:
                        self.members.remove(member)
                    continue
                if call.reply.member_id and member not in self.members:
                    member.id = call.reply.member_id
                    self.members.append(member)
                if call.error is ErrorCode.NONE:
                    member.generation = call.reply.generation_id
                    member.leads = call.reply.leader == member.id and not call.reply.skip_assignment
                    member.others = [other.member_id for other in call.reply.members]

        @invariant()
        def members_of_a_generation_hold_shares_of_one_assignment(self):
            for group, generation in list(self.tags):
                live = self.shard.machine.groups.get(group)
                if live is None or live.generation < generation:
                    del self.tags[group, generation]
            for member, generation, call in [s for s in self.syncs if not s[2].is_parked]:
                self.syncs.remove((member, generation, call))
                if call.reply == "abandoned" or call.error or not call.reply.assignment:
                    continue
                tag = call.reply.assignment.split(b"/")[0]
                assert self.tags.setdefault((member.group, generation), tag) == tag

        # ---------------------------------------------------------------------- what always holds

        @invariant()
        def the_state_is_the_fold_over_the_log(self):
            assert self.shard.replayed().snapshot() == self.shard.machine.snapshot()

        @invariant()
        def committed_positions_are_those_of_the_model(self):
            found = {(p.group, p.topic, p.partition): p.offset for p in self.machine.positions()}
            assert found == self.offsets

        @invariant()
        def whoever_waits_can_be_answered(self):
            parked = set(self.parked())
            assert {call for call in self.shard.calls if call.is_parked} == parked

        @invariant()
        def groups_are_consistent(self):
            for group in self.machine.groups.values():
                ids = set(group.members)
                assert ids >= set(group.waiting_joins) | set(group.waiting_syncs)
                assert ids >= group.pending_syncs
                assert not ids & group.pending_joins
                # While a group prepares, who has not come back yet does not count, as in Kafka.
                counted = (
                    group.waiting_joins if group.state is GroupState.PREPARING_REBALANCE else ids
                )
                assert len(counted) <= self.shard.settings.members_max
                static = {m.instance_id: m.id for m in group.members.values() if m.instance_id}
                assert group.static_members == static
                spoken = Counter(n for m in group.members.values() for n, _ in m.protocols)
                assert group.support == dict(spoken)
                assert (group.leader in ids) if ids else group.leader is None
                if group.state is not GroupState.PREPARING_REBALANCE:
                    assert not group.waiting_joins
                if group.state is not GroupState.COMPLETING_REBALANCE:
                    assert not group.waiting_syncs
                if group.state is GroupState.STABLE:
                    assert group.to_value() == group.stored
                if group.state is GroupState.EMPTY:
                    assert not ids

        def teardown(self):
            self.shard.advance(1_000_000)
            self.shard.advance(1_000_000)
            assert not self.parked(), "every ticket is answered in the end"
            assert all(len(call.replies) == 1 for call in self.shard.calls)
            for group in self.machine.groups.values():
                assert group.state is GroupState.EMPTY

        @property
        def machine(self) -> Any:
            return self.shard.machine

        def parked(self) -> list[Any]:
            return [
                ticket
                for group in self.machine.groups.values()
                for ticket in [*group.waiting_joins.values(), *group.waiting_syncs.values()]
            ]

    return GroupLives


def test_groups_keep_their_promises_through_any_life(make_shard):
    run_state_machine_as_test(
        group_lives(make_shard),
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
