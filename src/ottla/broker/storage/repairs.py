"""Partitions that cannot be written to: the disk is asked whether that is over, and a log that is
fenced after a failed sync is opened again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partitions import Partitions
from ottla.broker.storage.stores import Store
from ottla.errors import OttlaError
from ottla.ports import Clock

logger = logging.getLogger(__name__)

PROBE_PAUSE_S: Final = 1.0


class Repairs:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        partitions: Partitions,
        renew_epoch: Callable[[Partition], Awaitable[None]],
        on_healed: Callable[[Partition], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._partitions = partitions
        self._renew_epoch = renew_epoch
        self._on_healed = on_healed
        self._timer: asyncio.TimerHandle | None = None

    def start_probing(self) -> None:
        """Asks the disk, for partitions whose writes it refuses, whether that is over."""
        for partition in self._partitions.failing():
            partition.flusher.probe(partition)
        self._timer = self._loop.call_later(PROBE_PAUSE_S, self.start_probing)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def reopen_fenced(self, store: Store) -> None:
        for partition in self._partitions.in_store(store):
            if store.is_online and partition.is_to_be_reopened:
                with partition.reopening():
                    await self._reopen(store, partition)

    async def _reopen(self, store: Store, partition: Partition) -> None:
        """After a failed sync: reads the log again from what the disk really has.

        Only then does a leader's new epoch begin: it is to begin where the log ends now. A follower
        gets from its leader what it has lost.
        """
        epoch, now_ms = partition.leader_epoch, self._clock.now().wall_ms
        try:
            log = await store.run(partition.reopened_log, now_ms)
        except (OSError, OttlaError) as error:
            logger.warning("%s: still fenced: %s", partition.name, error)
            return
        try:
            if partition.is_leader:
                await self._renew_epoch(partition)
        except (OSError, OttlaError) as error:
            logger.warning("%s: still fenced, it has no new epoch: %s", partition.name, error)
        is_wanted = not (partition.is_retired or partition.is_offline or partition.is_damaged)
        if is_wanted and (not partition.is_leader or partition.leader_epoch > epoch):
            partition.heal(log, now_ms)
            self._on_healed(partition)
        else:
            log.abandon()
