"""Reading what nobody reads: every batch by its CRC, a slice at a time.

Bytes that lie in memory are taken from there: that is what readers get, and it costs no disk. What
had to come from the disk is dropped from memory again, so that a pass over a terabyte does not
push out what consumers are about to ask for. A page that is always in memory is thus not compared
with the disk; it is when the machine has started anew, or has found a better use for the memory.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.log.corruption import Examined, examine
from ottla.log.handles import Handle, Handles
from ottla.log.index import Read
from ottla.log.log import Log
from ottla.log.segment import Segment
from ottla.wire.schema import Buffer

# What looking at a batch, or opening a file, costs besides its bytes, counted in bytes: a broker
# with thousands of small logs should be no less idle for being scrubbed.
BATCH_COST_BYTES: Final = 4096
SEGMENT_COST_BYTES: Final = 262_144


class Stretch(NamedTuple):
    """A segment as it was when the scrub came to it."""

    segment: Segment
    end: int
    next_base: int | None


def stretch_from(log: Log, offset: int) -> Stretch | None:
    """The first segment that begins at or after `offset` and has synced bytes."""
    segments, synced = log.segments, log.synced
    for at, segment in enumerate(segments):
        if segment.base_offset >= offset and segment.base_offset <= synced.segment_base:
            if segment.base_offset == synced.segment_base:
                return Stretch(segment, synced.bytes_in_segment, None)
            return Stretch(segment, segment.size, segments[at + 1].base_offset)
    return None


def is_still_there(log: Log, stretch: Stretch) -> bool:
    """Compacted, deleted or cut meanwhile: then what was found in it is nothing."""
    segment = stretch.segment
    return segment.size >= stretch.end and any(known is segment for known in log.segments)


def slice_of(
    stretch: Stretch, handles: Handles, begin: Examined | None, budget_bytes: int
) -> tuple[Examined, int]:
    """Blocking: looks at batches until the budget is used up; also returns what it cost."""
    cost = 0 if begin is not None else SEGMENT_COST_BYTES

    def goes_on(byte_count: int) -> bool:
        nonlocal cost
        cost += max(byte_count, BATCH_COST_BYTES)
        return cost < budget_bytes

    segment, end, next_base = stretch
    read = _gentle_reader(handles, segment.handle)
    examined = examine(segment, read, end, next_base, begin=begin, goes_on=goes_on)
    return examined, cost


def _gentle_reader(handles: Handles, handle: Handle) -> Read:
    def read(count: int, position: int) -> Buffer:
        file = handles.acquire(handle)
        try:
            data = file.read_cached(count, position)
            if data is None:
                data = file.read(count, position)
                file.let_pages_go(count, position)
            return data
        finally:
            handles.release(handle)

    return read
