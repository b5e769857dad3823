"""When a segment has had enough: decided before each batch, by what the batch would make of it."""

from __future__ import annotations

import zlib

from ottla.log.index import Indexes
from ottla.log.scan import OFFSET_DELTA_MAX
from ottla.log.segment import Segment
from ottla.log.values import LogConfig


def must_roll(
    config: LogConfig,
    segment: Segment,
    indexes: Indexes,
    last_offset: int,
    size: int,
    timestamp: int,
    now_ms: int,
) -> bool:
    """Whether a batch with this end, size and time belongs into a new segment."""
    if not segment.size:
        return last_offset - segment.base_offset > OFFSET_DELTA_MAX
    age_ms_max = config.segment_ms
    if config.segment_jitter_ms:
        spread = zlib.crc32(segment.handle.path.encode())
        age_ms_max -= spread % min(config.segment_jitter_ms, config.segment_ms)
    return (
        segment.size + size > config.segment_bytes
        or segment.waited_ms(now_ms, timestamp) > age_ms_max
        or indexes.is_full(config.segment_index_bytes)
        or last_offset - segment.base_offset > OFFSET_DELTA_MAX
    )
