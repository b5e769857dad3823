"""An empty log in the place of a damaged one, of which others have everything."""

from __future__ import annotations

from ottla.log.corruption import NOTE
from ottla.log.directory import PARTITION_METADATA
from ottla.log.log import Log


def emptied(log: Log, now_ms: int) -> Log:
    """Blocking, with a recovery point on disk that expects nothing.

    Files go from the last one on, the note about the damage after all of them: whatever a crash
    leaves is the beginning of the log, and read before anybody believes it.
    """
    log.abandon()
    disk, directory = log._handles.disk, log.directory
    kept = (NOTE, PARTITION_METADATA)
    for name in sorted(disk.list(directory), reverse=True):
        if name not in kept:
            disk.remove(f"{directory}/{name}")
    disk.sync_directory(directory)
    if disk.exists(f"{directory}/{NOTE}"):
        disk.remove(f"{directory}/{NOTE}")
        disk.sync_directory(directory)
    return Log.open(disk, directory, log.config, now_ms=now_ms, clean=False, handles=log._handles)
