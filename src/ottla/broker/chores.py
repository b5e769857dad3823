"""Work that comes round again while the broker runs: retention, compaction, scrubbing.

A chore does one round in `run` and says afterwards how long it rests. Rounds of one chore never
overlap; what it does to files it does in threads. A round that fails is told in the log, once for
as long as it is for the same reason, and the next one is tried all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from ottla.errors import OttlaError

logger = logging.getLogger(__name__)


class Chore(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def pause_s(self) -> float:
        """How long to rest before the next round; asked anew whenever settings change."""

    async def run(self) -> None: ...


def _tell_failure(chore: Chore, error: Exception) -> None:
    """A full disk is for the operator, and one line; a trace is for who mends the code."""
    is_foreseen = isinstance(error, OSError | OttlaError)
    trace = None if is_foreseen else error
    logger.error("%s: a round failed: %s", chore.name, error, exc_info=trace)


class Chores:
    """Owns a task for each chore."""

    def __init__(self, chores: Iterable[Chore]) -> None:
        self._chores = tuple(chores)
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._is_stopping = False

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._come_round(chore), name=f"chore-{chore.name}")
            for chore in self._chores
        ]

    def settings_changed(self) -> None:
        """Who rests for longer than is set by now, rests no longer."""
        self._news.set()
        self._news.clear()

    async def stop(self) -> None:
        """Returns when no round is under way; one that waits for a thread waits it out."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _come_round(self, chore: Chore) -> None:
        told = ""
        # Not for ever: a round that fails in the moment of the stop hides that it was cancelled.
        while not self._is_stopping:
            await self._rest(chore)
            try:
                await chore.run()
            except Exception as error:
                if told != (told := f"{type(error).__name__}: {error}"):
                    _tell_failure(chore, error)
            else:
                if told:
                    logger.warning("%s: rounds succeed again", chore.name)
                told = ""

    async def _rest(self, chore: Chore) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(0)
        while (left_s := began_s + chore.pause_s - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._news.wait()
