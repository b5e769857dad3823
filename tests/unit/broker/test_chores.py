"""Chores come round, and end when the broker stops."""

from __future__ import annotations

import asyncio

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
