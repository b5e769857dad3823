"""Cutting the end off a log: where its files are to end, and making them end there.

A batch is kept whole or not at all, so the cut is never behind the offset that was asked for, and
may lie before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.log.handles import Handles
from ottla.log.listing import Site
from ottla.log.reading import segment_at
from ottla.log.scan import batches
from ottla.log.segment import SNAPSHOT, Segment
from ottla.log.unsynced import Unsynced


class Cut(NamedTuple):
    """The segment that becomes the last one, and where in it the log then ends."""

    segment: Segment
    offset: int
    size: int


def find_cut(segments: Sequence[Segment], handles: Handles, offset: int) -> Cut:
    """Blocking: the cut before the batch with `offset`."""
    segment = segment_at(segments, offset)
    position = segment.position_before(offset, handles, cached_only=False)
    for at, header, _ in batches(segment.reader(handles), position, segment.size):
        if header.last_offset >= offset:
            return Cut(segment, min(offset, header.base_offset), at)
    return Cut(segment, offset, segment.size)


def cut_files(
    site: Site,
    unsynced: Unsynced,
    segments: Sequence[Segment],
    snapshots: dict[int, int],
    cut: Cut,
) -> list[Segment]:
    """Blocking: nothing behind the cut is left; returns the segments that are. Syncs nothing.

    From the end on: whenever this stops, what is left has no gap.
    """
    segment, offset, size = cut
    for behind in reversed(segments):
        if behind.base_offset > segment.base_offset:
            site.remove_segment(behind)
    for known_at in [at for at in snapshots if at > offset]:
        site.disk.remove(site.path(known_at, SNAPSHOT))
        del snapshots[known_at]
    if segment.is_created:
        unsynced.to_write(segment.handle).truncate(size)
    segment.size = size
    segment.indexes = segment.rebuild_indexes(site.handles, site.config.index_interval_bytes)
    return [kept for kept in segments if kept.base_offset <= segment.base_offset]
