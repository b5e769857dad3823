"""Waiting for what a broker does by itself, in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 40.0
PAUSE_S = 0.02


def until(holds: Callable[[], object], what: str, patience_s: float = DEADLINE_S) -> None:
    """Fails with `what` when it takes far too long."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(PAUSE_S)
