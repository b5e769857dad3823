"""Group commit: a loop turn's batches are written together, all that waits is synced together."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ottla.log.log import SyncTicket
from ottla.ports import Disk

if TYPE_CHECKING:
    from ottla.broker.connection import Outbox
    from ottla.broker.partition import Partition

logger = logging.getLogger(__name__)

# Up to here each partition's files are synced for themselves, so that one failing file is one
# failing partition; above it one call serves all and a failure is everybody's.
TICKETS_SINGLY_MAX: Final = 2
STOP_S_MAX: Final = 30
UNSYNCED_BYTES_MAX: Final = 256 * 1024 * 1024


class SyncJob:
    """One trip of the sync thread."""

    __slots__ = ("failed", "seconds", "tickets")

    def __init__(self, tickets: list[tuple[Partition, SyncTicket]]) -> None:
        self.tickets = tickets
        self.failed: dict[Partition, OSError] = {}
        self.seconds = 0.0

    def run(self, disk: Disk) -> None:
        started = perf_counter()
        if len(self.tickets) <= TICKETS_SINGLY_MAX:
            for partition, ticket in self.tickets:
                self._sync(disk, [(partition, ticket)])
        else:
            self._sync(disk, self.tickets)
        self.seconds = perf_counter() - started

    def _sync(self, disk: Disk, tickets: Sequence[tuple[Partition, SyncTicket]]) -> None:
        files = [file for _, ticket in tickets for file in ticket.files]
        directories = [directory for _, ticket in tickets for directory in ticket.directories]
        try:
            try:
                is_all_synced = disk.sync_many(files, directories)
            except FileNotFoundError:
                # Only a directory can be missing, and files come first: those are synced.
                is_all_synced = False
                self._sync_directories(disk, tickets)
            for partition, _ in tickets:
                partition.settle(is_all_synced)
        except OSError as error:
            for partition, _ in tickets:
                self.failed[partition] = error

    def _sync_directories(
        self, disk: Disk, tickets: Sequence[tuple[Partition, SyncTicket]]
    ) -> None:
        """Those of deleted partitions may be gone; that is nobody else's failure."""
        for partition, ticket in tickets:
            for directory in ticket.directories:
                try:
                    disk.sync_directory(directory)
                except FileNotFoundError as error:
                    if not partition.is_retired:
                        self.failed[partition] = error


class Flusher:
    """Writes and syncs the partitions of one kind, with a sync thread of its own."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        name: str,
        observe_sync_s: Callable[[float], None],
        outbox: Outbox,
    ) -> None:
        self._loop = loop
        self._disk = disk
        self._observe_sync_s = observe_sync_s
        self._outbox = outbox
        self._queued: list[Partition] = []
        self._dirty: dict[Partition, None] = {}
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._job: SyncJob | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._syncer = threading.Thread(target=self._work, name=f"sync-{name}", daemon=True)
        self._unsynced_bytes = 0
        self._syncing_bytes = 0

    def start(self) -> None:
        self._syncer.start()

    @property
    def is_far_behind(self) -> bool:
        """The disk does not keep up: who does not wait for it has to from now on."""
        return self._unsynced_bytes + self._syncing_bytes > UNSYNCED_BYTES_MAX

    def queue(self, partition: Partition) -> None:
        """The partition has batches to write at the end of this loop turn."""
        if not self._queued:
            self._loop.call_soon(self._write_queued)
        self._queued.append(partition)

    def leave(self, partition: Partition) -> None:
        """The partition is deleted. A ticket under way keeps its files open until it is back."""
        self._dirty.pop(partition, None)
        partition.log.abandon()

    def want_sync(self, partition: Partition) -> None:
        self._dirty[partition] = None
        self._begin_sync()

    def _write_queued(self) -> None:
        queued, self._queued = self._queued, []
        self._outbox.cork()
        try:
            for partition in queued:
                byte_count = partition.write_queued()
                if partition.is_synced_eagerly:
                    self._unsynced_bytes += byte_count
                    self._dirty[partition] = None
            self._begin_sync()
        finally:
            self._outbox.uncork()

    def _begin_sync(self) -> None:
        if self._job is not None or not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        self._syncing_bytes, self._unsynced_bytes = self._unsynced_bytes, 0
        tickets = []
        for partition in dirty:
            ticket = partition.log.begin_sync()
            if ticket is not None:
                tickets.append((partition, ticket))
        if tickets:
            self._job = SyncJob(tickets)
            self._idle.clear()
            self._jobs.put(self._job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.run(self._disk)
            except Exception as error:
                logger.exception("a sync failed in an unforeseen way")
                job.failed = {partition: OSError(str(error)) for partition, _ in job.tickets}
            self._loop.call_soon_threadsafe(self._finish_sync, job)

    def _finish_sync(self, job: SyncJob) -> None:
        self._job = None
        self._syncing_bytes = 0
        self._begin_sync()
        self._outbox.cork()
        try:
            for partition, ticket in job.tickets:
                error = job.failed.get(partition)
                if error is None:
                    partition.finish_sync(ticket)
                else:
                    partition.fail_sync(error)
        finally:
            self._outbox.uncork()
        self._observe_sync_s(job.seconds)
        if self._job is None:
            self._idle.set()

    async def drain(self) -> None:
        """Returns when everything written so far is synced, or has failed to."""
        while self._queued or self._job is not None or self._dirty:
            await self._idle.wait()
            await asyncio.sleep(0)

    async def stop(self) -> None:
        await asyncio.wait_for(self.drain(), STOP_S_MAX)
        self._jobs.put(None)
        await asyncio.to_thread(self._syncer.join, STOP_S_MAX)
