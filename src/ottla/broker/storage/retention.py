"""Old segments go: by their age, by the log's size, and because a client asked for it.

There is one way in which a log loses its beginning: the new start is on disk before anybody can
see it, and it is seen before a file loses its name. So a start that somebody has seen is still
there after a crash, and a crash in between leaves files that the next start removes.

Each data directory has its own turns and threads: a disk that is stuck holds up only itself.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.storage.partition_look import PartitionLook
from ottla.broker.threads import WAIT_S_MAX, wait_out
from ottla.errors import OttlaError
from ottla.log.retention import Extent, Limits, count_expired, extents, start_without

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.stores import Store, StoresOf
    from ottla.config import BrokerConfig
    from ottla.log.log import SyncTicket
    from ottla.log.segment import Segment
    from ottla.ports import Clock, Disk

logger = logging.getLogger(__name__)

# So many partitions are looked at in one trip to a thread, and share one checkpoint.
PARTITIONS_AT_ONCE: Final = 64
# A directory that takes longer is left at its work; the next round goes on without it.
ROUND_S_MAX: Final = 60.0
# Longer than that no timer waits: the next start removes the files.
REMOVAL_DELAY_S_MAX: Final = 30 * 24 * 3600.0


class Shortener:
    """Moves the starts of logs, in each directory one group of partitions after the other."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        stores: StoresOf,
        save_start_offsets: Callable[[Iterable[Partition]], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._disk = disk
        self._stores = stores
        self._save_start_offsets = save_start_offsets
        self._turns: defaultdict[Store, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._timers: set[asyncio.TimerHandle] = set()
        self._removals: set[asyncio.Future[Any]] = set()
        self.segments_deleted = 0
        self.bytes_deleted = 0

    async def shorten(self, starts: Mapping[Partition, int]) -> dict[Partition, OSError]:
        """Returns when the new starts are durable and in force, but for those that failed."""
        by_store: dict[Store, dict[Partition, int]] = {}
        failed: dict[Partition, OSError] = {}
        for partition, offset in starts.items():
            if partition.is_fenced:
                failed[partition] = OSError(errno.EIO, "fenced", partition.directory)
            else:
                by_store.setdefault(self._stores.of(partition), {})[partition] = offset
        groups = list(by_store.items())
        outcomes = await asyncio.gather(*(self._shorten(store, some) for store, some in groups))
        for (_, some), error in zip(groups, outcomes, strict=True):
            if error is not None:
                failed.update(dict.fromkeys(some, error))
        return failed

    def turn(self, store: Store) -> asyncio.Lock:
        """Whoever holds it: no log of this directory loses its beginning meanwhile."""
        return self._turns[store]

    async def _shorten(self, store: Store, starts: Mapping[Partition, int]) -> OSError | None:
        async with self.turn(store):
            for partition, offset in starts.items():
                partition.plan_start(offset)
            try:
                await wait_out(self._save_start_offsets(starts))
                leaving = self._move(starts)
            except OSError as error:
                return error
            finally:
                for partition in starts:
                    partition.plan_start(0)
            if leaving:
                for partition, paths in await wait_out(store.run(_set_aside, leaving)):
                    self.remove_later(partition, paths)
            return None

    def _move(self, starts: Mapping[Partition, int]) -> list[_Leaving]:
        leaving = []
        for partition, offset in starts.items():
            segments = partition.delete_before(offset)
            if segments:
                leaving.append(_Leaving(partition, segments))
                self.segments_deleted += len(segments)
                self.bytes_deleted += sum(segment.size for segment in segments)
        return leaving

    # ------------------------------------------------------------------------ files set aside

    def remove_later(self, partition: Partition, paths: Sequence[str]) -> None:
        """Removes files that were set aside, after the topic's `file.delete.delay.ms`."""
        delay_s = partition.config.file_delete_delay_ms / 1000
        if partition.failure is not None or self._stores.of(partition).is_full:
            delay_s = 0.0  # Somebody waits for the room.
        if delay_s > REMOVAL_DELAY_S_MAX:
            return

        def begin() -> None:
            self._timers.discard(timer)
            store = self._stores.of(partition)
            removal = asyncio.ensure_future(store.run(self._remove, partition, paths))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

        timer = self._loop.call_later(delay_s, begin)
        self._timers.add(timer)

    def _remove(self, partition: Partition, paths: Sequence[str]) -> None:
        """In a thread. The directory of a deleted partition goes as a whole."""
        for path in paths:
            if partition.is_retired:
                return
            try:
                self._disk.remove(path)
            except OSError as error:
                logger.warning("%s remains until a start: %s", path, error)

    async def close(self) -> None:
        """What waits for its delay is left to the next start."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._removals:
            await asyncio.wait(self._removals, timeout=WAIT_S_MAX)


class _Leaving(NamedTuple):
    """Segments that are not in their log any more; their files are still there."""

    partition: Partition
    segments: Sequence[Segment]


def _set_aside(leaving: Sequence[_Leaving]) -> list[tuple[Partition, list[str]]]:
    """In a thread. Who reads one of the files goes on reading it."""
    renamed = []
    for partition, segments in leaving:
        if partition.is_retired:
            continue
        try:
            renamed.append((partition, partition.set_aside(segments)))
        except OSError as error:
            logger.warning("%s: old files remain until a start: %s", partition.name, error)
    return renamed


class _Verdict(NamedTuple):
    """How many of a partition's segments may go."""

    look: PartitionLook
    log: Sequence[Extent]
    gone: int

    @property
    def is_all(self) -> bool:
        return self.gone == len(self.log)

    def start(self, *, but_the_last: bool) -> int:
        gone = self.gone - 1 if but_the_last else self.gone
        return start_without(self.log, gone, self.look.start_offset)


def _judge(look: PartitionLook, now_ms: int) -> _Verdict:
    """Blocking."""
    config, log = look.config, extents(look.segments, look.end_offset)
    gone = count_expired(
        log,
        Limits("delete" in config.cleanup_policy, config.retention_ms, config.retention_bytes),
        look.start_offset,
        look.durable_offset,
        now_ms,
        look.youngest_ms,
    )
    return _Verdict(look, log, gone)


class RetentionChore:
    name = "retention"

    def __init__(
        self,
        partitions: Iterable[Partition],
        stores: StoresOf,
        shortener: Shortener,
        clock: Clock,
        disk: Disk,
        config: BrokerConfig,
    ) -> None:
        self._partitions = partitions
        self._stores = stores
        self._shortener = shortener
        self._clock = clock
        self._disk = disk
        self._config = config
        self._rounds: dict[Store, asyncio.Task[None]] = {}
        self.last_run_ms = 0

    @property
    def pause_s(self) -> float:
        return self._config.log_retention_check_interval_ms / 1000

    @property
    def segments_deleted(self) -> int:
        """Since the start, those that DeleteRecords asked for included."""
        return self._shortener.segments_deleted

    @property
    def bytes_deleted(self) -> int:
        return self._shortener.bytes_deleted

    async def run(self) -> None:
        by_store: dict[Store, list[Partition]] = {}
        for partition in self._partitions:
            by_store.setdefault(self._stores.of(partition), []).append(partition)
        for store, partitions in by_store.items():
            if store.is_online and store not in self._rounds:
                task = asyncio.create_task(self._go_round(store, partitions))
                self._rounds[store] = task
                task.add_done_callback(self._finished)
        if self._rounds:
            rounds = list(self._rounds.values())
            try:
                await asyncio.wait(rounds, timeout=ROUND_S_MAX)
            except asyncio.CancelledError:
                for task in rounds:
                    task.cancel()
                await asyncio.wait(rounds, timeout=WAIT_S_MAX)
                raise
        self.last_run_ms = self._clock.wall_ms()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._rounds = {store: other for store, other in self._rounds.items() if other is not task}
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("retention failed", exc_info=error)

    async def _go_round(self, store: Store, partitions: Sequence[Partition]) -> None:
        for first in range(0, len(partitions), PARTITIONS_AT_ONCE):
            some = partitions[first : first + PARTITIONS_AT_ONCE]
            looks = [PartitionLook.at(partition) for partition in some if not partition.is_fenced]
            now_ms = self._clock.wall_ms()
            verdicts = await wait_out(store.run(_judge_all, looks, now_ms))
            if verdicts:
                await self._shorten(store, verdicts, now_ms)

    async def _shorten(self, store: Store, verdicts: Sequence[_Verdict], now_ms: int) -> None:
        rolled = await self._roll(store, [v.look for v in verdicts if v.is_all], now_ms)
        starts: dict[Partition, int] = {}
        for verdict in verdicts:
            partition = verdict.look.partition
            stays = verdict.is_all and partition not in rolled
            if verdict.look.is_up_to_date() and not (stays and verdict.gone == 1):
                starts[partition] = verdict.start(but_the_last=stays)
        if starts:
            before = self.segments_deleted
            failed = await self._shortener.shorten(starts)
            for partition, error in failed.items():
                logger.warning("%s: its start cannot be moved: %s", partition.name, error)
            logger.info("%d segments are gone", self.segments_deleted - before)

    async def _roll(
        self, store: Store, looks: Sequence[PartitionLook], now_ms: int
    ) -> set[Partition]:
        """Begins segments so that the last ones can go; returns the partitions that have one.

        The producers' state is in a synced file of its own before the batches go that it is from.
        """
        for look in looks:
            if look.partition.is_cold:
                await wait_out(look.partition.warm_up(store.run))
        begun = [look for look in looks if look.is_unchanged()]
        for look in begun:
            look.partition.roll(now_ms)
        await asyncio.gather(*(_written(look.partition) for look in begun))
        rolled, tickets = set(), []
        for look in begun:
            active = look.newest_segment
            if active.base_offset != look.end_offset or not active.is_created:
                logger.warning("%s: no new segment can be begun", look.partition.name)
                continue
            rolled.add(look.partition)
            ticket = look.partition.begin_sync()
            if ticket is not None:
                tickets.append((look, ticket))
        if tickets:
            errors = await wait_out(store.run(_sync_all, self._disk, tickets))
            for (look, ticket), error in zip(tickets, errors, strict=True):
                if error is None:
                    look.partition.finish_sync(ticket)
                else:
                    look.partition.fail_sync(ticket, error)
        return rolled


def _sync_all(
    disk: Disk, tickets: Sequence[tuple[PartitionLook, SyncTicket]]
) -> list[OSError | None]:
    """In a thread."""
    errors: list[OSError | None] = []
    for _, ticket in tickets:
        try:
            disk.sync_many(ticket.files, ticket.directories)
            errors.append(None)
        except OSError as error:
            errors.append(error)
    return errors


def _judge_all(looks: Sequence[PartitionLook], now_ms: int) -> list[_Verdict]:
    """In a thread: those of which something may go."""
    verdicts = []
    for look in looks:
        try:
            verdict = _judge(look, now_ms)
        except (OSError, OttlaError) as error:
            if look.is_up_to_date() and look.has_same_segments():
                logger.warning("%s: retention cannot judge it: %s", look.partition.name, error)
            continue
        if verdict.gone:
            verdicts.append(verdict)
    return verdicts


async def _written(partition: Partition) -> None:
    """Returns when what is queued there is written, or refused."""
    waiter = _Waiter()
    partition.wait_written(waiter, None)
    await waiter.told.wait()


class _Waiter:
    def __init__(self) -> None:
        self.told = asyncio.Event()

    def succeeded(self, item: Any) -> None:
        self.told.set()

    def failed(self, item: Any, error: Exception) -> None:
        self.told.set()
