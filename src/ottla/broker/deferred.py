"""A reply that is not there yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Deferred(Generic[T]):
    """Lighter than a future: one callback, called at once and not a loop turn later.

    With
    `pipelined`, the connection goes on to its next request before this one is answered.
    """

    __slots__ = ("_callback", "_on_abandon", "_value", "is_resolved", "pipelined")

    def __init__(self, *, pipelined: bool = False) -> None:
        self.pipelined = pipelined
        self.is_resolved = False
        self._value: T | None = None
        self._callback: Callable[[Any], None] | None = None
        self._on_abandon: Callable[[], None] | None = None

    def resolve(self, value: T | None) -> None:
        if self.is_resolved:
            return
        self.is_resolved = True
        self._value = value
        # Callbacks hold those who hold this: without the cycle, all of it is freed at once.
        callback, self._callback, self._on_abandon = self._callback, None, None
        if callback is not None:
            callback(value)

    def when_resolved(self, callback: Callable[[T | None], None]) -> None:
        if self.is_resolved:
            callback(self._value)
        else:
            self._callback = callback

    def when_abandoned(self, callback: Callable[[], None]) -> None:
        self._on_abandon = callback

    def abandon(self) -> None:
        """The client is gone: nobody waits any more."""
        on_abandon, self._callback, self._on_abandon = self._on_abandon, None, None
        if on_abandon is not None:
            on_abandon()
