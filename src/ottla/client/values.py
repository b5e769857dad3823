"""What a cluster answers, in the client's own words."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.types import Offset, ProducerId, TopicId, TopicPartition

# Instead of a time: the end of the log, and its beginning.
LATEST: Final = -1
EARLIEST: Final = -2

Aborted = tuple[tuple[ProducerId, Offset], ...]


class TopicInfo(NamedTuple):
    name: str
    topic_id: TopicId
    partitions: tuple[int, ...]
    is_internal: bool


class FoundOffset(NamedTuple):
    """`offset` is -1 when the log has none that fits."""

    offset: int
    timestamp: int


class Fetched(NamedTuple):
    """Whole record batches as they lie in the log, perhaps with a part of one more after them.

    `records` is a view into the reply's own memory. `aborted` has the transactions to leave out,
    as producer id and first offset.
    """

    partition: TopicPartition
    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Aborted


class Produced(NamedTuple):
    """What became of one batch; `error_code` 0 is success."""

    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    error_message: str | None
