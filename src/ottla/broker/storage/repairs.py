"""Partitions that cannot be written to: the disk is asked whether that is over, and a log that is
fenced after a failed sync is opened again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partitions import Partitions
from ottla.broker.storage.stores import Store
from ottla.errors import OttlaError
from ottla.ports import Clock
from ottla.types import LeaderEpoch

logger = logging.getLogger(__name__)

PROBE_PAUSE_S: Final = 1.0
# A partition that no replica's disk takes is not handed round more often than this.
HANDED_OVER_S_MIN: Final = 60.0


class Repairs:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        partitions: Partitions,
        give_up: Callable[[Sequence[Partition]], Awaitable[None]],
        resign: Callable[[], Awaitable[None]],
        on_healed: Callable[[Partition], None],
    ) -> None:
        """`give_up` has others lead, or this node under new epochs; `resign` is of the metadata."""
        self._loop = loop
        self._clock = clock
        self._partitions = partitions
        self._give_up = give_up
        self._resign = resign
        self._on_healed = on_healed
        self._timer: asyncio.TimerHandle | None = None
        # Those that were failing at the last look, and when each was handed over.
        self._failing: dict[Partition, float] = {}
        self._handing_over: asyncio.Task[None] | None = None
        # Told of partitions whose logs are fenced; it sees to it that `reopen_fenced` is called.
        self.on_fenced: Callable[[Partition], None] = lambda partition: None
        # Told, again and again, of partitions in whose logs there is damage.
        self.on_damaged: Callable[[Partition], None] = lambda partition: None

    def start_probing(self) -> None:
        """Asks the disk, for partitions whose writes it refuses, whether that is over."""
        self._timer = self._loop.call_later(PROBE_PAUSE_S, self.start_probing)
        failing = self._partitions.failing()
        self._hand_over([*failing, *self._partitions.stalled()])
        for partition in failing:
            if partition.is_to_be_reopened:
                self.on_fenced(partition)
            elif partition.is_damaged:
                self.on_damaged(partition)
            else:
                partition.flusher.probe(partition)
        if self._partitions.metadata.is_to_be_reopened:
            self.on_fenced(self._partitions.metadata)

    def stop(self) -> None:
        for work in (self._timer, self._handing_over):
            if work is not None:
                work.cancel()

    def _hand_over(self, failing: Sequence[Partition]) -> None:
        """What this disk has refused for a while, or has damaged, or does not answer for, others
        may be able to lead.
        """
        now_s = self._clock.steady_s()
        stuck = [
            partition
            for partition in failing
            if partition.has_successors
            and not partition.is_to_be_reopened
            and now_s - self._failing.get(partition, now_s) >= HANDED_OVER_S_MIN
        ]
        never_s = now_s - HANDED_OVER_S_MIN
        before = self._failing
        self._failing = {partition: before.get(partition, never_s) for partition in failing}
        if stuck and (self._handing_over is None or self._handing_over.done()):
            self._failing.update(dict.fromkeys(stuck, now_s))
            self._handing_over = self._loop.create_task(_given_up(self._give_up, stuck))

    async def reopen_fenced(self, store: Store) -> None:
        """After failed syncs: reads the logs again from what the disk really has.

        Who leads gives that up first: another replica need not wait for this disk.
        """
        fenced = {
            partition: partition.leader_epoch
            for partition in self._partitions.in_store(store)
            if store.is_online and partition.is_to_be_reopened
        }
        metadata = self._partitions.metadata
        led = [each for each in fenced if each.is_elected and each is not metadata]
        if led:
            await self._give_up(led)
        for partition, epoch in fenced.items():
            if store.is_online and partition.is_to_be_reopened:
                with partition.reopening():
                    await self._reopen(store, partition, epoch)

    async def _reopen(self, store: Store, partition: Partition, epoch: LeaderEpoch) -> None:
        """Where it leads on, it does so under a new epoch, which begins where the log ends now. A
        follower gets from its leader what it has lost.
        """
        now_ms = self._clock.now().wall_ms
        try:
            log = await store.run(partition.reopened_log, now_ms)
        except (OSError, OttlaError) as error:
            logger.warning("%s: still fenced: %s", partition.name, error)
            return
        try:
            if partition is self._partitions.metadata and partition.is_leader:
                await self._resign()
        except (OSError, OttlaError) as error:
            logger.warning("%s: still led under the old epoch: %s", partition.name, error)
        is_wanted = not (partition.is_retired or partition.is_offline or partition.is_damaged)
        if is_wanted and (not partition.is_elected or partition.leader_epoch > epoch):
            partition.heal(log, now_ms)
            self._on_healed(partition)
        else:
            log.abandon()
            if partition.is_elected:
                logger.warning("%s: still fenced, it has no new epoch", partition.name)


async def _given_up(
    give_up: Callable[[Sequence[Partition]], Awaitable[None]], partitions: Sequence[Partition]
) -> None:
    await give_up(partitions)
