"""All partitions of this broker: follows the metadata, opens and deletes logs, saves checkpoints."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from ottla.broker.flusher import Flusher
from ottla.broker.metadata import (
    Change,
    LeaderChanged,
    MetadataCache,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from ottla.broker.metrics import Metrics
from ottla.broker.partition import Partition
from ottla.cluster.image import PartitionImage, TopicImage
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import UnknownTopicOrPartition
from ottla.log.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, START_OFFSETS
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig
from ottla.ports import Clock
from ottla.types import INTERNAL_TOPICS, TopicPartition

logger = logging.getLogger(__name__)

_CHECKPOINTED: Final[dict[str, Callable[[Partition], int]]] = {
    RECOVERY_POINTS: lambda partition: partition.log.synced.offset,
    START_OFFSETS: lambda partition: partition.log.start_offset,
    HIGH_WATERMARKS: lambda partition: partition.high_watermark.offset,
}
_NO_PARTITIONS: Final[dict[int, Partition]] = {}


def log_config(topic: TopicConfig, broker: BrokerConfig) -> LogConfig:
    return LogConfig(
        segment_bytes=topic.segment_bytes,
        segment_ms=topic.segment_ms,
        segment_jitter_ms=topic.segment_jitter_ms,
        index_interval_bytes=topic.index_interval_bytes,
        segment_index_bytes=topic.segment_index_bytes,
        producer_expiry_ms=broker.producer_id_expiration_ms,
    )


class Partitions:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        data: DataDirectory,
        config: BrokerConfig,
        metadata: MetadataCache,
        metrics: Metrics,
        flusher: Flusher,
        internal_flusher: Flusher,
        metadata_partition: Partition,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._data = data
        self._config = config
        self._metadata = metadata
        self._metrics = metrics
        self._flusher = flusher
        self._internal_flusher = internal_flusher
        self._metadata_partition = metadata_partition
        self._topics: dict[str, dict[int, Partition]] = {}
        self._cleanup: set[asyncio.Future[None]] = set()
        self._checkpoint_timer: asyncio.TimerHandle | None = None

    # --------------------------------------------------------------------------------- asking

    @property
    def directory(self) -> str:
        return self._data.path

    def of_topic(self, name: str) -> dict[int, Partition] | None:
        return self._topics.get(name)

    def by_topic(self) -> Mapping[str, Mapping[int, Partition]]:
        return self._topics

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            yield from partitions.values()

    def get(self, topic: str, index: int) -> Partition:
        partition = self._topics.get(topic, _NO_PARTITIONS).get(index)
        if partition is None:
            raise UnknownTopicOrPartition(f"{topic} has no partition {index} here")
        return partition

    def failing(self) -> list[Partition]:
        """Those whose writes the disk refuses."""
        return [partition for partition in self if partition.failure is not None]

    # ----------------------------------------------------------------------------- following

    def open_all(self) -> None:
        """At start, blocking: opens the log of every partition that the metadata names."""
        self._remove_strangers()
        recovery_points = self._data.read_checkpoint(RECOVERY_POINTS)
        start_offsets = self._data.read_checkpoint(START_OFFSETS)
        for topic in self._metadata.image.topics_by_name.values():
            for index, image in topic.partitions.items():
                name = TopicPartition(topic.name, index)
                self._open(
                    topic, index, image, recovery_points.get(name, 0), start_offsets.get(name, 0)
                )

    def follow(self, changes: Sequence[Change]) -> None:
        """Does what committed metadata asks for."""
        for change in changes:
            if isinstance(change, TopicCreated):
                for index, image in change.topic.partitions.items():
                    self._open(change.topic, index, image)
            elif isinstance(change, PartitionsAdded):
                for index in change.indexes:
                    self._open(change.topic, index, change.topic.partitions[index])
            elif isinstance(change, TopicDeleted):
                self._delete(change.name)
            elif isinstance(change, LeaderChanged):
                self.get(change.topic.name, change.partition_index).lead(
                    change.partition.leader_epoch
                )
            elif isinstance(change, TopicConfigChanged):
                self._configure(change.topic.name)

    def _open(
        self,
        topic: TopicImage,
        index: int,
        image: PartitionImage,
        recovery_point: int = 0,
        start_offset: int = 0,
    ) -> None:
        name = TopicPartition(topic.name, index)
        config = self._metadata.topic_config(topic.name)
        log = self._data.open_log(
            name,
            topic.id,
            log_config(config, self._config),
            now_ms=self._clock.now().wall_ms,
            recovery_point=recovery_point,
            start_offset=start_offset,
        )
        is_internal = topic.name in INTERNAL_TOPICS
        partition = Partition(
            name,
            topic.id,
            log,
            image.leader_epoch,
            config,
            self._internal_flusher if is_internal else self._flusher,
            self._metrics.topic(topic.name),
        )
        partition.lead(image.leader_epoch)
        self._topics.setdefault(topic.name, {})[index] = partition

    def _configure(self, topic: str) -> None:
        config = self._metadata.topic_config(topic)
        for partition in self._topics.get(topic, _NO_PARTITIONS).values():
            partition.configure(config)
            partition.log.config = log_config(config, self._config)

    # ------------------------------------------------------------------------------- deleting

    def _delete(self, topic: str) -> None:
        partitions = self._topics.pop(topic, {})
        self._metrics.forget_topic(topic)
        doomed = []
        for partition in partitions.values():
            partition.retire()
            doomed.append(self._data.doom(partition.name, partition.log))
        self._remove_later(doomed)

    def _remove_strangers(self) -> None:
        """Directories whose topic is gone, or is another one of the same name."""
        topics = self._metadata.image.topics_by_name
        known = {
            TopicPartition(topic.name, index): topic.id
            for topic in topics.values()
            for index in topic.partitions
        }
        self._remove_later(self._data.doom_strangers(known))

    def _remove_later(self, directories: list[str]) -> None:
        if directories:
            task = self._loop.run_in_executor(None, self._data.remove, directories)
            self._cleanup.add(task)
            task.add_done_callback(self._removed)

    def _removed(self, task: asyncio.Future[None]) -> None:
        self._cleanup.discard(task)
        error = task.exception()
        if error is not None:
            logger.warning("a deleted partition's files remain: %s", error)

    # ---------------------------------------------------------------------------- checkpoints

    def start_checkpoints(self) -> None:
        interval_s = self._config.log_flush_offset_checkpoint_interval_ms / 1000
        self._checkpoint_timer = self._loop.call_later(interval_s, self._checkpoint)

    def _checkpoint(self) -> None:
        now_ms = self._clock.now().wall_ms
        for partition in self:
            partition.log.expire_producers(now_ms)
            if not partition.is_synced_eagerly:
                self._flusher.want_sync(partition)
        task = self._loop.create_task(self._save_all())
        self._cleanup.add(task)
        task.add_done_callback(self._checkpointed)

    def _checkpointed(self, task: asyncio.Future[None]) -> None:
        self._cleanup.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.warning("checkpoints could not be written: %s", task.exception())
        self.start_checkpoints()

    async def _save_all(self) -> None:
        for kind in _CHECKPOINTED:
            await asyncio.to_thread(self._data.write_checkpoint, kind, self._offsets(kind))

    async def save_start_offsets(self) -> None:
        """Returns when the log start offsets are on disk."""
        offsets = self._offsets(START_OFFSETS)
        await asyncio.to_thread(self._data.write_checkpoint, START_OFFSETS, offsets)

    def _offsets(self, kind: str) -> dict[TopicPartition, int]:
        read = _CHECKPOINTED[kind]
        offsets = {partition.name: read(partition) for partition in self}
        offsets[self._metadata_partition.name] = read(self._metadata_partition)
        return {name: offset for name, offset in offsets.items() if offset > 0}

    # -------------------------------------------------------------------------------- closing

    async def close(self) -> bool:
        """Closes every log, synced. True when all of them did, so that no recovery is needed."""
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        for partition in self:
            partition.retire()
        if self._cleanup:
            await asyncio.wait(self._cleanup)
        return await asyncio.to_thread(self._close_all)

    def _close_all(self) -> bool:
        is_clean = True
        for partition in self:
            try:
                partition.log.close()
            except OSError as error:
                logger.error("%s: not closed cleanly: %s", partition.name, error)
                is_clean = False
        try:
            for kind in _CHECKPOINTED:
                self._data.write_checkpoint(kind, self._offsets(kind))
        except OSError as error:
            logger.error("checkpoints could not be written: %s", error)
            is_clean = False
        return is_clean
