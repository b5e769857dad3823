"""Group commit: a loop turn's batches are written together, all that waits is synced together."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.storage.stores import is_broken
from ottla.log.hints import Hints
from ottla.log.log import SyncTicket
from ottla.ports import Clock, Disk, Threads

if TYPE_CHECKING:
    from ottla.broker.storage.partition_files import PartitionWrite
    from ottla.broker.storage.partition_writes import PartitionWrites
    from ottla.config import BrokerConfig

logger = logging.getLogger(__name__)

# Up to here each partition's files are synced for themselves, so that one failing file is one
# failing partition; above it one call serves all and a failure is everybody's.
TICKETS_SINGLY_MAX: Final = 2
STOP_S_MAX: Final = 30
UNSYNCED_BYTES_MAX: Final = 256 * 1024 * 1024
# What may wait for one disk in all, and for one that does not move.
WAITING_BYTES_MAX: Final = 512 * 1024 * 1024
STALLED_BYTES_MAX: Final = 64 * 1024 * 1024
# Beside a sync that takes longer, nothing is written on the loop; nor for a while after a stall.
QUICK_SYNC_S_MAX: Final = 0.01
STALL_S: Final = 0.1
WARY_S: Final = 10.0
STANDSTILL_S: Final = 1.0


def stalled_bytes_max(config: BrokerConfig) -> int:
    """Of all bytes in flight, what may wait for one disk that stands still."""
    if config.queued_max_request_bytes < 0:
        return STALLED_BYTES_MAX
    return min(STALLED_BYTES_MAX, config.queued_max_request_bytes // (4 * len(config.log_dirs)))


class Outbox(Protocol):
    """Holds replies back for a moment, so that those of one connection leave together."""

    def cork(self) -> None: ...

    def uncork(self) -> None: ...


class SyncJob:
    """One trip of the sync thread."""

    __slots__ = ("begun_s", "failed", "seconds", "tickets")

    def __init__(self, tickets: list[tuple[PartitionWrites, SyncTicket]], begun_s: float) -> None:
        self.tickets = tickets
        self.begun_s = begun_s
        self.failed: dict[PartitionWrites, OSError] = {}
        self.seconds = 0.0

    def run(self, disk: Disk, clock: Clock) -> None:
        """Blocking, in a thread."""
        started_s = clock.steady_s()
        try:
            self._sync_all(disk)
        except Exception as error:
            logger.exception("a sync failed in an unforeseen way")
            self.failed = {partition: OSError(str(error)) for partition, _ in self.tickets}
        self.seconds = clock.steady_s() - started_s

    def _sync_all(self, disk: Disk) -> None:
        if len(self.tickets) <= TICKETS_SINGLY_MAX:
            for partition, ticket in self.tickets:
                self._sync(disk, [(partition, ticket)])
        else:
            self._sync(disk, self.tickets)

    def _sync(self, disk: Disk, tickets: Sequence[tuple[PartitionWrites, SyncTicket]]) -> None:
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
                partition.make_directory_durable(is_all_synced)
        except OSError as error:
            for partition, _ in tickets:
                self.failed[partition] = error

    def _sync_directories(
        self, disk: Disk, tickets: Sequence[tuple[PartitionWrites, SyncTicket]]
    ) -> None:
        """Those of deleted partitions may be gone; that is nobody else's failure."""
        for partition, ticket in tickets:
            for directory in ticket.directories:
                try:
                    disk.sync_directory(directory)
                except FileNotFoundError as error:
                    if not partition.is_retired:
                        self.failed[partition] = error


class WriteJob:
    """One trip of the writing thread."""

    __slots__ = ("begun_s", "byte_count", "writes")

    def __init__(self, writes: list[PartitionWrite], begun_s: float) -> None:
        self.writes = writes
        self.begun_s = begun_s
        self.byte_count = sum(write.byte_count for write in writes)

    def run(self) -> None:
        for write in self.writes:
            write.run()


class Flusher:
    """Writes and syncs the partitions of one kind in one data directory.

    Adding to a file costs the loop a copy into the page cache, so that is done at once, and only
    that: what makes files, and all that comes while the disk is slow, goes through a thread. The
    kernel may let a writer wait for as long as a sync beside it takes, and the loop waits for
    nobody. Syncs have a thread of their own, so that no write has to wait for its turn after one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        clock: Clock,
        disk: Disk,
        name: str,
        observe_sync_s: Callable[[float], None],
        outbox: Outbox,
        on_broken: Callable[[OSError], None] = lambda error: None,
        stalled_bytes_max: int = STALLED_BYTES_MAX,
        stall_s_max: float = math.inf,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._disk = disk
        self._name = name
        self._observe_sync_s = observe_sync_s
        self._outbox = outbox
        self.on_broken = on_broken
        # Another that has the same disk.
        self.neighbour = self
        self._stalled_bytes_max = stalled_bytes_max
        self._stall_s_max = stall_s_max
        self._queued: list[PartitionWrites] = []
        self._held: dict[PartitionWrites, None] = {}
        # With the bytes that wait for the sync; and those whose turn it was when a thread wrote to
        # them, which are written to no more before they are synced.
        self._dirty: dict[PartitionWrites, int] = {}
        self._overdue: dict[PartitionWrites, None] = {}
        self._syncer = threads.executor(f"sync-{name}", 1)
        self._job: SyncJob | None = None
        self._writer = threads.executor(f"write-{name}", 1)
        self._write_job: WriteJob | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._unsynced_bytes = 0
        self._syncing_bytes = 0
        self._waiting_bytes = 0
        self._wary_until_s = 0.0
        self._broken: OSError | None = None
        # Partitions wait for the writing thread; so many bytes that nothing more is taken.
        self.is_holding = False
        self.is_full = False
        self.failed_syncs = 0
        self.syncs = 0
        self._is_stopping = False

    @property
    def is_overloaded(self) -> bool:
        """The disk does not keep up: whoever does not wait for it has to from now on."""
        return self._waiting_bytes > UNSYNCED_BYTES_MAX

    @property
    def waiting_bytes(self) -> int:
        """What is to be written or synced still."""
        return self._waiting_bytes

    @property
    def stalled_s(self) -> float:
        """For how long the disk has been at what it does now."""
        begun = [job.begun_s for job in (self._job, self._write_job) if job is not None]
        return self._clock.steady_s() - min(begun) if begun else 0.0

    @property
    def is_stalled(self) -> bool:
        """The disk has not answered for so long that nobody should wait for it."""
        return self.stalled_s >= self._stall_s_max

    @property
    def is_slow(self) -> bool:
        """Whether whoever asks something of the disk might have to wait."""
        return self._is_wary()

    def queue(self, partition: PartitionWrites) -> None:
        """The partition has batches to write at the end of this loop turn."""
        if not self._queued:
            self._loop.call_soon(self._write_queued)
        self._queued.append(partition)

    def forget(self, partition: PartitionWrites) -> None:
        """The partition is deleted: nobody needs what is not synced of it."""
        self._unsynced_bytes -= self._dirty.pop(partition, 0)
        self._overdue.pop(partition, None)

    def let_go(self, partition: PartitionWrites) -> None:
        """The partition is another flusher's from now on, with all that it has queued."""
        self.forget(partition)
        self._held.pop(partition, None)
        self._queued = [queued for queued in self._queued if queued is not partition]
        self._weigh()

    def want_sync(self, partition: PartitionWrites) -> None:
        self._dirty.setdefault(partition, 0)
        self._begin_sync()

    def go_on_with(self, partition: PartitionWrites) -> None:
        """It may be written to again: what has come meanwhile does not wait for another's turn."""
        self._outbox.cork()
        try:
            self.want_sync(partition)
            self._write_held()
        finally:
            self._outbox.uncork()
        self._weigh()

    # --------------------------------------------------------------------------------- writing

    def _write_queued(self) -> None:
        queued, self._queued = self._queued, []
        self._outbox.cork()
        begun_s = self._clock.steady_s()
        try:
            self._write(queued)
            self._note_time(self._clock.steady_s() - begun_s)
            self._begin_sync()
        finally:
            self._outbox.uncork()
        self._weigh()
        self._tell_broken()

    def _write(self, partitions: Iterable[PartitionWrites]) -> None:
        is_wary = self._is_wary()
        for_thread = []
        for partition in partitions:
            if not (is_wary or partition.is_being_written or partition.makes_files):
                self._wrote(partition, partition.write_queued())
            elif self._write_job is None and partition not in self._overdue:
                for_thread.append(partition)
            else:
                self._held[partition] = None
        writes = [write for each in for_thread if (write := each.begin_write()) is not None]
        if writes:
            self._hand_over(writes)

    def probe(self, partition: PartitionWrites) -> None:
        """Tries whether the disk takes again what it refused; another time if it is busy."""
        write = partition.begin_probe() if self._write_job is None else None
        if write is not None:
            self._hand_over([write])

    def save(self, partition: PartitionWrites, hints: Hints) -> bool:
        """Has the thread write them, and syncs that; False while it is at something else."""
        if self._write_job is not None or self._is_stopping:
            return False
        write = partition.begin_saving(hints)
        if write is not None:
            self._hand_over([write])
        return True

    def _hand_over(self, writes: list[PartitionWrite]) -> None:
        self._write_job = WriteJob(writes, self._clock.steady_s())
        self._idle.clear()
        job = self._write_job
        self._writer.begin(job.run, partial(self._finish_write, job))

    def _is_wary(self) -> bool:
        """Whether a write might have to wait: beside a long sync, and for a while after one."""
        job, beside = self._job, self.neighbour._job
        if job is None and beside is None and not self._wary_until_s:
            return False
        now_s = self._clock.steady_s()
        if any(each and now_s - each.begun_s > QUICK_SYNC_S_MAX for each in (job, beside)):
            return True
        return now_s < self._wary_until_s

    def _wrote(self, partition: PartitionWrites, byte_count: int) -> None:
        if byte_count == 0 and partition.failure is not None:
            # A damaged log is no broken disk: the others there may be as good as ever.
            if not partition.is_damaged:
                self._note_broken(partition.failure)
        elif partition.is_synced_eagerly:
            self._unsynced_bytes += byte_count
            self._dirty[partition] = self._dirty.get(partition, 0) + byte_count

    def _finish_write(self, job: WriteJob) -> None:
        self._write_job = None
        self._note_time(self._clock.steady_s() - job.begun_s)
        self._outbox.cork()
        try:
            for write in job.writes:
                self._wrote(write.partition, write.partition.finish_write(write))
            self._begin_sync()
            self._write_held()
        finally:
            self._outbox.uncork()
        self._weigh()
        self._note_idle()
        self._tell_broken()

    def _write_held(self) -> None:
        """A sync that can begin has begun before: under a steady load there is always more."""
        if self._held and self._write_job is None:
            held, self._held = self._held, {}
            self._write(held)
            self._begin_sync()

    # --------------------------------------------------------------------------------- syncing

    def _begin_sync(self) -> None:
        if self._job is not None or not self._dirty:
            return
        dirty, self._dirty, self._overdue = self._dirty, {}, {}
        tickets = []
        for partition, byte_count in dirty.items():
            if partition.is_being_written:
                self._dirty[partition] = byte_count
                self._overdue[partition] = None
                continue
            self._unsynced_bytes -= byte_count
            ticket = partition.begin_sync()
            if ticket is not None:
                self._syncing_bytes += byte_count
                tickets.append((partition, ticket))
        if tickets:
            job = self._job = SyncJob(tickets, self._clock.steady_s())
            self._idle.clear()
            work = partial(job.run, self._disk, self._clock)
            self._syncer.begin(work, partial(self._finish_sync, job))

    def _finish_sync(self, job: SyncJob) -> None:
        self._job = None
        self._syncing_bytes = 0
        self._note_time(job.seconds)
        self.syncs += 1
        self.failed_syncs += bool(job.failed)
        self._begin_sync()
        self._outbox.cork()
        try:
            for partition, ticket in job.tickets:
                error = job.failed.get(partition)
                if error is None:
                    partition.finish_sync(ticket)
                else:
                    partition.fail_sync(ticket, error)
                    self._note_broken(error)
            self._write_held()
        finally:
            self._outbox.uncork()
        self._observe_sync_s(job.seconds)
        self._weigh()
        self._note_idle()
        self._tell_broken()

    # ------------------------------------------------------------------------- a disk in trouble

    def _note_time(self, seconds: float) -> None:
        if seconds > STALL_S:
            self._wary_until_s = self._clock.steady_s() + WARY_S
        elif self._wary_until_s and self._clock.steady_s() >= self._wary_until_s:
            self._wary_until_s = 0.0

    def _weigh(self) -> None:
        """A disk that stands still may not hold all the bytes that the whole broker may hold."""
        waiting = self._unsynced_bytes + self._syncing_bytes
        if self._write_job is not None:
            waiting += self._write_job.byte_count
        waiting += sum(partition.queued_bytes for partition in self._held)
        self._waiting_bytes = waiting
        self.is_holding = bool(self._held)
        self._judge()

    def hold_more(self, byte_count: int) -> None:
        """A partition that waits has got another batch."""
        self._waiting_bytes += byte_count
        self._judge()

    def _judge(self) -> None:
        waiting = self._waiting_bytes
        self.is_full = waiting > self._stalled_bytes_max and (
            waiting > WAITING_BYTES_MAX or self.stalled_s > STANDSTILL_S
        )

    def _note_broken(self, error: OSError) -> None:
        if is_broken(error):
            self._broken = error

    def _tell_broken(self) -> None:
        """When all that happened is told: whoever hears of it may take everything offline."""
        broken, self._broken = self._broken, None
        if broken is not None:
            self.on_broken(broken)

    # -------------------------------------------------------------------------------- stopping

    def _note_idle(self) -> None:
        if self._job is None and self._write_job is None:
            self._idle.set()

    async def drain(self) -> None:
        """Returns when everything written so far is synced, or has failed to."""
        while self._queued or self._held or self._write_job or self._job or self._dirty:
            await self._idle.wait()
            await asyncio.sleep(0)

    async def stop(self) -> bool:
        """False when the disk stands still: then it is left alone, and the next start looks."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await self.drain()
        except TimeoutError:
            logger.error("%s: the disk does not answer", self._name)
            return False
        self._syncer.close()
        self._writer.close()
        return True
