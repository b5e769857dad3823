"""A disk in memory that can lose power, fill up and fail; and trouble for any other disk.

It keeps apart what programs see and what would be found after a crash: of everything that was not
synced, any part may be lost, in sectors of 512 bytes. Names in a directory become durable in the
order in which they were made, or all at once by `sync_directory`.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final

from ottla.ports import Disk, File
from ottla.wire.schema import Buffer

SECTOR_BYTES: Final = 512

_Change = Callable[[bytearray], None]
_Names = dict[str, "_Inode"]


class PowerLoss(BaseException):
    """The machine stops here; what a program would do next, it does not."""


def _write(position: int, data: bytes) -> _Change:
    def change(contents: bytearray) -> None:
        if len(contents) < position:
            contents.extend(bytes(position - len(contents)))
        contents[position : position + len(data)] = data

    return change


def _resize(size: int) -> _Change:
    def change(contents: bytearray) -> None:
        del contents[size:]
        contents.extend(bytes(size - len(contents)))

    return change


def _sectors(position: int, data: bytes) -> Iterable[tuple[int, bytes]]:
    start = 0
    while start < len(data):
        stop = start + SECTOR_BYTES - (position + start) % SECTOR_BYTES
        yield position + start, data[start:stop]
        start = stop


class _Inode:
    """Contents as seen, contents as they are on the medium, and the changes in between."""

    def __init__(self, data: bytes = b"") -> None:
        self.seen = bytearray(data)
        self.stored = bytearray(data)
        self.unsynced: list[_Change] = []
        self.modified_ms = 0

    def change(self, change: _Change, parts: Iterable[_Change] = ()) -> None:
        change(self.seen)
        self.unsynced += parts or [change]

    def sync(self) -> None:
        for change in self.unsynced:
            change(self.stored)
        self.unsynced = []

    def lose_unsynced(self) -> None:
        """After a failed sync the pages look clean: seen by all, and never written."""
        self.unsynced = []

    def after_crash(self, random: Random) -> _Inode:
        keep = random.choice((0.0, 1.0, 0.5, random.random()))
        stored = bytearray(self.stored)
        for change in self.unsynced:
            if random.random() < keep:
                change(stored)
        # The size may be on disk before the data; then there are zeros.
        if self.unsynced and random.random() < 0.2 and len(self.seen) > len(stored):
            stored.extend(bytes(random.randint(0, len(self.seen) - len(stored))))
        inode = _Inode(bytes(stored))
        inode.modified_ms = self.modified_ms
        return inode


class MemoryFile:
    def __init__(self, disk: MemoryDisk, path: str, inode: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._is_open = True

    def size(self) -> int:
        self._check_open()
        return len(self._inode.seen)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self._check_open()
        data = b"".join(buffers)
        torn_bytes = self._disk.begin("write", self.path, len(data))
        if torn_bytes is not None:
            self._put(data[:torn_bytes], position)
            self._disk.fail_now("write", self.path)
        self._put(data, position)

    def _put(self, data: bytes, position: int) -> None:
        parts = [_write(at, part) for at, part in _sectors(position, data)]
        if parts:
            self._inode.change(_write(position, data), parts)
            self._inode.modified_ms = self._disk.now_ms

    def read(self, count: int, position: int) -> Buffer:
        self._check_open()
        self._disk.reads += 1
        return bytes(self._inode.seen[position : position + count])

    def read_cached(self, count: int, position: int) -> Buffer | None:
        return None if self._disk.is_cold else self.read(count, position)

    def let_pages_go(self, count: int, position: int) -> None:
        self._check_open()

    def sync(self) -> None:
        self._check_open()
        try:
            self._disk.begin("sync", self.path)
        except OSError:
            self._inode.lose_unsynced()
            raise
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._check_open()
        self._disk.begin("truncate", self.path)
        self._inode.change(_resize(size))

    def close(self) -> None:
        self._check_open()
        self._is_open = False
        self._disk.forget(self, is_unsynced=bool(self._inode.unsynced))

    def _check_open(self) -> None:
        if not self._is_open:
            raise OSError(errno.EBADF, "used after it was closed", self.path)


class _Fault:
    def __init__(self, operation: str, number: int, times: int, torn_bytes: int | None) -> None:
        self.operation = operation
        self.number = number
        self.times = times
        self.torn_bytes = torn_bytes

    def raise_now(self, path: str) -> None:
        raise OSError(self.number, os.strerror(self.number), path)


class MemoryDisk:
    """Implements `ottla.ports.Disk`."""

    def __init__(self) -> None:
        self._names: _Names = {}
        self._stored_names: _Names = {}
        self._unsynced_names: list[tuple[str, Callable[[_Names], object]]] = []
        self._directories: set[str] = {"", "/"}
        self._locks: set[str] = set()
        self._faults: list[_Fault] = []
        self._power_loss_in: int | None = None
        self.open_files: set[MemoryFile] = set()
        self.closed_unsynced: list[str] = []
        self.operations = 0
        self.reads = 0
        self.is_cold = False
        # By this clock, which the test moves, files say when they were written to.
        self.now_ms = 0

    # ------------------------------------------------------------------------------ for a test

    def fail(
        self,
        operation: str,
        number: int = errno.EIO,
        *,
        times: int = 1,
        torn_bytes: int | None = None,
    ) -> None:
        """The next `times` operations of this name raise; a write leaves `torn_bytes` behind.

        Operations: write, truncate, sync, sync_directory, create, rename, remove, write_file.
        """
        self._faults.append(_Fault(operation, number, times, torn_bytes))

    def heal(self) -> None:
        self._faults = []

    def lose_power_in(self, operations: int) -> None:
        """PowerLoss is raised by the operation that comes so many after this one."""
        self._power_loss_in = operations

    def after_crash(self, random: Random) -> MemoryDisk:
        """The disk as a machine finds it that starts again; `random` decides what was lost."""
        disk = MemoryDisk()
        disk.now_ms = self.now_ms
        names = dict(self._stored_names)
        lost: set[str] = set()
        for directory, change in self._unsynced_names:
            if directory not in lost and random.random() < 0.8:
                change(names)
            else:
                lost.add(directory)
        survivors: dict[_Inode, _Inode] = {}
        for path, inode in names.items():
            if inode not in survivors:
                survivors[inode] = inode.after_crash(random)
            disk._names[path] = survivors[inode]
        disk._stored_names = dict(disk._names)
        disk._directories = set(self._directories)
        return disk

    def paths(self) -> list[str]:
        return sorted(self._names)

    # ------------------------------------------------------------------------------ for its files

    def begin(self, operation: str, path: str, byte_count: int = 0) -> int | None:
        """Counts the operation and lets it fail if it is its turn; or says how far it comes."""
        self.operations += 1
        if self._power_loss_in is not None:
            self._power_loss_in -= 1
            if self._power_loss_in < 0:
                raise PowerLoss(f"{operation} {path}")
        for fault in self._faults:
            if fault.operation == operation and fault.times > 0:
                if fault.torn_bytes is not None:
                    return min(fault.torn_bytes, byte_count)
                fault.times -= 1
                fault.raise_now(path)
        return None

    def fail_now(self, operation: str, path: str) -> None:
        for fault in self._faults:
            if fault.operation == operation and fault.times > 0:
                fault.times -= 1
                fault.raise_now(path)

    def forget(self, file: MemoryFile, *, is_unsynced: bool) -> None:
        self.open_files.discard(file)
        self._locks.discard(file.path)
        if is_unsynced and file.path in self._names:
            self.closed_unsynced.append(file.path)

    # ------------------------------------------------------------------------------- the port

    def open(self, path: str, *, create: bool = False) -> File:
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.begin("create", path)
            self._link(path, _Inode())
        file = MemoryFile(self, path, self._names[path])
        self.open_files.add(file)
        return file

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def list(self, directory: str) -> list[str]:
        self._check_directory(directory)
        prefix = directory + "/"
        inside = [*self._names, *self._directories]
        return sorted(
            {p[len(prefix) :].split("/")[0] for p in inside if p.startswith(prefix) and p != prefix}
        )

    def make_directory(self, path: str) -> None:
        while path and path not in self._directories:
            self._directories.add(path)
            path = os.path.dirname(path)

    def rename(self, source: str, target: str) -> None:
        if source in self._directories:
            self._rename_directory(source, target)
            return
        if source not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self.begin("rename", source)

        def change(names: _Names) -> None:
            if source in names:
                names[target] = names.pop(source)

        self._change_names(target, change)

    def remove(self, path: str) -> None:
        if path in self._names:
            self.begin("remove", path)
            self._change_names(path, lambda names: names.pop(path, None))

    def remove_tree(self, directory: str) -> None:
        self._check_directory(directory)
        for path in [p for p in self._names if p.startswith(directory + "/")]:
            self.remove(path)
        self._directories = {
            d for d in self._directories if d != directory and not d.startswith(directory + "/")
        }

    def sync_directory(self, path: str) -> None:
        self._check_directory(path)
        self.begin("sync_directory", path)
        for directory, change in self._unsynced_names:
            if directory == path:
                change(self._stored_names)
        self._unsynced_names = [item for item in self._unsynced_names if item[0] != path]

    def sync_many(self, files: Sequence[File], directories: Sequence[str] = ()) -> bool:
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)
        return False

    def sync_file_system(self, path: str) -> None:
        self._check_directory(path)
        self.begin("sync", path)
        for inode in set(self._names.values()):
            inode.sync()
        for _, change in self._unsynced_names:
            change(self._stored_names)
        self._unsynced_names = []

    def read_file(self, path: str) -> bytes:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return bytes(self._names[path].seen)

    def write_file(self, path: str, data: bytes) -> None:
        self._check_directory(os.path.dirname(path))
        self.begin("write_file", path)
        self._names[path] = self._stored_names[path] = _Inode(data)

    def room_bytes(self, directory: str) -> tuple[int, int]:
        self._check_directory(directory)
        used = sum(len(inode.seen) for inode in self._names.values())
        return 1 << 40, (1 << 40) - used

    def sizes(self, directory: str) -> Iterable[tuple[str, int]]:
        self._check_directory(directory)
        prefix = directory + "/"
        return [
            (path[len(prefix) :], len(inode.seen))
            for path, inode in self._names.items()
            if path.startswith(prefix) and "/" not in path[len(prefix) :]
        ]

    def modified_ms(self, path: str) -> int:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path].modified_ms

    def lock(self, path: str) -> File:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        file = self.open(path, create=True)
        self._locks.add(path)
        return file

    def _link(self, path: str, inode: _Inode) -> None:
        self._check_directory(os.path.dirname(path))

        def change(names: _Names) -> None:
            names[path] = inode

        self._change_names(path, change)

    def _change_names(self, path: str, change: Callable[[_Names], object]) -> None:
        change(self._names)
        self._unsynced_names.append((os.path.dirname(path), change))

    def _rename_directory(self, source: str, target: str) -> None:
        self.begin("rename", source)
        self.sync_directory(source)

        def change(names: _Names) -> None:
            for path in [p for p in names if p.startswith(source + "/")]:
                names[target + path[len(source) :]] = names.pop(path)

        self._directories.discard(source)
        self._directories.add(target)
        change(self._names)
        change(self._stored_names)

    def _check_directory(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)


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
