"""Cuts a follower's log where it parts from its leader's.

A log that ends before its recovery point counts as damaged, so the point is moved first, on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.threads import wait_out
from ottla.errors import NotLeader
from ottla.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from ottla.broker.storage.checkpoints import Checkpoints
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.stores import Stores
    from ottla.ports import Clock


class Truncation:
    def __init__(self, clock: Clock, stores: Stores, checkpoints: Checkpoints) -> None:
        self._clock = clock
        self._stores = stores
        self._checkpoints = checkpoints

    async def truncate_to(
        self, partition: Partition, epoch: LeaderEpoch, end_offset: int
    ) -> Offset:
        """The leader says that `epoch`, or the largest before it, ends at `end_offset`; returns
        where the log ends now.
        """
        async with partition.cutting():
            offset = partition.plan_end(epoch, end_offset)
            await wait_out(self._checkpoints.save_recovery_point(partition))
            await self._run(partition, partition.truncate, offset)
        return Offset(partition.end_offset)

    async def restart_at(self, partition: Partition, offset: int) -> None:
        """The leader begins after this log's end: all of it goes."""
        async with partition.cutting():
            partition.plan_restart(offset)
            await wait_out(self._checkpoints.save_recovery_point(partition))
            partition.plan_start(offset)
            try:
                await wait_out(self._checkpoints.save_start_offsets([partition]))
                await self._run(partition, partition.restart_at, offset)
            finally:
                partition.plan_start(0)

    async def empty(self, partition: Partition) -> None:
        """The log is damaged, and others have all of it: it begins anew, with nothing in it."""
        with partition.reopening():
            partition.plan_restart(0)
            await wait_out(self._checkpoints.save_recovery_point(partition))
            if partition.is_elected:
                raise NotLeader(f"{partition.name} is led here by now: what it has may be the last")
            store, now_ms = self._stores.of(partition), self._clock.now().wall_ms
            partition.begin_anew(await wait_out(store.run(partition.emptied_log, now_ms)))

    async def _run(self, partition: Partition, cut: Callable[[int, int], None], to: int) -> None:
        store, now_ms = self._stores.of(partition), self._clock.now().wall_ms
        await wait_out(store.run(cut, to, now_ms))
