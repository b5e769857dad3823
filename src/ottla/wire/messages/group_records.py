"""The records of `__consumer_offsets`. Keys and values start with their version as an int16."""

from ottla.wire.schema import BYTES, INT32, INT64, STRING, Array, Message, Struct, field


class OffsetCommitKey(Message, versions="0-1", flexible="none"):
    group: str = field(STRING, "0-1")
    topic: str = field(STRING, "0-1")
    partition: int = field(INT32, "0-1")


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    offset: int = field(INT64)
    leader_epoch: int = field(INT32, "3+", default=-1)
    metadata: str = field(STRING)
    commit_timestamp: int = field(INT64)
    expire_timestamp: int = field(INT64, "1", default=-1)


class GroupMetadataKey(Message, versions="2", flexible="none"):
    group: str = field(STRING, "2")


class MemberMetadata(Struct):
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout: int = field(INT32, "1+", default=-1)
    session_timeout: int = field(INT32)
    subscription: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    protocol_type: str = field(STRING)
    generation: int = field(INT32)
    protocol: str | None = field(STRING, nullable="0+")
    leader: str | None = field(STRING, nullable="0+")
    current_state_timestamp: int = field(INT64, "2+", default=-1)
    members: list[MemberMetadata] = field(Array(MemberMetadata))
