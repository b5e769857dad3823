"""The checkpoint files of each data directory, and what else is done when they come round."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partitions import Partitions
from ottla.broker.storage.repairs import Repairs
from ottla.broker.storage.stores import Store, Stores, is_broken
from ottla.broker.storage.waiters import told
from ottla.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_SIZES,
    RECOVERY_POINTS,
    START_OFFSETS,
    write_offsets,
)
from ottla.log.hints import Hints
from ottla.ports import Clock, Disk
from ottla.types import METADATA_TOPIC

logger = logging.getLogger(__name__)

# Hints for recovery wait so long for the thread that writes batches as well; after so many tries
# until the next time.
SAVE_PAUSE_S: Final = 0.02
SAVE_TRIES_MAX: Final = 100
# So many are looked at, then requests have their turn.
PARTITIONS_AT_ONCE: Final = 256
PRODUCERS_AT_ONCE: Final = 5000
_KINDS: Final[dict[str, Callable[[Partition], int]]] = {
    RECOVERY_POINTS: lambda partition: partition.recovery_point,
    START_OFFSETS: lambda partition: partition.durable_start,
    HIGH_WATERMARKS: lambda partition: partition.high_watermark.offset,
    LOG_SIZES: lambda partition: partition.durable_bytes,
}


class Checkpoints:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        disk: Disk,
        stores: Stores,
        partitions: Partitions,
        repairs: Repairs,
        interval_s: float,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._disk = disk
        self._stores = stores
        self._partitions = partitions
        self._repairs = repairs
        self._interval_s = interval_s
        self._saving: dict[Store, asyncio.Task[None]] = {}
        self._expiring: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        # Those that are about to lie in another directory, which has to know of them before.
        self._arriving: dict[Partition, Store] = {}
        repairs.on_fenced = self._reopen_soon

    def start(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._come_round)

    def stop(self) -> None:
        """Nothing more is begun; what is under way is waited for by `finish`."""
        self._is_stopped = True
        for work in (self._timer, self._expiring):
            if work is not None:
                work.cancel()

    def under_way(self) -> list[asyncio.Task[None]]:
        """After `stop`: what still is; of a directory that is offline nobody waits for it."""
        for store, task in self._saving.items():
            if not store.is_online:
                task.cancel()
        return list(self._saving.values())

    # --------------------------------------------------------------------------------- a round

    def _come_round(self) -> None:
        if self._expiring is None or self._expiring.done():
            self._expiring = self._loop.create_task(self._expire_producers())
        for store in self._stores.online():
            self._begin(store, self._save_all)
        self.start()

    def _reopen_soon(self, partition: Partition) -> None:
        """A log that is fenced does not wait for the next round."""
        store = self._stores.of(partition)
        if store.is_online and not self._is_stopped:
            self._begin(store, self._repairs.reopen_fenced)

    def _begin(self, store: Store, work: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
        """Each for itself: one that is stuck must not keep the others from their checkpoints."""
        if store not in self._saving:
            task = self._loop.create_task(work(store))
            self._saving[store] = task
            task.add_done_callback(partial(self._saved, store))

    def _saved(self, store: Store, task: asyncio.Task[None]) -> None:
        del self._saving[store]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError) and is_broken(error):
            store.flusher.on_broken(error)
        elif error is not None:
            logger.warning("checkpoints could not be written: %s", error)

    async def _save_all(self, store: Store) -> None:
        await self._save_progress(store)
        for kind in _KINDS:
            await self._save(store, kind)
        await store.run(store.measure, self._disk)
        await self._repairs.reopen_fenced(store)

    async def _expire_producers(self) -> None:
        """Forgets idle producers, some at a time; what no client syncs is synced now and then."""
        now_ms = self._clock.now().wall_ms
        for at, partition in enumerate(tuple(self._partitions)):
            ids = partition.producer_ids()
            partition.expire_producers(now_ms, ids[:PRODUCERS_AT_ONCE])
            for start in range(PRODUCERS_AT_ONCE, len(ids), PRODUCERS_AT_ONCE):
                await asyncio.sleep(0)
                partition.expire_producers(now_ms, ids[start : start + PRODUCERS_AT_ONCE])
            if not partition.is_synced_eagerly and not partition.is_retired:
                partition.flusher.want_sync(partition)
            if at % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _save_progress(self, store: Store) -> None:
        """Small files for logs that were written to, made in threads, one log after the other:
        while its files wait for the disk, so do its batches, but nobody else's.
        """
        for at, partition in enumerate(self._partitions.in_store(store), 1):
            hints = partition.take_hints()
            if hints is not None:
                await self._save_hints(store, partition, hints)
            elif at % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _save_hints(self, store: Store, partition: Partition, hints: Hints) -> None:
        if hints.is_large:
            await store.run(hints.encode)
        for _ in range(SAVE_TRIES_MAX):
            if self._is_stopped:
                return
            if partition.flusher.save(partition, hints):
                await told(partition.when_not_busy)
                partition.flusher.want_sync(partition)
                return
            await asyncio.sleep(SAVE_PAUSE_S)

    # ---------------------------------------------------------------------------------- writing

    async def save_recovery_points(self, store: Store) -> None:
        """Returns when a start after a crash knows what is synced there now."""
        await self._save(store, RECOVERY_POINTS)

    async def save_recovery_point(self, partition: Partition) -> None:
        """Returns when it is on disk, with those of its neighbours."""
        await self._save(self._stores.of(partition), RECOVERY_POINTS)

    async def save_start_offsets(self, moved: Iterable[Partition]) -> None:
        """Returns when the log start offsets of these partitions are on disk."""
        for store in dict.fromkeys(self._stores.of(partition) for partition in moved):
            if store.is_online:
                await self._save(store, START_OFFSETS)

    async def save_arrival(self, partition: Partition, store: Store) -> None:
        """Returns when the directory knows how to open its log, which will lie there; until
        `arrived` it does not forget that.
        """
        self._arriving[partition] = store
        for kind in (RECOVERY_POINTS, START_OFFSETS, HIGH_WATERMARKS):
            await self._save(store, kind)

    def arrived(self, partition: Partition) -> None:
        """It lies there; or nothing comes of it."""
        self._arriving.pop(partition, None)

    def write_all(self, store: Store) -> None:
        """Blocking, when its logs are closed."""
        for kind in _KINDS:
            self._write(store, kind, self._partitions.in_store(store))

    async def _save(self, store: Store, kind: str) -> None:
        arriving = [each for each, target in self._arriving.items() if target is store]
        partitions = [*self._partitions.in_store(store), *arriving]
        save = partial(self._write, store, kind, partitions)
        async with store.saving:
            # Where a log begins has to be written for anything to be deleted.
            await store.run(*((store.with_reserve, save) if kind == START_OFFSETS else (save,)))

    def _write(self, store: Store, kind: str, partitions: Sequence[Partition]) -> None:
        """Blocking. With the ids by which topics are told from their namesakes.

        The offsets are read here, since for many partitions that is too much for one loop turn.
        """
        read = _KINDS[kind]
        offsets = {partition.name: read(partition) for partition in partitions}
        topic_ids: dict[str, bytes] = {each.name.topic: each.topic_id for each in partitions}
        topic_ids.pop(METADATA_TOPIC, None)
        moved = {name: offset for name, offset in offsets.items() if offset > 0}
        write_offsets(self._disk, f"{store.path}/{kind}", moved, topic_ids)
