"""Opening a log: after a clean stop its files are believed, after a crash they are checked.

Whatever was synced and is not there any more, or not as it was, makes a damaged log: it is opened
as it lies, fenced, and nothing of it is removed or shortened.
"""

from __future__ import annotations

import logging

from ottla.errors import StorageFailed
from ottla.log.chain import needed_from
from ottla.log.corruption import (
    NOT_COUNTED,
    Corruption,
    first_hole,
    leave_note,
    read_note,
    remove_note,
    survey,
)
from ottla.log.epochs import Epochs
from ottla.log.index import Indexes
from ottla.log.opening.listing import Found, Loaded, aborted_in, look, producers_at
from ottla.log.opening.recovery import Damaged, epochs_in, recover
from ottla.log.opening.short_logs import ShortLog
from ottla.log.opening.swaps import complete_swaps
from ottla.log.producer_state import ProducerState
from ottla.log.scan import OFFSET_DELTA_MAX, batches
from ottla.log.segment import SNAPSHOT, Segment
from ottla.log.site import Site
from ottla.log.unsynced import Unsynced
from ottla.log.values import LogPosition

logger = logging.getLogger(__name__)


def load(
    site: Site,
    *,
    clean: bool,
    recovery_point: int,
    start_offset: int,
    known_bytes: int | None = None,
    short: ShortLog | None = None,
) -> Loaded:
    """Blocking. `clean=True` believes the files and is quick whatever their size.

    With `known_bytes`, how long a clean stop left the log, it notices missing ones; `short` is all
    that the stop had to tell of it. `clean=False` checks what lies after `recovery_point` and cuts
    the log at the first batch that is not intact. If synced bytes are not what they were, the log
    has a `corruption`, is fenced, and nothing on disk is changed.
    """
    try:
        found = look(site)
        if found.swaps:
            complete_swaps(site, found)
            found = look(site)
    except FileNotFoundError:
        # The directory comes with the first file: a partition that nobody writes to has none.
        found = Found()
    for name in found.leftovers:
        site.disk.remove(f"{site.directory}/{name}")
    if not found.segments:
        found.segments.append(Segment(site.directory, start_offset, 0, site.now_ms))
    try:
        _look_closely(site, found, recovery_point, start_offset, known_bytes, clean=clean)
        if clean:
            loaded = _believe(site, found, short)
        else:
            loaded = recover(site, found, recovery_point, start_offset)
    except Damaged as damaged:
        end_offset = max(recovery_point, start_offset, damaged.corruption.offset)
        if clean:
            end_offset = max(end_offset, *found.snapshots, 0)
        return _as_it_lies(site, found, damaged.corruption, recovery_point, end_offset)
    _start_at(site, loaded, start_offset)
    loaded.producers.expire(site.now_ms, site.config.producer_expiry_ms)
    return loaded


def _look_closely(
    site: Site,
    found: Found,
    recovery_point: int,
    start_offset: int,
    known_bytes: int | None,
    *,
    clean: bool,
) -> None:
    """Reads everything if there is a reason to; raises Damaged if that finds one."""
    segments, note = needed_from(start_offset, found.segments), None
    if found.has_note:
        note = read_note(site.disk, site.directory)
        if note is not None and note.wanted_bytes != NOT_COUNTED:
            known_bytes = note.wanted_bytes
    byte_count = sum(segment.size for segment in segments)
    is_missing = known_bytes is not None and known_bytes != byte_count
    if not (found.has_note or is_missing):
        return
    next_offset, _, corruption = survey(segments, site.handles)
    if corruption is not None:
        # After the recovery point a crash may have left half of a batch: that is no damage.
        safe_offset = max(recovery_point, -1 if note is None else note.offset + 1)
        if clean or corruption.offset < safe_offset:
            raise Damaged(corruption)
    elif is_missing and known_bytes is not None:
        raise Damaged(first_hole(segments, site.handles, known_bytes))
    elif note is not None and next_offset < note.wanted_end:
        raise Damaged(note)
    if found.has_note:
        remove_note(site.disk, site.directory)


def _as_it_lies(
    site: Site, found: Found, corruption: Corruption, recovery_point: int, end_offset: int
) -> Loaded:
    """A log that can be read outside of its damage, and not be written to."""
    logger.error("%s is damaged and fenced: %s", site.directory, corruption)
    segments = found.segments
    interval = site.config.index_interval_bytes
    for segment in {*found.unindexed, segments[-1]}:
        try:
            segment.indexes = segment.rebuild_indexes(site.handles, interval)
        except OSError:
            segment.indexes = Indexes()
    end_offset = max(end_offset, survey(segments[-1:], site.handles).next_offset)
    epochs = _read_epochs(site, found)
    leave_note(site.disk, site.directory, corruption)
    return Loaded(
        segments, end_offset, ProducerState(), epochs, found.snapshots, corruption, recovery_point
    )


def _believe(site: Site, found: Found, short: ShortLog | None) -> Loaded:
    """A clean stop leaves a snapshot whose name is the end offset: nothing has to be read."""
    segments, snapshots = found.segments, found.snapshots
    epochs: Epochs | None = None
    if (
        short is not None
        and short.is_about(segments[-1])
        and found.unindexed in ([], segments[-1:])
    ):
        segments[-1].indexes = short.indexes()
        epochs = Epochs.of(short.epochs)
        producers = ProducerState.decode(short.producers) if short.producers else ProducerState()
        return Loaded(segments, short.end_offset, producers, epochs, snapshots)
    unsynced = Unsynced(site.handles, site.directory)
    for segment in found.unindexed:
        indexes = segment.rebuild_indexes(site.handles, site.config.index_interval_bytes)
        unsynced.write_whole(segment.index_files(indexes))
        aborted = aborted_in(site, segments, snapshots, segments.index(segment))
        if aborted:
            unsynced.write_whole([(segment.aborted_handle, aborted)])
            segment.aborted_bytes = len(aborted)
    last = segments[-1]
    latest_snapshot = max(snapshots, default=0)
    if not last.size:
        end_offset = last.base_offset
    elif latest_snapshot > last.base_offset:
        end_offset = latest_snapshot
    else:
        end_offset = _end_of(site, last)
        # It was short, and what was told of it is lost: its epochs are in its batches only.
        epochs = epochs_in(segments, site.handles)
    producers = producers_at(site, segments, snapshots, end_offset)
    if epochs is None:
        epochs = _read_epochs(site, found)
    epochs.cut_end(end_offset)
    unsynced.sync(LogPosition(end_offset, last.base_offset, last.size))
    return Loaded(segments, end_offset, producers, epochs, snapshots)


def _read_epochs(site: Site, found: Found) -> Epochs:
    if not found.has_epochs:
        return Epochs()
    try:
        return Epochs.load(site.disk, site.directory)
    except StorageFailed as error:
        logger.warning("%s; the batches are asked", error)
        return epochs_in(found.segments, site.handles)


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
