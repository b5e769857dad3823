"""The real threads, in which blocking work does not hold the loop; and waiting for such work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

JOIN_S_MAX: Final = 30.0
# A disk that is stuck for longer does not keep the broker from stopping.
WAIT_S_MAX: Final = 30.0


class ThreadExecutor:
    """Threads come with the work that needs one. A process that ends does not wait for them.

    Lighter than `concurrent.futures`, with which a group commit would cost twice as much.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._work: SimpleQueue[tuple[Callable[[], None], asyncio.Future[Any] | None] | None]
        self._work = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Work that has been given and is not done, on the loop.
        self._open = 0
        self._is_closed = False

    def run(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def in_thread() -> None:
            if future.cancelled():
                _call_on(loop, self._dropped)
                return
            try:
                value = work(*arguments)
            except BaseException as error:
                _call_on(loop, partial(self._failed, future, error))
            else:
                _call_on(loop, partial(self._done, future, value))

        self._put(in_thread, future)
        return future

    def begin(self, work: Callable[[], object], then: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()

        def in_thread() -> None:
            work()
            _call_on(loop, done)

        def done() -> None:
            self._open -= 1
            then()

        self._put(in_thread)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            while not self._work.empty():
                work = self._work.get()
                if work is not None and work[1] is not None:
                    work[1].cancel()
            for _ in self._threads:
                self._work.put(None)

    def join(self) -> None:
        """Blocking, after `close`: returns when no thread is at work any more."""
        for thread in self._threads:
            thread.join(JOIN_S_MAX)

    def _put(self, work: Callable[[], None], future: asyncio.Future[Any] | None = None) -> None:
        if self._is_closed:
            raise RuntimeError(f"{self._name} takes no more work")
        self._open += 1
        self._work.put((work, future))
        if len(self._threads) < min(self._open, self._size):
            name = self._name if self._size == 1 else f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=self._live, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _live(self) -> None:
        while (work := self._work.get()) is not None:
            work[0]()
            # What it holds is to be freed now, and not with the next.
            del work

    def _dropped(self) -> None:
        self._open -= 1

    def _done(self, future: asyncio.Future[T], value: T) -> None:
        self._open -= 1
        if not future.done():
            future.set_result(value)

    def _failed(self, future: asyncio.Future[Any], error: BaseException) -> None:
        self._open -= 1
        if not future.done():
            future.set_exception(error)


def _call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        # The loop is closed: nobody waits any more.
        if not loop.is_closed():
            raise


class RealThreads:
    def __init__(self) -> None:
        self._executors: list[ThreadExecutor] = []

    def executor(self, name: str, size: int) -> ThreadExecutor:
        executor = ThreadExecutor(name, size)
        self._executors.append(executor)
        return executor

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def join(self) -> None:
        """Blocking: ends them all, and returns when none is at work."""
        for executor in self._executors:
            executor.close()
        for executor in self._executors:
            executor.join()


async def wait_out(work: Awaitable[T]) -> T:
    """Awaits work in a thread; a caller that is cancelled goes only when the thread is through.

    What the thread does to files is then over before anybody else takes them up.
    """
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working], timeout=WAIT_S_MAX)
        if working.done() and not working.cancelled():
            working.exception()
        raise
