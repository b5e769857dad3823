"""The one owner of a partition: what it takes, what it serves, and under which settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.broker.storage.opening import Opened, check_keys
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.partition_replica import PartitionReplica
from ottla.broker.storage.waiters import told
from ottla.config import TopicConfig
from ottla.errors import (
    CorruptBatch,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageFailed,
    TooLargeToOpen,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from ottla.log.aborted import AbortedTransaction
from ottla.log.copying import Contents, contents_of
from ottla.log.corruption import Corruption
from ottla.log.inspection.scrub import Stretch, is_still_there, stretch_from
from ottla.log.log import Appended, Log, LogConfig, LogPosition
from ottla.log.lookup import GoThrough, Moment
from ottla.log.markers import ABORT, COMMIT, Marker
from ottla.log.producer_state import Producer
from ottla.log.relocation import relocated
from ottla.log.segment import Segment
from ottla.log.values import NO_TIMESTAMP
from ottla.log.verification import Verification
from ottla.types import (
    ALWAYS_SYNCED_TOPICS,
    NO_EPOCH,
    LeaderEpoch,
    NodeId,
    ProducerId,
    TopicId,
    TopicPartition,
)
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
    from ottla.broker.counters import TopicMetrics
    from ottla.broker.storage.flusher import Flusher

_TRANSACTION_BITS: Final = TRANSACTIONAL_BIT | CONTROL_BIT

# Runs blocking work in a thread.
Run: TypeAlias = Callable[..., Awaitable[Any]]
# Blocking: what a search through a log finds.
Search: TypeAlias = Callable[[GoThrough], Moment | None]


class Partition(PartitionReplica):
    """Offset assignment, checks and enqueueing are one step without an await in between.

    The high watermark is where consumers stop: after the last batch that all in-sync replicas have
    synced, or written where the topic asks for `write.caching` and is none of the broker's own.
    """

    __slots__ = (
        "_after_ms_max",
        "_batch_bytes_max",
        "_before_ms_max",
        "_compression",
        "_planned_start",
        "config",
        "index",
        "is_append_time",
        "is_compacted",
        "is_following_throttled",
        "is_leading_throttled",
        "metrics",
        "topic_id",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: TopicId,
        log: Log,
        leader_epoch: LeaderEpoch,
        config: TopicConfig,
        flusher: Flusher,
        metrics: TopicMetrics,
        home: Home,
        node_id: NodeId,
        high_watermark: LogPosition | None = None,
    ) -> None:
        """Without a role; without a high watermark, all that is found counts as committed."""
        super().__init__(name, log, flusher, home, node_id, leader_epoch, high_watermark)
        self.index = name.partition
        self.topic_id = topic_id
        self.metrics = metrics
        self._planned_start = 0
        self.configure(config)

    def configure(self, config: TopicConfig, log_config: LogConfig | None = None) -> None:
        """Takes new topic settings; what the hot path asks for is kept at hand."""
        self.config = config
        if log_config is not None:
            self._log.config = log_config
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
        self._after_ms_max = config.message_timestamp_after_max_ms
        self._before_ms_max = config.message_timestamp_before_max_ms
        self.is_leading_throttled = self._is_named(config.leader_replication_throttled_replicas)
        self.is_following_throttled = self._is_named(config.follower_replication_throttled_replicas)
        if self._in_sync_min != config.min_insync_replicas:
            self._in_sync_min = config.min_insync_replicas
            self._in_sync_min_changed()

    def _is_named(self, replicas: Collection[str]) -> bool:
        """Whether this replica is among those that are throttled."""
        return "*" in replicas or f"{self.index}:{self.node_id}" in replicas

    def _count_isr(self, before: frozenset[int], after: frozenset[int]) -> None:
        self.metrics.isr_shrinks += bool(before - after)
        self.metrics.isr_expansions += bool(after - before)

    def heal(self, log: Log, now_ms: int) -> None:
        """Goes on with a log that was opened anew after a failed sync, cut where it was synced.

        A leader has a new epoch by now: under the old one other batches would get the offsets of
        those that were cut, and nobody could tell who has which.
        """
        is_new_epoch = self.leader_epoch > log.latest_epoch
        assert is_new_epoch or not self.is_elected, f"{self.name} was cut within an epoch"
        self._replace_log(log, now_ms)

    # ------------------------------------------------------------------------------- appending

    @property
    def is_cold(self) -> bool:
        """Whether an append would have to wait for the disk: then `warm_up` first."""
        return self._log.is_cold and not self._log.fenced

    async def warm_up(self, run: Run) -> None:
        """Reads in a thread what the first append after a start needs."""
        log = self._log
        log.warm(*await run(log.fetch_indexes))

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

    def append(
        self,
        records: Buffer,
        now_ms: int,
        opened: Opened | None = None,
        verification: Verification | None = None,
    ) -> Appended:
        """Takes one produced batch: checks, offsets, queue. It is written when the turn ends.

        What is in it is looked at here, unless somebody has `opened` it because it holds much. The
        first batch of a transaction comes with its `verification`, where these are asked for.
        """
        if not self.is_leader:
            self.check_leader()
        view = memoryview(records)
        header = check_produced(view)
        if header.attributes & _TRANSACTION_BITS:
            _check_transactional(header)
        if len(view) > self._batch_bytes_max:
            raise MessageTooLarge(
                f"a batch of {len(view)} bytes is above max.message.bytes="
                f"{self._batch_bytes_max} of {self.name.topic}"
            )
        if self.is_append_time:
            stamp_append_time(view, now_ms)
            header = read_header(view)
        elif (
            header.max_timestamp - now_ms > self._after_ms_max
            or now_ms - header.base_timestamp > self._before_ms_max
        ):
            self._check_timestamps(header, now_ms)
        if opened is not None:
            if opened.refusal is not None:
                raise opened.refusal
        elif self.is_compacted:
            all_at_once(check_keys(self.name.topic, view, header))
        return self._take(view, header, now_ms, verification)

    def append_own(
        self,
        view: memoryview,
        header: BatchHeader,
        now_ms: int,
        verification: Verification | None = None,
    ) -> Appended:
        """Appends a batch of the broker's own, which needs no checks but those of a producer's
        epoch and transaction, where it is of one.
        """
        self.check_leader()
        return self._take(view, header, now_ms, verification, is_own=True)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        now_ms: int,
        *,
        is_commit: bool,
        version: int = 0,
    ) -> Appended:
        """Ends a producer's transaction here; it has ended once all before `end_offset` of the
        answer is committed, also where the marker was in the log already.

        `version` is that of transactions, by which the coordinator goes: from 2 on, the epoch is
        larger than that of the transaction's batches.
        """
        self.check_leader()
        self._check_room()
        marker = Marker(COMMIT if is_commit else ABORT, coordinator_epoch)
        log = self._log
        bytes_before = log.size_bytes
        appended = log.append_marker(
            producer_id, producer_epoch, marker, self.leader_epoch, now_ms, version
        )
        if not appended.is_duplicate:
            self._queue_bytes(log.size_bytes - bytes_before)
        return appended

    def _check_room(self) -> None:
        if self.flusher.is_full:
            raise StorageFailed(f"{self.name}: too much waits for the disk already")

    def _take(
        self,
        view: memoryview,
        header: BatchHeader,
        now_ms: int,
        verification: Verification | None,
        is_own: bool = False,
    ) -> Appended:
        if self.flusher.is_full:
            self._check_room()
        log = self._log
        end_offset = log.end_offset
        try:
            appended = log.append(
                view, header, self.leader_epoch, now_ms, verification, None, is_own
            )
        except OutOfOrderSequence:
            if self._failure is None:
                raise
            # What should come before it was refused. Told that it is out of order, librdkafka would
            # begin a new epoch, and send under that what other nodes have already.
            raise StorageFailed(f"{self.name}: writes are refused: {self._failure}") from None
        if not appended.is_duplicate:
            assert appended.base_offset == end_offset, f"{self.name} has a hole at {end_offset}"
            self.metrics.messages_in += header.count
            self.metrics.bytes_in += len(view)
            self._queue_bytes(len(view))
        return appended

    def note_refused(self, records: Buffer | None, now_ms: int) -> None:
        """What a producer sent came to nothing, whatever was wrong, before it was appended.

        What it has sent after that is on its way already, and may not take its place.
        """
        if not self.is_leader:
            return
        with suppress(CorruptBatch):
            self._log.refuse(read_header(records or b""), now_ms)

    def _check_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        if header.max_timestamp == NO_TIMESTAMP:
            return
        if header.max_timestamp - now_ms > self._after_ms_max:
            raise InvalidTimestamp(
                f"timestamp {header.max_timestamp} is further ahead of the broker's clock than "
                f"message.timestamp.after.max.ms={self._after_ms_max}"
            )
        raise InvalidTimestamp(
            f"timestamp {header.base_timestamp} is further behind the broker's clock than "
            f"message.timestamp.before.max.ms={self._before_ms_max}"
        )

    # --------------------------------------------------------------------------------- reading

    def check_epoch(self, known_epoch: int, *, is_follower_enough: bool = False) -> None:
        """A client that says which leader it talks to must be talking to this one (KIP-320)."""
        if self.is_offline:
            raise StorageFailed(f"{self.name} is offline: {self._failure}")
        if known_epoch == NO_EPOCH or known_epoch == self.leader_epoch:
            if not (self.is_leader or (is_follower_enough and not self._is_suspended)):
                self.check_leader()
            return
        if known_epoch < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.name} is at leader epoch {self.leader_epoch}")
        raise UnknownLeaderEpoch(f"{self.name} is at leader epoch {self.leader_epoch}")

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a batch of this producer and epoch goes on with a transaction."""
        return self._log.has_open_transaction(producer_id, epoch)

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> Verification | None:
        """Before the coordinator is asked about a transaction that begins with this batch: what to
        `append` it with afterwards. None when it has begun already, or needs no question.
        """
        if not self._log.config.verifies_transactions:
            return None
        return self._log.begin_verification(producer_id, epoch, sequence, now_ms)

    def producers(self, count_max: int) -> list[tuple[int, Producer]]:
        """So many of those it knows, with their ids; first those with an open transaction."""
        return self._log.producers(count_max)

    def read_stable(
        self,
        offset: int,
        max_bytes: int,
        limit: LogPosition,
        *,
        cached_only: bool,
        known: Buffer | None = None,
    ) -> tuple[Buffer, list[AbortedTransaction]] | None:
        """As `read`, up to `limit`, which is `last_stable`, with the aborted transactions in it;
        `known` is what another has read of just this, in the same turn.
        """
        log = self._log
        if offset >= limit.offset:
            if offset > log.end_offset:
                raise OffsetOutOfRange(f"{self.name} ends at {log.end_offset}, not {offset}")
            return b"", []
        try:
            return log.read_stable(offset, max_bytes, limit, cached_only=cached_only, known=known)
        except FileNotFoundError:
            if self.is_retired:
                raise UnknownTopicOrPartition(f"{self.name} was deleted") from None
            raise

    def read(self, offset: int, max_bytes: int, *, cached_only: bool) -> Buffer | None:
        """Committed batches from `offset` on; None when the disk would have to be waited for.

        There are none yet between the high watermark and the end of the log.
        """
        limit, log = self.high_watermark, self._log
        if offset >= limit.offset:
            if offset > log.end_offset:
                raise OffsetOutOfRange(f"{self.name} ends at {log.end_offset}, not {offset}")
            return b""
        try:
            return log.read(offset, max_bytes, limit, cached_only=cached_only)
        except FileNotFoundError:
            if self.is_retired:
                raise UnknownTopicOrPartition(f"{self.name} was deleted") from None
            raise

    def search_time(self, timestamp_ms: int, limit: LogPosition) -> Search:
        """For the first record that is not older, before the high watermark or `last_stable`."""
        return partial(self._log.first_at_or_after, timestamp_ms, limit)

    def search_youngest(self, limit: LogPosition) -> Search:
        """For the first of the youngest records there."""
        return partial(self._log.max_timestamp, limit)

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        """After the last batch that was appended, committed or not."""
        return self._log.end_offset

    def epoch_at(self, offset: int) -> LeaderEpoch:
        return self._log.epoch_at(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch up to this one, where it ends); (-1, -1) when that is unknown."""
        return self._log.end_offset_for_epoch(epoch)

    def start_for(self, offset: int) -> int:
        """Where the log begins once all before `offset` is deleted; -1 is all that is committed."""
        target = self.high_watermark.offset if offset == -1 else offset
        if not 0 <= target <= self.high_watermark.offset:
            raise OffsetOutOfRange(
                f"{self.name} is committed up to {self.high_watermark.offset}, not {target}"
            )
        return max(target, self._log.start_offset)

    @property
    def durable_start(self) -> int:
        """The start offset for the checkpoint: nobody sees one before it is on disk."""
        return max(self._planned_start, self._log.start_offset)

    def plan_start(self, offset: int) -> None:
        """The log begins there once the checkpoint says so; 0: there is no such plan."""
        self._planned_start = offset

    def delete_before(self, offset: int) -> Sequence[Segment]:
        """Moves the start, which is durable; returns the segments that have left the log."""
        is_closed = self.is_retired or self._log.fenced or self._is_cut_under_way
        if is_closed or offset > self._log.end_offset:
            return ()
        before = self._log.start_offset
        gone = self._log.delete_before(offset)
        if self._log.start_offset != before:
            self.waiters.have_news(self)
        return gone

    def set_aside(self, segments: Sequence[Segment]) -> list[str]:
        """Blocking: renames files of segments that have left; returns what is to be removed."""
        return self._log.set_aside(segments)

    # ------------------------------------------------------------- moving to another directory

    def contents(self) -> Contents:
        """What of its log is written, for a copy of it."""
        return contents_of(self._log)

    @asynccontextmanager
    async def pausing(self, quiet_s_max: float) -> AsyncIterator[None]:
        """In here nobody writes to its files, and nobody syncs them. What is appended waits, and
        reads go on. TimeoutError where the disk does not come to rest.
        """
        self._is_paused = True
        try:
            async with asyncio.timeout(quiet_s_max):
                while not self.is_quiet:
                    if self._log.fenced or self.is_retired:
                        raise StorageFailed(f"{self.name} takes no more writes")
                    await told(self.when_quiet)
            self._is_cut_under_way = True
            yield
        finally:
            self._is_paused = self._is_cut_under_way = False
            self._tell_not_busy()
            if self._queued_bytes:
                self._queue()
            self.flusher.go_on_with(self)

    def move_to(self, home: Home, flusher: Flusher) -> Callable[[], None]:
        """While `pausing`: its files are there by now, all of them synced. What is returned closes
        the old ones, and blocks.
        """
        assert self._is_cut_under_way, f"{self.name} moves while it is written to"
        self.flusher.let_go(self)
        self._log, close_files = relocated(self._log, home.data.partition_path(self.name))
        self._home, self.flusher = home, flusher
        self._is_queued = False
        self._failure = None
        self._became_durable(self._log.synced)
        return close_files

    # ----------------------------------------------------------------------- checks of its files

    def stretch_from(self, offset: int) -> Stretch | None:
        """The first segment that begins at or after `offset` and has synced bytes."""
        return stretch_from(self._log, offset)

    def holds(self, stretch: Stretch) -> bool:
        """False when it was compacted, deleted or cut meanwhile."""
        return is_still_there(self._log, stretch)

    def take_suspicion(self) -> Stretch | None:
        """Where a read has met something that is no batch, told once."""
        log = self._log
        suspicion: Corruption | None = log.suspicion
        if suspicion is None or log.corruption is not None:
            return None
        log.suspicion = None
        for segment in log.segments:
            if segment.handle.path == suspicion.path:
                return stretch_from(log, segment.base_offset)
        return None

    # ------------------------------------------------------------------------------- in figures

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def segment_count(self) -> int:
        return self._log.segment_count

    @property
    def durable_bytes(self) -> int:
        """What the next start has to find, after a clean stop."""
        return self._log.bytes_from(self.durable_start)

    def producer_ids(self) -> list[ProducerId]:
        return [ProducerId(one) for one in self._log.producer_ids()]

    def expire_producers(self, now_ms: int, ids: Iterable[ProducerId]) -> None:
        self._log.expire_producers(now_ms, ids)

    def last_data_of_producers(self) -> dict[int, tuple[int, int]]:
        """By producer the offset of its last batch, and its epoch."""
        return self._log.last_data_of_producers()


def _check_transactional(header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRecord("clients may not write control batches")
    if header.producer_id < 0:
        raise InvalidRecord("a transactional batch without a producer id")
