"""A loop that stands still can tell nobody; a thread of its own lets its clients go.

The kernel may have a write wait for a disk that hangs, however short writes are else (ext4 waits
for the inode that it is just writing to its journal). The loop then answers nobody, as a stopped
process, and clients would wait for their own time-outs, 30 and 60 s, when others lead long since.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

from ottla.config import BrokerConfig

logger = logging.getLogger(__name__)

LOOKS_PER_LIMIT: Final = 10


def standstill_s(config: BrokerConfig) -> float:
    """By then the lease of this node has ended, and others may lead."""
    return max(config.log_dir_stall_timeout_ms, config.broker_session_timeout_ms) / 1000


class Standstill:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit_s: float, let_go: Callable[[], None]
    ) -> None:
        """`let_go` is called by the thread, once for each time that the loop stands still."""
        self._loop = loop
        self._pause_s = limit_s / LOOKS_PER_LIMIT
        self._let_go = let_go
        self._has_moved = True
        self._is_over = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._move()
        threading.Thread(target=self._watch, name="standstill", daemon=True).start()

    def _move(self) -> None:
        self._has_moved = True
        self._timer = self._loop.call_later(self._pause_s / 2, self._move)

    def _watch(self) -> None:
        """Counts its own looks and not the time: whoever sleeps as a whole has not stood still."""
        looks = 0
        while not self._is_over.wait(self._pause_s):
            looks = 0 if self._has_moved else looks + 1
            self._has_moved = False
            if looks == LOOKS_PER_LIMIT:
                logger.error("the loop stands still, as when a disk hangs: all connections go")
                self._let_go()

    def close(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
