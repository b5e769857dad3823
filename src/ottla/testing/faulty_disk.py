"""Trouble for any disk, on command: operations wait, fail, or find nothing in memory."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Sequence

from ottla.ports import Disk, File
from ottla.wire.schema import Buffer


class _Trouble:
    """What becomes of operations of one name below one directory."""

    def __init__(self, operation: str, under: str, number: int | None, times: int | None) -> None:
        self.operation = operation
        self.under = under
        self.number = number
        self.times = times

    def concerns(self, operation: str, path: str) -> bool:
        return operation == self.operation and (path + "/").startswith(self.under)


class FaultyFile:
    """A file of a FaultyDisk."""

    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self.path = file.path
        self.file = file
        self._disk = disk

    def size(self) -> int:
        return self.file.size()

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self._disk.pass_by("write", self.path)
        self.file.write(buffers, position)

    def read(self, count: int, position: int) -> Buffer:
        self._disk.pass_by("read", self.path)
        return self.file.read(count, position)

    def read_cached(self, count: int, position: int) -> Buffer | None:
        if self._disk.is_cold(self.path):
            return None
        return self.file.read_cached(count, position)

    def sync(self) -> None:
        self._disk.pass_by("sync", self.path)
        self.file.sync()

    def truncate(self, size: int) -> None:
        self._disk.pass_by("truncate", self.path)
        self.file.truncate(size)

    def let_pages_go(self, count: int, position: int) -> None:
        self.file.let_pages_go(count, position)

    def close(self) -> None:
        self.file.close()


class FaultyDisk:
    """Another disk, with trouble on command: `hold` lets operations wait, `fail` lets them fail.

        disk = FaultyDisk(RealDisk())
        disk.hold("sync", under="/disk-2")     # until disk.heal()
        disk.fail("write", errno.ENOSPC)

    Operations: open (which makes a file), write, truncate, read (where the disk would be waited
    for), rename, sync (of files, directories, file systems, and whole files written at once).
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._troubles: list[_Trouble] = []
        self._change = threading.Condition()
        self._waiting = 0

    # ------------------------------------------------------------------------------ for a test

    def hold(self, operation: str, *, under: str = "/") -> None:
        """From now on these wait."""
        self._begin(_Trouble(operation, under.rstrip("/") + "/", None, None))

    def fail(
        self,
        operation: str,
        number: int = errno.EIO,
        *,
        under: str = "/",
        times: int | None = None,
    ) -> None:
        """From now on these fail, or the next `times` of them."""
        self._begin(_Trouble(operation, under.rstrip("/") + "/", number, times))

    def cool(self, *, under: str = "/") -> None:
        """From now on no page is in memory: who reads has to wait for the disk."""
        self._begin(_Trouble("cold", under.rstrip("/") + "/", None, None))

    def is_cold(self, path: str) -> bool:
        return self._is_held("cold", path)

    def heal(self) -> None:
        """Nothing waits or fails any more."""
        with self._change:
            self._troubles = []
            self._change.notify_all()

    @property
    def is_holding(self) -> bool:
        """Whether some operation waits just now."""
        return self._waiting > 0

    def wait_until_held(self, timeout_s: float = 20.0) -> None:
        """Returns when some operation waits."""
        with self._change:
            if not self._change.wait_for(lambda: self._waiting > 0, timeout_s):
                raise TimeoutError("nothing came to the disk that could be held")

    def _begin(self, trouble: _Trouble) -> None:
        with self._change:
            self._troubles.append(trouble)

    # ------------------------------------------------------------------------------- the port

    def pass_by(self, operation: str, path: str) -> None:
        with self._change:
            if self._is_held(operation, path):
                self._waiting += 1
                self._change.notify_all()
                self._change.wait_for(lambda: not self._is_held(operation, path))
                self._waiting -= 1
            for trouble in self._troubles:
                if trouble.number is not None and trouble.concerns(operation, path):
                    if trouble.times is not None:
                        if not trouble.times:
                            continue
                        trouble.times -= 1
                    raise OSError(trouble.number, os.strerror(trouble.number), path)

    def _is_held(self, operation: str, path: str) -> bool:
        return any(t.number is None and t.concerns(operation, path) for t in self._troubles)

    def open(self, path: str, *, create: bool = False) -> File:
        if create and not self._disk.exists(path):
            self.pass_by("open", path)
        return FaultyFile(self, self._disk.open(path, create=create))

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list(self, directory: str) -> list[str]:
        return self._disk.list(directory)

    def make_directory(self, path: str) -> None:
        if not self._disk.exists(path):
            self.pass_by("open", path)
        self._disk.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.pass_by("rename", source)
        self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def remove_tree(self, directory: str) -> None:
        self._disk.remove_tree(directory)

    def sync_directory(self, path: str) -> None:
        self.pass_by("sync", path)
        self._disk.sync_directory(path)

    def sync_many(self, files: Sequence[File], directories: Sequence[str] = ()) -> bool:
        for path in (*(file.path for file in files), *directories):
            self.pass_by("sync", path)
        inner = [file.file if isinstance(file, FaultyFile) else file for file in files]
        return self._disk.sync_many(inner, directories)

    def sync_file_system(self, path: str) -> None:
        self.pass_by("sync", path)
        self._disk.sync_file_system(path)

    def read_file(self, path: str) -> bytes:
        self.pass_by("read", path)
        return self._disk.read_file(path)

    def write_file(self, path: str, data: bytes) -> None:
        self.pass_by("write", path)
        self.pass_by("sync", path)
        self._disk.write_file(path, data)

    def room_bytes(self, directory: str) -> tuple[int, int]:
        return self._disk.room_bytes(directory)

    def sizes(self, directory: str) -> Iterable[tuple[str, int]]:
        return self._disk.sizes(directory)

    def modified_ms(self, path: str) -> int:
        return self._disk.modified_ms(path)

    def lock(self, path: str) -> File:
        return self._disk.lock(path)
