"""Simulated threads: blocking work takes virtual time, and takes effect when chance has it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from ottla.testing.sim.clock import MachineClock
from ottla.testing.sim.loop import ProcessLoop
from ottla.testing.sim.scheduler import Scheduler
from ottla.testing.sim.threads import DiskPace, SimThreads


class Bench:
    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(Random(seed))
        clock = MachineClock(self.scheduler)
        self.loop = ProcessLoop(  # type: ignore[abstract]
            "a", self.scheduler, clock, Random(seed), self.note
        )
        self.pace = DiskPace()
        self.threads = SimThreads(self.loop, Random(seed), self.pace)

    @staticmethod
    def note(context: dict[str, Any]) -> None:
        raise AssertionError(context)

    def pass_time(self, seconds: float = 1.0) -> None:
        self.scheduler.run(lambda: False, self.scheduler.now_s + seconds)


def test_one_thread_works_in_order_and_later() -> None:
    bench = Bench()
    executor = bench.threads.executor("sync-data", 1)
    seen: list[int] = []
    for number in range(20):
        executor.begin(lambda number=number: seen.append(number), lambda: None)  # type: ignore[misc]
    assert not seen
    bench.pass_time()
    assert seen == list(range(20))


def test_what_work_returns_and_raises_is_for_the_loop() -> None:
    bench = Bench()
    executor = bench.threads.executor("io", 2)

    def fail() -> None:
        raise OSError("broken")

    async def ask() -> tuple[int, str]:
        with pytest.raises(OSError, match="broken"):
            await executor.run(fail)
        return await executor.run(max, 1, 2), str(asyncio.get_running_loop())

    ended: list[asyncio.Task[Any]] = []
    bench.loop.spawn(ask(), ended.append)
    bench.pass_time()
    assert ended[0].result()[0] == 2


def test_work_takes_effect_early_or_late_and_the_loop_learns_of_it_afterwards() -> None:
    delays = []
    for seed in range(30):
        bench = Bench(seed)
        times: list[float] = []

        def note(bench: Bench = bench, times: list[float] = times) -> None:
            times.append(bench.scheduler.now_s)

        bench.threads.executor("sync-data", 1).begin(note, note)
        bench.pass_time()
        done_s, told_s = times
        assert done_s <= told_s
        delays.append(told_s - done_s)
    assert min(delays) < 0.000_1 < max(delays)


def test_a_hanging_disk_holds_its_work_and_no_other() -> None:
    bench = Bench()
    seen: list[str] = []
    bench.pace.is_hung = True
    for name in ("sync-data", "write-data", "io", "search", "codec"):
        executor = bench.threads.executor(name, 1)
        executor.begin(lambda: None, lambda name=name: seen.append(name))  # type: ignore[misc]
    bench.pass_time(100)
    assert sorted(seen) == ["codec", "search"]
    for go_on in bench.pace.heal():
        go_on()
    bench.pass_time()
    assert sorted(seen) == ["codec", "io", "search", "sync-data", "write-data"]


def test_a_closed_executor_drops_what_has_not_begun() -> None:
    bench = Bench()
    executor = bench.threads.executor("io", 1)
    seen: list[int] = []
    futures = [executor.run(seen.append, number) for number in range(3)]
    executor.close()
    bench.pass_time()
    assert seen == [0]
    assert [future.cancelled() for future in futures] == [False, True, True]
    with pytest.raises(RuntimeError):
        executor.run(seen.append, 4)


def test_the_threads_of_a_dead_process_do_nothing_more() -> None:
    bench = Bench()
    executor = bench.threads.executor("io", 1)
    seen: list[int] = []
    for number in range(10):
        executor.begin(lambda number=number: seen.append(number), lambda: None)  # type: ignore[misc]
    bench.loop.kill()
    bench.pass_time()
    assert not seen
