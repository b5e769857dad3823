"""What the classic protocol's messages say: requests read, replies built."""

from __future__ import annotations

from ottla.coordinators.classic_group import ClassicGroup, Protocols
from ottla.coordinators.group_records import Record
from ottla.coordinators.group_states import GroupState
from ottla.errors import ErrorCode
from ottla.machine import Decision, Ticket
from ottla.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """In the order of preference; of a name given twice the first counts."""
    found: dict[str, bytes] = {}
    for protocol in request.protocols:
        found.setdefault(protocol.name, protocol.metadata)
    return tuple(found.items())


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Version 0 knows only the session's timeout, which then counts for both."""
    timeout_ms = request.rebalance_timeout_ms
    return request.session_timeout_ms if timeout_ms < 0 else timeout_ms


def joined(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    """Only the leader learns who is in the generation."""
    members = []
    if group.leader == member_id:
        members = [
            JoinGroupResponseMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(group.protocol),
            )
            for member in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol or "",
        leader=group.leader or "",
        member_id=member_id,
        members=members,
    )


def fail_join(out: Decision[Record], ticket: Ticket, code: ErrorCode, member_id: str = "") -> None:
    out.replies.append((ticket, JoinGroupResponse(error_code=code, member_id=member_id)))


def check_sync(group: ClassicGroup | None, request: SyncGroupRequest) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None or group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    code = group.check_member(request.member_id, request.group_instance_id)
    if code:
        return code
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if _differs(request.protocol_name, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(asked: str | None, agreed: str | None) -> bool:
    return asked is not None and agreed is not None and asked != agreed


def synced(group: ClassicGroup, member_id: str) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=group.members[member_id].assignment,
    )
