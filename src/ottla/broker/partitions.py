"""All partitions of this broker: opens and deletes logs as the metadata says, checkpoints them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from ottla.broker.partition import Home, Partition
from ottla.cluster.image import PartitionImage, TopicImage
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import NotLeader, OttlaError, UnknownTopicOrPartition
from ottla.log.checkpoints import (
    HIGH_WATERMARKS,
    RECOVERY_POINTS,
    START_OFFSETS,
    read_offsets,
    write_offsets,
)
from ottla.log.directory import DataDirectory
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.ports import Clock, Disk, Random
from ottla.types import INTERNAL_TOPICS, TopicPartition

logger = logging.getLogger(__name__)

# As many logs have their last files open together while the broker stops.
CLOSED_AT_ONCE: Final = 256
PROBE_PAUSE_S: Final = 1.0
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
        random: Random,
        disk: Disk,
        data: DataDirectory,
        handles: Handles,
        config: BrokerConfig,
        metadata: MetadataCache,
        metrics: Metrics,
        flusher: Flusher,
        internal_flusher: Flusher,
        metadata_partition: Partition,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._random = random
        self._disk = disk
        self._data = data
        self._handles = handles
        self._config = config
        self._metadata = metadata
        self._metrics = metrics
        self._flusher = flusher
        self._internal_flusher = internal_flusher
        self._metadata_partition = metadata_partition
        self._topics: dict[str, dict[int, Partition]] = {}
        self._as_they_come: set[str] = set()
        self._cleanup: set[asyncio.Future[None]] = set()
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None

    # --------------------------------------------------------------------------------- asking

    @property
    def directory(self) -> str:
        return self._data.path

    def of_topic(self, name: str) -> dict[int, Partition] | None:
        return self._topics.get(name)

    def is_ready_for(self, topic: str) -> bool:
        """Whether batches can be appended as they come: the topic is here, with no codec to set."""
        return topic in self._as_they_come

    @property
    def is_far_behind(self) -> bool:
        """So much is written and not synced that nobody may go on without waiting for the disk."""
        return self._flusher.is_far_behind

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

    def open_all(self, was_clean: bool) -> None:
        """At start, blocking: opens the log of every partition that the metadata names."""
        settled = self._remove_strangers()
        recovery_points = read_offsets(self._disk, self._checkpoint_path(RECOVERY_POINTS))
        start_offsets = read_offsets(self._disk, self._checkpoint_path(START_OFFSETS))
        for topic in self._metadata.image.topics_by_name.values():
            for index, image in topic.partitions.items():
                name = TopicPartition(topic.name, index)
                log = self._open_log(
                    topic.name,
                    index,
                    clean=was_clean,
                    recovery_point=recovery_points.get(name, 0),
                    start_offset=start_offsets.get(name, 0),
                )
                self._add(topic, index, image, log, is_settled=name in settled)
        if not was_clean:
            self._disk.sync_file_system(self._data.path)

    def follow(self, changes: Sequence[Change]) -> None:
        """Does what committed metadata asks for."""
        for change in changes:
            if isinstance(change, TopicCreated):
                self._create(change.topic, change.topic.partitions)
            elif isinstance(change, PartitionsAdded):
                self._create(change.topic, change.indexes)
            elif isinstance(change, TopicDeleted):
                self._delete(change.name)
            elif isinstance(change, LeaderChanged):
                self.get(change.topic.name, change.partition_index).lead(
                    change.partition.leader_epoch
                )
            elif isinstance(change, TopicConfigChanged):
                self._configure(change.topic.name)

    def _create(self, topic: TopicImage, indexes: Iterable[int]) -> None:
        """No file is touched: those come with the first batch."""
        for index in indexes:
            try:
                log = self._open_log(topic.name, index, clean=True)
            except OSError as error:
                logger.error("%s-%d cannot be opened: %s", topic.name, index, error)
                continue
            self._add(topic, index, topic.partitions[index], log, is_settled=False)

    def _open_log(
        self,
        topic: str,
        index: int,
        *,
        clean: bool,
        recovery_point: int = 0,
        start_offset: int = 0,
    ) -> Log:
        return Log.open(
            self._disk,
            self._data.partition_path(TopicPartition(topic, index)),
            log_config(self._metadata.topic_config(topic), self._config),
            now_ms=self._clock.now().wall_ms,
            clean=clean,
            recovery_point=recovery_point,
            start_offset=start_offset,
            handles=self._handles,
            is_synced_together=not clean,
        )

    def _add(
        self, topic: TopicImage, index: int, image: PartitionImage, log: Log, *, is_settled: bool
    ) -> None:
        name = TopicPartition(topic.name, index)
        partition = Partition(
            name,
            topic.id,
            log,
            image.leader_epoch,
            self._metadata.topic_config(topic.name),
            self._flusher_of(topic.name),
            self._metrics.topic(topic.name),
            Home(self._data, name, topic.id, is_settled=is_settled),
        )
        partition.lead(image.leader_epoch)
        self._topics.setdefault(topic.name, {})[index] = partition
        self._note_codec(topic.name, partition)

    def _configure(self, topic: str) -> None:
        config = self._metadata.topic_config(topic)
        for partition in self._topics.get(topic, _NO_PARTITIONS).values():
            partition.configure(config)
            partition.log.config = log_config(config, self._config)
            self._note_codec(topic, partition)

    def _note_codec(self, topic: str, partition: Partition) -> None:
        if partition.must_recompress:
            self._as_they_come.discard(topic)
        else:
            self._as_they_come.add(topic)

    # ------------------------------------------------------------------------------- deleting

    def _delete(self, topic: str) -> None:
        """The name is free at once; the files go in a thread."""
        partitions = self._topics.pop(topic, {})
        self._as_they_come.discard(topic)
        self._metrics.forget_topic(topic)
        error = UnknownTopicOrPartition(f"topic {topic} was deleted")
        doomed = []
        for partition in partitions.values():
            partition.retire(error)
            self._flusher_of(topic).leave(partition)
            doomed += self._doom(partition.name)
        self._remove_later(doomed)

    def _flusher_of(self, topic: str) -> Flusher:
        return self._internal_flusher if topic in INTERNAL_TOPICS else self._flusher

    def _doom(self, name: TopicPartition) -> list[str]:
        try:
            return [self._data.doom_partition(name, self._random.bytes(16))]
        except FileNotFoundError:
            return []
        except OSError as error:
            logger.error("%s cannot be removed: %s", name, error)
            return []

    def _remove_strangers(self) -> set[TopicPartition]:
        """Removes directories whose topic is gone, or is another one of the same name.

        Returns those that stay.
        """
        topics = self._metadata.image.topics_by_name
        doomed = self._data.doomed()
        settled = set()
        for name in self._data.partitions():
            topic = topics.get(name.topic)
            is_known = topic is not None and name.partition in topic.partitions
            if is_known and topic is not None and self._data.read_topic_id(name) == topic.id:
                settled.add(name)
            elif name != self._metadata_partition.name:
                doomed += self._doom(name)
        self._remove_later(doomed)
        return settled

    def _remove_later(self, directories: list[str]) -> None:
        if directories:
            task = self._loop.run_in_executor(None, self._remove, directories)
            self._cleanup.add(task)
            task.add_done_callback(self._removed)

    def _remove(self, directories: list[str]) -> None:
        self._disk.sync_directory(self._data.path)
        for directory in directories:
            self._disk.remove_tree(directory)

    def _removed(self, task: asyncio.Future[None]) -> None:
        self._cleanup.discard(task)
        error = task.exception()
        if error is not None:
            logger.warning("a deleted partition's files remain: %s", error)

    # ---------------------------------------------------------------------------- checkpoints

    def start_probing(self) -> None:
        """Asks the disk, for partitions whose writes it refuses, whether that is over."""
        for partition in self.failing():
            partition.probe()
        self._probe_timer = self._loop.call_later(PROBE_PAUSE_S, self.start_probing)

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
            await self._save(kind)
        for partition in (*self, self._metadata_partition):
            if partition.log.fenced:
                await self._heal(partition)

    async def _heal(self, partition: Partition) -> None:
        """After a failed sync: reads the log again from what the disk really has."""
        try:
            log = await asyncio.to_thread(partition.log.reopen, self._clock.now().wall_ms)
        except (OSError, OttlaError) as error:
            logger.warning("%s: still fenced: %s", partition.name, error)
        else:
            partition.heal(log)

    async def _save(self, kind: str) -> None:
        path, offsets = self._checkpoint_path(kind), self._offsets(kind)
        await asyncio.to_thread(write_offsets, self._disk, path, offsets)

    def _checkpoint_path(self, kind: str) -> str:
        return f"{self._data.path}/{kind}"

    async def save_start_offsets(self) -> None:
        """Returns when the log start offsets are on disk."""
        await self._save(START_OFFSETS)

    def _offsets(self, kind: str) -> dict[TopicPartition, int]:
        read = _CHECKPOINTED[kind]
        offsets = {partition.name: read(partition) for partition in self}
        offsets[self._metadata_partition.name] = read(self._metadata_partition)
        return {name: offset for name, offset in offsets.items() if offset > 0}

    # -------------------------------------------------------------------------------- closing

    async def close(self) -> bool:
        """Closes every log, synced. True when all of them did, so that no recovery is needed."""
        for timer in (self._checkpoint_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        for partition in self:
            partition.retire(NotLeader("the broker stops"))
        if self._cleanup:
            await asyncio.wait(self._cleanup)
        return await asyncio.to_thread(self._close_all)

    def _close_all(self) -> bool:
        partitions = list(self)
        is_clean = True
        for start in range(0, len(partitions), CLOSED_AT_ONCE):
            is_clean &= self._close_some(partitions[start : start + CLOSED_AT_ONCE])
        try:
            for kind in _CHECKPOINTED:
                write_offsets(self._disk, self._checkpoint_path(kind), self._offsets(kind))
        except OSError as error:
            logger.error("checkpoints could not be written: %s", error)
            is_clean = False
        return is_clean

    def _close_some(self, partitions: list[Partition]) -> bool:
        """Many logs share one sync, as in the flusher."""
        closing = []
        is_clean = True
        for partition in partitions:
            try:
                closing.append((partition, partition.log.begin_close()))
            except (OSError, OttlaError) as error:
                logger.error("%s: not closed cleanly: %s", partition.name, error)
                is_clean = False
        tickets = [ticket for _, ticket in closing if ticket is not None]
        try:
            is_all_synced = self._disk.sync_many(
                [file for ticket in tickets for file in ticket.files],
                [directory for ticket in tickets for directory in ticket.directories],
            )
            for partition, ticket in closing:
                if ticket is not None:
                    partition.settle(is_all_synced)
                partition.log.finish_close(ticket)
        except OSError as error:
            logger.error("%d logs are not closed cleanly: %s", len(closing), error)
            return False
        return is_clean
