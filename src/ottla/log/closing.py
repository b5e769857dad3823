"""What a clean stop leaves in the files, so that the next start need not look at batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.log.epochs import Epochs
from ottla.log.handles import Handle
from ottla.log.producer_state import ProducerState
from ottla.log.segment import SNAPSHOT, Segment, path_of
from ottla.log.unsynced import Unsynced
from ottla.ports import Disk


def save_for_clean_start(
    unsynced: Unsynced,
    directory: str,
    active: Segment,
    end_offset: int,
    producers: ProducerState,
    epochs: Epochs,
    snapshots: Iterable[int],
) -> None:
    """Blocking: writes what is not yet in files; all batches are. The next sync makes it durable.

    `snapshots` tells the offsets of those of the producers that are already there.
    """
    if active.indexes is not None and active.is_created:
        unsynced.write_whole(active.index_files(active.indexes))
    if end_offset not in snapshots and active.is_created:
        snapshot = Handle(path_of(directory, end_offset, SNAPSHOT))
        unsynced.write_away(snapshot, producers.encode())
    epochs.save(unsynced, directory, end_offset)


def remove_needless_snapshots(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    end_offset: int,
    snapshots: Iterable[int],
) -> None:
    """Blocking: only those of a segment's start and of the log's end stay."""
    needed = {segment.base_offset for segment in segments}
    for offset in set(snapshots) - needed - {end_offset}:
        disk.remove(path_of(directory, offset, SNAPSHOT))
