"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import sys
import threading


def end_with_owner() -> None:
    """Stdin is the owner's end of a pipe: when that closes, this process ends and its JVM too."""
    threading.Thread(target=_end_at_eof, args=(sys.stdin.fileno(),), daemon=True).start()


def _end_at_eof(pipe: int) -> None:
    # Not by sys.stdin: a thread that holds its lock at the end makes Python abort.
    while os.read(pipe, 1024):
        pass
    os._exit(1)
