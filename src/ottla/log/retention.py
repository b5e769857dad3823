"""What of a log may go: decisions without a disk or a clock, as Kafka takes them.

Three rules, one after the other, each from the oldest segment on until one has to stay: what lies
before the log's start, what is above `retention.bytes`, what is older than `retention.ms`. Nothing
at or after the high watermark goes. The segment being written to may go like any other, unless it
is empty: its log begins a new one first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ottla.log.segment import Segment

FOR_EVER: Final = -1


class Extent(NamedTuple):
    """A segment as retention sees it; the last one ends where the log does."""

    base_offset: int
    next_base: int
    size: int


class Limits(NamedTuple):
    """How much a log keeps. Without `deletes` (`cleanup.policy`) only its start counts."""

    deletes: bool = True
    retention_ms: int = FOR_EVER
    retention_bytes: int = FOR_EVER


YoungestMs = Callable[[int], int]


def extents(segments: Sequence[Segment], end_offset: int) -> list[Extent]:
    following = [*(segment.base_offset for segment in segments[1:]), end_offset]
    return [
        Extent(segment.base_offset, next_base, segment.size)
        for segment, next_base in zip(segments, following, strict=True)
    ]


def count_expired(
    log: Sequence[Extent],
    limits: Limits,
    start_offset: int,
    high_watermark: int,
    now_ms: int,
    youngest_ms: YoungestMs,
) -> int:
    """How many segments go, from the oldest on.

    `youngest_ms` tells the largest timestamp of the segment at a position in `log`. It may have to
    read a file, so it is asked only where the answer counts.
    """
    gone = 0
    for goes in _rules(log, limits, start_offset, now_ms, youngest_ms):
        while gone < len(log) and _is_free_to_go(log, gone, high_watermark) and goes(gone):
            gone += 1
    return gone


def start_without(log: Sequence[Extent], gone: int, start_offset: int) -> int:
    """Where the log begins when so many of its segments are gone; the start never moves back."""
    return max(start_offset, log[gone - 1].next_base) if gone else start_offset


def _is_free_to_go(log: Sequence[Extent], at: int, high_watermark: int) -> bool:
    is_last = at == len(log) - 1
    return log[at].next_base <= high_watermark and not (is_last and log[at].size == 0)


def _rules(
    log: Sequence[Extent],
    limits: Limits,
    start_offset: int,
    now_ms: int,
    youngest_ms: YoungestMs,
) -> Iterable[Callable[[int], bool]]:
    sizes_before = [0]
    for extent in log:
        sizes_before.append(sizes_before[-1] + extent.size)

    def lies_before_the_start(at: int) -> bool:
        return at + 1 < len(log) and log[at].next_base <= start_offset

    def is_too_much(at: int) -> bool:
        """All that would be left is still no less than what is to be kept."""
        return sizes_before[-1] - sizes_before[at + 1] >= limits.retention_bytes

    def is_too_old(at: int) -> bool:
        return now_ms - youngest_ms(at) > limits.retention_ms

    yield lies_before_the_start
    if limits.deletes and limits.retention_bytes >= 0:
        yield is_too_much
    if limits.deletes and limits.retention_ms >= 0:
        yield is_too_old
