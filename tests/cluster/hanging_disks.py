"""A real disk that stops answering, as one in a machine does, and answers again later.

A file system in a file, on a second file system that can be frozen (fsfreeze). While it is, pages
are written as ever and syncs do not return: the kernel's loop device waits for its file.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

OUTER_BYTES = 448 * 1024 * 1024
INNER_BYTES = 256 * 1024 * 1024


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)


@contextmanager
def mounted_file(image: Path, place: Path, options: str) -> Iterator[str]:
    """A file system in a file; the name of its device. Skips the test where that is refused."""
    place.mkdir(parents=True)
    try:
        run("fallocate", "--length", str(INNER_BYTES), image)
        run("mkfs.ext4", "-q", image)
        run("mount", "-o", f"loop,{options}", image, place)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"disks in files cannot be mounted here: {error.stderr.strip()}")
    try:
        source = ["findmnt", "--noheadings", "--output", "SOURCE", str(place)]
        device = subprocess.run(source, check=True, capture_output=True, text=True).stdout
        yield Path(device.strip()).name
    finally:
        run("umount", "--lazy", place)


class HangingDisk:
    def __init__(self, home: Path, mounted_at: Path) -> None:
        self.path = mounted_at
        self._outer = home / "outer"
        self._mounted: list[Path] = []

    def mount(self) -> None:
        """Skips the test where this is not allowed."""
        try:
            self._mount_file(self._outer.with_suffix(".img"), OUTER_BYTES, self._outer)
            self._mount_file(self._outer / "inner.img", INNER_BYTES, self.path)
        except (OSError, subprocess.CalledProcessError) as error:
            self.unmount()
            reason = getattr(error, "stderr", "") or error
            pytest.skip(f"disks in files cannot be mounted here: {str(reason).strip()}")

    def _mount_file(self, image: Path, size_bytes: int, place: Path) -> None:
        place.mkdir(parents=True)
        run("fallocate", "--length", str(size_bytes), image)
        run("mkfs.ext4", "-q", image)
        run("mount", "-o", "loop", image, place)
        self._mounted.append(place)
        (place / "lost+found").rmdir()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Whatever happens in here, it answers again: nobody could end a process that waits."""
        run("fsfreeze", "--freeze", self._outer)
        try:
            yield
        finally:
            run("fsfreeze", "--unfreeze", self._outer)

    def unmount(self) -> None:
        while self._mounted:
            run("umount", "--lazy", self._mounted.pop())
