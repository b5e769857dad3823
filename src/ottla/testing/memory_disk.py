"""A disk in memory that can lose power, fill up and fail, for one thread or many.

It keeps apart what programs see and what would be found after a crash: of everything that was not
synced, any part may be lost, in sectors of 512 bytes. Names in a directory become durable in the
order in which they were made, or all at once by `sync_directory`; a file whose directory's own name
was not durable is lost with it. Whole files are replaced in the steps in which the real disk does
it, and power may fail between any two of them.

When the power is off, nothing comes to the medium any more: whoever asks for something gets
PowerLoss, in every thread, and `after_crash` is what the next machine finds.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final

from ottla.ports import File
from ottla.testing.medium import (
    SECTOR_BYTES,
    Directory,
    Inode,
    Node,
    resize_change,
    sectors,
    write_change,
)
from ottla.wire.schema import Buffer

# As on the real disk: fewer files are never worth a sync of the whole file system.
FILE_SYSTEM_FILES_MIN: Final = 3


__all__ = ["SECTOR_BYTES", "MemoryDisk", "MemoryFile", "PowerLoss"]


class PowerLoss(BaseException):
    """The machine stops here: nothing that a program would do next is done."""


class MemoryFile:
    def __init__(self, disk: MemoryDisk, path: str, inode: Inode) -> None:
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
        room = self._disk.room_for(position + len(data) - len(self._inode.seen))
        if room is not None:
            self._put(data[: max(0, len(self._inode.seen) + room - position)], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._put(data, position)

    def _put(self, data: bytes, position: int) -> None:
        parts = [write_change(at, part) for at, part in sectors(position, data)]
        with self._disk.under_power():
            if parts:
                self._inode.change(write_change(position, data), parts)
                self._inode.modified_ms = self._disk.now_ms

    def read(self, count: int, position: int) -> Buffer:
        self._check_open()
        with self._disk.under_power():
            self._disk.reads += 1
            return bytes(self._inode.seen[position : position + count])

    def read_cached(self, count: int, position: int) -> Buffer | None:
        return None if self._disk.is_cold else self.read(count, position)

    def let_pages_go(self, count: int, position: int) -> None:
        self._check_open()

    def sync(self) -> None:
        """What is written while a sync is under way is not part of it."""
        self._check_open()
        covered = self._inode.change_count
        try:
            self._disk.begin("sync", self.path)
        except OSError:
            with self._disk.under_power():
                self._inode.lose_unsynced()
            raise
        with self._disk.under_power():
            self._inode.sync(covered)

    def truncate(self, size: int) -> None:
        self._check_open()
        self._disk.begin("truncate", self.path)
        with self._disk.under_power():
            self._inode.change(resize_change(size))

    def close(self) -> None:
        self._check_open()
        self._is_open = False
        self._disk.forget(self, is_unsynced=bool(self._inode.unsynced))

    def _check_open(self) -> None:
        if not self._is_open:
            raise OSError(errno.EBADF, "used after it was closed", self.path)


class _Fault:
    def __init__(
        self,
        operation: str,
        number: int,
        times: int,
        torn_bytes: int | None,
        under: str,
        after: int,
    ) -> None:
        self.operation = operation
        self.number = number
        self.times = times
        self.torn_bytes = torn_bytes
        self.under = under
        self.after = after

    def concerns(self, operation: str, path: str) -> bool:
        return (
            self.operation == operation
            and self.times > 0
            and (not self.under or (path + "/").startswith(self.under + "/"))
        )

    def raise_now(self, path: str) -> None:
        raise OSError(self.number, os.strerror(self.number), path)


class _Power:
    """The lock of everything that happens on the disk, for as long as it has power."""

    def __init__(self) -> None:
        self.is_off = False
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.is_off:
            self._lock.release()
            raise PowerLoss("the power is off")

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def cut(self) -> bool:
        """False when it was off already."""
        with self._lock:
            was_off, self.is_off = self.is_off, True
            return not was_off


class MemoryDisk:
    """Implements `ottla.ports.Disk`.

    Directories that are made are there for good, unless it `forgets_directories`: then their names
    too have to be synced, in the directory above them.
    """

    def __init__(self, *, forgets_directories: bool = False) -> None:
        self._forgets_directories = forgets_directories
        self._directories: dict[str, Directory] = {"": Directory(), "/": Directory()}
        self._locks: set[str] = set()
        self._faults: list[_Fault] = []
        self._power = _Power()
        self._power_loss_in: int | None = None
        self.open_files: set[MemoryFile] = set()
        self.closed_unsynced: list[str] = []
        self.operations = 0
        self.reads = 0
        self.is_cold = False
        # By this clock, which the test moves, files say when they were written to.
        self.now_ms = 0
        self.capacity_bytes: int | None = None
        # How often `sync_many` takes the whole file system, as the real disk does for many files.
        self.file_system_share = 0.0
        self._choice = Random(0)
        # Called before an operation takes effect, outside of all locks: it may take its time.
        self.delay: Callable[[str, str], None] | None = None
        # The operation at which the power fails hangs there first, while all others go on.
        self.hang: Callable[[], None] | None = None
        self.on_power_loss: Callable[[], None] | None = None
        # Told of each operation that fails, before it does.
        self.on_failure: Callable[[str, str], None] | None = None

    # ------------------------------------------------------------------------------ for a test

    def fail(
        self,
        operation: str,
        number: int = errno.EIO,
        *,
        times: int = 1,
        torn_bytes: int | None = None,
        under: str = "",
        after: int = 0,
    ) -> None:
        """The next `times` operations of this name raise; of a write `torn_bytes` remain.

        Operations: write, truncate, sync, sync_directory, create, rename, remove, write_file.
        Those below `under` are meant, and `after` so many have passed.
        """
        with self._power:
            self._faults.append(_Fault(operation, number, times, torn_bytes, under, after))

    def heal(self) -> None:
        self._faults = []

    def lose_power_in(self, operations: int) -> None:
        """PowerLoss is raised by the operation that comes so many after this one."""
        self._power.is_off = False
        self._power_loss_in = operations

    def lose_power(self) -> None:
        """Now."""
        if self._power.cut() and self.on_power_loss is not None:
            self.on_power_loss()

    @property
    def is_off(self) -> bool:
        return self._power.is_off

    def after_crash(self, random: Random, *, in_order: bool = True) -> MemoryDisk:
        """The disk as a machine finds it that starts again; `random` decides what was lost.

        Without `in_order` any unsynced name may be lost while later ones are kept.
        """
        disk = MemoryDisk(forgets_directories=self._forgets_directories)
        disk.now_ms = self.now_ms
        disk.capacity_bytes = self.capacity_bytes
        disk.file_system_share = self.file_system_share
        disk._choice = Random(random.random())
        survivors: dict[Node, Node] = {}
        for root in ("", "/"):
            before = self._directories[root]
            after = before.after_crash(random, survivors, in_order=in_order)
            disk._directories[root] = after
            disk._adopt(root, after)
        return disk

    def after_stop(self) -> MemoryDisk:
        """The disk as another process of the same machine finds it: all that was written."""
        disk = MemoryDisk(forgets_directories=self._forgets_directories)
        disk.now_ms = self.now_ms
        disk.capacity_bytes = self.capacity_bytes
        disk._directories = self._directories
        return disk

    def used_bytes(self) -> int:
        return self._used_bytes()

    def _adopt(self, path: str, directory: Directory) -> None:
        for name, node in directory.seen.items():
            if isinstance(node, Directory):
                below = f"{path.rstrip('/')}/{name}" if path else name
                self._directories[below] = node
                self._adopt(below, node)

    def paths(self) -> list[str]:
        with self._power:
            return sorted(path for path, _ in self._files())

    def paths_seen(self) -> list[str]:
        """As `paths`, also when the power is off: what the machine saw last."""
        return sorted(path for path, _ in self._files())

    def contents(self, path: str) -> bytes:
        """What the machine saw last in a file, also when the power is off; b"" without one."""
        node = self._node(path)
        return bytes(node.seen) if isinstance(node, Inode) else b""

    def flip_bit(self, path: str, bit: int) -> None:
        """The medium has decayed there: whoever reads it sees another bit."""
        node = self._node(path)
        assert isinstance(node, Inode), path
        for contents in (node.seen, node.stored):
            if bit // 8 < len(contents):
                contents[bit // 8] ^= 1 << bit % 8

    def is_durable(self, path: str) -> bool:
        """Whether this name is there after any crash."""
        above, name = self._above(path)
        return name in above.stored

    def durable_bytes(self, path: str) -> int:
        """How much of a file is on the medium, under a name that is."""
        above, name = self._above(path)
        node = above.stored.get(name)
        return len(node.stored) if isinstance(node, Inode) else 0

    # ------------------------------------------------------------------------------ for its files

    def under_power(self) -> _Power:
        """Holds the disk for one step; PowerLoss when it is off."""
        return self._power

    def begin(self, operation: str, path: str, byte_count: int = 0) -> int | None:
        """Counts the operation and lets it fail if it is its turn; or says how far it comes."""
        is_last = False
        with self._power:
            self.operations += 1
            if self._power_loss_in is not None:
                self._power_loss_in -= 1
                is_last = self._power_loss_in == -1
                if self._power_loss_in < -1 and self.hang is None:
                    raise PowerLoss(f"{operation} {path}")
        if is_last:
            if self.hang is not None:
                self.hang()
            self.lose_power()
            raise PowerLoss(f"{operation} {path}")
        if self.delay is not None:
            self.delay(operation, path)
        with self._power:
            return self._fail_if_due(operation, path, byte_count)

    def _fail_if_due(self, operation: str, path: str, byte_count: int) -> int | None:
        for fault in self._faults:
            if fault.concerns(operation, path):
                if fault.after > 0:
                    fault.after -= 1
                    continue
                if self.on_failure is not None:
                    self.on_failure(operation, path)
                if fault.torn_bytes is not None:
                    return min(fault.torn_bytes, byte_count)
                fault.times -= 1
                fault.raise_now(path)
        return None

    def fail_now(self, operation: str, path: str) -> None:
        for fault in self._faults:
            if fault.concerns(operation, path) and fault.torn_bytes is not None:
                fault.times -= 1
                fault.raise_now(path)

    def room_for(self, byte_count: int) -> int | None:
        """None when so many more bytes fit; or how many do."""
        if self.capacity_bytes is None or byte_count <= 0:
            return None
        with self._power:
            room = max(0, self.capacity_bytes - self._used_bytes())
        return None if byte_count <= room else room

    def forget(self, file: MemoryFile, *, is_unsynced: bool) -> None:
        self.open_files.discard(file)
        self._locks.discard(file.path)
        if is_unsynced and not self.is_off and self._node(file.path) is not None:
            self.closed_unsynced.append(file.path)

    # ------------------------------------------------------------------------------- the port

    def open(self, path: str, *, create: bool = False) -> File:
        with self._power:
            inode = self._file(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.begin("create", path)
            if self.room_for(1) is not None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        with self._power:
            inode = self._file(path)
            if inode is None:
                above, name = self._above(path)
                inode = Inode()
                above.put(name, inode)
            file = MemoryFile(self, path, inode)
            self.open_files.add(file)
            return file

    def exists(self, path: str) -> bool:
        with self._power:
            return self._node(path) is not None

    def list(self, directory: str) -> list[str]:
        with self._power:
            return sorted(self._directory(directory).seen)

    def make_directory(self, path: str) -> None:
        with self._power:
            if path in self._directories:
                return
        self.make_directory(os.path.dirname(path))
        if self._forgets_directories:
            self.begin("create", path)
        with self._power:
            above, name = self._above(path)
            directory = self._directories[path] = Directory()
            above.put(name, directory)
            if not self._forgets_directories:
                above.stored[name] = directory

    def rename(self, source: str, target: str) -> None:
        with self._power:
            node = self._node(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, "names move within their directory only", source)
        self.begin("rename", source)
        with self._power:
            above, name = self._above(source)
            above.move(name, os.path.basename(target))
            if isinstance(node, Directory):
                self._rename_below(source, target)

    def _rename_below(self, source: str, target: str) -> None:
        for path in [p for p in self._directories if (p + "/").startswith(source + "/")]:
            self._directories[target + path[len(source) :]] = self._directories.pop(path)

    def remove(self, path: str) -> None:
        with self._power:
            if self._file(path) is None:
                return
        self.begin("remove", path)
        self._unlink(path)

    def _unlink(self, path: str) -> None:
        with self._power:
            above, name = self._above(path)
            above.change(lambda names: names.pop(name, None))

    def remove_tree(self, directory: str) -> None:
        for name in self.list(directory):
            path = f"{directory}/{name}"
            if path in self._directories:
                self.remove_tree(path)
            else:
                self.remove(path)
        self.begin("remove", directory)
        self._unlink(directory)
        with self._power:
            self._directories.pop(directory, None)

    def sync_directory(self, path: str) -> None:
        with self._power:
            directory = self._directory(path)
        self.begin("sync_directory", path)
        with self._power:
            directory.sync()

    def sync_many(self, files: Sequence[File], directories: Sequence[str] = ()) -> bool:
        count = len(files) + len(directories)
        if count >= FILE_SYSTEM_FILES_MIN and self._choice.random() < self.file_system_share:
            for directory in directories:
                with self._power:
                    self._directory(directory)
            self.sync_file_system("/")
            return True
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)
        return False

    def sync_file_system(self, path: str) -> None:
        with self._power:
            self._directory(path)
            covered = [(inode, inode.change_count) for _, inode in self._files()]
        self.begin("sync", path)
        with self._power:
            for inode, change_count in covered:
                inode.sync(change_count)
            for directory in self._directories.values():
                directory.sync()

    def read_file(self, path: str) -> bytes:
        with self._power:
            inode = self._file(path)
            if inode is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            return bytes(inode.seen)

    def write_file(self, path: str, data: bytes) -> None:
        """As the real disk: a scratch file, synced, takes the name, and the name is synced."""
        with self._power:
            self._directory(os.path.dirname(path))
        self.begin("write_file", path)
        scratch = self.open(path + ".tmp", create=True)
        try:
            if scratch.size():
                scratch.truncate(0)
            scratch.write([data], 0)
            scratch.sync()
        finally:
            scratch.close()
        self.rename(path + ".tmp", path)
        self.sync_directory(os.path.dirname(path))

    def room_bytes(self, directory: str) -> tuple[int, int]:
        with self._power:
            self._directory(directory)
            total = 1 << 40 if self.capacity_bytes is None else self.capacity_bytes
            return total, max(0, total - self._used_bytes())

    def sizes(self, directory: str) -> Iterable[tuple[str, int]]:
        with self._power:
            names = self._directory(directory).seen.items()
            return [(name, len(node.seen)) for name, node in names if isinstance(node, Inode)]

    def modified_ms(self, path: str) -> int:
        with self._power:
            inode = self._file(path)
            if inode is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            return inode.modified_ms

    def lock(self, path: str) -> File:
        with self._power:
            if path in self._locks:
                raise BlockingIOError(errno.EAGAIN, "locked", path)
            self._locks.add(path)
        try:
            return self.open(path, create=True)
        except OSError:
            self._locks.discard(path)
            raise

    # ------------------------------------------------------------------------------ finding

    def _directory(self, path: str) -> Directory:
        directory = self._directories.get(path)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return directory

    def _above(self, path: str) -> tuple[Directory, str]:
        directory, name = os.path.split(path)
        return self._directory(directory), name

    def _node(self, path: str) -> Node | None:
        if path in self._directories:
            return self._directories[path]
        directory, name = os.path.split(path)
        above = self._directories.get(directory)
        return None if above is None else above.seen.get(name)

    def _file(self, path: str) -> Inode | None:
        node = self._node(path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _files(self) -> Iterator[tuple[str, Inode]]:
        for path, directory in self._directories.items():
            for name, node in directory.seen.items():
                if isinstance(node, Inode):
                    yield f"{path.rstrip('/')}/{name}" if path else name, node

    def _used_bytes(self) -> int:
        return sum(len(inode.seen) for _, inode in self._files())
