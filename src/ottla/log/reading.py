"""Reading batches: by the index to a position, from there in one piece."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from ottla.errors import CorruptBatch
from ottla.log.corruption import UNKNOWN_END, Corruption
from ottla.log.handles import Handles
from ottla.log.scan import outline
from ottla.log.segment import Segment
from ottla.log.values import LogPosition
from ottla.wire.records import BATCH_HEADER_BYTES
from ottla.wire.schema import Buffer

# Read on top of what was asked for when the index, which is sparse, gave the position.
_SKIP_BYTES: Final = 8192
_READ_BYTES_MIN: Final = 4096
_ENDS_MAX: Final = 16
_WALK_BATCHES_MAX: Final = 64

_BASE_OFFSET: Final = struct.Struct(">q")

_base_offset = attrgetter("base_offset")


class Nonsense(Exception):
    """Bytes that no log writes, where batches should be: damage, unless somebody looks closer."""

    def __init__(self, found: Corruption) -> None:
        super().__init__(str(found))
        self.found = found


def segment_at(segments: Sequence[Segment], offset: int) -> Segment:
    """The one in which `offset` is, if it is anywhere; the first one if it lies before all."""
    if offset >= segments[-1].base_offset:
        return segments[-1]
    return segments[max(0, bisect_right(segments, offset, key=_base_offset) - 1)]


def segment_after(segments: Sequence[Segment], segment: Segment) -> Segment | None:
    at = bisect_right(segments, segment.base_offset, key=_base_offset)
    return segments[at] if at < len(segments) else None


def end_of(data: Buffer) -> int:
    """After the last whole batch of what was read, which begins with one."""
    at, length, end_offset = 0, len(data), 0
    while length - at >= BATCH_HEADER_BYTES:
        last_offset, size = outline(data, at)
        at += size
        if at <= length or not end_offset:
            end_offset = last_offset + 1
    return end_offset


class Reader:
    """Remembers where the last few reads ended, so that who reads on needs no index.

    A remembered place is only where the search begins: the batches themselves say their offsets.
    """

    __slots__ = ("_ends", "_handles")

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._ends: dict[int, tuple[Segment, int]] = {}

    def forget(self) -> None:
        self._ends = {}

    def read(
        self,
        segments: Sequence[Segment],
        offset: int,
        max_bytes: int,
        limit: LogPosition,
        *,
        cached_only: bool,
        with_empty: bool = False,
    ) -> Buffer:
        """Whole batches from the one with `offset` on; the last may be cut. Raises NotCached."""
        place = self._ends.get(offset)
        if place is not None:
            segment, position = place
            count = max_bytes
        else:
            segment = segment_at(segments, offset)
            position = segment.position_before(offset, self._handles, cached_only=cached_only)
            count = max_bytes + _SKIP_BYTES
        empty: list[Buffer] | None = None if with_empty else []
        while True:
            end = segment.size
            if segment.base_offset == limit.segment_base:
                end = limit.bytes_in_segment
            data = self._read_from(
                segment, position, end, offset, (count, max_bytes, cached_only), limit, empty
            )
            if data is not None:
                return data
            # All of this segment lies before the offset: compaction has left a gap up to the next.
            following = segment_after(segments, segment)
            if following is None or segment.base_offset >= limit.segment_base:
                return empty[-1] if empty else b""
            segment, position, count = following, 0, max_bytes + _SKIP_BYTES

    def _read_from(
        self,
        segment: Segment,
        position: int,
        end: int,
        offset: int,
        how_much: tuple[int, int, bool],
        limit: LogPosition,
        empty: list[Buffer] | None,
    ) -> Buffer | None:
        """Batches without records, which compaction leaves, are passed over and noted in `empty`.

        librdkafka takes a reply with nothing else for a message that is too large to fetch. But a
        follower has to get them (`empty` is None): they carry the state of producers.
        """
        count, max_bytes, cached_only = how_much
        while position < end:
            count = min(max(count, _READ_BYTES_MIN), end - position)
            data = self._handles.read(segment.handle, count, position, cached_only=cached_only)
            at, length = 0, len(data)
            while length - at >= BATCH_HEADER_BYTES:
                try:
                    last_offset, size = outline(data, at)
                except CorruptBatch as error:
                    raise _nonsense(segment, position + at, offset, str(error)) from None
                if last_offset < offset:
                    at += size
                elif size == BATCH_HEADER_BYTES and empty is not None:
                    empty[:] = [memoryview(data)[at : at + size]]
                    at += size
                elif size <= length - at:
                    if at or length > max_bytes:
                        data = memoryview(data)[at : at + max(size, max_bytes)]
                    self._note_end(segment, data, position + at, end, limit)
                    return data
                elif at == 0 and count >= min(size, end - position):
                    raise _nonsense(segment, position, offset, "a batch without its end")
                else:
                    count = max(size, max_bytes)
                    break
            else:
                if at == 0:
                    raise _nonsense(segment, position, offset, "no batch where one should be")
            position += at
        if position > end:
            raise _nonsense(segment, end, offset, "a batch without its end")
        return None

    def _note_end(
        self, segment: Segment, data: Buffer, position: int, end: int, limit: LogPosition
    ) -> None:
        """Finds where the last whole batch of `data` ends, if that is cheap to find."""
        stop = position + len(data)
        if stop == end and segment.base_offset == limit.segment_base:
            next_offset, next_at = limit.offset, stop
        else:
            next_offset, next_at = -1, position
            if segment.indexes is not None:
                next_at = max(position, segment.indexes.boundary_before(stop))
                if next_at == stop:
                    return
            for _ in range(_WALK_BATCHES_MAX):
                if stop - next_at < BATCH_HEADER_BYTES:
                    break
                try:
                    last_offset, size = outline(data, next_at - position)
                except CorruptBatch:
                    return  # Whoever reads on will meet it.
                if next_at + size > stop:
                    if next_offset < 0:
                        (next_offset,) = _BASE_OFFSET.unpack_from(data, next_at - position)
                    break
                next_offset, next_at = last_offset + 1, next_at + size
            else:
                return
            if next_offset < 0:
                return
        if len(self._ends) >= _ENDS_MAX:
            self._ends = {}
        self._ends[next_offset] = (segment, next_at)


def _nonsense(segment: Segment, position: int, offset: int, reason: str) -> Nonsense:
    return Nonsense(Corruption(segment.handle.path, position, offset, UNKNOWN_END, reason))
