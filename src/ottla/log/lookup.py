"""Finding records by their time: the one thing for which a log opens batches.

It does so in steps, and whoever asks goes through them. A batch that cannot be opened, because it
is too large or lies about what it holds, stands as a whole for its records: a reader who begins at
its first offset misses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ottla.errors import CorruptBatch, StorageFailed
from ottla.log.corruption import Corruption
from ottla.log.handles import Handles
from ottla.log.reading import segment_at
from ottla.log.scan import batches
from ottla.log.segment import Segment
from ottla.log.values import NO_TIMESTAMP, LogPosition
from ottla.wire.records import BatchHeader, crc_matches
from ottla.wire.scanning import Steps, all_at_once, first_since
from ottla.wire.schema import Buffer

Moment = tuple[int, int, int]
GoThrough: TypeAlias = Callable[[Steps[tuple[int, int] | None]], tuple[int, int] | None]


class Source(Protocol):
    """A log, as far as a search in it goes. It may lose segments meanwhile."""

    start_offset: int
    corruption: Corruption | None

    @property
    def segments(self) -> Sequence[Segment]: ...


def first_at_or_after(
    log: Source,
    handles: Handles,
    timestamp: int,
    limit: LogPosition,
    go_through: GoThrough = all_at_once,
) -> Moment | None:
    """Blocking. (offset, timestamp, leader epoch) of the first record that is not older."""
    whole = limit
    if log.corruption is not None:
        limit = log.corruption.limit_for(log.start_offset, log.segments, limit)
    found = _steadily(
        log,
        lambda segments: _first_in(
            segments, handles, timestamp, log.start_offset, limit, go_through
        ),
    )
    if found is None and limit != whole:
        raise StorageFailed(f"damaged: {log.corruption}")
    return found


def max_timestamp(
    log: Source, handles: Handles, limit: LogPosition, go_through: GoThrough = all_at_once
) -> Moment | None:
    """Blocking. (offset, timestamp, leader epoch) of the first of the youngest records."""
    if log.corruption is not None and log.start_offset < log.corruption.until:
        raise StorageFailed(f"damaged: {log.corruption}")
    return _steadily(
        log,
        lambda segments: _youngest_in(segments, handles, log.start_offset, limit, go_through),
    )


def _steadily(log: Source, look: Callable[[Sequence[Segment]], Moment | None]) -> Moment | None:
    """Looks again when a segment has left the log, with its files, under the reader's eyes."""
    while True:
        segments = log.segments
        try:
            return look(segments)
        except FileNotFoundError:
            if segments is log.segments:
                raise


def _first_in(
    segments: Sequence[Segment],
    handles: Handles,
    timestamp: int,
    start_offset: int,
    limit: LogPosition,
    go_through: GoThrough,
) -> Moment | None:
    for segment in segments:
        if segment.base_offset > limit.segment_base:
            break
        if segment.largest_timestamp(handles)[0] < timestamp:
            continue
        offset = max(segment.offset_before(timestamp, handles), start_offset)
        position = segment.position_before(offset, handles, cached_only=False)
        end = _end(segment, limit)
        for at, header, _ in batches(segment.reader(handles), position, end):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            data = handles.read(segment.handle, header.size, at, cached_only=False)
            found = _first_in_batch(data, header, timestamp, start_offset, go_through)
            if found is not None:
                return found
    return None


def _first_in_batch(
    batch: Buffer, header: BatchHeader, timestamp: int, start_offset: int, go_through: GoThrough
) -> Moment | None:
    if not crc_matches(batch, 0, header):
        raise CorruptBatch(f"no intact batch at offset {header.base_offset}")
    try:
        found = go_through(first_since(batch, header, timestamp, start_offset))
    except CorruptBatch:
        found = max(header.base_offset, start_offset), header.max_timestamp
    return None if found is None else (*found, header.leader_epoch)


def _youngest_in(
    segments: Sequence[Segment],
    handles: Handles,
    start_offset: int,
    limit: LogPosition,
    go_through: GoThrough,
) -> Moment | None:
    largest, at_offset = NO_TIMESTAMP, -1
    for segment in segments:
        if segment.base_offset > limit.segment_base or segment.base_offset >= limit.offset:
            break
        timestamp, offset = _largest_within(segment, handles, start_offset, limit)
        if timestamp > largest:
            largest, at_offset = timestamp, offset
    if at_offset < 0:
        return None
    segment = segment_at(segments, at_offset)
    position = segment.position_before(at_offset, handles, cached_only=False)
    read = segment.reader(handles)
    for at, header, _ in batches(read, position, _end(segment, limit)):
        if header.last_offset >= at_offset:
            data = handles.read(segment.handle, header.size, at, cached_only=False)
            return _first_in_batch(data, header, largest, header.base_offset, go_through)
    return None


def _largest_within(
    segment: Segment, handles: Handles, start_offset: int, limit: LogPosition
) -> tuple[int, int]:
    """(timestamp, last offset of its batch) among the batches between start and limit."""
    timestamp, offset = segment.largest_timestamp(handles)
    if start_offset <= offset < limit.offset:
        return timestamp, offset
    timestamp, offset = NO_TIMESTAMP, -1
    position = segment.position_before(start_offset, handles, cached_only=False)
    indexes = segment.indexes
    if indexes is not None:
        before, before_at = indexes.largest_before(limit.offset - segment.base_offset)
        if segment.base_offset + before_at >= start_offset:
            timestamp, offset = before, segment.base_offset + before_at
            position = indexes.position_before(limit.offset - 1 - segment.base_offset)
    for _, header, _ in batches(segment.reader(handles), position, _end(segment, limit)):
        if header.last_offset >= start_offset and header.max_timestamp > timestamp:
            timestamp, offset = header.max_timestamp, header.last_offset
    return timestamp, offset


def _end(segment: Segment, limit: LogPosition) -> int:
    return limit.bytes_in_segment if segment.base_offset == limit.segment_base else segment.size
