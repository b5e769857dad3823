"""The way of a partition's batches to the disk and to its consumers (`write_states.py`)."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.storage.partition_files import Home, PartitionWrite
from ottla.broker.storage.waiters import (
    PLENTY_BYTES,
    EndWaiters,
    FetchWaiter,
    Waiters,
    WriteWaiter,
    fail,
    succeed,
    tell,
)
from ottla.broker.storage.write_states import WriteState
from ottla.errors import OttlaError, StorageFailed
from ottla.log.corruption import Corruption
from ottla.log.directory import DataDirectory
from ottla.log.hints import Hints
from ottla.log.log import Log, LogPosition, SyncTicket
from ottla.log.opening.short_logs import ShortLog
from ottla.types import NO_OFFSET, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.storage.flusher import Flusher

logger = logging.getLogger(__name__)

PROBE_BYTES_MAX: Final = 1024 * 1024
# So much may wait for a deleted topic of the same name to make room.
HELD_BYTES_MAX: Final = 16 * 1024 * 1024


class PartitionWrites:
    """A partition as its flusher sees it. What is appended, and who may, is for `Partition`."""

    __slots__ = (
        "_alone",
        "_failed_bytes",
        "_failure",
        "_home",
        "_is_cut_under_way",
        "_is_paused",
        "_is_queued",
        "_is_reopening",
        "_log",
        "_queued_bytes",
        "_syncing_to",
        "_tickets",
        "_when_not_busy",
        "_when_quiet",
        "_write",
        "flusher",
        "high_watermark",
        "is_offline",
        "is_retired",
        "is_synced_eagerly",
        "name",
        "waiters",
    )

    def __init__(self, name: TopicPartition, log: Log, flusher: Flusher, home: Home) -> None:
        self.name = name
        self.flusher = flusher
        self.high_watermark: LogPosition = log.synced
        self.is_retired = False
        self.is_offline = False
        self.is_synced_eagerly = True
        # There is no other replica.
        self._alone = True
        self._log = log
        self._home = home
        self.waiters = Waiters()
        self._write: PartitionWrite | None = None
        self._when_not_busy: list[Callable[[], None]] = []
        self._when_quiet: list[Callable[[], None]] = []
        self._is_reopening = False
        self._is_cut_under_way = False
        self._is_paused = False
        self._is_queued = False
        self._queued_bytes = 0
        self._syncing_to = 0
        # Syncs that are under way.
        self._tickets = 0
        self._failure: OSError | None = None
        self._failed_bytes = 0

    def state_of(self, end_offset: int) -> WriteState:
        """Of the batch that ends there."""
        log = self._log
        if end_offset <= self.high_watermark.offset:
            return WriteState.COMMITTED
        if end_offset > log.end_offset:
            return WriteState.FAILED
        if end_offset <= log.synced.offset:
            return WriteState.SYNCED
        if log.fenced:
            return WriteState.FENCED
        if end_offset > log.written.offset:
            return WriteState.QUEUED
        return WriteState.SYNCING if end_offset <= self._syncing_to else WriteState.WRITTEN

    # ------------------------------------------------------------------------------ its files

    @property
    def data(self) -> DataDirectory:
        """The data directory that it lies in."""
        return self._home.data

    @property
    def directory(self) -> str:
        return self._log.directory

    @property
    def has_directory(self) -> bool:
        return self._home.is_laid_out

    def await_directory(self) -> None:
        """Its directory's name is not free yet: what it is given to write, it keeps."""
        self._home.is_taken = True

    def move_in(self) -> None:
        """The name is free: what was kept is written."""
        self._home.is_taken = False
        if self._queued_bytes:
            self._queue()

    def make_directory_durable(self, is_all_synced: bool) -> None:
        """In the sync thread, with the sync of the first batch."""
        self._home.make_durable(is_all_synced)

    # --------------------------------------------------------------------------------- waiting

    def wait_written(self, waiter: WriteWaiter, item: Any) -> None:
        """`waiter` is told when what is queued now is written."""
        if self._is_queued or self._queued_bytes or self._write is not None:
            self.waiters.writes.append((waiter, item))
        else:
            waiter.succeeded(item)

    def wait_committed(self, end_offset: int, waiter: WriteWaiter, item: Any) -> None:
        """`waiter` is told when the high watermark has reached `end_offset`."""
        if end_offset <= self.high_watermark.offset:
            waiter.succeeded(item)
        elif self._log.fenced or self.is_retired:
            waiter.failed(item, StorageFailed(f"{self.name} takes no more writes"))
        else:
            self.waiters.commits.append((end_offset, waiter, item))

    @property
    def has_uncommitted(self) -> bool:
        """Whether some of what was appended is still on its way to the high watermark."""
        log = self._log
        is_under_way = self.high_watermark.offset < log.end_offset
        return is_under_way and not (log.fenced or self.is_retired)

    def end_waiters(self) -> EndWaiters:
        """Who is told when all that is appended by now is committed, or fails."""
        end_offset = self._log.end_offset
        gathered = self.waiters.at_end(end_offset)
        if gathered is None:
            gathered = EndWaiters()
            self.wait_committed(end_offset, gathered, None)
        return gathered

    def add_fetch(self, fetch: FetchWaiter, *, of_replica: bool = False) -> None:
        """It is told of what is committed; one of a replica, of what is written."""
        self.waiters.add_fetch(fetch, of_replica=of_replica)

    def drop_fetch(self, fetch: FetchWaiter) -> None:
        self.waiters.drop_fetch(fetch)

    # --------------------------------------------------------------------------------- writing

    def _queue(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self.flusher.queue(self)

    def _queue_bytes(self, byte_count: int) -> None:
        """The log has got batches, which are written when the loop turn ends."""
        self._queued_bytes += byte_count
        if not self._is_queued:
            self._is_queued = True
            self.flusher.queue(self)
        elif self.flusher.is_holding:
            self.flusher.hold_more(byte_count)

    def roll(self, now_ms: int) -> None:
        """Ends the segment being written to; the next one's file comes when the turn ends."""
        self._log.roll(now_ms)
        self._queue()

    def write_queued(self) -> int:
        """Writes this turn's batches; returns how many bytes."""
        self._is_queued = False
        if self._home.is_taken and self._queued_bytes <= HELD_BYTES_MAX and not self.is_retired:
            return 0
        byte_count, self._queued_bytes = self._queued_bytes, 0
        waiters = self.waiters.take_writes()
        if self._log.fenced or self.is_retired:
            fail(waiters, StorageFailed(f"{self.name} takes no more writes"))
            return 0
        try:
            self._lay_out()
            self._log.write()
        except OSError as error:
            self._failed_bytes = min(byte_count, PROBE_BYTES_MAX)
            self._fail_write(error, waiters)
            return 0
        self._wrote(waiters)
        return byte_count

    # A write that may take long goes through a thread: `begin_write`, `PartitionWrite.run` there,
    # `finish_write`. In between batches are taken as ever; they wait for the next write.

    @property
    def makes_files(self) -> bool:
        """Whether the next write creates files or directories, and not only adds to some."""
        return self._home.is_to_be_laid_out or self._log.makes_files

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def is_being_written(self) -> bool:
        """A thread writes to its files just now, or cuts them; or nobody may."""
        return self._write is not None or self._is_cut_under_way or self._is_paused

    @property
    def is_busy(self) -> bool:
        """A thread writes to its files, cuts or opens them: its directory has to stay."""
        return self._write is not None or self._is_cut_under_way or self._is_reopening

    @property
    def is_quiet(self) -> bool:
        """No thread is at its files, not even to sync them."""
        return not (self.is_busy or self._tickets or self._log.fenced or self.is_retired)

    @contextmanager
    def reopening(self) -> Iterator[None]:
        """In here a thread may open its log again."""
        self._is_reopening = True
        try:
            yield
        finally:
            self._is_reopening = False
            self._tell_not_busy()

    def _tell_not_busy(self) -> None:
        if not self.is_busy:
            tell_all, self._when_not_busy = self._when_not_busy, []
            if not self._tickets:
                tell_all += self._when_quiet
                self._when_quiet = []
            for tell in tell_all:
                tell()

    def when_not_busy(self, tell: Callable[[], None]) -> None:
        """Calls `tell` once no thread is at its files any more."""
        if not self.is_busy:
            tell()
        else:
            self._when_not_busy.append(tell)

    def when_quiet(self, tell: Callable[[], None]) -> None:
        """Calls `tell` once nobody syncs its files any more, either."""
        if self.is_busy or self._tickets:
            self._when_quiet.append(tell)
        else:
            tell()

    def begin_write(self) -> PartitionWrite | None:
        """All that is queued, for a thread; None when nothing is to be written."""
        writing = None
        self._is_queued = False
        if self._is_cut_under_way or self._is_paused:
            return None
        if not self._log.fenced and not self.is_retired:
            if self._home.is_taken and self._queued_bytes <= HELD_BYTES_MAX:
                return None
            writing = self._log.begin_write()
        if writing is None:
            self.write_queued()
            return None
        byte_count, self._queued_bytes = self._queued_bytes, 0
        waiters = self.waiters.take_writes()
        self._write = PartitionWrite(self, self._home, writing, byte_count, waiters)
        return self._write

    def finish_write(self, write: PartitionWrite) -> int:
        """The thread is back; returns how many bytes it wrote."""
        assert write is self._write, f"{self.name}: a write that is not under way"
        self._write = None
        write.report_to(self._log)
        self._tell_not_busy()
        if self._log.fenced or self.is_retired:
            fail(write.waiters, StorageFailed(f"{self.name} takes no more writes"))
            return 0
        if not write.has_batches:
            if write.is_probe and write.error is None and self._failure is not None:
                self._recovered()
            if not self._queued_bytes and not self._is_queued:
                # Repetitions of what had been written before.
                succeed(self.waiters.take_writes())
            return 0
        if write.error is not None:
            self._queued_bytes = 0
            self._failed_bytes = min(write.byte_count, PROBE_BYTES_MAX)
            self._fail_write(write.error, [*write.waiters, *self.waiters.take_writes()])
            return 0
        waiters = write.waiters
        if not self._queued_bytes:
            # Repetitions of what was being written: nothing else is to come for them.
            waiters = [*waiters, *self.waiters.take_writes()]
        self._wrote(waiters)
        return write.byte_count

    def _wrote(self, waiters: list[tuple[WriteWaiter, Any]]) -> None:
        if self._failure is not None:
            self._recovered()
        if not self._alone:
            self._note_end()
        succeed(waiters)
        if not self.is_synced_eagerly:
            self._became_durable(self._log.written)

    def _note_end(self) -> None:
        """A write has ended here, of which others have copies."""

    def _lay_out(self) -> None:
        try:
            self._home.lay_out()
        except OSError:
            self._log.take_back()
            raise

    def _fail_write(self, error: OSError, waiters: list[tuple[WriteWaiter, Any]]) -> None:
        if self._failure is None:
            logger.error("%s: write refused: %s", self.name, error)
        self._failure = error
        self.data.troubles += 1
        failure = StorageFailed(f"{self.name}: write refused: {error}")
        fail(waiters, failure)
        self._end_went_back(failure)

    def _end_went_back(self, failure: OttlaError) -> None:
        end_offset = self._log.end_offset
        assert end_offset >= self.high_watermark.offset, f"{self.name} lost what is committed"
        self.waiters.fail_after(end_offset, failure)
        self.waiters.went_back(self)

    # ------------------------------------------------------------------ small files beside them

    def take_hints(self) -> Hints | None:
        """What would give recovery a place to begin; None when it has one, or cannot get one."""
        if self.is_retired or self.is_being_written:
            return None
        return self._log.take_hints()

    def begin_saving(self, hints: Hints) -> PartitionWrite | None:
        """Hints for recovery, for the thread that writes; None when they are outdated."""
        is_closed = self.is_retired or self._is_cut_under_way
        saving = None if is_closed else self._log.begin_saving(hints)
        if saving is not None:
            self._write = PartitionWrite(self, self._home, saving, 0, [])
        return None if saving is None else self._write

    def begin_probe(self) -> PartitionWrite | None:
        """Finds out whether the disk takes again what it refused, without waiting for a client."""
        if self._failure is None or self._log.fenced or self.is_retired or self._is_cut_under_way:
            return None
        probing = self._log.begin_probe(self._failed_bytes)
        if probing is None:
            if not self._queued_bytes and self._write is None:
                # It has no file yet that could be tried: the next batch is the try.
                self._recovered()
            return None
        self._write = PartitionWrite(self, self._home, probing, 0, [])
        return self._write

    def _recovered(self) -> None:
        logger.warning("%s: the disk takes writes again", self.name)
        self._failure = None

    # --------------------------------------------------------------------- syncs and the commit

    def begin_sync(self) -> SyncTicket | None:
        """What to sync so that all that is written now is safe; None when it is already."""
        ticket = self._log.begin_sync()
        if ticket is not None:
            self._tickets += 1
            self._syncing_to = max(self._syncing_to, ticket.position.offset)
        return ticket

    def finish_sync(self, ticket: SyncTicket) -> None:
        self._end_ticket()
        log = self._log
        if not log.gave(ticket):
            # The log was opened again meanwhile, and may have been cut before the ticket's end.
            ticket.give_up()
            return
        log.finish_sync(ticket)
        self._became_durable(log.synced)

    def _end_ticket(self) -> None:
        self._tickets -= 1
        assert self._tickets >= 0, f"{self.name}: a sync that was not begun has ended"
        if self._when_quiet:
            self._tell_not_busy()

    def _became_durable(self, position: LogPosition) -> None:
        """All before it is synced here; or written, with write.caching."""
        durables = self.waiters.durables
        if durables:
            tell(durables, position.offset)
        self._commit()

    def _commit(self) -> None:
        """Where there is no other replica, what is durable is committed."""
        bound = self._log.synced if self.is_synced_eagerly else self._log.written
        if bound.offset > self.high_watermark.offset:
            self._advance(bound)

    def fail_sync(self, ticket: SyncTicket, error: OSError) -> None:
        """After a failed sync nobody knows what is on disk: the partition stops taking writes.

        Also when the log was opened again meanwhile: it is the same file.
        """
        self._end_ticket()
        self._log.fail_sync(ticket)
        if self.is_retired:
            return
        logger.error("%s: sync failed, the partition is fenced: %s", self.name, error)
        self._failure = error
        self.data.troubles += 1
        self.waiters.fail_all(StorageFailed(f"{self.name}: sync failed: {error}"))

    def _advance(self, position: LogPosition) -> None:
        """Moves the high watermark: everything before it is committed from now on."""
        before, log = self.high_watermark, self._log
        bound = log.synced if self.is_synced_eagerly else log.written
        assert before.offset <= position.offset <= bound.offset <= log.end_offset, (
            f"{self.name}: the high watermark cannot go from {before} to {position}, with {bound} "
            f"and the end at {log.end_offset}"
        )
        stable_before = self.last_stable.offset if log.has_transactions else NO_OFFSET
        self.high_watermark = position
        waiters = self.waiters
        if waiters.commits:
            tell(waiters.commits, position.offset)
        if waiters.fetches:
            # What lies in an older segment is all that a read of it gets: nobody waits for more.
            arrived = PLENTY_BYTES
            if position.segment_base == before.segment_base:
                arrived = position.bytes_in_segment - before.bytes_in_segment
            waiters.arrived(self, arrived)
            if NO_OFFSET < stable_before < self.last_stable.offset:
                waiters.became_stable(self)
        if waiters.replica_fetches:
            waiters.committed_more(self)

    @property
    def has_transactions(self) -> bool:
        """Whether `last_stable` may lie before the high watermark."""
        return self._log.has_transactions

    @property
    def last_stable(self) -> LogPosition:
        """All before it is committed, and of no transaction that might still be aborted.

        Where records of an open one were deleted, nothing is stable but what is deleted, too.
        """
        high_watermark, log = self.high_watermark, self._log
        if not log.has_transactions:
            return high_watermark
        unstable = log.first_unstable(high_watermark.offset)
        if unstable is None or unstable.offset >= high_watermark.offset:
            return high_watermark
        if unstable.offset < log.start_offset:
            return unstable._replace(offset=min(log.start_offset, high_watermark.offset))
        return unstable

    # ---------------------------------------------------------------------- damage, and its cure

    @property
    def failure(self) -> OSError | None:
        """Why the disk does not take this partition's writes, if it does not."""
        damage = self._log.corruption
        if damage is not None:
            return OSError(errno.EIO, f"damaged: {damage}")
        return self._failure

    @property
    def is_stalled(self) -> bool:
        """Its disk has not answered for long, whoever asked it."""
        return self.flusher.is_stalled

    @property
    def is_fenced(self) -> bool:
        """Whether it takes no writes until its log is opened again."""
        return self._log.fenced

    @property
    def is_damaged(self) -> bool:
        return self._log.corruption is not None

    @property
    def damaged_from(self) -> int:
        """All before it is intact, in a log that is damaged."""
        damage = self._log.corruption
        assert damage is not None, f"{self.name} is not damaged"
        return max(damage.offset, self._log.start_offset)

    @property
    def is_to_be_reopened(self) -> bool:
        """Whether its log is fenced for a reason that opening it again can remove."""
        is_in_use = self.is_busy or self.is_retired or self.is_offline
        return self._log.fenced and self._log.corruption is None and not is_in_use

    def condemn(self, corruption: Corruption) -> None:
        """Damage was found in the log: what lies outside of it is served, nothing more is taken."""
        logger.error("%s is damaged and fenced: %s", self.name, corruption)
        self._log.condemn(corruption)
        self.data.troubles += 1
        self.waiters.fail_all(StorageFailed(f"{self.name} is damaged: {corruption}"))
        self.waiters.wake_fetches()

    def reopened_log(self, now_ms: int) -> Log:
        """Blocking: its log as the disk has it, after a failed sync cut where it was synced."""
        return self._log.reopen(now_ms)

    def _replace_log(self, log: Log, now_ms: int) -> None:
        logger.warning("%s: opened again at offset %d", self.name, log.end_offset)
        assert log.end_offset >= self._log.synced.offset, f"{self.name}: synced batches are gone"
        log.inherit(self._log, now_ms)
        self._home.doubt()
        self._log = log
        # It may be found damaged.
        self.data.troubles += 1
        self._syncing_to = 0
        if self.high_watermark.offset > log.end_offset:
            # With write.caching it may have been ahead of what the disk has kept.
            self.high_watermark = log.synced
        self._failure = None
        self.waiters.went_back(self)

    # ------------------------------------------------------------------------------- the end

    def go_offline(self, error: OSError) -> None:
        """Its directory has failed: it takes nothing and serves nothing until the next start."""
        self.is_offline = True
        self._failure = error
        self.data.troubles += 1
        # Its files stay open: a sync or a write may be under way, and nobody is told of it.
        self._log.fenced = True
        self.waiters.fail_all(StorageFailed(f"{self.name} is offline: {error}"))
        self.waiters.wake_fetches()

    def retire(self, error: OttlaError) -> None:
        """The partition is not here any more: whoever waits is told why, whoever reads is woken.

        From here on it writes nothing: its directory's name may soon be another topic's.
        """
        self.is_retired = True
        if self._home.is_taken:
            self._log.take_back()
        self.waiters.fail_all(error)
        self.waiters.wake_fetches()

    def leave(self, error: OttlaError) -> None:
        """As `retire`, and its files go as well.

        A ticket under way keeps its files open until it is back. The others are closed by whoever
        removes the directory.
        """
        self.retire(error)
        self.flusher.forget(self)
        self._log.fenced = True

    def abandon(self) -> None:
        """Closes its files as they are."""
        self._log.abandon()

    def begin_close(self, take: Callable[[ShortLog], None] | None = None) -> SyncTicket | None:
        """Blocking: writes out all that a clean start needs. Sync the ticket, `finish_close` it.

        A short log tells it to `take` instead, who has to make it durable.
        """
        return self._log.begin_close(take)

    def finish_close(self, ticket: SyncTicket | None) -> None:
        self._log.finish_close(ticket)

    def close(self) -> None:
        """Blocking: syncs and closes it alone."""
        self._log.close()
