"""A file in a data directory that only takes up room, to be given up when there is no other.

Deleting messages needs a checkpoint, a start needs a vote and records of its metadata. On a full
disk neither could be written, and what frees the disk would not work for lack of room. The room is
given up in slices, since whoever else writes there takes what he can get, and taken back at once.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Final

from ottla.ports import Disk, File, Random

FILE_NAME: Final = ".ottla-reserve"
RESERVE_BYTES: Final = 1024 * 1024
SLICE_BYTES: Final = 64 * 1024
# Of a very small file system, no more than this part.
SHARE: Final = 8
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """All of it blocks, and may come from several threads."""

    __slots__ = ("_disk", "_lock", "_path", "_random", "_wanted", "is_short", "size")

    def __init__(self, disk: Disk, directory: str, random: Random) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._random = random
        self._lock = threading.Lock()
        self._wanted = RESERVE_BYTES
        self.size = 0
        # The last time that it was to be whole, the disk had no room for it.
        self.is_short = False

    @property
    def is_whole(self) -> bool:
        return self.size >= self._wanted

    def look(self) -> int:
        """What an earlier run has left of it; returns how much it should be here."""
        total_bytes, _ = self._disk.room_bytes(os.path.dirname(self._path))
        self._wanted = min(RESERVE_BYTES, total_bytes // SHARE // SLICE_BYTES * SLICE_BYTES)
        try:
            file = self._disk.open(self._path)
            self.size = file.size()
            file.close()
        except FileNotFoundError:
            self.size = 0
        return self._wanted

    def give(self, byte_count: int = SLICE_BYTES) -> bool:
        """Frees so much, or what there is; False when there is nothing."""
        with self._lock:
            if not self.size:
                return False
            file = self._disk.open(self._path)
            try:
                size = max(0, self.size - byte_count)
                file.truncate(size)
                self.size = size
            finally:
                file.close()
            return True

    def give_all(self) -> None:
        self.give(self.size)

    def take_back(self) -> None:
        """As much as there is room for, up to the whole; whatever the disk says is no error."""
        with self._lock:
            self.is_short = False
            if self.is_whole:
                return
            try:
                file = self._disk.open(self._path, create=True)
                try:
                    self._grow(file)
                finally:
                    file.close()
            except OSError as error:
                self.is_short = error.errno in NO_ROOM

    def _grow(self, file: File) -> None:
        # Bytes that no file system can shrink: zeros may take up no room at all.
        some = self._random.bytes(SLICE_BYTES)
        try:
            while not self.is_whole:
                file.write([some], self.size)
                self.size += len(some)
        except OSError:
            file.truncate(self.size)
            raise
