"""Keeps the flows of a run going: each is tried, tried again after a pause, or given up.

What is tried is an `Attempt`; this module knows no Spark and reads no clock but the one it is
given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.pipelines.language.model import Restarts
from ottla.pipelines.language.problems import BadPipeline, PipelineFailed
from ottla.pipelines.running.causes import Cause

POLL_S: Final = 0.1
# Once stopping, a batch's end must be seen before the next one writes.
POLL_S_STOPPING: Final = 0.005
# Each query starts a Python of its own, to which Spark gives ten seconds: on a busy machine many at
# once would take longer than that.
STARTING_MAX: Final = 2
# For flows that are stopped because another one has failed.
LAST_BATCH_S_MAX: Final = 30.0


class Attempt(Protocol):
    """A query that runs, or a table that is being written."""

    def is_starting(self) -> bool:
        """Whether its sources are still being opened."""

    def is_over(self) -> bool: ...

    def failure(self) -> Cause | None:
        """Why it is over; None: all was done, or it was stopped."""

    def look(self) -> int:
        """Tells of the batches that have ended since the last look; how many there were."""

    def is_at_work(self) -> bool:
        """Whether a batch has begun that may have written something."""

    def stop(self) -> None:
        """At once; returns when it has ended."""


@dataclass
class Patience:
    """How often a flow may fail before a batch of it succeeds again."""

    restarts: Restarts
    failures: int = 0

    def succeeded(self) -> None:
        self.failures = 0

    def pause_s(self) -> float | None:
        """After one more failure: how long to wait; None when it is enough."""
        self.failures += 1
        if self.failures > self.restarts.max:
            return None
        pause_s = self.restarts.backoff_s * 2.0 ** (self.failures - 1)
        return min(pause_s, self.restarts.backoff_s_max)


class GivenUp(Exception):
    """A flow cannot go on; the others have been stopped."""

    def __init__(self, flow: str, cause: Cause, tries: int) -> None:
        super().__init__(f"{flow}: {cause.text}")
        self.flow = flow
        self.cause = cause
        self.tries = tries


class Unusable(Exception):
    """No query can run in this Spark any more; the flows have been left."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.text)
        self.cause = cause


class Supervised:
    """One flow: the attempt at work, or the time of the next one, or the end."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], Attempt],
        restarts: Restarts,
        *,
        failing: Callable[[BaseException], Cause],
        restarting: Callable[[str, float, Cause], None],
        unfinished: Callable[[str, Cause], None],
    ) -> None:
        self.name = name
        self.is_over = False
        # Over because there is no more to do.
        self.is_done = False
        self._begin = begin
        self._failing = failing
        self._restarting = restarting
        self._unfinished = unfinished
        self._patience = Patience(restarts)
        self._attempt: Attempt | None = None
        self._has_succeeded = False
        self._due = float("-inf")

    def step(self, now: float) -> None:
        """Begins what is due, tells what has happened; raises GivenUp, Unusable."""
        if self.is_over:
            return
        if self._attempt is None:
            if now >= self._due:
                self._try(now)
            return
        # In this order: what ended between the two is seen by the next look.
        is_over = self._attempt.is_over()
        self.look()
        if is_over:
            self._end(now)

    def is_waiting(self) -> bool:
        """Whether its next step may be a start."""
        return not self.is_over and self._attempt is None

    def is_starting(self) -> bool:
        return not self.is_over and self._attempt is not None and self._attempt.is_starting()

    def look(self) -> int:
        """Tells of the batches that have ended; how many there were."""
        if self._attempt is None:
            return 0
        ended = self._attempt.look()
        if ended:
            self._patience.succeeded()
            self._has_succeeded = True
        return ended

    def is_at_work(self) -> bool:
        """Whether stopping now would leave half a batch; asked after a `look`."""
        if self.is_over or self._attempt is None or self._attempt.is_over():
            return False
        # A batch that has ended since the last look is the one that was waited for.
        return self.look() == 0 and self._attempt.is_at_work()

    def stop(self) -> None:
        """At once."""
        if self.is_over or self._attempt is None:
            self.is_over = True
            return
        self.is_over = True
        ended_by_itself = self._attempt.is_over()
        self._attempt.stop()
        self.look()
        cause = self._attempt.failure() if ended_by_itself else None
        if cause is not None:
            self._unfinished(self.name, cause)

    def _try(self, now: float) -> None:
        try:
            self._attempt = self._begin()
        except (BadPipeline, PipelineFailed):
            raise
        except Exception as error:
            # Spark raises many kinds of these; `failing` tells which are worth another attempt.
            self._failed(self._failing(error), now)

    def _end(self, now: float) -> None:
        assert self._attempt is not None
        cause = self._attempt.failure()
        if cause is None:
            self.is_over = self.is_done = True
        else:
            self._failed(cause, now)

    def _failed(self, cause: Cause, now: float) -> None:
        self._attempt = None
        if cause.is_spark_lost or (cause.is_unserializable and self._patience.failures):
            raise Unusable(cause)
        # A topic that was there a moment ago may be there again in another.
        is_final = cause.is_final or (cause.is_missing_topic and not self._has_succeeded)
        pause_s = None if is_final else self._patience.pause_s()
        if pause_s is None:
            self.is_over = True
            raise GivenUp(self.name, cause, 0 if is_final else self._patience.failures - 1)
        self._due = now + pause_s
        self._restarting(self.name, pause_s, cause)


def supervise(
    flows: Sequence[Supervised],
    *,
    stop: threading.Event,
    stop_now: threading.Event,
    stopping: Callable[[], None],
    between: Callable[[float], None] = lambda now: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Until all flows are over, or somebody says stop; raises GivenUp or Unusable.

    In any case all have been stopped then.
    """
    try:
        while not all(flow.is_over for flow in flows):
            if stop.is_set() or stop_now.is_set():
                stopping()
                _stop_after_batch(flows, stop_now, float("inf"), clock)
                return
            for flow in flows:
                if not (flow.is_waiting() and _starting(flows) >= STARTING_MAX):
                    flow.step(clock())
            between(clock())
            stop.wait(POLL_S)
    except GivenUp:
        _stop_after_batch(flows, stop_now, clock() + LAST_BATCH_S_MAX, clock)
        raise
    except Unusable:
        for flow in flows:
            # It may be that nobody hears it.
            with suppress(Exception):
                flow.stop()
        raise
    finally:
        with ExitStack() as all_of_them:
            for flow in flows:
                all_of_them.callback(flow.stop)


def _starting(flows: Sequence[Supervised]) -> int:
    return sum(flow.is_starting() for flow in flows)


def _stop_after_batch(
    flows: Sequence[Supervised],
    stop_now: threading.Event,
    deadline: float,
    clock: Callable[[], float],
) -> None:
    """Each flow is stopped when its batch is done, whatever the others are at."""
    left = [flow for flow in flows if not flow.is_over]
    for flow in left:
        # Only what ends from here on is the batch that was at work.
        flow.look()
    while left:
        is_late = stop_now.is_set() or clock() >= deadline
        for flow in left:
            if is_late or not flow.is_at_work():
                flow.stop()
        left = [flow for flow in left if not flow.is_over]
        if left:
            stop_now.wait(POLL_S_STOPPING)
