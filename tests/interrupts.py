"""Ctrl-C for the processes that tests start, wherever the tests themselves run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_is_heard() -> Iterator[None]:
    """Processes that are started inside hear SIGINT.

    The shell of a script has its background jobs ignore it, children inherit that, and commands
    leave it so, as is the custom. A handler, though, is not inherited: a child gets the default.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
