"""A group of the classic protocol: who is in it, and what they agreed on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ottla.coordinators.group_states import NEXT, GroupEvent, GroupState
from ottla.errors import ErrorCode
from ottla.machine import Ticket
from ottla.wire.codec import MalformedMessage, decode_prefix
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.messages.group_records import GroupMetadataValue, MemberMetadata

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
# Every later version of a subscription starts with the fields of the first.
SUBSCRIPTION_PREFIX_VERSION: Final = 0
_SUBSCRIPTION_AT: Final = 2

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Member:
    id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    # What it can speak, with its metadata for each, in the order of its preference.
    protocols: Protocols
    assignment: bytes = b""
    # A new member cannot send heartbeats before its first join is answered.
    is_new: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True)
class ClassicGroup:
    """Durable is only `stored`, the last record; the rest starts from it again after a replay."""

    id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.DEAD
    state_since_wall_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    # None: not known, because the members do not speak the consumer protocol.
    subscribed_topics: frozenset[str] | None = None
    stored: GroupMetadataValue | None = None

    # Soft: lost on a replay.
    support: dict[str, int] = field(default_factory=dict)
    pending_joins: set[str] = field(default_factory=set)
    pending_syncs: set[str] = field(default_factory=set)
    waiting_joins: dict[str, Ticket] = field(default_factory=dict)
    waiting_syncs: dict[str, Ticket] = field(default_factory=dict)
    gained_member_in_delay: bool = False
    delay_ms: int = 0
    delay_left_ms: int = 0

    def move(self, event: GroupEvent, wall_ms: int) -> None:
        self.previous_state, self.state = self.state, NEXT[self.state, event]
        self.state_since_wall_ms = wall_ms

    @property
    def is_initial_rebalance(self) -> bool:
        return (
            self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY
        )

    @property
    def all_joined(self) -> bool:
        return len(self.waiting_joins) == len(self.members) and not self.pending_joins

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id
        self._count(member.protocols, 1)
        self.pending_joins.discard(member.id)

    def remove(self, member_id: str) -> Member | None:
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def change_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def rename_static(self, member: Member, new_id: str) -> None:
        """The instance came back as somebody new: same place, other name."""
        old_id = member.id
        del self.members[old_id]
        self.pending_syncs.discard(old_id)
        member.id = new_id
        self.members[new_id] = member
        assert member.instance_id is not None
        self.static_members[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id

    def elect_joined_leader(self) -> bool:
        """Whether a member that has joined leads; a leader that did not join loses its place."""
        if self.leader is not None and self.leader not in self.waiting_joins:
            self.leader = next((id for id in self.members if id in self.waiting_joins), self.leader)
        return self.leader in self.waiting_joins

    def begin_generation(self, wall_ms: int) -> None:
        self.generation += 1
        self.pending_syncs.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.move(GroupEvent.JOINED, wall_ms)
        else:
            self.protocol = None
            self.move(GroupEvent.EMPTIED, wall_ms)
        self.subscribed_topics = self.read_subscriptions()

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member that speaks these could be in this group."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        everybody = len(self.members)
        return protocol_type == self.protocol_type and any(
            self.support.get(name, 0) == everybody for name in names
        )

    def select_protocol(self) -> str:
        """Of what all can speak, what most prefer; a draw goes to the earlier members' choice."""
        everybody = len(self.members)
        candidates = {name for name, count in self.support.items() if count == everybody}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            current_id = self.static_members.get(instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def subscribes(self, topic: str) -> bool:
        """A consumer group whose subscription cannot be read is taken to want every topic."""
        if self.subscribed_topics is None:
            return self.is_consumer_group
        return topic in self.subscribed_topics

    def read_subscriptions(self) -> frozenset[str] | None:
        if not self.is_consumer_group:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                subscription, _ = decode_prefix(
                    ConsumerProtocolSubscription,
                    member.metadata(self.protocol),
                    SUBSCRIPTION_PREFIX_VERSION,
                    _SUBSCRIPTION_AT,
                )
            except MalformedMessage:
                return None
            topics.update(subscription.topics)
        return frozenset(topics)

    def to_value(self) -> GroupMetadataValue:
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self.state_since_wall_ms,
            members=[
                MemberMetadata(
                    member_id=member.id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol),
                    assignment=member.assignment,
                )
                for member in self.members.values()
            ],
        )

    @classmethod
    def from_value(cls, id: str, value: GroupMetadataValue) -> ClassicGroup:
        group = cls(
            id,
            state=GroupState.STABLE if value.members else GroupState.EMPTY,
            state_since_wall_ms=value.current_state_timestamp,
            generation=value.generation,
            protocol=value.protocol,
            leader=value.leader,
            protocol_type=value.protocol_type or None,
            stored=value,
        )
        for stored in value.members:
            timeout_ms = stored.rebalance_timeout
            member = Member(
                id=stored.member_id,
                instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                host=stored.client_host,
                session_timeout_ms=stored.session_timeout,
                rebalance_timeout_ms=stored.session_timeout if timeout_ms == -1 else timeout_ms,
                protocols=((value.protocol or "", stored.subscription),),
                assignment=stored.assignment,
            )
            group.add(member, value.protocol_type)
        group.subscribed_topics = group.read_subscriptions()
        return group

    def _count(self, protocols: Protocols, step: int) -> None:
        for name, _ in protocols:
            count = self.support.get(name, 0) + step
            if count:
                self.support[name] = count
            else:
                del self.support[name]
