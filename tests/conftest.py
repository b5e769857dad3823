"""What all tests share: an end to every test."""

from __future__ import annotations

import signal
from collections.abc import Generator
from types import FrameType

import pytest
from hypothesis import settings

CALL_TIMEOUT_S = 300

# An example is slow when the machine is busy; that says nothing about what it tests.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"seconds(limit): may run so long, not {CALL_TIMEOUT_S} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """A test that hangs fails where it hangs, instead of holding up the whole run."""
    marker = item.get_closest_marker("seconds")
    limit_s = marker.args[0] if marker else CALL_TIMEOUT_S

    def fail(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"{item.nodeid} ran longer than {limit_s} s")

    previous = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
