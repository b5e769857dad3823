"""What is left of an earlier run: nodes whose supervisor was killed end by themselves, soon."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ottla.cli.failures import CommandFailed
from ottla.cli.supervisor.stream import Stream
from ottla.log.directory import LOCK

PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.1


def await_leftovers(directories: Mapping[int, Path], word: str, stream: Stream) -> None:
    """Returns when nobody holds one of the nodes' directories."""
    deadline_s = time.monotonic() + PATIENCE_S
    is_told = False
    while busy := [number for number, path in directories.items() if _is_locked(path / LOCK)]:
        names = ", ".join(map(str, busy))
        if time.monotonic() > deadline_s:
            raise CommandFailed(
                f"{word.capitalize()} {names} of this directory runs without a supervisor; end its "
                "process first."
            )
        if not is_told:
            stream.tell(f"waits for what is left of an earlier run to stop: {word} {names}")
            is_told = True
        time.sleep(PAUSE_S)


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
