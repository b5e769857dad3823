"""A log goes on in another directory, in which its files lie already, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

from ottla.log.hints import Progress
from ottla.log.log import Log
from ottla.log.reading import Reader
from ottla.log.unsynced import Unsynced


def relocated(log: Log, directory: str) -> tuple[Log, Callable[[], None]]:
    """While nobody writes to it or syncs it, with all that is written synced in `directory`.

    What is queued stays queued. The log it was can be used no more: what remains of it is closed by
    what is returned, which blocks. Who reads its files in a thread meets their absence, and finds
    that it has another reader.
    """
    assert log._writing is None, f"{log.directory}: a thread is at its files"
    moved = Log.__new__(Log)
    for kind in Log.__mro__:
        for name in getattr(kind, "__slots__", ()):
            setattr(moved, name, getattr(log, name))
    handles, unsynced = log._handles, log._unsynced
    left = [handle for segment in log.segments for handle in segment.relocate(directory)]
    moved.directory = directory
    moved.synced = moved.written
    moved._unsynced = Unsynced(handles, directory)
    moved._progress = Progress(directory)
    moved._reader = log._reader = Reader(handles)
    log._chain.hold(list(log.segments))
    log.fenced = True

    def close_files() -> None:
        unsynced.let_go()
        for handle in left:
            handles.drop(handle)

    return moved, close_files
