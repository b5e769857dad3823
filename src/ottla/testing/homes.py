"""Where brokers of tests live, and how those go whose owners were killed.

A home is locked by the process that made it, for as long as that lives. Whoever makes the next one
removes those that nobody holds any more, with the broker that may still run there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import BinaryIO, Final

PREFIX: Final = "ottla-test-"
OWNER: Final = "owner"
PID: Final = "pid"


class Home:
    """A temporary directory of this process' own."""

    def __init__(self) -> None:
        import fcntl  # Not on Windows, where pytest loads the plugin all the same.

        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # It gets its name when it is locked: before that nobody takes it for abandoned.
        nameless = self.path / f"{OWNER}.new"
        self._lock = nameless.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        nameless.rename(self.path / OWNER)

    def note_pid(self, pid: int) -> None:
        """Of the broker that works here."""
        (self.path / PID).write_text(str(pid))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep() -> None:
    """Removes homes whose owners are gone; those of other users cannot be opened and stay."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (path / OWNER).open("rb") as lock:
            if _is_free(lock):
                _end_broker(path)
                shutil.rmtree(path, ignore_errors=True)


def _is_free(lock: BinaryIO) -> bool:
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_broker(home: Path) -> None:
    """A broker ends with its parent; one that hangs does not. The number may be another's now."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((home / PID).read_text())
        if os.readlink(f"/proc/{pid}/cwd") == str(home.resolve()):
            os.kill(pid, signal.SIGKILL)
