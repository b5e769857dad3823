"""What a clean stop leaves in the files, so that the next start need not look at batches."""

from __future__ import annotations

from collections.abc import Callable

from ottla.log.chain import Chain
from ottla.log.epochs import Epochs
from ottla.log.handles import Handle
from ottla.log.opening.short_logs import ShortLog, short_form
from ottla.log.producer_state import ProducerState
from ottla.log.segment import SNAPSHOT, path_of
from ottla.log.unsynced import Unsynced
from ottla.ports import Disk

TakeShort = Callable[[ShortLog], None]


def save_for_clean_start(
    unsynced: Unsynced,
    directory: str,
    chain: Chain,
    end_offset: int,
    producers: ProducerState,
    epochs: Epochs,
    take: TakeShort | None = None,
) -> None:
    """Blocking: writes what is not yet in files; all batches are. The next sync makes it durable.

    A short log tells it to `take` instead, who has to make it durable.
    """
    active = chain.segments[-1]
    short = None if take is None else short_form(active, end_offset, producers, epochs)
    if take is not None and short is not None:
        take(short)
        return
    if active.indexes is not None and active.is_created:
        unsynced.write_whole(active.index_files(active.indexes))
    if end_offset not in chain.snapshots and active.is_created:
        snapshot = Handle(path_of(directory, end_offset, SNAPSHOT))
        unsynced.write_away(snapshot, producers.encode())
    epochs.save(unsynced, directory, end_offset)


def remove_needless_snapshots(disk: Disk, directory: str, chain: Chain, end_offset: int) -> None:
    """Blocking: only those of a segment's start and of the log's end stay."""
    needed = {segment.base_offset for segment in chain.segments}
    for offset in set(chain.snapshots) - needed - {end_offset}:
        disk.remove(path_of(directory, offset, SNAPSHOT))
