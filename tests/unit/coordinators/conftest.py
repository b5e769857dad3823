"""A shard without a broker: the runtime's contract in a few lines, and a clock set by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ottla.coordinators.group_records import GroupRecord
from ottla.coordinators.groups import GroupMachine
from ottla.coordinators.settings import Caller, GroupSettings
from ottla.errors import ErrorCode
from ottla.machine import Decision
from ottla.types import Now
from ottla.wire.codec import encode
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

WALL_START_MS = 1_700_000_000_000


class Counting:
    """Randomness that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def bytes(self, count: int) -> bytes:
        self.calls += 1
        return self.calls.to_bytes(count, "big")

    def below(self, bound: int) -> int:
        return 0


class Call:
    """A request on its way; it is its own ticket."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    @property
    def is_parked(self) -> bool:
        return not self.replies

    @property
    def reply(self) -> Any:
        assert len(self.replies) == 1, f"answered {len(self.replies)} times"
        return self.replies[0]

    @property
    def error(self) -> ErrorCode:
        return ErrorCode(self.reply.error_code)


def subscription(*topics: str, version: int = 1) -> bytes:
    message = ConsumerProtocolSubscription(topics=list(topics))
    return version.to_bytes(2, "big") + encode(message, version)


class Shard:
    def __init__(self, **settings: int) -> None:
        self.settings = GroupSettings(**{"initial_rebalance_delay_ms": 0, **settings})
        self.random = Counting()
        self.steady_ms = 1_000
        self.wall_ms = WALL_START_MS
        self.log: list[tuple[bytes | None, bytes | None]] = []
        self.calls: list[Call] = []
        self.machine = self.replayed()

    @property
    def now(self) -> Now:
        return Now(self.wall_ms, self.steady_ms)

    # ---------------------------------------------------------------------- what a runtime does

    def replayed(self) -> GroupMachine:
        """A machine that has read the log."""
        machine = GroupMachine(self.settings, self.random)
        self._replay_into(machine)
        return machine

    def _replay_into(self, machine: GroupMachine) -> None:
        for key, value in self.log:
            record = machine.decode(key, value)
            if record is not None:
                machine.apply(record, self.wall_ms)
        machine.loaded(self.now)

    def carry_out(self, decision: Decision[Any]) -> None:
        for record in decision.records:
            self.log.append(self.machine.encode(record))
            self.machine.apply(record, self.wall_ms)
        for ticket, reply in decision.replies:
            ticket.replies.append(reply)
            assert len(ticket.replies) == 1, "a ticket is answered once"

    def submit(self, decide: Callable[[GroupMachine, Now, Call], Decision[Any]]) -> Call:
        call = Call()
        self.calls.append(call)
        self.carry_out(decide(self.machine, self.now, call))
        return call

    def run_timers(self) -> None:
        while True:
            due_ms = self.machine.next_deadline_ms()
            if due_ms is None or due_ms > self.steady_ms:
                return
            self.carry_out(self.machine.on_deadline(self.now))

    def advance(self, ms: int) -> None:
        """Time passes, and each timer fires when it is due."""
        end_ms = self.steady_ms + ms
        while True:
            due_ms = self.machine.next_deadline_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self._set_clock(max(due_ms, self.steady_ms))
            self.carry_out(self.machine.on_deadline(self.now))
        self._set_clock(end_ms)

    def _set_clock(self, steady_ms: int) -> None:
        self.wall_ms += steady_ms - self.steady_ms
        self.steady_ms = steady_ms

    def fail_append(self, **settings: int) -> list[Call]:
        """As after a failed append or a restart: forget, and read the log again."""
        parked = self.machine.abandon()
        self.settings = GroupSettings(
            **{name: getattr(self.settings, name) for name in self.settings.__slots__} | settings
        )
        self.machine = self.replayed()
        for call in parked:
            call.replies.append("abandoned")
        return parked

    def written(self) -> list[Any]:
        return [self.machine.decode(key, value) for key, value in self.log]

    def group_records(self) -> list[GroupRecord]:
        return [record for record in self.written() if isinstance(record, GroupRecord)]

    def group(self, name: str = "g") -> Any:
        return self.machine.groups[name]

    # ----------------------------------------------------------------------------- the requests

    def join(
        self,
        group: str = "g",
        member: str = "",
        *,
        instance: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = (("range", b"r"),),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        client: str = "app",
        reason: str | None = None,
    ) -> Call:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols],
            reason=reason,
        )
        caller = Caller(client, "10.0.0.7", version)
        return self.submit(lambda m, now, ticket: m.join(request, caller, now, ticket))

    def enter(self, group: str = "g", **options: Any) -> tuple[str, Call]:
        """A new member's way in: it gets its id and comes back with it."""
        if options.get("instance") is not None:
            call = self.join(group, **options)
            return self.group(group).static_members[options["instance"]], call
        first = self.join(group, **options)
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        return first.reply.member_id, self.join(group, first.reply.member_id, **options)

    def sync(
        self,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        group: str = "g",
        *,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> Call:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=id, assignment=data)
                for id, data in (assignments or {}).items()
            ],
        )
        return self.submit(lambda m, now, ticket: m.sync(request, now, ticket))

    def heartbeat(
        self, member: str, generation: int, group: str = "g", *, instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
        )
        return self.submit(lambda m, now, ticket: m.heartbeat(request, now, ticket)).error

    def leave(self, *members: str | MemberIdentity, group: str = "g", version: int = 5) -> Any:
        identities = [
            MemberIdentity(member_id=one) if isinstance(one, str) else one for one in members
        ]
        request = LeaveGroupRequest(
            group_id=group, member_id=identities[0].member_id, members=identities
        )
        caller = Caller("app", "10.0.0.7", version)
        return self.submit(lambda m, now, ticket: m.leave(request, caller, now, ticket)).reply

    def commit(
        self,
        offset: int,
        topic: str = "t",
        partition: int = 0,
        *,
        group: str = "g",
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = None,
        retention_ms: int = -1,
        version: int = 8,
        exists: Callable[[str, int], bool] = lambda topic, partition: True,
    ) -> ErrorCode:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )
        call = self.submit(lambda m, now, t: m.commit(request, version, exists, now, t))
        return ErrorCode(call.reply.topics[0].partitions[0].error_code)

    def committed(self, topic: str = "t", partition: int = 0, group: str = "g") -> int:
        request = OffsetFetchRequestGroup(
            group_id=group,
            topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])],
        )
        found = self.machine.fetch_offsets(request).topics[0].partitions[0]
        assert found.error_code == 0
        return found.committed_offset

    def delete_offset(self, topic: str = "t", partition: int = 0, group: str = "g") -> Any:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[OffsetDeleteRequestPartition(partition_index=partition)],
                )
            ],
        )
        return self.submit(
            lambda m, now, ticket: m.delete_offsets(request, lambda t, p: p < 100, ticket)
        ).reply

    def delete_groups(self, *names: str) -> list[ErrorCode]:
        call = self.submit(lambda m, now, ticket: m.delete_groups(names, now, ticket))
        return [ErrorCode(result.error_code) for result in call.reply]

    # --------------------------------------------------------------------------------- set-ups

    def stable(self, count: int = 2, group: str = "g", **options: Any) -> list[str]:
        """A group whose members all have their assignments: member N reads partition N."""
        entered = [self.enter(group, **options) for _ in range(count)]
        self.run_timers()
        return self.sync_all([id for id, _ in entered], [call for _, call in entered], group)

    def sync_all(self, ids: list[str], calls: list[Call], group: str = "g") -> list[str]:
        """Takes joined members through their sync, followers first; the leader comes first out."""
        leader = calls[0].reply.leader
        generation = calls[0].reply.generation_id
        protocol = calls[0].reply.protocol_name
        type = calls[0].reply.protocol_type
        followers = [id for id in ids if id != leader]
        options: Any = {"group": group, "protocol": protocol, "protocol_type": type}
        waiting = [self.sync(id, generation, **options) for id in followers]
        shares = {id: b"share of " + id.encode() for id in ids}
        waiting.append(self.sync(leader, generation, shares, **options))
        assert all(call.error is ErrorCode.NONE for call in waiting)
        return [leader, *followers]


@pytest.fixture
def shard() -> Shard:
    return Shard()


@pytest.fixture
def make_shard() -> type[Shard]:
    return Shard


@pytest.fixture
def reads() -> Callable[..., bytes]:
    """The bytes with which a consumer says what it reads."""
    return subscription
