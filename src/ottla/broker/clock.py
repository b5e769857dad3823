"""The real clock and the real randomness."""

from __future__ import annotations

import os
import time
from random import SystemRandom

from ottla.types import Now


class SystemClock:
    def now(self) -> Now:
        return Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Asked for every write: not a call around a call.
    steady_s = staticmethod(time.monotonic)


class SystemEntropy:
    def __init__(self) -> None:
        self._random = SystemRandom()

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)
