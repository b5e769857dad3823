"""What goes into a log and comes out of it, besides batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

NO_TIMESTAMP: Final = -1

_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings a log asks for, with Kafka's defaults."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024 * 1024
    producer_expiry_ms: int = _DAY_MS
    # Whether a transaction begins only by a batch that its coordinator was asked about.
    verifies_transactions: bool = False


class LogPosition(NamedTuple):
    """A place between two batches: the next offset, and where its batch begins in which file."""

    offset: int
    segment_base: int
    bytes_in_segment: int


class Appended(NamedTuple):
    """Where a batch is: the one just queued, or the first one of which it is a repetition."""

    base_offset: int
    end_offset: int
    append_time_ms: int
    is_duplicate: bool
