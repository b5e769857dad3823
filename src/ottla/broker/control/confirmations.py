"""Whether this node still leads the metadata log, asked of its voters.

A leader that was deposed may not know it yet, and must not answer a heartbeat then: the lease would
outlast the session that its successor counts. So before an answer a majority has to have fetched in
this epoch *since* it was asked. Followers fetch one request at a time, so the fetch that follows an
answer on its connection was sent after that answer. Whoever asks has the fetches that are parked
answered, and waits for the next ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from ottla.errors import NotController

NO_ROUND = 0


class Round:
    """The key by which a connection remembers how many rounds had begun at its last answer."""


class Confirmations:
    def __init__(self, others: Callable[[], Collection[int]], wake: Callable[[], None]) -> None:
        """`others` are the voters beside this one; `wake` answers what they have parked."""
        self._others = others
        self._wake = wake
        self._round = NO_ROUND
        self._confirmed: dict[int, int] = {}
        self._waiting: dict[asyncio.Future[None], int] = {}

    async def confirmed(self) -> None:
        """Returns when a majority has followed this leader since now; else NotController."""
        if not self._missing():
            return
        self._round += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = self._round
        self._wake()
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def _missing(self) -> int:
        """How many others it takes for a majority."""
        return (len(self._others()) + 1) // 2

    def is_awaited(self, memory: dict[Any, Any]) -> bool:
        """Whether a fetch on this connection is answered at once, so that the next one comes."""
        return bool(self._waiting) and memory.get(Round, NO_ROUND) < self._round

    def answered(self, memory: dict[Any, Any]) -> None:
        """A fetch on this connection is being answered."""
        memory[Round] = self._round

    def fetched(self, voter: int, memory: dict[Any, Any]) -> None:
        """A voter has fetched, in the epoch that this node leads."""
        told = memory.get(Round, NO_ROUND)
        if not self._waiting or told <= self._confirmed.get(voter, NO_ROUND):
            return
        self._confirmed[voter] = told
        rounds = sorted(self._confirmed.get(other, NO_ROUND) for other in self._others())
        reached = rounds[-self._missing()] if self._missing() else self._round
        for future, asked in self._waiting.items():
            if asked <= reached and not future.done():
                future.set_result(None)

    def lost(self) -> None:
        """This node does not lead any more."""
        self._confirmed.clear()
        for future in self._waiting:
            if not future.done():
                future.set_exception(NotController("another node is the controller now"))
