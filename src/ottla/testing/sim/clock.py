"""The clocks of a machine and its source of chance, both of the simulation's making."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from ottla.types import Now

if TYPE_CHECKING:
    from ottla.testing.sim.scheduler import Scheduler

# When every world begins: 2030-01-01, UTC.
EPOCH_S: Final = 1_893_456_000.0


class MachineClock:
    """Implements `ottla.ports.Clock`: a steady clock that may drift, a wall clock that may step."""

    def __init__(self, scheduler: Scheduler, uptime_s: float = 0.0) -> None:
        self._scheduler = scheduler
        self._rate = 1.0
        self._anchor_s = scheduler.now_s
        self._steady_at_anchor_s = uptime_s
        self._wall_ahead_s = EPOCH_S + scheduler.now_s - uptime_s

    def steady_s(self) -> float:
        return self._steady_at_anchor_s + (self._scheduler.now_s - self._anchor_s) * self._rate

    def wall_ms(self) -> int:
        return int((self.steady_s() + self._wall_ahead_s) * 1000)

    def now(self) -> Now:
        steady_s = self.steady_s()
        return Now(int((steady_s + self._wall_ahead_s) * 1000), int(steady_s * 1000))

    def virtual_s(self, steady_s: float) -> float:
        """When, by the world's time, the steady clock shows this."""
        return self._anchor_s + (steady_s - self._steady_at_anchor_s) / self._rate

    def step(self, seconds: float) -> None:
        """The wall clock jumps."""
        self._wall_ahead_s += seconds

    def drift(self, rate: float) -> None:
        """From now on both clocks run so fast."""
        self._steady_at_anchor_s = self.steady_s()
        self._anchor_s = self._scheduler.now_s
        self._rate = rate


class SeededChance:
    """Implements `ottla.ports.Random`."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)
