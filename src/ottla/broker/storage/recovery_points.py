"""Recovery points between the checkpoints, where much is written.

What lies after the recovery point has to be read, checked and written once more after a crash,
and damage there cannot be told from a message that was cut off. So the points follow the syncs
every few seconds; a directory in which nothing was synced is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.threads import wait_out

if TYPE_CHECKING:
    from ottla.broker.storage.stores import Store

PAUSE_S: Final = 5.0


class RecoveryPointsChore:
    name = "recovery points"

    def __init__(
        self,
        stores: Callable[[], Iterable[Store]],
        save: Callable[[Store], Coroutine[Any, Any, None]],
    ) -> None:
        self._stores = stores
        self._save = save
        self._saved: dict[Store, int] = {}

    @property
    def pause_s(self) -> float:
        return PAUSE_S

    async def run(self) -> None:
        """Returns when all are through, whatever becomes of one; raises what one of them met."""
        follow = map(self._follow, self._stores())
        for outcome in await asyncio.gather(*follow, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _follow(self, store: Store) -> None:
        syncs = sum(flusher.syncs for flusher in store.flushers)
        if syncs != self._saved.get(store):
            await wait_out(self._save(store))
            self._saved[store] = syncs
