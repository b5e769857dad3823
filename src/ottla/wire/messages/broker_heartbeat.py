"""A broker tells the controller that it lives, how far it has read, and what it wants."""

from ottla.wire.schema import BOOL, INT16, INT32, INT64, UUID, Array, Message, field


class BrokerHeartbeatRequest(Message, api_key=63, versions="0-1", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    current_metadata_offset: int = field(INT64)
    want_fence: bool = field(BOOL)
    want_shut_down: bool = field(BOOL)
    offline_log_dirs: list[bytes] = field(Array(UUID), "1+", tag=0, tagged="1+")


class BrokerHeartbeatResponse(Message, api_key=63, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    is_caught_up: bool = field(BOOL)
    is_fenced: bool = field(BOOL, default=True)
    should_shut_down: bool = field(BOOL)
