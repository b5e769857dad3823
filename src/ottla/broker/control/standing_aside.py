"""A node whose metadata disk does not answer stands aside until it does.

It can neither write what the cluster decides nor hear of it: a change counts here when it is synced
here. So the controller gives up the lead, and a broker has itself fenced by its heartbeats
(`want_fence`, KIP-631); others lead what it led, and it is in sync with nobody. With its disk it
comes back as any broker that was fenced. The directories of other disks are for `Repairs`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.errors import OttlaError

if TYPE_CHECKING:
    from ottla.broker.control.metadata_quorum import MetadataQuorum
    from ottla.broker.storage.stores import Store

logger = logging.getLogger(__name__)

LOOK_PAUSE_S: Final = 0.5


class StandingAside:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        quorum: MetadataQuorum,
        tell: Callable[[bool], None],
    ) -> None:
        """`tell` hears whether this node stands aside, each time that changes."""
        self._loop = loop
        self._store = store
        self._quorum = quorum
        self._tell = tell
        self._is_aside = False
        self._timer: asyncio.TimerHandle | None = None
        self._resigning: asyncio.Task[None] | None = None

    def start_looking(self) -> None:
        self._timer = self._loop.call_later(LOOK_PAUSE_S, self.start_looking)
        is_stalled = any(flusher.is_stalled for flusher in self._store.flushers)
        is_aside = is_stalled and self._quorum.has_others
        if is_aside != self._is_aside:
            self._is_aside = is_aside
            if is_aside:
                logger.error("%s does not answer: others take over until it does", self._store.path)
            else:
                logger.warning("%s answers again", self._store.path)
            self._tell(is_aside)
        if is_aside and self._quorum.is_leader and self._resigning is None:
            self._resigning = self._loop.create_task(self._resign())

    async def _resign(self) -> None:
        try:
            await self._quorum.resign()
        except OttlaError as error:
            logger.warning("the metadata is still led here: %s", error)
        finally:
            self._resigning = None

    def close(self) -> None:
        for work in (self._timer, self._resigning):
            if work is not None:
                work.cancel()
