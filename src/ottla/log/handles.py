"""Open files, few of them: one bounded set that all logs share.

Logs keep a `Handle` per file and open it through here. A file in use is never closed, and a file
with unsynced bytes counts as in use: its log acquires it at the first write and releases it after
the sync, because an error that the kernel has to report after a close is reported to nobody.

Reads come from the loop and from threads, so this is the one place of the log with a lock. Files
are opened and closed outside of it: a slow disk below one thread must not hold the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ottla.ports import Disk, File
from ottla.wire.schema import Buffer

FILES_MAX: Final = 1024

# How many files in use or recently used are passed over, at most, to find one to close.
_PASSES_MAX: Final = 64


class NotCached(Exception):
    """The bytes are not in memory, and the reader may not wait for the disk."""


class Handle:
    """A file that is opened when needed."""

    __slots__ = ("file", "is_dropped", "is_recent", "path", "users")

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: File | None = None
        self.users = 0
        self.is_recent = False
        self.is_dropped = False


class Handles:
    def __init__(self, disk: Disk, files_max: int = FILES_MAX) -> None:
        self.disk = disk
        self._files_max = files_max
        self._open: dict[Handle, None] = {}
        # Asked with a path before its file is opened for somebody who may not wait.
        self.is_slow: Callable[[str], bool] = lambda path: False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many files are open."""
        return len(self._open)

    def acquire(self, handle: Handle, *, create: bool = False) -> File:
        """Opens the file if need be; it stays open until `release`."""
        with self._lock:
            file = handle.file
            if file is not None:
                handle.users += 1
                handle.is_recent = True
                return file
        opened = self.disk.open(handle.path, create=create)
        with self._lock:
            file = handle.file
            surplus = self._oldest_unused() if file is None else opened
            if file is None:
                file = handle.file = opened
                self._open[handle] = None
            handle.users += 1
            handle.is_recent = False
        if surplus is not None:
            surplus.close()
        return file

    def adopt(self, handle: Handle, file: File) -> None:
        """As `acquire`, with a file that is open already, perhaps under another name."""
        with self._lock:
            surplus = self._oldest_unused()
            handle.file = file
            self._open[handle] = None
            handle.users += 1
        if surplus is not None:
            surplus.close()

    def release(self, handle: Handle) -> None:
        with self._lock:
            handle.users -= 1
            is_surplus = handle.is_dropped or len(self._open) > self._files_max
            file = self._forgotten(handle) if is_surplus else None
        if file is not None:
            file.close()

    def drop(self, handle: Handle) -> None:
        """The file is not needed any more: closes it, once the last user is through with it."""
        with self._lock:
            handle.is_dropped = True
            file = self._forgotten(handle)
        if file is not None:
            file.close()

    def read(self, handle: Handle, count: int, position: int, *, cached_only: bool) -> Buffer:
        """NotCached instead of waiting for the disk."""
        if cached_only:
            self.check_quick(handle)
        file = self.acquire(handle)
        try:
            if not cached_only:
                return file.read(count, position)
            data = file.read_cached(count, position)
        finally:
            self.release(handle)
        if data is None:
            raise NotCached
        return data

    def check_quick(self, handle: Handle) -> None:
        """NotCached where the file would have to be opened on a disk that is slow just now."""
        if handle.file is None and self.is_slow(handle.path):
            raise NotCached

    def size(self, handle: Handle) -> int:
        file = self.acquire(handle)
        try:
            return file.size()
        finally:
            self.release(handle)

    def _forgotten(self, handle: Handle) -> File | None:
        if handle.users:
            return None
        file, handle.file = handle.file, None
        self._open.pop(handle, None)
        return file

    def _oldest_unused(self) -> File | None:
        """Second chance: who was used again since the last look moves to the back of the queue."""
        if len(self._open) < self._files_max:
            return None
        for _ in range(min(2 * len(self._open), _PASSES_MAX)):
            handle = next(iter(self._open))
            if not handle.users and not handle.is_recent:
                return self._forgotten(handle)
            handle.is_recent = False
            self._open[handle] = self._open.pop(handle)
        return None
