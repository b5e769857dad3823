"""The classic group protocol: members come, agree, sync, and are watched.

Each decider changes soft state at once (who has joined, who waits, timers) and returns as records
what must outlive the process. A generation becomes durable when its leader syncs; until then a
crash falls back to the one before, and its members join again.
"""

from __future__ import annotations

import logging
import uuid
from typing import Final, NamedTuple

from ottla.coordinators.classic_group import ClassicGroup, Member
from ottla.coordinators.classic_messages import (
    check_sync,
    fail_join,
    joined,
    protocols_of,
    rebalance_timeout_ms,
    synced,
)
from ottla.coordinators.group_records import GroupRecord, Record
from ottla.coordinators.group_states import GroupEvent, GroupState
from ottla.coordinators.settings import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    PENDING_MEMBERS_MAX,
    Caller,
    GroupSettings,
    Timer,
    TimerKind,
    fits_in_record,
)
from ottla.coordinators.timers import Timers
from ottla.errors import ErrorCode
from ottla.machine import Decision, Ticket
from ottla.ports import Random
from ottla.types import Now
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.messages.join_group import JoinGroupRequest
from ottla.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger(__name__)

# From this version on a member must come back with the id that it was given (KIP-394).
JOIN_VERSION_WITH_REQUIRED_ID: Final = 4
# From this version on a static leader can be told that it leads but need not assign (KIP-814).
JOIN_VERSION_WITH_SKIP: Final = 9
LEAVE_VERSION_WITH_BATCH: Final = 3
REASON_LENGTH_MAX: Final = 255

EMPTY: Final = GroupState.EMPTY
PREPARING: Final = GroupState.PREPARING_REBALANCE
COMPLETING: Final = GroupState.COMPLETING_REBALANCE
STABLE: Final = GroupState.STABLE

Outcome = Decision[Record]


class ClassicProtocol:
    def __init__(
        self,
        settings: GroupSettings,
        random: Random,
        groups: dict[str, ClassicGroup],
        timers: Timers[Timer],
    ) -> None:
        self.settings = settings
        self.random = random
        self.groups = groups
        self.timers = timers

    # ------------------------------------------------------------------------------------ join

    def join(self, request: JoinGroupRequest, caller: Caller, now: Now, ticket: Ticket) -> Outcome:
        out: Outcome = Decision()
        code = self._check_join(request)
        if code:
            fail_join(out, ticket, code, request.member_id)
            return out
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                fail_join(out, ticket, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
                return out
            group = ClassicGroup(request.group_id, state_since_wall_ms=now.wall_ms)
        join = _Join(group, request, caller, now, ticket, out)
        if not self._has_room(join):
            self._turn_away(join)
        elif not group.supports(request.protocol_type, [p.name for p in request.protocols]):
            join.fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id:
            self._join_known(join)
        else:
            self.groups[group.id] = group
            self._join_unknown(join)
        return out

    def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
        settings = self.settings
        timeout_ms = request.session_timeout_ms
        if not request.group_id or not fits_in_record(request.group_id):
            return ErrorCode.INVALID_GROUP_ID
        if not settings.session_timeout_min_ms <= timeout_ms <= settings.session_timeout_max_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        names = (protocol.name for protocol in request.protocols)
        if not fits_in_record(request.protocol_type, request.group_instance_id, *names):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _has_room(self, join: _Join) -> bool:
        """While preparing, those who wait count, so that a group over its size can shrink."""
        group, member_id = join.group, join.request.member_id
        if not member_id:
            member_id = group.static_members.get(join.request.group_instance_id or "", "")
        if not member_id and len(group.pending_joins) >= PENDING_MEMBERS_MAX:
            return False
        if group.state is EMPTY:
            return True
        if group.state is PREPARING:
            waiting = group.waiting_joins
            return member_id in waiting or len(waiting) < self.settings.members_max
        return member_id in group.members or len(group.members) < self.settings.members_max

    def _turn_away(self, join: _Join) -> None:
        group, member_id = join.group, join.request.member_id
        fail_join(join.out, join.ticket, ErrorCode.GROUP_MAX_SIZE_REACHED)
        if member_id in group.members or member_id in group.pending_joins:
            self._drop(group, member_id, join.out)
            if not group.is_initial_rebalance:
                self._complete_if_all_joined(group, join.now, join.out)

    def _join_unknown(self, join: _Join) -> None:
        group, instance_id = join.group, join.request.group_instance_id
        if instance_id is not None:
            member_id = self._new_member_id(instance_id)
            current_id = group.static_members.get(instance_id)
            if current_id is None:
                self._add(join, member_id)
            else:
                self._replace_static(join, group.members[current_id], member_id)
            return
        member_id = self._new_member_id(join.caller.client_id)
        if join.caller.version < JOIN_VERSION_WITH_REQUIRED_ID:
            self._add(join, member_id)
            return
        group.pending_joins.add(member_id)
        self._watch(group, member_id, join.now, join.request.session_timeout_ms)
        fail_join(join.out, join.ticket, ErrorCode.MEMBER_ID_REQUIRED, member_id)

    def _new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{uuid.UUID(bytes=self.random.bytes(16), version=4)}"

    def _join_known(self, join: _Join) -> None:
        group, request = join.group, join.request
        member_id = request.member_id
        if member_id in group.pending_joins:
            if request.group_instance_id is not None:
                join.fail(ErrorCode.INVALID_REQUEST)
            else:
                self._add(join, member_id)
            return
        code = group.check_member(member_id, request.group_instance_id)
        if code:
            join.fail(code)
            return
        member = group.members[member_id]
        # A leader that joins a stable group asks for a new assignment; a follower that joins with
        # what it had before has only missed an answer.
        if member.protocols == protocols_of(request) and (
            group.state is COMPLETING or (group.state is STABLE and group.leader != member_id)
        ):
            join.out.replies.append((join.ticket, joined(group, member_id)))
            return
        _change(join, member)
        self._park(join, member_id, f"member {member_id} joins again")

    def _add(self, join: _Join, member_id: str) -> None:
        group, request = join.group, join.request
        member = Member(
            id=member_id,
            instance_id=request.group_instance_id,
            client_id=join.caller.client_id,
            host=join.caller.host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms(request),
            protocols=protocols_of(request),
            is_new=True,
        )
        if group.is_initial_rebalance:
            group.gained_member_in_delay = True
        group.add(member, request.protocol_type)
        self._watch(group, member_id, join.now, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._park(join, member_id, f"member {member_id} is new")

    def _park(self, join: _Join, member_id: str, reason: str) -> None:
        """A join sent twice keeps the later ticket; the earlier one's connection is stale."""
        group = join.group
        earlier = group.waiting_joins.pop(member_id, None)
        if earlier is not None:
            fail_join(join.out, earlier, ErrorCode.REBALANCE_IN_PROGRESS, member_id)
        group.waiting_joins[member_id] = join.ticket
        self._rebalance(group, _reason(reason, join.request.reason), join.now, join.out)

    def _replace_static(self, join: _Join, member: Member, member_id: str) -> None:
        """An instance came back without its id: it takes its own place, and the old id is fenced.

        In a stable group that keeps its protocol this needs no rebalance.
        """
        group, earlier_leader = join.group, join.group.leader
        self._answer_parked(group, member.id, ErrorCode.FENCED_INSTANCE_ID, join.out)
        self.timers.cancel(_session(group, member.id))
        group.rename_static(member, member_id)
        member.client_id, member.host = join.caller.client_id, join.caller.host
        member.is_new = False
        _change(join, member)
        self._watch(group, member_id, join.now, member.session_timeout_ms)
        if group.state is not STABLE or group.select_protocol() != group.protocol:
            self._park(join, member_id, f"static member {member.instance_id} is back")
            return
        group.subscribed_topics = group.read_subscriptions()
        join.out.records.append(GroupRecord(group.id, group.to_value()))
        reply = joined(group, member_id)
        if join.caller.version >= JOIN_VERSION_WITH_SKIP:
            reply.skip_assignment = group.leader == member_id
        else:
            # It must not take itself for the leader, or it would assign.
            reply.leader, reply.members = earlier_leader or "", []
        join.out.replies.append((join.ticket, reply))

    # ------------------------------------------------------------------------------- rebalance

    def _rebalance(self, group: ClassicGroup, reason: str, now: Now, out: Outcome) -> None:
        """Begins a rebalance; one that is already under way may be complete now."""
        if group.state is PREPARING:
            if not group.is_initial_rebalance:
                self._complete_if_all_joined(group, now, out)
            return
        logger.debug("group %s rebalances: %s", group.id, reason)
        if group.state is COMPLETING:
            for member in group.members.values():
                member.assignment = b""
            self._answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now, out)
        group.pending_syncs.clear()
        self.timers.cancel(Timer(TimerKind.SYNC, group.id))
        is_first = group.state is EMPTY
        group.move(GroupEvent.REBALANCE, now.wall_ms)
        if is_first:
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._delay(group, delay_ms, max(0, group.rebalance_timeout_ms - delay_ms), now)
        elif group.all_joined:
            self._complete_join(group, now, out)
        else:
            self._wait_for_joins(group, now)

    def _delay(self, group: ClassicGroup, delay_ms: int, left_ms: int, now: Now) -> None:
        group.gained_member_in_delay = False
        group.delay_ms, group.delay_left_ms = delay_ms, left_ms
        self.timers.set(Timer(TimerKind.JOIN, group.id), now.steady_ms + delay_ms)

    def _wait_for_joins(self, group: ClassicGroup, now: Now) -> None:
        at_ms = now.steady_ms + group.rebalance_timeout_ms
        self.timers.set(Timer(TimerKind.JOIN, group.id), at_ms)

    def _complete_if_all_joined(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        if group.state is PREPARING and group.all_joined:
            self._complete_join(group, now, out)

    def on_join_deadline(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        if group.state is not PREPARING:
            return
        if group.is_initial_rebalance and group.gained_member_in_delay and group.delay_left_ms:
            # Members still arrive: wait once more, never beyond the rebalance timeout in all.
            delay_ms = min(self.settings.initial_rebalance_delay_ms, group.delay_left_ms)
            self._delay(group, delay_ms, max(0, group.delay_left_ms - group.delay_ms), now)
        else:
            self._complete_join(group, now, out)

    def _complete_join(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """The next generation is all who have joined, and every static member."""
        self.timers.cancel(Timer(TimerKind.JOIN, group.id))
        late = [
            member.id
            for member in group.members.values()
            if member.instance_id is None and member.id not in group.waiting_joins
        ]
        for member_id in late:
            self._drop(group, member_id, out)
        if not group.elect_joined_leader() and group.members:
            # Only silent static members are left: their sessions decide.
            self._wait_for_joins(group, now)
            return
        group.begin_generation(now.wall_ms)
        if not group.members:
            out.records.append(GroupRecord(group.id, group.to_value()))
            return
        logger.debug(
            "group %s: generation %d has %d members",
            group.id,
            group.generation,
            len(group.members),
        )
        for member in group.members.values():
            ticket = group.waiting_joins.pop(member.id, None)
            if ticket is not None:
                out.replies.append((ticket, joined(group, member.id)))
            self._watch(group, member.id, now, member.session_timeout_ms)
            member.is_new = False
            group.pending_syncs.add(member.id)
        at_ms = now.steady_ms + group.rebalance_timeout_ms
        self.timers.set(Timer(TimerKind.SYNC, group.id), at_ms)

    # ------------------------------------------------------------------------------------ sync

    def sync(self, request: SyncGroupRequest, now: Now, ticket: Ticket) -> Outcome:
        out: Outcome = Decision()
        group = self.groups.get(request.group_id)
        code = check_sync(group, request)
        if code or group is None:
            out.replies.append((ticket, SyncGroupResponse(error_code=code)))
            return out
        member_id = request.member_id
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self.timers.cancel(Timer(TimerKind.SYNC, group.id))
        if group.state is STABLE:
            out.replies.append((ticket, synced(group, member_id)))
            return out
        earlier = group.waiting_syncs.pop(member_id, None)
        if earlier is not None:
            again = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            out.replies.append((earlier, again))
        group.waiting_syncs[member_id] = ticket
        if group.leader == member_id:
            assignments = {item.member_id: item.assignment for item in request.assignments}
            for member in group.members.values():
                member.assignment = assignments.get(member.id, b"")
            group.move(GroupEvent.SYNCED, now.wall_ms)
            out.records.append(GroupRecord(group.id, group.to_value()))
            self._answer_syncs(group, ErrorCode.NONE, now, out)
        return out

    def _answer_syncs(self, group: ClassicGroup, code: ErrorCode, now: Now, out: Outcome) -> None:
        """Whoever waited was not asked for heartbeats, so its session starts anew."""
        for member_id, ticket in group.waiting_syncs.items():
            reply = SyncGroupResponse(error_code=code) if code else synced(group, member_id)
            out.replies.append((ticket, reply))
            self._watch(group, member_id, now, group.members[member_id].session_timeout_ms)
        group.waiting_syncs.clear()

    def on_sync_deadline(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """A member that joined and never asked for its assignment is removed."""
        if group.state not in (COMPLETING, STABLE) or not group.pending_syncs:
            return
        for member_id in sorted(group.pending_syncs):
            self._drop(group, member_id, out)
        self._rebalance(group, "members did not sync in time", now, out)

    # ------------------------------------------------------------------- heartbeats and leaving

    def heartbeat(self, request: HeartbeatRequest, now: Now, ticket: Ticket) -> Outcome:
        code = self._heartbeat(request, now)
        return Decision(replies=[(ticket, HeartbeatResponse(error_code=code))])

    def _heartbeat(self, request: HeartbeatRequest, now: Now) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = group.check_member(request.member_id, request.group_instance_id)
        if code:
            return code
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.refresh_session(group, request.member_id, now)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING else ErrorCode.NONE

    def refresh_session(self, group: ClassicGroup, member_id: str, now: Now) -> None:
        self._watch(group, member_id, now, group.members[member_id].session_timeout_ms)

    def on_session_deadline(
        self, group: ClassicGroup, member_id: str, now: Now, out: Outcome
    ) -> None:
        member = group.members.get(member_id)
        if member is None:
            group.pending_joins.discard(member_id)
            self._complete_if_all_joined(group, now, out)
            return
        is_parked = member_id in group.waiting_joins or member_id in group.waiting_syncs
        if is_parked and not member.is_new:
            # The member waits for an answer of ours; its session starts anew when it gets one.
            return
        self._drop(group, member_id, out)
        if group.state is PREPARING:
            self._complete_if_all_joined(group, now, out)
        else:
            self._rebalance(group, f"member {member_id} sent no heartbeat", now, out)

    def leave(
        self, request: LeaveGroupRequest, caller: Caller, now: Now, ticket: Ticket
    ) -> Outcome:
        out: Outcome = Decision()
        is_batch = caller.version >= LEAVE_VERSION_WITH_BATCH
        leaving = request.members if is_batch else [MemberIdentity(member_id=request.member_id)]
        if not request.group_id:
            reply = LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
            out.replies.append((ticket, reply))
            return out
        group = self.groups.get(request.group_id)
        results = [
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=self._leave(group, identity, out),
            )
            for identity in leaving
        ]
        if is_batch:
            out.replies.append((ticket, LeaveGroupResponse(members=results)))
        else:
            out.replies.append((ticket, LeaveGroupResponse(error_code=results[0].error_code)))
        has_left = any(result.error_code == ErrorCode.NONE for result in results)
        if group is not None and has_left and group.state is not EMPTY:
            given = next((identity.reason for identity in leaving if identity.reason), None)
            self._rebalance(group, _reason("members leave", given), now, out)
        return out

    def _leave(
        self, group: ClassicGroup | None, identity: MemberIdentity, out: Outcome
    ) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id:
            # An administrator removes a static member by its instance.
            member_id = group.static_members.get(instance_id or "", "")
            if not member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id not in group.pending_joins:
            code = group.check_member(member_id, instance_id)
            if code:
                return code
        self._drop(group, member_id, out)
        return ErrorCode.NONE

    # --------------------------------------------------------------------------------- members

    def watch_loaded(self, group: ClassicGroup, now: Now) -> None:
        """After a replay each member has a fresh session; a group that is too large shrinks."""
        for member in group.members.values():
            self._watch(group, member.id, now, member.session_timeout_ms)
        if len(group.members) > self.settings.members_max:
            out: Outcome = Decision()
            self._rebalance(group, "the loaded group is over its largest size", now, out)

    def _watch(self, group: ClassicGroup, member_id: str, now: Now, timeout_ms: int) -> None:
        self.timers.set(_session(group, member_id), now.steady_ms + timeout_ms)

    def _drop(self, group: ClassicGroup, member_id: str, out: Outcome) -> None:
        """Removes a member; if it still waits for something it learns so, and may come again."""
        self.timers.cancel(_session(group, member_id))
        self._answer_parked(group, member_id, ErrorCode.UNKNOWN_MEMBER_ID, out)
        group.remove(member_id)

    def _answer_parked(
        self, group: ClassicGroup, member_id: str, code: ErrorCode, out: Outcome
    ) -> None:
        ticket = group.waiting_joins.pop(member_id, None)
        if ticket is not None:
            known_id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else member_id
            fail_join(out, ticket, code, known_id)
        ticket = group.waiting_syncs.pop(member_id, None)
        if ticket is not None:
            out.replies.append((ticket, SyncGroupResponse(error_code=code)))


class _Join(NamedTuple):
    """One join on its way through the rules."""

    group: ClassicGroup
    request: JoinGroupRequest
    caller: Caller
    now: Now
    ticket: Ticket
    out: Outcome

    def fail(self, code: ErrorCode) -> None:
        fail_join(self.out, self.ticket, code, self.request.member_id)


def _change(join: _Join, member: Member) -> None:
    join.group.change_protocols(member, protocols_of(join.request))
    member.rebalance_timeout_ms = rebalance_timeout_ms(join.request)
    member.session_timeout_ms = join.request.session_timeout_ms


def _session(group: ClassicGroup, member_id: str) -> Timer:
    return Timer(TimerKind.SESSION, group.id, member_id)


def _reason(ours: str, theirs: str | None) -> str:
    return f"{ours}; client: {(theirs or 'not provided')[:REASON_LENGTH_MAX]}"
