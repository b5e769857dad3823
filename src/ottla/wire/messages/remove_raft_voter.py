"""Remove a voter of the metadata log (KIP-853)."""

from ottla.wire.schema import INT16, INT32, STRING, UUID, Message, field


class RemoveRaftVoterRequest(Message, api_key=81, versions="0", flexible="0+"):
    cluster_id: str | None = field(STRING, nullable="0+")
    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID)


class RemoveRaftVoterResponse(Message, api_key=81, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
