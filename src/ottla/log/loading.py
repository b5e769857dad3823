"""Opening a log: after a clean stop its files are believed, after a crash they are checked."""

from __future__ import annotations

from ottla.log.epochs import Epochs
from ottla.log.listing import Found, Loaded, Site, look, producers_at
from ottla.log.producer_state import ProducerState
from ottla.log.recovery import recover
from ottla.log.scan import OFFSET_DELTA_MAX, batches
from ottla.log.segment import SNAPSHOT, Segment
from ottla.log.unsynced import Unsynced
from ottla.log.values import LogPosition


def load(site: Site, *, clean: bool, recovery_point: int, start_offset: int) -> Loaded:
    """Blocking."""
    try:
        found = look(site)
    except FileNotFoundError:
        # The directory comes with the first file: a partition that nobody writes to has none.
        found = Found()
    for name in found.leftovers:
        site.disk.remove(f"{site.directory}/{name}")
    if not found.segments:
        found.segments.append(Segment(site.directory, start_offset, 0, site.now_ms))
    if clean:
        loaded = _believe(site, found)
    else:
        loaded = recover(site, found, recovery_point)
    _start_at(site, loaded, start_offset)
    loaded.producers.expire(site.now_ms, site.config.producer_expiry_ms)
    return loaded


def _believe(site: Site, found: Found) -> Loaded:
    """A clean stop leaves a snapshot whose name is the end offset: nothing has to be read."""
    segments, snapshots = found.segments, found.snapshots
    unsynced = Unsynced(site.handles, site.directory)
    for segment in found.unindexed:
        indexes = segment.rebuild_indexes(site.handles, site.config.index_interval_bytes)
        unsynced.write_whole(segment.index_files(indexes))
    last = segments[-1]
    latest_snapshot = max(snapshots, default=0)
    if not last.size:
        end_offset = last.base_offset
    elif latest_snapshot > last.base_offset:
        end_offset = latest_snapshot
    else:
        end_offset = _end_of(site, last)
    producers = producers_at(site, segments, snapshots, end_offset)
    epochs = Epochs.load(site.disk, site.directory) if found.has_epochs else Epochs()
    epochs.cut_end(end_offset)
    unsynced.sync(LogPosition(end_offset, last.base_offset, last.size))
    return Loaded(segments, end_offset, producers, epochs, snapshots)


def _end_of(site: Site, segment: Segment) -> int:
    far = segment.base_offset + OFFSET_DELTA_MAX
    position = segment.position_before(far, site.handles, cached_only=False)
    end_offset = segment.base_offset
    for _, header, _ in batches(segment.reader(site.handles), position, segment.size):
        end_offset = header.next_offset
    return end_offset


def _start_at(site: Site, loaded: Loaded, start_offset: int) -> None:
    """Removes what was deleted before the stop but came back, or was not yet removed."""
    segments = loaded.segments
    if start_offset > loaded.end_offset:
        for segment in reversed(segments):
            site.remove_segment(segment)
        for offset in loaded.snapshots:
            site.disk.remove(site.path(offset, SNAPSHOT))
        segments[:] = [Segment(site.directory, start_offset, 0, site.now_ms)]
        loaded.snapshots = {}
        loaded.producers = ProducerState()
        loaded.end_offset = start_offset
        loaded.epochs.cut_end(0)
    while len(segments) > 1 and segments[1].base_offset <= start_offset:
        site.remove_segment(segments.pop(0))
    loaded.epochs.cut_start(max(start_offset, segments[0].base_offset))
