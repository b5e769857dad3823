"""Ctrl-C that cannot get lost.

Python's own handler raises wherever the main thread is. Inside a call of confluent-kafka that may
be while it looks at an argument, and then comes out as a TypeError, or not at all. So the handler
also notes that it was called; whoever is about to wait asks.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")

_HEARD: Final = threading.Event()


def listen() -> None:
    """From now on, unless this process was started to ignore Ctrl-C, as background jobs are."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _hear)


def _hear(_number: int, _frame: Any) -> NoReturn:
    _HEARD.set()
    raise KeyboardInterrupt


def were_heard() -> bool:
    return _HEARD.is_set()


def check() -> None:
    """KeyboardInterrupt if there was one, even if its exception never came out."""
    if _HEARD.is_set():
        raise KeyboardInterrupt


def result(future: Future[T], timeout_s: float | None = None) -> T:
    """Waits for what confluent-kafka was asked for just now."""
    check()
    return future.result(timeout_s)
