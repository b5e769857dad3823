"""Blocking work beside the loop: its order, its outcome, and what a close leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.threads import RealThreads


def live(story: Callable[[RealThreads], Awaitable[None]]) -> None:
    async def run() -> None:
        threads = RealThreads()
        try:
            async with asyncio.timeout(20):
                await story(threads)
        finally:
            threads.join()

    asyncio.run(run())


def test_work_is_done_in_a_thread_and_its_outcome_comes_to_the_loop() -> None:
    async def story(threads: RealThreads) -> None:
        executor = threads.executor("beside", 1)
        assert await executor.run(lambda: threading.current_thread().name) == "beside"
        with pytest.raises(ZeroDivisionError):
            await executor.run(divmod, 1, 0)

    live(story)


def test_one_thread_does_things_in_the_order_given() -> None:
    async def story(threads: RealThreads) -> None:
        executor, done = threads.executor("beside", 1), list[int]()
        all_told = asyncio.Event()
        for number in range(100):
            executor.begin(lambda number=number: done.append(number), lambda: None)  # type: ignore[misc]
        executor.begin(lambda: None, all_told.set)
        await all_told.wait()
        assert done == list(range(100))

    live(story)


def test_as_many_at_once_as_there_are_threads_and_not_more() -> None:
    async def story(threads: RealThreads) -> None:
        executor, barrier = threads.executor("beside", 3), threading.Barrier(3)
        await asyncio.gather(*(executor.run(barrier.wait, 10) for _ in range(3)))
        before = threading.active_count()
        await asyncio.gather(*(executor.run(barrier.wait, 10) for _ in range(6)))
        assert threading.active_count() == before

    live(story)


def test_what_has_not_begun_when_it_is_closed_never_begins() -> None:
    async def story(threads: RealThreads) -> None:
        executor, go, has_begun = threads.executor("beside", 1), threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold() -> str:
            loop.call_soon_threadsafe(has_begun.set)
            assert go.wait(10)
            return "done"

        held, later = executor.run(hold), executor.run(lambda: "never")
        await has_begun.wait()
        executor.close()
        assert later.cancelled()
        with pytest.raises(RuntimeError):
            executor.run(hold)
        go.set()
        assert await held == "done"

    live(story)


def test_work_whose_caller_has_gone_is_not_begun() -> None:
    async def story(threads: RealThreads) -> None:
        executor, go, done = threads.executor("beside", 1), threading.Event(), list[str]()
        first = executor.run(go.wait, 10)
        gone = executor.run(done.append, "gone")
        gone.cancel()
        go.set()
        await first
        await executor.run(done.append, "after")
        assert done == ["after"]

    live(story)
