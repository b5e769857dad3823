"""The loop of a simulated process keeps asyncio's promises, in time that costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from ottla.testing.sim.clock import MachineClock
from ottla.testing.sim.loop import ProcessLoop
from ottla.testing.sim.scheduler import Scheduler

T = TypeVar("T")
# Less than this is the cost of turns.
MOMENT_S = 0.01


class Bench:
    """A scheduler, and processes on it."""

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler(Random(seed))
        self.unhandled: list[dict[str, Any]] = []

    def process(self, name: str = "a", rate: float = 1.0) -> ProcessLoop:
        clock = MachineClock(self.scheduler, uptime_s=1000.0)
        clock.drift(rate)
        return ProcessLoop(  # type: ignore[abstract]
            name, self.scheduler, clock, Random(self.random.random()), self.unhandled.append
        )

    def run(self, loop: ProcessLoop, work: Coroutine[Any, Any, T], limit_s: float = 1000.0) -> T:
        ended: list[asyncio.Task[T]] = []
        loop.spawn(work, ended.append)
        if not self.scheduler.run(lambda: bool(ended), self.scheduler.now_s + limit_s):
            raise TimeoutError
        return ended[0].result()


def test_sleeping_takes_virtual_time_only() -> None:
    bench = Bench()

    async def sleep() -> str:
        await asyncio.sleep(500)
        return "awake"

    assert bench.run(bench.process(), sleep()) == "awake"
    assert bench.scheduler.now_s == pytest.approx(500, abs=MOMENT_S)


def test_the_running_loop_is_that_of_the_process() -> None:
    bench = Bench()
    first, second = bench.process("a"), bench.process("b")

    async def mine() -> asyncio.AbstractEventLoop:
        await asyncio.sleep(1)
        return asyncio.get_running_loop()

    assert bench.run(first, mine()) is first
    assert bench.run(second, mine()) is second
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_callbacks_run_in_the_order_in_which_they_were_asked_for() -> None:
    bench = Bench()
    loop = bench.process()
    seen: list[int] = []

    async def ask() -> None:
        for number in range(50):
            loop.call_soon(seen.append, number)
        for number in range(50, 60):
            loop.call_later(0.1, seen.append, number)
        cancelled = loop.call_later(0.1, seen.append, -1)
        loop.call_later(0.05, cancelled.cancel)
        await asyncio.sleep(1)

    bench.run(loop, ask())
    assert seen == list(range(60))


def test_timeouts_locks_events_queues_and_groups_work() -> None:
    bench = Bench()

    async def story() -> list[object]:
        said: list[object] = []
        lock, event, queue = asyncio.Lock(), asyncio.Event(), asyncio.Queue[int]()

        async def worker(number: int) -> None:
            async with lock:
                await asyncio.sleep(1)
                await queue.put(number)
            event.set()

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(worker(number))
        await event.wait()
        said += [await queue.get() for _ in range(3)]
        try:
            async with asyncio.timeout(5):
                await asyncio.Future()
        except TimeoutError:
            said.append("late")
        said += await asyncio.gather(asyncio.sleep(2, "x"), asyncio.sleep(1, "y"))
        return said

    assert bench.run(bench.process(), story()) == [0, 1, 2, "late", "x", "y"]
    assert bench.scheduler.now_s == pytest.approx(3 + 5 + 2, abs=MOMENT_S)


def test_chance_decides_how_processes_interleave_and_a_seed_repeats_it() -> None:
    def order(seed: int) -> list[str]:
        bench = Bench(seed)
        seen: list[str] = []

        async def work(name: str) -> None:
            for _ in range(20):
                seen.append(name)
                await asyncio.sleep(0)

        loops = {name: bench.process(name) for name in "abc"}
        ended: list[object] = []
        for name, loop in loops.items():
            loop.spawn(work(name), ended.append)
        assert bench.scheduler.run(lambda: len(ended) == 3, 10)
        return seen

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_a_dead_process_does_nothing_more() -> None:
    bench = Bench()
    victim = bench.process("victim")
    seen: list[float] = []

    async def live() -> None:
        try:
            while True:
                seen.append(victim.time())
                await asyncio.sleep(1)
        finally:
            seen.append(-1)

    victim.spawn(live(), lambda task: None)
    bench.scheduler.run(lambda: False, 5.5)
    assert len(seen) == 6
    victim.kill()
    victim.call_soon(seen.append, -2)
    victim.in_process(1, lambda: seen.append(-3))
    bench.scheduler.run(lambda: False, 20)
    assert len(seen) == 6
    victim.bury()
    assert not bench.unhandled


def test_a_paused_process_goes_on_where_it_was_and_finds_its_timers_due() -> None:
    bench = Bench()
    loop = bench.process()
    seen: list[float] = []

    async def live() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(bench.scheduler.now_s)

    loop.spawn(live(), lambda task: None)
    bench.scheduler.run(lambda: False, 1.5)
    loop.pause()
    loop.in_process(1, lambda: seen.append(-1))
    bench.scheduler.run(lambda: False, 100)
    assert len(seen) == 1
    loop.resume()
    bench.scheduler.run(lambda: False, 200)
    assert seen == [
        pytest.approx(1, abs=MOMENT_S),
        -1,
        pytest.approx(100, abs=MOMENT_S),
        pytest.approx(101, abs=MOMENT_S),
    ]


def test_a_fast_clock_comes_early() -> None:
    bench = Bench()
    fast = bench.process(rate=2.0)
    bench.run(fast, asyncio.sleep(10))
    assert bench.scheduler.now_s == pytest.approx(5, abs=MOMENT_S)
    slow = bench.process(rate=0.5)
    bench.run(slow, asyncio.sleep(10))
    assert bench.scheduler.now_s == pytest.approx(25, abs=MOMENT_S)


def test_a_clock_that_changes_moves_what_its_timers_wait_for() -> None:
    bench = Bench()
    loop = bench.process()
    ended: list[object] = []
    loop.spawn(asyncio.sleep(10), ended.append)
    bench.scheduler.run(lambda: False, 1.0)
    loop.clock.drift(9.0)
    loop.clock_changed()
    assert bench.scheduler.run(lambda: bool(ended), 100)
    assert bench.scheduler.now_s == pytest.approx(2, abs=MOMENT_S)


def test_a_step_of_the_wall_clock_moves_no_timer() -> None:
    bench = Bench()
    loop = bench.process()
    before_ms, steady_s = loop.clock.wall_ms(), loop.time()
    loop.clock.step(-600)
    assert loop.clock.wall_ms() == before_ms - 600_000
    assert loop.time() == steady_s
    assert loop.clock.now().wall_ms == loop.clock.wall_ms()


def test_an_exception_that_nobody_catches_is_told() -> None:
    bench = Bench()
    loop = bench.process()

    def fail() -> None:
        raise ValueError("no")

    loop.call_soon(fail)
    bench.run(loop, asyncio.sleep(1))
    assert [str(context["exception"]) for context in bench.unhandled] == ["no"]


def test_a_loop_that_is_never_idle_lets_time_pass() -> None:
    bench = Bench()

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        bench.run(loop := bench.process(), spin(), limit_s=0.1)
    loop.kill()
    loop.bury()
