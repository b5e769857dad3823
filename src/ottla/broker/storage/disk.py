"""The real disk.

Linux gives what the hot path wants: reads that say when a page is cold, a sync of a whole file
system. Elsewhere plain reads and single syncs take their place, which is right but slower;
`portable=True` forces those on Linux, for tests. Single syncs also where the kernel is older than
5.8: its syncfs says that all is well when writes have failed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Final

from ottla.ports import File
from ottla.wire.schema import Buffer

# Fewer files are never worth a syncfs, which drags everybody's dirty pages along.
SYNCFS_FILES_MIN: Final = 3
IOV_MAX: Final = 1024
F_FULLFSYNC: Final = 51
COST_WEIGHT: Final = 0.2
COST_FADING: Final = 0.99
SYNCFS_TELLS_SINCE: Final = (5, 8)
# When a file was last read is noted in its inode, for which even a read that is not to wait waits
# while the journal has it: on a disk that hangs, the loop would with it.
NO_ATIME: Final = getattr(os, "O_NOATIME", 0)


def tells_failed_writes_of_file_systems(release: str) -> bool:
    """Whether syncfs of a Linux of this release reports what could not be written."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= SYNCFS_TELLS_SINCE


def _named(error: OSError, path: str) -> OSError:
    """The same error, which says where."""
    return OSError(error.errno, error.strerror or str(error), path)


def _sync_fd(fd: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(fd, F_FULLFSYNC)
    else:
        os.fdatasync(fd)


class RealFile:
    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        try:
            for start in range(0, len(buffers), IOV_MAX):
                part = buffers[start : start + IOV_MAX]
                wanted = sum(map(len, part))
                written = os.pwritev(self._fd, part, position)
                if written < wanted:
                    self._write_rest(b"".join(part), written, position)
                position += wanted
        except OSError as error:
            raise _named(error, self.path) from None

    def _write_rest(self, data: bytes, written: int, position: int) -> None:
        view = memoryview(data)
        while written < len(data):
            count = os.pwrite(self._fd, view[written:], position + written)
            if count == 0:
                raise OSError(f"{self.path}: the disk took no bytes")
            written += count

    def read(self, count: int, position: int) -> Buffer:
        return os.pread(self._fd, count, position)

    def read_cached(self, count: int, position: int) -> Buffer | None:
        return os.pread(self._fd, count, position)

    def let_pages_go(self, count: int, position: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, position, count, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        try:
            _sync_fd(self._fd)
        except OSError as error:
            raise _named(error, self.path) from None

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _named(error, self.path) from None

    def close(self) -> None:
        os.close(self._fd)


class LinuxFile(RealFile):
    __slots__ = ()

    def read_cached(self, count: int, position: int) -> Buffer | None:
        buffer = bytearray(count)
        try:
            got = os.preadv(self._fd, [buffer], position, os.RWF_NOWAIT)
            if got == count:
                return buffer
            # A short count is the end of the file, or the first cold page: ask again to know.
            rest = memoryview(buffer)[got:]
            if os.preadv(self._fd, [rest], position + got, os.RWF_NOWAIT) == 0:
                return memoryview(buffer)[:got]
        except BlockingIOError:
            pass
        except OSError as error:
            # Some file systems, tmpfs among them, cannot say whether they would have to wait.
            if error.errno != errno.EOPNOTSUPP:
                raise
        return None


class SyncCosts:
    """What one fdatasync and one syncfs have lately taken, to choose the cheaper for many files.

    A syncfs takes long while somebody else writes much. Then it is left alone, and its remembered
    cost fades with each choice against it, until it is worth another try.
    """

    __slots__ = ("_file_s", "_file_system_s")

    def __init__(self) -> None:
        self._file_s = 0.000_5
        self._file_system_s = 0.001

    def prefers_file_system(self, count: int) -> bool:
        if count < SYNCFS_FILES_MIN or count * self._file_s < self._file_system_s:
            self._file_system_s *= COST_FADING
            return False
        return True

    def took(self, count: int, seconds: float, *, is_file_system: bool) -> None:
        if is_file_system:
            self._file_system_s += COST_WEIGHT * (seconds - self._file_system_s)
        elif count:
            self._file_s += COST_WEIGHT * (seconds / count - self._file_s)


class RealDisk:
    """Implements `ottla.ports.Disk` on the operating system."""

    def __init__(
        self, *, portable: bool = sys.platform != "linux", release: str | None = None
    ) -> None:
        self._file = RealFile if portable else LinuxFile
        release = os.uname().release if release is None else release
        self._has_syncfs = not portable and tells_failed_writes_of_file_systems(release)
        self._costs = SyncCosts()

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return self._file(path, os.open(path, flags | NO_ATIME, 0o644))
        except PermissionError:
            # Only whose file it is may leave its times alone.
            return self._file(path, os.open(path, flags, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, directory: str) -> None:
        shutil.rmtree(directory)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_many(self, files: Sequence[File], directories: Sequence[str] = ()) -> bool:
        started = perf_counter()
        count = len(files) + len(directories)
        is_all = bool(files) and self._has_syncfs and self._costs.prefers_file_system(count)
        if is_all:
            self._sync_file_systems(files)
        else:
            for file in files:
                file.sync()
            for directory in directories:
                self.sync_directory(directory)
        self._costs.took(count, perf_counter() - started, is_file_system=is_all)
        return is_all

    def _sync_file_systems(self, files: Sequence[File]) -> None:
        first_of_device: dict[int, int] = {}
        for file in files:
            assert isinstance(file, RealFile)
            first_of_device.setdefault(os.fstat(file.fileno()).st_dev, file.fileno())
        for fd in first_of_device.values():
            _sync_file_system(fd)

    def sync_file_system(self, path: str) -> None:
        if not self._has_syncfs:
            self._sync_tree(path)
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync_file_system(fd)
        finally:
            os.close(fd)

    def _sync_tree(self, path: str) -> None:
        """Our own files are all there; whatever else the file system holds is not asked."""
        for directory, _, names in os.walk(path, onerror=_raise):
            for name in names:
                try:
                    fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
                try:
                    _sync_fd(fd)
                finally:
                    os.close(fd)
            self.sync_directory(directory)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_file(self, path: str, data: bytes) -> None:
        scratch = path + ".tmp"
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                written = os.write(fd, view)
                view = view[written:]
            os.fsync(fd)
        except OSError as error:
            # On a full disk it would take up room that somebody needs.
            os.unlink(scratch)
            raise _named(error, path) from None
        finally:
            os.close(fd)
        os.replace(scratch, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def room_bytes(self, directory: str) -> tuple[int, int]:
        stat = os.statvfs(directory)
        return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail

    def sizes(self, directory: str) -> Iterable[tuple[str, int]]:
        with os.scandir(directory) as entries:
            return [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file()]

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, path: str) -> File:
        """Holds an exclusive lock until the file is closed; BlockingIOError when another has it."""
        file = self.open(path, create=True)
        assert isinstance(file, RealFile)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise
        return file


def _raise(error: OSError) -> None:
    raise error


def _sync_file_system(fd: int) -> None:
    import ctypes  # costs 10 ms that a small broker never needs

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
