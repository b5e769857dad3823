"""The group coordinator of one shard, that is of one partition of `__consumer_offsets`.

Durable state is the fold over the shard's records: each group's last generation (`stored`) and its
committed positions. Members that have not been recorded yet, parked requests and timers are soft.
The groups of `groups` are of the classic protocol so far; positions do not care who commits them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from ottla.coordinators import offsets
from ottla.coordinators.classic import ClassicProtocol
from ottla.coordinators.classic_group import ClassicGroup
from ottla.coordinators.group_records import (
    GroupRecord,
    OffsetRecord,
    Record,
    decode_record,
    encode_record,
)
from ottla.coordinators.group_states import GroupEvent, GroupState
from ottla.coordinators.offsets import Exists, OffsetStore, Position
from ottla.coordinators.pending_offsets import PendingOffsets
from ottla.coordinators.settings import Caller, GroupSettings, Timer, TimerKind
from ottla.coordinators.timers import Timers
from ottla.errors import ErrorCode
from ottla.machine import Decision, InTransaction, Ticket, TransactionEnded
from ottla.ports import Random
from ottla.types import Now
from ottla.wire.messages.delete_groups import DeletableGroupResult
from ottla.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest
from ottla.wire.messages.leave_group import LeaveGroupRequest
from ottla.wire.messages.list_groups import ListedGroup
from ottla.wire.messages.offset_commit import OffsetCommitRequest
from ottla.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from ottla.wire.messages.sync_group import SyncGroupRequest
from ottla.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

# One call of `on_deadline` does no more than this, so that the event loop stays responsive.
TIMERS_AT_ONCE: Final = 500
SWEPT_GROUPS_AT_ONCE: Final = 500

CLASSIC_TYPE: Final = "classic"
DESCRIBE_VERSION_WITH_NOT_FOUND: Final = 6

Outcome = Decision[Record]


class GroupMachine:
    """A `StateMachine[Record]`; the deciders take `now` and `ticket` last, as the runtime does."""

    def __init__(self, settings: GroupSettings, random: Random) -> None:
        self.settings = settings
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = OffsetStore()
        self.pending = PendingOffsets()
        self.timers: Timers[Timer] = Timers()
        self.classic = ClassicProtocol(settings, random, self.groups, self.timers)
        self._unswept: list[str] = []
        self._is_live = False

    # ------------------------------------------------------------------------------ the machine

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        return encode_record(record)

    def decode(self, key: bytes | None, value: bytes | None) -> Record | None:
        return decode_record(key, value)

    def apply(
        self, record: Record | InTransaction[OffsetRecord] | TransactionEnded, wall_ms: int
    ) -> None:
        """In a live machine the decider has already moved the group on; here it becomes durable."""
        if isinstance(record, InTransaction):
            self.pending.add(record.producer_id, record.record)
        elif isinstance(record, TransactionEnded):
            for decided in self.pending.end(record.producer_id):
                if record.is_commit:
                    self.apply(decided, wall_ms)
        elif isinstance(record, OffsetRecord):
            self.offsets.apply(record)
            self.pending.overtake(record)
            if record.value is not None and record.group not in self.groups:
                self.groups[record.group] = ClassicGroup(record.group, state_since_wall_ms=wall_ms)
        elif record.value is None:
            self._forget(record.group, wall_ms)
        elif self._is_live and record.group in self.groups:
            self.groups[record.group].stored = record.value
        else:
            self.groups[record.group] = ClassicGroup.from_value(record.group, record.value)

    def _forget(self, group_id: str, wall_ms: int) -> None:
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        if group.state is GroupState.EMPTY:
            group.move(GroupEvent.REMOVED, wall_ms)
        if group_id in self.offsets.groups():
            self.groups[group_id] = ClassicGroup(group_id, state_since_wall_ms=wall_ms)

    def loaded(self, now: Now) -> None:
        self._is_live = True
        for group_id in [id for id, group in self.groups.items() if self._is_unrecorded(group)]:
            del self.groups[group_id]
        for group in self.groups.values():
            self.classic.watch_loaded(group, now)
        self._schedule_sweep(now)

    def abandon(self) -> list[Ticket]:
        tickets: list[Ticket] = []
        for group in self.groups.values():
            tickets.extend(group.waiting_joins.values())
            tickets.extend(group.waiting_syncs.values())
        self.groups.clear()
        self.offsets.clear()
        self.pending.clear()
        self.timers.clear()
        self._unswept.clear()
        self._is_live = False
        return tickets

    def next_deadline_ms(self) -> int | None:
        return self.timers.first_ms()

    def on_deadline(self, now: Now) -> Outcome:
        out: Outcome = Decision()
        for _ in range(TIMERS_AT_ONCE):
            timer = self.timers.pop_due(now.steady_ms)
            if timer is None:
                break
            if timer.kind == TimerKind.OFFSETS:
                self._sweep(now, out)
                break
            group = self.groups.get(timer.group)
            if group is None:
                continue
            if timer.kind == TimerKind.SESSION:
                self.classic.on_session_deadline(group, timer.member, now, out)
            elif timer.kind == TimerKind.JOIN:
                self.classic.on_join_deadline(group, now, out)
            else:
                self.classic.on_sync_deadline(group, now, out)
        return out

    def snapshot(self) -> dict[str, Any]:
        """The durable state, for comparing: equal logs give equal snapshots."""
        return {
            "groups": {g.id: g.stored for g in self.groups.values() if g.stored is not None},
            "offsets": self.offsets.snapshot(),
            "pending": self.pending.snapshot(),
        }

    # ------------------------------------------------------------------------------- membership

    def join(self, request: JoinGroupRequest, caller: Caller, now: Now, ticket: Ticket) -> Outcome:
        """Answers with a JoinGroupResponse."""
        return self.classic.join(request, caller, now, ticket)

    def sync(self, request: SyncGroupRequest, now: Now, ticket: Ticket) -> Outcome:
        """Answers with a SyncGroupResponse."""
        return self.classic.sync(request, now, ticket)

    def heartbeat(self, request: HeartbeatRequest, now: Now, ticket: Ticket) -> Outcome:
        """Answers with a HeartbeatResponse."""
        return self.classic.heartbeat(request, now, ticket)

    def leave(
        self, request: LeaveGroupRequest, caller: Caller, now: Now, ticket: Ticket
    ) -> Outcome:
        """Answers with a LeaveGroupResponse."""
        return self.classic.leave(request, caller, now, ticket)

    # ---------------------------------------------------------------------------------- offsets

    def commit(
        self,
        request: OffsetCommitRequest,
        version: int,
        exists: Exists,
        now: Now,
        ticket: Ticket,
    ) -> Outcome:
        """Answers with an OffsetCommitResponse."""
        group = self.groups.get(request.group_id)
        code = offsets.check_commit(group, request, version)
        if not code and group is not None and request.member_id in group.members:
            self.classic.refresh_session(group, request.member_id, now)
        records, reply = offsets.commit(request, code, exists, self.settings, now.wall_ms)
        return Decision(list(records), [(ticket, reply)])

    def commit_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        verification: Any,
        exists: Exists,
        now: Now,
        ticket: Ticket,
    ) -> Decision[InTransaction[OffsetRecord]]:
        """Answers with a TxnOffsetCommitResponse."""
        group = self.groups.get(request.group_id)
        code = offsets.check_transactional_commit(group, request)
        if not code and group is not None and request.member_id in group.members:
            self.classic.refresh_session(group, request.member_id, now)
        records, reply = offsets.commit_in_transaction(
            request, code, exists, self.settings, now.wall_ms
        )
        identity = (request.producer_id, request.producer_epoch)
        return Decision(
            [InTransaction(*identity, each, verification) for each in records], [(ticket, reply)]
        )

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        unstable = self.pending.of_group(request.group_id) if require_stable else ()
        return offsets.fetch(self.offsets, request, unstable)

    def delete_offsets(
        self, request: OffsetDeleteRequest, exists: Exists, ticket: Ticket
    ) -> Outcome:
        """Answers with an OffsetDeleteResponse."""
        if not request.group_id:
            reply = OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
            return Decision(replies=[(ticket, reply)])
        group = self.groups.get(request.group_id)
        code = offsets.check_delete(group)
        if code or group is None:
            return Decision(replies=[(ticket, OffsetDeleteResponse(error_code=code))])
        records, reply = offsets.delete(self.offsets, group, request, exists)
        return Decision(list(records), [(ticket, reply)])

    def topics_deleted(self, names: Collection[str], ticket: Ticket | None = None) -> Outcome:
        """Positions in topics that are gone go too. Answers with how many went, if asked."""
        records: list[Record] = [
            record
            for group in self.offsets.groups()
            for record in self.offsets.tombstones(group, names)
        ]
        return Decision(records, [] if ticket is None else [(ticket, len(records))])

    def positions(self) -> Iterator[Position]:
        """Every committed position, for lag; cheap, but use it up before the next decision."""
        return self.offsets.positions()

    def _schedule_sweep(self, now: Now) -> None:
        at_ms = now.steady_ms + self.settings.offset_check_interval_ms
        self.timers.set(Timer(TimerKind.OFFSETS), at_ms)

    def _sweep(self, now: Now, out: Outcome) -> None:
        """Expires offsets, some groups at a time; an empty group without any goes with them."""
        if not self._unswept:
            self._unswept = list(self.groups)
        todo, self._unswept = (
            self._unswept[:SWEPT_GROUPS_AT_ONCE],
            self._unswept[SWEPT_GROUPS_AT_ONCE:],
        )
        for group_id in todo:
            group = self.groups.get(group_id)
            if group is not None:
                self._sweep_group(group, now, out)
        if self._unswept:
            self.timers.set(Timer(TimerKind.OFFSETS), now.steady_ms)
        else:
            self._schedule_sweep(now)

    def _sweep_group(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        retention_ms = self.settings.offset_retention_ms
        gone = offsets.expired(self.offsets, group, retention_ms, now.wall_ms)
        out.records.extend(gone)
        held = sum(len(partitions) for partitions in self.offsets.of_group(group.id).values())
        is_unused = (
            group.state is GroupState.EMPTY
            and not group.pending_joins
            and not self.pending.of_group(group.id)
        )
        if is_unused and len(gone) == held:
            self._remove(group, now, out)

    def _remove(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """A group of which the log knows nothing needs no tombstone."""
        if self._is_unrecorded(group):
            self._forget(group.id, now.wall_ms)
        else:
            out.records.append(GroupRecord(group.id, None))

    def _is_unrecorded(self, group: ClassicGroup) -> bool:
        return group.stored is None and group.id not in self.offsets.groups()

    # ----------------------------------------------------------------------------- administration

    def delete_groups(self, names: Iterable[str], now: Now, ticket: Ticket) -> Outcome:
        """Answers with a list of DeletableGroupResult."""
        out: Outcome = Decision()
        results: dict[str, DeletableGroupResult] = {}
        for name in names:
            group = self.groups.get(name)
            code = ErrorCode.NONE
            if name in results:
                continue
            if group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                out.records.extend(self.offsets.tombstones(name))
                out.records.extend(
                    OffsetRecord(name, *place, None) for place in self.pending.of_group(name)
                )
                self._remove(group, now, out)
            results[name] = DeletableGroupResult(group_id=name, error_code=code)
        out.replies.append((ticket, list(results.values())))
        return out

    def describe(self, name: str, version: int) -> DescribedGroup:
        group = self.groups.get(name)
        if group is None:
            described = DescribedGroup(group_id=name, group_state=GroupState.DEAD.value)
            if version >= DESCRIBE_VERSION_WITH_NOT_FOUND:
                described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                described.error_message = f"Group {name} not found."
            return described
        # What members are to read is certain only while the group is stable.
        is_stable = group.state is GroupState.STABLE
        return DescribedGroup(
            group_id=name,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if is_stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.host,
                    member_metadata=member.metadata(group.protocol) if is_stable else b"",
                    member_assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        )

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        """All groups, or those in one of the states and of one of the types, in any case."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {type.strip().lower() for type in types}
        if wanted_types and CLASSIC_TYPE not in wanted_types:
            return []
        return [
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC_TYPE,
            )
            for group in self.groups.values()
            if not wanted_states or group.state.value.lower() in wanted_states
        ]
