"""What is due when."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """One deadline per key.

    A deadline that moves later, as a session's does at each heartbeat, costs one dictionary write:
    its entry stays in the heap where it was, and moves on when it surfaces there.
    """

    __slots__ = ("_due", "_heap", "_pushes", "_queued")

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._queued: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, at_ms: int) -> None:
        self._due[key] = at_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or at_ms < queued_ms:
            self._queued[key] = at_ms
            self._pushes += 1
            heappush(self._heap, (at_ms, self._pushes, key))

    def cancel(self, key: K) -> None:
        self._due.pop(key, None)

    def clear(self) -> None:
        self._due.clear()
        self._queued.clear()
        self._heap.clear()

    def first_ms(self) -> int | None:
        """The earliest deadline."""
        heap = self._heap
        while heap:
            queued_ms, push, key = heap[0]
            if self._queued.get(key) != queued_ms:
                heappop(heap)
                continue
            due_ms = self._due.get(key)
            if due_ms is None:
                heappop(heap)
                del self._queued[key]
            elif due_ms > queued_ms:
                self._queued[key] = due_ms
                heapreplace(heap, (due_ms, push, key))
            else:
                return due_ms
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """Takes out the earliest key whose time has come."""
        first_ms = self.first_ms()
        if first_ms is None or first_ms > now_ms:
            return None
        key = heappop(self._heap)[2]
        del self._due[key], self._queued[key]
        return key
