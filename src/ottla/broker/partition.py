"""The one owner of a partition: its log, its high watermark, and who waits for it."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ottla.config import TopicConfig
from ottla.errors import (
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTransactionState,
    MessageTooLarge,
    OffsetOutOfRange,
    OttlaError,
    StorageFailed,
    UnknownLeaderEpoch,
)
from ottla.log.directory import DataDirectory
from ottla.log.log import Appended, Log, LogPosition, SyncTicket
from ottla.types import NO_EPOCH, TopicPartition
from ottla.wire.compression import Compression
from ottla.wire.records import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_produced,
    decode_records,
    read_header,
    recompress,
    stamp_append_time,
)
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.flusher import Flusher
    from ottla.broker.metrics import TopicMetrics
    from ottla.broker.waiting import CommitWaiter, ParkedFetch

logger = logging.getLogger(__name__)

NO_TIMESTAMP: Final = -1
PROBE_BYTES_MAX: Final = 1024 * 1024
_REFUSED_BITS: Final = TRANSACTIONAL_BIT | CONTROL_BIT


class Home:
    """A partition's directory: made with its first batch, durable with its first sync."""

    __slots__ = ("_data", "_is_laid_out", "_is_settled", "_name", "_topic_id")

    def __init__(
        self, data: DataDirectory, name: TopicPartition, topic_id: bytes, *, is_settled: bool
    ) -> None:
        self._data = data
        self._name = name
        self._topic_id = topic_id
        self._is_laid_out = self._is_settled = is_settled

    def lay_out(self) -> None:
        if not self._is_laid_out:
            self._data.lay_out(self._name, self._topic_id)
            self._is_laid_out = True

    def settle(self, is_all_synced: bool) -> None:
        """Blocking, unless the whole file system has just been synced."""
        if not self._is_settled:
            if not is_all_synced:
                self._data.settle(self._name)
            self._is_settled = True


class Partition:
    """Offset assignment, checks and enqueueing are one step without an await in between.

    The high watermark is where consumers stop: behind the last synced batch, or behind the last
    written one where the topic asks for `write.caching`.
    """

    __slots__ = (
        "_ahead_ms_max",
        "_batch_bytes_max",
        "_behind_ms_max",
        "_commit_waiters",
        "_compression",
        "_failed_bytes",
        "_failure",
        "_flusher",
        "_home",
        "_is_compacted",
        "_is_queued",
        "_queued_bytes",
        "_write_waiters",
        "config",
        "fetch_waiters",
        "high_watermark",
        "index",
        "is_append_time",
        "is_retired",
        "is_synced_eagerly",
        "leader_epoch",
        "log",
        "metrics",
        "name",
        "topic_id",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: bytes,
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
        self._flusher = flusher
        self._home = home
        self._commit_waiters: deque[tuple[int, CommitWaiter, Any]] = deque()
        self._write_waiters: list[tuple[CommitWaiter, Any]] = []
        self._is_queued = False
        self.is_retired = False
        self._queued_bytes = 0
        self._failure: OSError | None = None
        self._failed_bytes = 0
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Takes new topic settings; what the hot path asks for is kept at hand."""
        self.config = config
        self.is_append_time = config.message_timestamp_type == "LogAppendTime"
        self._is_compacted = "compact" in config.cleanup_policy
        self._compression = (
            None
            if config.compression_type == "producer"
            else Compression.NONE
            if config.compression_type == "uncompressed"
            else Compression[config.compression_type.upper()]
        )
        self.is_synced_eagerly = not config.write_caching
        self._batch_bytes_max = config.max_message_bytes
        self._ahead_ms_max = config.message_timestamp_after_max_ms
        self._behind_ms_max = config.message_timestamp_before_max_ms

    def lead(self, epoch: int) -> None:
        """Begins to lead under a new epoch."""
        self.leader_epoch = epoch
        self.log.start_epoch(epoch)

    # ------------------------------------------------------------------------------- appending

    @property
    def must_recompress(self) -> bool:
        return self._compression is not None

    def recompressed(self, records: Buffer) -> Buffer:
        """Blocking: the same batch under the topic's own codec."""
        header = check_produced(records)
        if self._compression is None or header.compression == self._compression:
            return records
        return recompress(records, self._compression)

    def append(self, records: Buffer, now_ms: int) -> Appended:
        """Takes one produced batch: checks, offsets, queue. It is written when the turn ends."""
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
        if self._is_compacted and any(record.key is None for record in decode_records(view)):
            raise InvalidRecord(f"{self.name.topic} is compacted: every message needs a key")
        return self.append_trusted(view, header, now_ms)

    def append_trusted(self, view: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Appends a batch that needs no checks: the broker's own, or one just checked."""
        appended = self.log.append(view, header, self.leader_epoch, now_ms)
        if not appended.is_duplicate:
            self.metrics.messages_in += header.count
            self.metrics.bytes_in += len(view)
            self._queued_bytes += len(view)
            if not self._is_queued:
                self._is_queued = True
                self._flusher.queue(self)
        return appended

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
        if self._is_queued:
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

    # ------------------------------------------------------------------- what the flusher calls

    def write_queued(self) -> int:
        """Writes this turn's batches; returns how many bytes."""
        self._is_queued = False
        byte_count, self._queued_bytes = self._queued_bytes, 0
        waiters, self._write_waiters = self._write_waiters, []
        if self.log.fenced or self.is_retired:
            failure = StorageFailed(f"{self.name} takes no more writes")
            for waiter, item in waiters:
                waiter.failed(item, failure)
            return 0
        try:
            self._home.lay_out()
            self.log.write()
        except OSError as error:
            self._failed_bytes = min(byte_count, PROBE_BYTES_MAX)
            self._fail_write(error, waiters)
            return 0
        if self._failure is not None:
            self._recovered()
        for waiter, item in waiters:
            waiter.committed(item)
        if not self.is_synced_eagerly:
            self._advance(self.log.written)
        return byte_count

    def settle(self, is_all_synced: bool) -> None:
        """In the sync thread, with the sync of the first batch."""
        self._home.settle(is_all_synced)

    def finish_sync(self, ticket: SyncTicket) -> None:
        self.log.finish_sync(ticket)
        if self.log.synced.offset > self.high_watermark.offset:
            self._advance(self.log.synced)

    def fail_sync(self, error: OSError) -> None:
        """After a failed sync nobody knows what is on disk: the partition stops taking writes."""
        if self.is_retired:
            self.log.fail_sync()
            return
        logger.error("%s: sync failed, the partition is fenced: %s", self.name, error)
        self._failure = error
        self.log.fail_sync()
        self._fail_waiters(StorageFailed(f"{self.name}: sync failed: {error}"))

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

    def _advance(self, position: LogPosition) -> None:
        before, self.high_watermark = self.high_watermark, position
        waiters = self._commit_waiters
        while waiters and waiters[0][0] <= position.offset:
            _, waiter, item = waiters.popleft()
            waiter.committed(item)
        if self.fetch_waiters:
            arrived = position.bytes_in_segment
            if position.segment_base == before.segment_base:
                arrived -= before.bytes_in_segment
            for fetch in tuple(self.fetch_waiters):
                fetch.arrived(arrived)

    def probe(self) -> None:
        """Finds out whether the disk takes again what it refused, without waiting for a client."""
        if self._failure is None or self.log.fenced:
            return
        try:
            self.log.probe(self._failed_bytes)
        except OSError:
            return
        self._recovered()

    def _recovered(self) -> None:
        logger.warning("%s: the disk takes writes again", self.name)
        self._failure = None

    def heal(self, log: Log) -> None:
        """Goes on with a log that was opened anew after a failed sync, cut where it was synced."""
        logger.warning("%s: opened again at offset %d", self.name, log.end_offset)
        self.log = log
        self.log.start_epoch(self.leader_epoch)
        self.high_watermark = log.synced
        self._failure = None

    @property
    def failure(self) -> OSError | None:
        """Why the disk does not take this partition's writes, if it does not."""
        return self._failure

    # --------------------------------------------------------------------------------- reading

    def check_epoch(self, known_epoch: int) -> None:
        """A client that says which leader it talks to must be talking to this one (KIP-320)."""
        if known_epoch == NO_EPOCH or known_epoch == self.leader_epoch:
            return
        if known_epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.name} is at leader epoch {self.leader_epoch}")
        raise UnknownLeaderEpoch(f"{self.name} is at leader epoch {self.leader_epoch}")

    def read(self, offset: int, max_bytes: int, *, cached_only: bool) -> Buffer | None:
        """Committed batches from `offset` on; None when the disk would have to be waited for."""
        limit = self.high_watermark
        if offset == limit.offset:
            return b""
        return self.log.read(offset, max_bytes, limit, cached_only=cached_only)

    def delete_before(self, offset: int) -> int:
        """Moves the start of the log; -1 means all that is committed. Returns the new start."""
        target = self.high_watermark.offset if offset == -1 else offset
        if not 0 <= target <= self.high_watermark.offset:
            raise OffsetOutOfRange(
                f"{self.name} is committed up to {self.high_watermark.offset}, not {target}"
            )
        if target > self.log.start_offset:
            self.log.delete_before(target)
        return self.log.start_offset

    def retire(self, error: OttlaError) -> None:
        """The partition is gone: whoever waits is told why, whoever reads is woken.

        From here on it writes nothing: its directory's name may soon be another topic's.
        """
        self.is_retired = True
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
