"""Files as an inspection sees them: opened for reading, nothing else."""

from __future__ import annotations

import os


class ReadOnlyFile:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, count: int, position: int) -> bytes:
        return os.pread(self._fd, count, position)

    def close(self) -> None:
        os.close(self._fd)


class ReadOnlyDisk:
    """Implements `ottla.log.walk.ReadableDisk`."""

    def open(self, path: str) -> ReadOnlyFile:
        return ReadOnlyFile(path)

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()
