"""Directories for what can be made again when it is gone."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def private_directory(name: str, first: Path | None = None) -> Path | None:
    """A directory that only this user can write, below `first` or in the cache; None: nowhere."""
    for base in (*filter(None, [first]), *_bases()):
        if _is_private(base):
            directory = base / name
            if _is_private(directory):
                return directory
    return None


def _bases() -> list[Path]:
    """The user's cache, and last what any machine has."""
    bases = []
    cache_home = os.environ.get("XDG_CACHE_HOME")
    # One that is not absolute is none, as its standard says.
    if cache_home and os.path.isabs(cache_home):
        bases.append(Path(cache_home) / "ottla")
    else:
        # A user id in a container may have neither a name nor a home.
        with suppress(RuntimeError):
            bases.append(Path.home() / ".cache" / "ottla")
    bases.append(Path(tempfile.gettempdir()) / f"ottla-{os.getuid()}")
    return bases


def _is_private(directory: Path) -> bool:
    """Makes it where it can; what others could write must not be run as machine code."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False
