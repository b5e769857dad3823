"""Chores come round, and end when the broker stops."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.chores import Chores


class _FailsInTheMomentOfTheStop:
    """One of two directories has failed already when the round is cancelled.

    `gather` then hands on the failure, and the cancellation is forgotten.
    """

    name = "two directories"
    pause_s = 0.0

    def __init__(self) -> None:
        self.rounds = 0
        self.is_under_way = asyncio.Event()
        self._full: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        self.rounds += 1
        self.is_under_way.set()
        await asyncio.gather(self._full, asyncio.Event().wait())

    def fail(self) -> None:
        self._full.set_exception(OSError("no room"))


def test_a_round_that_fails_in_the_moment_of_the_stop_is_the_last() -> None:
    async def run() -> None:
        chore = _FailsInTheMomentOfTheStop()
        chores = Chores([chore])
        chores.start()
        await chore.is_under_way.wait()
        chore.fail()
        async with asyncio.timeout(10):
            await chores.stop()
        assert chore.rounds == 1

    asyncio.run(run())


class _Trouble:
    """Rounds with these outcomes, one after the other."""

    name = "points"
    pause_s = 0.0

    def __init__(self, outcomes: list[Exception | None]) -> None:
        self._outcomes = outcomes
        self.is_done = asyncio.Event()

    async def run(self) -> None:
        if not self._outcomes:
            self.is_done.set()
            await asyncio.Event().wait()
        outcome = self._outcomes.pop(0)
        if outcome is not None:
            raise outcome


def test_a_full_disk_is_one_line_however_many_rounds_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full, gone = OSError(28, "No space left on device"), OSError(5, "Input/output error")

    async def run() -> None:
        chore = _Trouble([full, full, full, gone, full, None, None, full])
        chores = Chores([chore])
        chores.start()
        async with asyncio.timeout(60):
            await chore.is_done.wait()
            await chores.stop()

    asyncio.run(run())
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "points: a round failed: [Errno 28] No space left on device",
        "points: a round failed: [Errno 5] Input/output error",
        "points: a round failed: [Errno 28] No space left on device",
        "points: rounds succeed again",
        "points: a round failed: [Errno 28] No space left on device",
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_what_nobody_foresaw_is_told_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        chore = _Trouble([KeyError("t"), KeyError("t")])
        chores = Chores([chore])
        chores.start()
        async with asyncio.timeout(60):
            await chore.is_done.wait()
            await chores.stop()

    asyncio.run(run())
    (record,) = caplog.records
    assert record.exc_info is not None
