"""Limits and timeouts of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

# How long a join may be parked before its member has ever been answered; as Kafka has it.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
# Ids that were handed out and not yet used, per group.
PENDING_MEMBERS_MAX: Final = 10_000
# A string of a record has an int16 for its length; the rest is room for "-" and a UUID.
ID_BYTES_MAX: Final = 32_767 - 37


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The defaults are Kafka's."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    members_max: int = 2**31 - 1
    offset_metadata_max: int = 4_096
    offset_retention_ms: int = 7 * 24 * 60 * 60_000
    offset_check_interval_ms: int = 600_000


class Caller(NamedTuple):
    """Who sends a request, and in which version."""

    client_id: str
    host: str
    version: int


class TimerKind:
    """Plain numbers: an enum's hash is slow, and timers are keys that every heartbeat looks up."""

    SESSION: Final = 0
    JOIN: Final = 1
    SYNC: Final = 2
    OFFSETS: Final = 3


class Timer(NamedTuple):
    kind: int
    group: str = ""
    member: str = ""


def fits_in_record(*texts: str | None) -> bool:
    """Whether each can be written; characters take at most four bytes."""
    return all(
        text is None or len(text) * 4 <= ID_BYTES_MAX or len(text.encode()) <= ID_BYTES_MAX
        for text in texts
    )
