"""What happens when, in virtual time: one heap for all machines of a world."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any


class Scheduler:
    """Jumps from one event to the next; of those of one moment chance decides which is first."""

    def __init__(self, random: Random) -> None:
        self.now_s = 0.0
        self.event_count = 0
        self._draw = random.random
        self._events: list[tuple[float, float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, when_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        self._number += 1
        heappush(self._events, (when_s, self._draw(), self._number, callback, arguments))

    def after(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> None:
        self.at(self.now_s + seconds, callback, *arguments)

    def run(self, is_done: Callable[[], bool], until_s: float) -> bool:
        """Until it is done, or nothing is left to happen before `until_s`; says whether it is."""
        events = self._events
        while not is_done():
            if not events or events[0][0] > until_s:
                self.now_s = until_s
                return False
            when_s, _, _, callback, arguments = heappop(events)
            if when_s > self.now_s:
                self.now_s = when_s
            self.event_count += 1
            callback(*arguments)
        return True

    def clear(self) -> None:
        """Nothing more happens."""
        self._events.clear()
