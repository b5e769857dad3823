"""Add a voter to the metadata log (KIP-853); version 1 need not wait for the commit (KIP-1186)."""

from ottla.wire.schema import (
    BOOL,
    INT16,
    INT32,
    STRING,
    UINT16,
    UUID,
    Array,
    Message,
    Struct,
    field,
)


class VoterListener(Struct):
    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)


class AddRaftVoterRequest(Message, api_key=80, versions="0-1", flexible="0+"):
    cluster_id: str | None = field(STRING, nullable="0+")
    timeout_ms: int = field(INT32)
    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID)
    listeners: list[VoterListener] = field(Array(VoterListener))
    ack_when_committed: bool = field(BOOL, "1+", default=True)


class AddRaftVoterResponse(Message, api_key=80, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
