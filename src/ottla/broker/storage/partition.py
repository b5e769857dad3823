"""The one owner of a partition: its log, its high watermark, and who waits for it."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.network.waiting import PLENTY_BYTES, EndWaiters
from ottla.broker.storage.opening import Opened, check_keys
from ottla.broker.storage.partition_files import Home, PartitionWrite
from ottla.config import TopicConfig
from ottla.errors import (
    CorruptBatch,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTransactionState,
    MessageTooLarge,
    OffsetOutOfRange,
    OttlaError,
    StorageFailed,
    TooLargeToOpen,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from ottla.log.corruption import Corruption
from ottla.log.directory import DataDirectory
from ottla.log.hints import Hints
from ottla.log.log import Appended, Log, LogPosition, SyncTicket
from ottla.log.values import NO_TIMESTAMP
from ottla.types import ALWAYS_SYNCED_TOPICS, NO_EPOCH, TopicId, TopicPartition
from ottla.wire.compression import Compression
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_produced,
    read_header,
    recompress,
    stamp_append_time,
)
from ottla.wire.scanning import all_at_once
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.metrics.counters import TopicMetrics
    from ottla.broker.network.waiting import CommitWaiter, ParkedFetch
    from ottla.broker.storage.flusher import Flusher

logger = logging.getLogger(__name__)

PROBE_BYTES_MAX: Final = 1024 * 1024
# So much may wait for a deleted topic of the same name to make room.
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
_REFUSED_BITS: Final = TRANSACTIONAL_BIT | CONTROL_BIT


def _damage_of(log: Log) -> OSError:
    return OSError(errno.EIO, f"damaged: {log.corruption}")


class Partition:
    """Offset assignment, checks and enqueueing are one step without an await in between.

    The high watermark is where consumers stop: behind the last synced batch, or behind the last
    written one where the topic asks for `write.caching` and is none of the broker's own.
    """

    __slots__ = (
        "_ahead_ms_max",
        "_batch_bytes_max",
        "_behind_ms_max",
        "_commit_waiters",
        "_compression",
        "_failed_bytes",
        "_failure",
        "_home",
        "_is_queued",
        "_is_reopening",
        "_queued_bytes",
        "_when_not_busy",
        "_write",
        "_write_waiters",
        "config",
        "fetch_waiters",
        "flusher",
        "high_watermark",
        "index",
        "is_append_time",
        "is_compacted",
        "is_offline",
        "is_retired",
        "is_synced_eagerly",
        "leader_epoch",
        "log",
        "metrics",
        "name",
        "planned_start",
        "topic_id",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: TopicId,
        log: Log,
        leader_epoch: int,
        config: TopicConfig,
        flusher: Flusher,
        metrics: TopicMetrics,
        home: Home,
    ) -> None:
        self.name = name
        self.index = name.partition
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = leader_epoch
        self.metrics = metrics
        self.high_watermark: LogPosition = log.synced
        self.fetch_waiters: set[ParkedFetch] = set()
        self.flusher = flusher
        self._home = home
        self._commit_waiters: deque[tuple[int, CommitWaiter, Any]] = deque()
        self._write_waiters: list[tuple[CommitWaiter, Any]] = []
        self._write: PartitionWrite | None = None
        self._when_not_busy: list[Callable[[], None]] = []
        self._is_reopening = False
        self._is_queued = False
        self.is_retired = False
        self.is_offline = False
        # Where the log will begin once the checkpoint says so.
        self.planned_start = 0
        self._queued_bytes = 0
        self._failure: OSError | None = None
        self._failed_bytes = 0
        self.configure(config)

    @property
    def data(self) -> DataDirectory:
        """The data directory that it lies in."""
        return self._home.data

    def configure(self, config: TopicConfig) -> None:
        """Takes new topic settings; what the hot path asks for is kept at hand."""
        self.config = config
        self.is_append_time = config.message_timestamp_type == "LogAppendTime"
        self.is_compacted = "compact" in config.cleanup_policy
        self._compression = (
            None
            if config.compression_type == "producer"
            else Compression.NONE
            if config.compression_type == "uncompressed"
            else Compression[config.compression_type.upper()]
        )
        is_own = self.name.topic in ALWAYS_SYNCED_TOPICS
        self.is_synced_eagerly = is_own or not config.write_caching
        self._batch_bytes_max = config.max_message_bytes
        self._ahead_ms_max = config.message_timestamp_after_max_ms
        self._behind_ms_max = config.message_timestamp_before_max_ms

    def lead(self, epoch: int) -> None:
        """Begins to lead under a new epoch."""
        self.leader_epoch = epoch
        self.log.start_epoch(epoch)

    # ------------------------------------------------------------------------------- appending

    @property
    def is_cold(self) -> bool:
        """Whether an append would have to wait for the disk: then `warm_up` first."""
        return self.log.is_cold and not self.log.fenced

    async def warm_up(self, threads: Executor | None = None) -> None:
        """Reads in a thread what the first append after a start needs."""
        log = self.log
        loop = asyncio.get_running_loop()
        log.warm(*await loop.run_in_executor(threads, log.fetch_indexes))

    @property
    def must_recompress(self) -> bool:
        return self._compression is not None

    def recompressed(self, records: Buffer) -> Buffer:
        """Blocking: the same batch under the topic's own codec."""
        header = check_produced(records)
        if (
            self._compression is None
            or header.compression == self._compression
            or self.is_too_large(records)
        ):
            return records
        try:
            return recompress(
                records, self._compression, self._batch_bytes_max - BATCH_HEADER_BYTES
            )
        except TooLargeToOpen:
            raise
        except CorruptBatch as error:
            raise InvalidRecord(f"the records of the batch cannot be read: {error}") from None

    def is_too_large(self, records: Buffer) -> bool:
        """Whether it is refused for its size, so that nobody need look into it."""
        return len(records) > self._batch_bytes_max

    def append(self, records: Buffer, now_ms: int, opened: Opened | None = None) -> Appended:
        """Takes one produced batch: checks, offsets, queue. It is written when the turn ends.

        What is in it is looked at here, unless somebody has `opened` it because it holds much.
        """
        view = memoryview(records)
        header = check_produced(view)
        if header.attributes & _REFUSED_BITS:
            if header.is_control:
                raise InvalidRecord("clients may not write control batches")
            raise InvalidTransactionState("transactions are not supported yet")
        if len(view) > self._batch_bytes_max:
            raise MessageTooLarge(
                f"a batch of {len(view)} bytes is above max.message.bytes="
                f"{self._batch_bytes_max} of {self.name.topic}"
            )
        if self.is_append_time:
            stamp_append_time(view, now_ms)
            header = read_header(view)
        elif (
            header.max_timestamp - now_ms > self._ahead_ms_max
            or now_ms - header.base_timestamp > self._behind_ms_max
        ):
            self._refuse_timestamps(header, now_ms)
        if opened is not None:
            if opened.refusal is not None:
                raise opened.refusal
        elif self.is_compacted:
            all_at_once(check_keys(self.name.topic, view, header))
        return self.append_trusted(view, header, now_ms)

    def append_trusted(self, view: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Appends a batch that needs no checks: the broker's own, or one just checked."""
        if self.flusher.is_full:
            raise StorageFailed(f"{self.name}: too much waits for the disk already")
        appended = self.log.append(view, header, self.leader_epoch, now_ms)
        if not appended.is_duplicate:
            self.metrics.messages_in += header.count
            self.metrics.bytes_in += len(view)
            self._queued_bytes += len(view)
            if not self._is_queued:
                self._is_queued = True
                self.flusher.queue(self)
            elif self.flusher.is_holding:
                self.flusher.hold_more(len(view))
        return appended

    def refuse(self, records: Buffer | None, now_ms: int) -> None:
        """What a producer sent came to nothing, whatever was wrong, before it was appended.

        What it has sent after that is on its way already, and may not take its place.
        """
        with suppress(CorruptBatch):
            self.log.refuse(read_header(records or b""), now_ms)

    def roll(self, now_ms: int) -> None:
        """Ends the segment being written to; the next one's file comes when the turn ends."""
        self.log.roll(now_ms)
        if not self._is_queued:
            self._is_queued = True
            self.flusher.queue(self)

    def _refuse_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        if header.max_timestamp == NO_TIMESTAMP:
            return
        if header.max_timestamp - now_ms > self._ahead_ms_max:
            raise InvalidTimestamp(
                f"timestamp {header.max_timestamp} is further ahead of the broker's clock than "
                f"message.timestamp.after.max.ms={self._ahead_ms_max}"
            )
        raise InvalidTimestamp(
            f"timestamp {header.base_timestamp} is further behind the broker's clock than "
            f"message.timestamp.before.max.ms={self._behind_ms_max}"
        )

    def wait_written(self, waiter: CommitWaiter, item: Any) -> None:
        """`waiter` is told when what is queued now is written."""
        if self._is_queued or self._queued_bytes or self._write is not None:
            self._write_waiters.append((waiter, item))
        else:
            waiter.committed(item)

    def wait_committed(self, end_offset: int, waiter: CommitWaiter, item: Any) -> None:
        """`waiter` is told when the high watermark has reached `end_offset`."""
        if end_offset <= self.high_watermark.offset:
            waiter.committed(item)
        elif self.log.fenced or self.is_retired:
            waiter.failed(item, StorageFailed(f"{self.name} takes no more writes"))
        else:
            self._commit_waiters.append((end_offset, waiter, item))

    @property
    def is_settling(self) -> bool:
        """Whether some of what was appended is still on its way to the high watermark."""
        log = self.log
        is_behind = self.high_watermark.offset < log.end_offset
        return is_behind and not (log.fenced or self.is_retired)

    def end_waiters(self) -> EndWaiters:
        """Who is told when all that is appended by now is committed, or refused."""
        end_offset, waiters = self.log.end_offset, self._commit_waiters
        if waiters and waiters[-1][0] == end_offset and isinstance(waiters[-1][1], EndWaiters):
            return waiters[-1][1]
        gathered = EndWaiters()
        self.wait_committed(end_offset, gathered, None)
        return gathered

    # ------------------------------------------------------------------- what the flusher calls

    def write_queued(self) -> int:
        """Writes this turn's batches; returns how many bytes."""
        self._is_queued = False
        if self._home.is_taken and self._queued_bytes <= HELD_BYTES_MAX and not self.is_retired:
            return 0
        byte_count, self._queued_bytes = self._queued_bytes, 0
        waiters, self._write_waiters = self._write_waiters, []
        if self.log.fenced or self.is_retired:
            failure = StorageFailed(f"{self.name} takes no more writes")
            for waiter, item in waiters:
                waiter.failed(item, failure)
            return 0
        try:
            self._lay_out()
            self.log.write()
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
        return self._home.is_to_be_laid_out or self.log.makes_files

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def is_being_written(self) -> bool:
        """A thread writes to its files just now."""
        return self._write is not None

    @property
    def is_busy(self) -> bool:
        """A thread writes to its files, or opens them again: its directory has to stay."""
        return self._write is not None or self._is_reopening

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
            for tell in tell_all:
                tell()

    def when_not_busy(self, tell: Callable[[], None]) -> None:
        """Calls `tell` once no thread is at its files any more."""
        if not self.is_busy:
            tell()
        else:
            self._when_not_busy.append(tell)

    def begin_write(self) -> PartitionWrite | None:
        """All that is queued, for a thread; None when nothing is to be written."""
        writing = None
        self._is_queued = False
        if not self.log.fenced and not self.is_retired:
            if self._home.is_taken and self._queued_bytes <= HELD_BYTES_MAX:
                return None
            writing = self.log.begin_write()
        if writing is None:
            self.write_queued()
            return None
        byte_count, self._queued_bytes = self._queued_bytes, 0
        waiters, self._write_waiters = self._write_waiters, []
        self._write = PartitionWrite(self, self._home, writing, byte_count, waiters)
        return self._write

    def begin_saving(self, hints: Hints) -> PartitionWrite | None:
        """Hints for recovery, for the same thread; None when they are outdated."""
        saving = None if self.is_retired else self.log.begin_saving(hints)
        if saving is not None:
            self._write = PartitionWrite(self, self._home, saving, 0, [])
        return None if saving is None else self._write

    def finish_write(self, write: PartitionWrite) -> int:
        """The thread is back; returns how many bytes it wrote."""
        self._write = None
        write.settle(self.log)
        self._tell_not_busy()
        if self.log.fenced or self.is_retired:
            failure = StorageFailed(f"{self.name} takes no more writes")
            for waiter, item in write.waiters:
                waiter.failed(item, failure)
            return 0
        if not write.has_batches:
            if write.is_probe and write.error is None and self._failure is not None:
                self._recovered()
            if not self._queued_bytes and not self._is_queued:
                # Repetitions of what had been written before.
                waiters, self._write_waiters = self._write_waiters, []
                for waiter, item in waiters:
                    waiter.committed(item)
            return 0
        if write.error is not None:
            later, self._write_waiters = self._write_waiters, []
            self._queued_bytes = 0
            self._failed_bytes = min(write.byte_count, PROBE_BYTES_MAX)
            self._fail_write(write.error, [*write.waiters, *later])
            return 0
        waiters = write.waiters
        if not self._queued_bytes:
            # Repetitions of what was being written: nothing else is to come for them.
            waiters, self._write_waiters = [*waiters, *self._write_waiters], []
        self._wrote(waiters)
        return write.byte_count

    def _wrote(self, waiters: list[tuple[CommitWaiter, Any]]) -> None:
        if self._failure is not None:
            self._recovered()
        for waiter, item in waiters:
            waiter.committed(item)
        if not self.is_synced_eagerly:
            self._advance(self.log.written)

    def _lay_out(self) -> None:
        try:
            self._home.lay_out()
        except OSError:
            self.log.take_back()
            raise

    @property
    def has_directory(self) -> bool:
        return self._home.is_laid_out

    def await_directory(self) -> None:
        """Its directory's name is not free yet: what it is given to write, it keeps."""
        self._home.is_taken = True

    def move_in(self) -> None:
        """The name is free: what was kept is written."""
        self._home.is_taken = False
        if self._queued_bytes and not self._is_queued:
            self._is_queued = True
            self.flusher.queue(self)

    def settle(self, is_all_synced: bool) -> None:
        """In the sync thread, with the sync of the first batch."""
        self._home.settle(is_all_synced)

    def finish_sync(self, ticket: SyncTicket) -> None:
        if not self.log.gave(ticket):
            # The log was opened again meanwhile, and may have been cut before the ticket's end.
            ticket.give_up()
            return
        self.log.finish_sync(ticket)
        if self.log.synced.offset > self.high_watermark.offset:
            self._advance(self.log.synced)

    def fail_sync(self, ticket: SyncTicket, error: OSError) -> None:
        """After a failed sync nobody knows what is on disk: the partition stops taking writes.

        Also when the log was opened again meanwhile: it is the same file.
        """
        self.log.fail_sync(ticket)
        if self.is_retired:
            return
        logger.error("%s: sync failed, the partition is fenced: %s", self.name, error)
        self._failure = error
        self._fail_waiters(StorageFailed(f"{self.name}: sync failed: {error}"))

    def condemn(self, corruption: Corruption) -> None:
        """Damage was found in the log: what lies outside of it is served, nothing more is taken."""
        logger.error("%s is damaged and fenced: %s", self.name, corruption)
        self.log.condemn(corruption)
        self._fail_waiters(StorageFailed(f"{self.name} is damaged: {corruption}"))
        for fetch in tuple(self.fetch_waiters):
            fetch.wake()

    def _fail_write(self, error: OSError, waiters: list[tuple[CommitWaiter, Any]]) -> None:
        if self._failure is None:
            logger.error("%s: write refused: %s", self.name, error)
        self._failure = error
        failure = StorageFailed(f"{self.name}: write refused: {error}")
        for waiter, item in waiters:
            waiter.failed(item, failure)
        end = self.log.end_offset
        waiting, self._commit_waiters = self._commit_waiters, deque()
        # The offsets behind the end will be given to others: nobody may go on waiting for them.
        for entry in waiting:
            if entry[0] <= end:
                self._commit_waiters.append(entry)
            else:
                entry[1].failed(entry[2], failure)
        self._tell_end_went_back()

    def _advance(self, position: LogPosition) -> None:
        assert position.offset <= self.log.end_offset, f"{self.name}: {position} is not there"
        before, self.high_watermark = self.high_watermark, position
        waiters = self._commit_waiters
        while waiters and waiters[0][0] <= position.offset:
            _, waiter, item = waiters.popleft()
            waiter.committed(item)
        if self.fetch_waiters:
            # What lies in an older segment is all that a read of it gets: nobody waits for more.
            arrived = PLENTY_BYTES
            if position.segment_base == before.segment_base:
                arrived = position.bytes_in_segment - before.bytes_in_segment
            for fetch in tuple(self.fetch_waiters):
                fetch.arrived(self, arrived)

    def _tell_end_went_back(self) -> None:
        for fetch in tuple(self.fetch_waiters):
            fetch.went_back(self)

    def begin_probe(self) -> PartitionWrite | None:
        """Finds out whether the disk takes again what it refused, without waiting for a client."""
        if self._failure is None or self.log.fenced or self.is_retired:
            return None
        probing = self.log.begin_probe(self._failed_bytes)
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

    def heal(self, log: Log, now_ms: int) -> None:
        """Goes on with a log that was opened anew after a failed sync, cut where it was synced.

        The leader epoch is a new one by now: under the old one other batches would get the offsets
        of those that were cut, and nobody could tell who has which.
        """
        assert self.leader_epoch > log.latest_epoch, f"{self.name} was cut within an epoch"
        logger.warning("%s: opened again at offset %d", self.name, log.end_offset)
        log.inherit(self.log, now_ms)
        self._home.doubt()
        self.log = log
        self.lead(self.leader_epoch)
        self.high_watermark = log.synced
        self._failure = None
        self._tell_end_went_back()

    @property
    def failure(self) -> OSError | None:
        """Why the disk does not take this partition's writes, if it does not."""
        return self._failure if self.log.corruption is None else _damage_of(self.log)

    # --------------------------------------------------------------------------------- reading

    def check_epoch(self, known_epoch: int) -> None:
        """A client that says which leader it talks to must be talking to this one (KIP-320)."""
        if self.is_offline:
            raise StorageFailed(f"{self.name} is offline: {self._failure}")
        if known_epoch == NO_EPOCH or known_epoch == self.leader_epoch:
            return
        if known_epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.name} is at leader epoch {self.leader_epoch}")
        raise UnknownLeaderEpoch(f"{self.name} is at leader epoch {self.leader_epoch}")

    def read(self, offset: int, max_bytes: int, *, cached_only: bool) -> Buffer | None:
        """Committed batches from `offset` on; None when the disk would have to be waited for.

        There are none yet between the high watermark and the end of the log.
        """
        limit = self.high_watermark
        if offset >= limit.offset:
            if offset > self.log.end_offset:
                raise OffsetOutOfRange(f"{self.name} ends at {self.log.end_offset}, not {offset}")
            return b""
        try:
            return self.log.read(offset, max_bytes, limit, cached_only=cached_only)
        except FileNotFoundError:
            if self.is_retired:
                raise UnknownTopicOrPartition(f"{self.name} was deleted") from None
            raise

    def start_for(self, offset: int) -> int:
        """Where the log begins once all before `offset` is deleted; -1 is all that is committed."""
        target = self.high_watermark.offset if offset == -1 else offset
        if not 0 <= target <= self.high_watermark.offset:
            raise OffsetOutOfRange(
                f"{self.name} is committed up to {self.high_watermark.offset}, not {target}"
            )
        return max(target, self.log.start_offset)

    @property
    def durable_start(self) -> int:
        """The start offset for the checkpoint: nobody sees one before it is on disk."""
        return max(self.planned_start, self.log.start_offset)

    def go_offline(self, error: OSError) -> None:
        """Its directory has failed: it takes nothing and serves nothing until the next start."""
        self.is_offline = True
        self._failure = error
        # Its files stay open: a sync or a write may be under way, and nobody is told of it.
        self.log.fenced = True
        self._fail_waiters(StorageFailed(f"{self.name} is offline: {error}"))
        for fetch in tuple(self.fetch_waiters):
            fetch.wake()

    def retire(self, error: OttlaError) -> None:
        """The partition is gone: whoever waits is told why, whoever reads is woken.

        From here on it writes nothing: its directory's name may soon be another topic's.
        """
        self.is_retired = True
        if self._home.is_taken:
            self.log.take_back()
        self._fail_waiters(error)
        for fetch in tuple(self.fetch_waiters):
            fetch.wake()

    def _fail_waiters(self, error: OttlaError) -> None:
        written, self._write_waiters = self._write_waiters, []
        committed, self._commit_waiters = self._commit_waiters, deque()
        for waiter, item in written:
            waiter.failed(item, error)
        for _, waiter, item in committed:
            waiter.failed(item, error)
