"""Threads in virtual time: blocking work takes effect at once, at one moment that chance chooses.

That moment is the beginning or the end of the time that the work takes. So what arrives while a
sync is under way is not always part of it, and what a thread has done is not always known to the
loop when the power goes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from ottla.testing.memory_disk import PowerLoss
from ottla.testing.sim.loop import ProcessLoop

T = TypeVar("T")

# The first word of an executor's name: how long its work takes at least, and how much longer.
LENGTHS_S: Final = {
    "sync": (0.000_3, 0.003),
    "write": (0.000_02, 0.000_3),
    "io": (0.000_05, 0.001),
    "search": (0.000_02, 0.000_5),
    "codec": (0.000_02, 0.000_5),
}
OTHER_LENGTH_S: Final = (0.000_05, 0.001)
START_S: Final = 0.000_03
# Work that a disk is not waited for in.
WITHOUT_DISK: Final = frozenset({"search", "codec"})
# Now and then everything takes much longer.
LONG_SHARE: Final = 0.01
LONG_FACTOR: Final = 30.0


class _Work(NamedTuple):
    run: Callable[[], object]
    # On the loop, with what came of it.
    then: Callable[[object, BaseException | None], object]
    future: asyncio.Future[Any] | None


class DiskPace:
    """How a machine's disk fares: at its usual speed, slowly, or not at all."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.is_hung = False
        self._waiting: list[Callable[[], object]] = []

    def wait(self, callback: Callable[[], object]) -> None:
        self._waiting.append(callback)

    def heal(self) -> list[Callable[[], object]]:
        """What has waited and may go on."""
        self.factor = 1.0
        self.is_hung = False
        waiting, self._waiting = self._waiting, []
        return waiting


class SimExecutor:
    """Implements `ottla.ports.Executor`."""

    def __init__(
        self, loop: ProcessLoop, random: Random, pace: DiskPace, name: str, size: int
    ) -> None:
        self._loop = loop
        self._random = random
        self._pace = pace
        self._name = name
        self._size = size
        kind = name.partition("-")[0]
        self._length_s = LENGTHS_S.get(kind, OTHER_LENGTH_S)
        self._asks_disk = kind not in WITHOUT_DISK
        self._queue: deque[_Work] = deque()
        self._busy = 0
        self._is_closed = False

    def run(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._put(_Work(partial(work, *arguments), partial(_settle, future), future))
        return future

    def begin(self, work: Callable[[], object], then: Callable[[], object]) -> None:
        self._put(_Work(work, lambda value, error: then(), None))

    def close(self) -> None:
        self._is_closed = True
        queue, self._queue = self._queue, deque()
        for work in queue:
            if work.future is not None:
                work.future.cancel()

    def _put(self, work: _Work) -> None:
        if self._is_closed:
            raise RuntimeError(f"{self._name} takes no more work")
        self._queue.append(work)
        self._take_next()

    def _take_next(self) -> None:
        if self._queue and self._busy < self._size:
            self._busy += 1
            work = self._queue.popleft()
            self._loop.in_process(START_S * self._random.random(), partial(self._begin, work))

    def _begin(self, work: _Work) -> None:
        if self._is_held(partial(self._begin, work)):
            return
        if work.future is not None and work.future.cancelled():
            self._end(work, None, None)
            return
        draw = self._random.random
        shortest_s, spread_s = self._length_s
        seconds = shortest_s + spread_s * draw() ** 2
        if draw() < LONG_SHARE:
            seconds *= LONG_FACTOR
        if self._asks_disk:
            seconds *= self._pace.factor
        if draw() < 0.5:
            value, error = _outcome(work)
            self._loop.in_process(seconds, partial(self._end, work, value, error))
        else:
            self._loop.in_process(seconds, partial(self._do_and_end, work))

    def _do_and_end(self, work: _Work) -> None:
        if not self._is_held(partial(self._do_and_end, work)):
            self._end(work, *_outcome(work))

    def _is_held(self, callback: Callable[[], object]) -> bool:
        """By a disk that hangs."""
        if self._asks_disk and self._pace.is_hung:
            self._pace.wait(partial(self._loop.in_process, 0.0, callback))
            return True
        return False

    def _end(self, work: _Work, value: object, error: BaseException | None) -> None:
        if isinstance(error, PowerLoss):
            return
        self._busy -= 1
        self._loop.call_soon(work.then, value, error)
        self._take_next()


def _outcome(work: _Work) -> tuple[object, BaseException | None]:
    try:
        return work.run(), None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return None, error


def _settle(future: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


class SimThreads:
    """Implements `ottla.ports.Threads` for one process."""

    def __init__(self, loop: ProcessLoop, random: Random, pace: DiskPace) -> None:
        self._loop = loop
        self._random = random
        self._pace = pace

    def executor(self, name: str, size: int) -> SimExecutor:
        return SimExecutor(self._loop, self._random, self._pace, name, size)

    def rest(self, seconds: float) -> None:
        """Nobody else waits for this thread."""
