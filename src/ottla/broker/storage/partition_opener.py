"""Makes partitions of what a data directory has, or of nothing where they are new."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.stores import Store, is_broken
from ottla.config import BrokerConfig, TopicConfig
from ottla.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_SIZES,
    RECOVERY_POINTS,
    START_OFFSETS,
    read_offsets,
)
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig, LogPosition
from ottla.log.lost import lost_log
from ottla.log.opening.short_logs import ShortLog, read_short_logs
from ottla.ports import Clock, Disk
from ottla.types import INTERNAL_TOPICS, LeaderEpoch, NodeId, TopicId, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.counters import Metrics
    from ottla.broker.storage.departures import Departures

logger = logging.getLogger(__name__)

T = TypeVar("T")


def log_config(topic: TopicConfig, broker: BrokerConfig) -> LogConfig:
    return LogConfig(
        segment_bytes=topic.segment_bytes,
        segment_ms=_segment_ms(topic),
        segment_jitter_ms=topic.segment_jitter_ms,
        index_interval_bytes=topic.index_interval_bytes,
        segment_index_bytes=topic.segment_index_bytes,
        producer_expiry_ms=broker.producer_id_expiration_ms,
        verifies_transactions=broker.transaction_partition_verification_enable,
    )


def _segment_ms(topic: TopicConfig) -> int:
    """A segment must end before its messages are overdue for compaction, as it is not compacted
    while it is written to.
    """
    if "compact" in topic.cleanup_policy:
        return min(topic.segment_ms, topic.max_compaction_lag_ms)
    return topic.segment_ms


class Wanted(NamedTuple):
    """A partition that is to be here."""

    name: TopicPartition
    topic_id: TopicId
    leader_epoch: LeaderEpoch
    # There is no other replica: what is found here is all there is, and committed.
    is_alone: bool
    config: TopicConfig
    log_config: LogConfig


class Remembered(NamedTuple):
    """What the last run has left in a data directory about its logs."""

    recovery_points: Mapping[TopicPartition, int]
    start_offsets: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]
    sizes: Mapping[TopicPartition, int] | None
    short_logs: Mapping[TopicPartition, ShortLog]


NOTHING_REMEMBERED: Final = Remembered({}, {}, {}, None, {})


class PartitionOpener:
    def __init__(
        self,
        node_id: NodeId,
        clock: Clock,
        disk: Disk,
        handles: Handles,
        metrics: Metrics,
        departures: Departures,
        take_offline: Callable[[Store, OSError], None],
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._disk = disk
        self._handles = handles
        self._metrics = metrics
        self._departures = departures
        self._take_offline = take_offline

    def remembered(self, store: Store, topic_ids: Mapping[str, bytes]) -> Remembered:
        """Blocking. What was written under the names of other topics is left out."""

        def offsets(kind: str) -> dict[TopicPartition, int]:
            path = f"{store.path}/{kind}"
            return self.in_store(store, read_offsets, self._disk, path, topic_ids) or {}

        sizes: Mapping[TopicPartition, int] | None = None
        short_logs: Mapping[TopicPartition, ShortLog] = {}
        if store.was_clean:
            sizes = offsets(LOG_SIZES) or None
            short_logs = self.in_store(store, read_short_logs, self._disk, store.path) or {}
        return Remembered(
            offsets(RECOVERY_POINTS),
            offsets(START_OFFSETS),
            offsets(HIGH_WATERMARKS),
            sizes,
            short_logs,
        )

    def open(
        self, wanted: Wanted, store: Store, remembered: Remembered, *, has_id: bool
    ) -> Partition:
        """Blocking. `has_id`: the topic's id is in the directory, and durable."""
        name = wanted.name
        if self._departures.is_taken(store.data.partition_path(name)):
            return self.new(wanted, store)
        sizes = remembered.sizes
        log = self.in_store(
            store,
            lambda: Log.open(
                self._disk,
                store.data.partition_path(name),
                wanted.log_config,
                now_ms=self._clock.now().wall_ms,
                clean=store.was_clean,
                recovery_point=remembered.recovery_points.get(name, 0),
                start_offset=remembered.start_offsets.get(name, 0),
                known_bytes=sizes.get(name, 0) if sizes else None,
                short=remembered.short_logs.get(name),
                handles=self._handles,
                is_synced_together=not store.was_clean,
            ),
        )
        high_watermark = None
        if log is not None and not wanted.is_alone:
            known = max(log.start_offset, remembered.high_watermarks.get(name, 0))
            high_watermark = self.in_store(store, log.position_at, min(known, log.end_offset))
        return self._partition(wanted, store, log, high_watermark, is_durable=has_id)

    def new(self, wanted: Wanted, store: Store) -> Partition:
        """No file is touched: those come with the first batch. In its directory may still be
        those of another.
        """
        log = None
        if store.is_online:
            log = Log.new(
                self._handles,
                store.data.partition_path(wanted.name),
                wanted.log_config,
                self._clock.now().wall_ms,
            )
        return self._partition(wanted, store, log, None, is_durable=False)

    def sync_found(self, stores: Iterable[Store]) -> None:
        """Blocking: what was found after a crash may be in the page cache only."""
        for store in stores:
            if not store.was_clean:
                self.in_store(store, self._disk.sync_file_system, store.path)

    def in_store(self, store: Store, work: Callable[..., T], *arguments: object) -> T | None:
        """Blocking work in a directory at start; None when that is, or turns out, offline."""
        if not store.is_online:
            return None
        try:
            return work(*arguments)
        except OSError as error:
            if not is_broken(error):
                raise
            self._take_offline(store, error)
            return None

    def _partition(
        self,
        wanted: Wanted,
        store: Store,
        log: Log | None,
        high_watermark: LogPosition | None,
        *,
        is_durable: bool,
    ) -> Partition:
        """Without a log the partition is there in name only, and says that it is offline."""
        name, path = wanted.name, store.data.partition_path(wanted.name)
        if log is None:
            log = lost_log(self._handles, path, wanted.log_config)
        partition = Partition(
            name,
            wanted.topic_id,
            log,
            wanted.leader_epoch,
            wanted.config,
            store.internal_flusher if name.topic in INTERNAL_TOPICS else store.flusher,
            self._metrics.topic(name.topic),
            Home(store.data, name, wanted.topic_id, is_durable=is_durable),
            self._node_id,
            high_watermark,
        )
        if self._departures.is_taken(path):
            partition.await_directory()
            self._departures.when_free(path, partition.move_in)
        if store.failure is not None:
            partition.go_offline(store.failure)
        return partition
