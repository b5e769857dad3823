"""Samples the main thread's stack by CPU time, inside the broker that is to be profiled.

Python imports this by itself at its start when the directory is on PYTHONPATH. SIGUSR2 begins and
ends the sampling; the stacks are written when it ends. py-spy samples by wall time, so that on a
busy machine it mostly shows where the broker was interrupted.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from types import FrameType

PERIOD_S = 0.001

_stacks: Counter[tuple[tuple[str, str, int], ...]] = Counter()
_is_sampling = False


def _sample(number: int, frame: FrameType | None) -> None:
    del number
    stack = []
    while frame is not None:
        stack.append((frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    _stacks[tuple(reversed(stack))] += 1


def _toggle(number: int, frame: FrameType | None) -> None:
    del number, frame
    global _is_sampling
    _is_sampling = not _is_sampling
    period_s = PERIOD_S if _is_sampling else 0
    signal.setitimer(signal.ITIMER_PROF, period_s, period_s)
    if not _is_sampling:
        _write(os.environ["BENCH_SAMPLES"])


def _write(path: str) -> None:
    """As py-spy's raw format: the frames of a stack, and how often it was seen."""
    with open(f"{path}.part", "w") as file:
        for stack, count in _stacks.items():
            frames = ";".join(f"{name} ({place}:{line})" for name, place, line in stack)
            file.write(f"{frames} {count}\n")
    os.rename(f"{path}.part", path)
    _stacks.clear()


if "BENCH_SAMPLES" in os.environ:
    signal.signal(signal.SIGPROF, _sample)
    signal.signal(signal.SIGUSR2, _toggle)
