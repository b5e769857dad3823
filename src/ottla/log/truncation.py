"""Cutting the end off a log: where its files are to end, and making them end there.

A batch is kept whole or not at all, so the cut is never after the offset that was asked for, and
may lie before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.log.aborted import entries_before
from ottla.log.chain import Chain
from ottla.log.handles import Handles
from ottla.log.index import Indexes
from ottla.log.reading import segment_at
from ottla.log.scan import batches
from ottla.log.segment import SNAPSHOT, Segment
from ottla.log.site import Site
from ottla.log.unsynced import Unsynced


class Cut(NamedTuple):
    """A place between two batches: its segment, the next offset, and the bytes before it."""

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


def cut_files(site: Site, unsynced: Unsynced, chain: Chain, cut: Cut) -> None:
    """Blocking: nothing after the cut is left. Syncs nothing.

    From the end on: whenever this stops, what is left has no gap.
    """
    segment, offset, size = cut
    for later in reversed(chain.segments):
        if later.base_offset > segment.base_offset:
            site.remove_segment(later)
    for known_at in [at for at in chain.snapshots if at > offset]:
        site.disk.remove(site.path(known_at, SNAPSHOT))
        del chain.snapshots[known_at]
    if segment.is_created:
        unsynced.to_write(segment.handle).truncate(size)
    segment.size = size
    _cut_aborted(site, unsynced, segment, offset)
    segment.indexes = segment.rebuild_indexes(site.handles, site.config.index_interval_bytes)
    chain.hold([kept for kept in chain.segments if kept.base_offset <= segment.base_offset])


def _cut_aborted(site: Site, unsynced: Unsynced, segment: Segment, offset: int) -> None:
    """What was aborted by a marker that is gone is open again."""
    data = segment.read_aborted(site.handles)
    kept = len(entries_before(data, segment.base_offset, offset))
    if kept < len(data):
        unsynced.to_write(segment.aborted_handle).truncate(kept)
        segment.aborted_bytes = kept


def clear_files(site: Site, unsynced: Unsynced, chain: Chain, cut: Cut) -> None:
    """Blocking: nothing is left but an empty segment, whose name tells where the log begins.

    From the end on, as above. Syncs nothing.
    """
    for segment in reversed(chain.segments):
        site.remove_segment(segment)
    for known_at in list(chain.snapshots):
        site.disk.remove(site.path(known_at, SNAPSHOT))
        del chain.snapshots[known_at]
    unsynced.to_create(cut.segment.handle)
    cut.segment.is_created = True
    cut.segment.indexes = Indexes()
    chain.hold([cut.segment])


Shortening = Callable[[Site, Unsynced, Chain, Cut], None]
