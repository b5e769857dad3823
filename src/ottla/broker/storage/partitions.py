"""All partitions of this broker: opens and deletes logs as the metadata says, checkpoints them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from ottla.broker.control.metadata import (
    Change,
    LeaderChanged,
    MetadataCache,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from ottla.broker.metrics.counters import Metrics
from ottla.broker.storage.closing import Closing
from ottla.broker.storage.departures import Departures
from ottla.broker.storage.finding import Finder
from ottla.broker.storage.flusher import STOP_S_MAX
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.stores import Placement, Store, Stores, is_broken
from ottla.cluster.directories import Assignment, directory_of
from ottla.cluster.image import PartitionImage, TopicImage
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import NotLeader, OttlaError, UnknownTopicOrPartition
from ottla.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_SIZES,
    RECOVERY_POINTS,
    START_OFFSETS,
    read_offsets,
    write_offsets,
)
from ottla.log.handles import Handles
from ottla.log.hints import Hints
from ottla.log.log import Log, LogConfig
from ottla.log.lost import lost_log
from ottla.log.opening.short_logs import ShortLog, read_short_logs
from ottla.ports import Clock, Disk, Random
from ottla.types import INTERNAL_TOPICS, METADATA_TOPIC, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_PAUSE_S: Final = 1.0
# Hints for recovery wait so long for the thread that writes batches as well; after so many tries
# until the next time.
SAVE_PAUSE_S: Final = 0.02
SAVE_TRIES_MAX: Final = 100
# So many are looked at, then requests have their turn.
PARTITIONS_AT_ONCE: Final = 256
PRODUCERS_AT_ONCE: Final = 5000
_CHECKPOINTED: Final[dict[str, Callable[[Partition], int]]] = {
    RECOVERY_POINTS: lambda partition: partition.log.recovery_point,
    START_OFFSETS: lambda partition: partition.durable_start,
    HIGH_WATERMARKS: lambda partition: partition.high_watermark.offset,
    LOG_SIZES: lambda partition: partition.log.bytes_from(partition.durable_start),
}
_NO_PARTITIONS: Final[dict[int, Partition]] = {}


def log_config(topic: TopicConfig, broker: BrokerConfig) -> LogConfig:
    return LogConfig(
        segment_bytes=topic.segment_bytes,
        segment_ms=_segment_ms(topic),
        segment_jitter_ms=topic.segment_jitter_ms,
        index_interval_bytes=topic.index_interval_bytes,
        segment_index_bytes=topic.segment_index_bytes,
        producer_expiry_ms=broker.producer_id_expiration_ms,
    )


def _segment_ms(topic: TopicConfig) -> int:
    """A segment must end before its messages are overdue for compaction, as it is not compacted
    while it is written to.
    """
    if "compact" in topic.cleanup_policy:
        return min(topic.segment_ms, topic.max_compaction_lag_ms)
    return topic.segment_ms


class Partitions:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        random: Random,
        disk: Disk,
        stores: Stores,
        handles: Handles,
        config: BrokerConfig,
        metadata: MetadataCache,
        metrics: Metrics,
        metadata_partition: Partition,
        on_placed: Callable[[list[Assignment]], None],
        renew_epoch: Callable[[Partition], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._random = random
        self._disk = disk
        self.stores = stores
        self._handles = handles
        self._config = config
        self._metadata = metadata
        self._metrics = metrics
        self._metadata_partition = metadata_partition
        self._on_placed = on_placed
        self._renew_epoch = renew_epoch
        self._topics: dict[str, dict[int, Partition]] = {}
        self._as_they_come: set[str] = set()
        self._departures = Departures(loop, disk, random)
        self._saving: dict[Store, asyncio.Task[None]] = {}
        self._expiring: asyncio.Task[None] | None = None
        self._is_closing = False
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None

    # --------------------------------------------------------------------------------- asking

    def of_topic(self, name: str) -> dict[int, Partition] | None:
        return self._topics.get(name)

    def is_ready_for(self, topic: str) -> bool:
        """Whether batches are appended as they come: the topic is here, not ours, with no codec."""
        return topic in self._as_they_come

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
        metadata, node_id = self._metadata, self._config.node_id
        remembered = {store: self._read_checkpoints(store) for store in self.stores.online()}
        synced = {store: offsets[RECOVERY_POINTS] for store, offsets in remembered.items()}
        finder = Finder(metadata.image, metadata.deleted_ids, node_id, synced, self._departures)
        found, settled = finder.look(self.stores.online(), self._with)
        shorts = {
            store: self._with(store, read_short_logs, self._disk, store.path) or {}
            for store in self.stores.online()
            if store.was_clean
        }
        placement = self.stores.placement(())
        for topic in self._metadata.image.topics_by_name.values():
            for index, image in topic.partitions.items():
                name = TopicPartition(topic.name, index)
                store = found.get(name) or self._store_of(image, placement)
                self._open(topic, index, store, remembered, shorts, is_settled=name in settled)
        for store in self.stores.online():
            if not store.was_clean:
                self._with(store, self._disk.sync_file_system, store.path)
        self._tell_places(self)

    def _store_of(self, image: PartitionImage, placement: Placement) -> Store:
        """Where a partition belongs of which no directory here has anything.

        With a directory out of sight it may lie there, full of messages. Another one may be begun
        only where the metadata says so, or where nothing is out of sight.
        """
        directory_id = directory_of(image, self._config.node_id)
        if directory_id is not None:
            return self.stores.with_id(directory_id) or self.stores.nowhere
        return self.stores.nowhere if self.stores.has_offline else placement.choose()

    def _open(
        self,
        topic: TopicImage,
        index: int,
        store: Store,
        remembered: Mapping[Store, Mapping[str, Mapping[TopicPartition, int]]],
        shorts: Mapping[Store, Mapping[TopicPartition, ShortLog]],
        *,
        is_settled: bool,
    ) -> None:
        name, offsets = TopicPartition(topic.name, index), remembered.get(store, {})
        sizes = offsets.get(LOG_SIZES) if store.was_clean else None
        short = shorts.get(store, {}).get(name)
        if self._departures.is_taken(store.data.partition_path(name)):
            log: Log | None = self._new_log(store, name)
            self._add(topic, index, topic.partitions[index], store, log, is_settled=False)
            return
        log = self._with(
            store,
            lambda: self._open_log(
                store,
                name,
                clean=store.was_clean,
                recovery_point=offsets[RECOVERY_POINTS].get(name, 0),
                start_offset=offsets[START_OFFSETS].get(name, 0),
                known_bytes=sizes.get(name, 0) if sizes else None,
                short=short,
            ),
        )
        self._add(topic, index, topic.partitions[index], store, log, is_settled=is_settled)

    def _with(self, store: Store, work: Callable[..., T], *arguments: object) -> T | None:
        """Blocking work in a directory at start; None when that is, or turns out, offline."""
        if not store.is_online:
            return None
        try:
            return work(*arguments)
        except OSError as error:
            if not is_broken(error):
                raise
            self.take_offline(store, error)
            return None

    def take_offline(self, store: Store, error: OSError) -> None:
        """The directory's disk has failed: its partitions serve nobody until the next start."""
        if not store.is_online:
            return
        logger.error("%s has failed, its partitions are offline: %s", store.path, error)
        store.failure = error
        for partition in self:
            if partition.data is store.data:
                partition.go_offline(error)

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
                if change.partition.leader == self._config.node_id:
                    self.get(change.topic.name, change.partition_index).lead(
                        change.partition.leader_epoch
                    )
            elif isinstance(change, TopicConfigChanged):
                self._configure(change.topic.name)

    def _create(self, topic: TopicImage, indexes: Iterable[int]) -> None:
        """No file is touched: those come with the first batch."""
        placement = self.stores.placement(self)
        for index in indexes:
            image, name = topic.partitions[index], TopicPartition(topic.name, index)
            directory_id = directory_of(image, self._config.node_id)
            store = self.stores.with_id(directory_id) if directory_id is not None else None
            if store is None:
                store = placement.choose()
            log = self._new_log(store, name) if store.is_online else None
            self._add(topic, index, image, store, log, is_settled=False)
        self._tell_places(self._topics.get(topic.name, _NO_PARTITIONS).values())

    def _tell_places(self, partitions: Iterable[Partition]) -> None:
        """The metadata is to know where each partition lies, if it does not yet (KIP-858)."""
        topics, node_id = self._metadata.image.topics_by_id, self._config.node_id
        news: list[Assignment] = []
        for partition in partitions:
            store = self.stores.of(partition)
            image = topics[partition.topic_id].partitions[partition.index]
            if store.directory_id and directory_of(image, node_id) != store.directory_id:
                news.append((partition.topic_id, partition.index, store.directory_id))
        if news:
            self._on_placed(news)

    def _new_log(self, store: Store, name: TopicPartition) -> Log:
        """For a partition that has no files. In its directory may still be those of another."""
        return Log.new(
            self._handles,
            store.data.partition_path(name),
            log_config(self._metadata.topic_config(name.topic), self._metadata.broker_config),
            self._clock.now().wall_ms,
        )

    def _open_log(
        self,
        store: Store,
        name: TopicPartition,
        *,
        clean: bool,
        recovery_point: int = 0,
        start_offset: int = 0,
        known_bytes: int | None = None,
        short: ShortLog | None = None,
    ) -> Log:
        return Log.open(
            self._disk,
            store.data.partition_path(name),
            log_config(self._metadata.topic_config(name.topic), self._metadata.broker_config),
            now_ms=self._clock.now().wall_ms,
            clean=clean,
            recovery_point=recovery_point,
            start_offset=start_offset,
            known_bytes=known_bytes,
            short=short,
            handles=self._handles,
            is_synced_together=not clean,
        )

    def _add(
        self,
        topic: TopicImage,
        index: int,
        image: PartitionImage,
        store: Store,
        log: Log | None,
        *,
        is_settled: bool,
    ) -> None:
        """Without a log the partition is there in name only, and says that it is offline."""
        name, config = TopicPartition(topic.name, index), self._metadata.topic_config(topic.name)
        if log is None:
            path = store.data.partition_path(name)
            log = lost_log(self._handles, path, log_config(config, self._metadata.broker_config))
        partition = Partition(
            name,
            topic.id,
            log,
            image.leader_epoch,
            config,
            store.internal_flusher if topic.name in INTERNAL_TOPICS else store.flusher,
            self._metrics.topic(topic.name),
            Home(store.data, name, topic.id, is_settled=is_settled),
        )
        partition.lead(image.leader_epoch)
        if self._departures.is_taken(log.directory):
            partition.await_directory()
            self._departures.when_free(log.directory, partition.move_in)
        if store.failure is not None:
            partition.go_offline(store.failure)
        self._topics.setdefault(topic.name, {})[index] = partition
        self._note_codec(topic.name, partition)

    def _configure(self, topic: str) -> None:
        config = self._metadata.topic_config(topic)
        for partition in self._topics.get(topic, _NO_PARTITIONS).values():
            partition.configure(config)
            partition.log.config = log_config(config, self._metadata.broker_config)
            self._note_codec(topic, partition)

    def _note_codec(self, topic: str, partition: Partition) -> None:
        if partition.must_recompress or topic in INTERNAL_TOPICS:
            self._as_they_come.discard(topic)
        else:
            self._as_they_come.add(topic)

    # ------------------------------------------------------------------------------- deleting

    def _delete(self, topic: str) -> None:
        """A topic may have its name at once; the files go in a thread."""
        partitions = self._topics.pop(topic, {})
        self._as_they_come.discard(topic)
        self._metrics.forget_topic(topic)
        error = UnknownTopicOrPartition(f"topic {topic} was deleted")
        leaving = []
        for partition in partitions.values():
            partition.retire(error)
            partition.flusher.leave(partition)
            if partition.is_busy:
                # A thread may be making its files: nobody may have the name before it is back.
                self._departures.expect(partition.data, partition.name)
                partition.when_not_busy(partial(self._depart, partition))
            elif partition.has_directory and not partition.is_offline:
                leaving.append((partition.data, partition.name, partition.log))
        self._departures.begin(leaving)

    def _depart(self, partition: Partition) -> None:
        self._departures.begin([(partition.data, partition.name, partition.log)])

    # ---------------------------------------------------------------------------- checkpoints

    def start_probing(self) -> None:
        """Asks the disk, for partitions whose writes it refuses, whether that is over."""
        for partition in self.failing():
            partition.flusher.probe(partition)
        self._probe_timer = self._loop.call_later(PROBE_PAUSE_S, self.start_probing)

    def start_checkpoints(self) -> None:
        interval_s = self._config.log_flush_offset_checkpoint_interval_ms / 1000
        self._checkpoint_timer = self._loop.call_later(interval_s, self._checkpoint)

    def _checkpoint(self) -> None:
        if self._expiring is None or self._expiring.done():
            self._expiring = self._loop.create_task(self._expire_producers())
        for store in self.stores.online():
            # Each for itself: one that is stuck must not keep the others from their checkpoints.
            if store not in self._saving:
                task = self._loop.create_task(self._save_all(store))
                self._saving[store] = task
                task.add_done_callback(partial(self._checkpointed, store))
        self.start_checkpoints()

    def _checkpointed(self, store: Store, task: asyncio.Task[None]) -> None:
        del self._saving[store]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError) and is_broken(error):
            store.flusher.on_broken(error)
        elif error is not None:
            logger.warning("checkpoints could not be written: %s", error)

    async def _save_all(self, store: Store) -> None:
        await self._save_progress(store)
        for kind in _CHECKPOINTED:
            await self._save(store, kind)
        await store.run(store.measure, self._disk)
        for partition in self._in(store):
            log = partition.log
            is_ill = log.fenced and log.corruption is None
            if is_ill and store.is_online and not (partition.is_busy or partition.is_retired):
                with partition.reopening():
                    await self._heal(partition)

    async def _expire_producers(self) -> None:
        """Forgets idle producers, some at a time; what no client syncs is synced now and then."""
        now_ms = self._clock.now().wall_ms
        for at, partition in enumerate(tuple(self)):
            ids = partition.log.producer_ids()
            partition.log.expire_producers(now_ms, ids[:PRODUCERS_AT_ONCE])
            for start in range(PRODUCERS_AT_ONCE, len(ids), PRODUCERS_AT_ONCE):
                await asyncio.sleep(0)
                partition.log.expire_producers(now_ms, ids[start : start + PRODUCERS_AT_ONCE])
            if not partition.is_synced_eagerly and not partition.is_retired:
                partition.flusher.want_sync(partition)
            if at % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _save_progress(self, store: Store) -> None:
        """Small files for logs that were written to, made in threads, one log after the other:
        while its files wait for the disk, so do its batches, but nobody else's.
        """
        for at, partition in enumerate(self._in(store), 1):
            is_free = not (partition.is_retired or partition.is_being_written)
            hints = partition.log.take_hints() if is_free else None
            if hints is not None:
                await self._save_hints(store, partition, hints)
            elif at % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _save_hints(self, store: Store, partition: Partition, hints: Hints) -> None:
        if hints.is_large:
            await store.run(hints.encode)
        for _ in range(SAVE_TRIES_MAX):
            if self._is_closing:
                return
            if partition.flusher.save(partition, hints):
                await _written(partition)
                partition.flusher.want_sync(partition)
                return
            await asyncio.sleep(SAVE_PAUSE_S)

    def _in(self, store: Store) -> list[Partition]:
        """The partitions that lie there, the metadata's first."""
        everybody = (self._metadata_partition, *self)
        return [partition for partition in everybody if partition.data is store.data]

    async def _heal(self, partition: Partition) -> None:
        """After a failed sync: reads the log again from what the disk really has.

        Only then does a new epoch begin: it is to begin where the log ends now.
        """
        fenced, epoch = partition.log, partition.leader_epoch
        now_ms = self._clock.now().wall_ms
        try:
            log = await self.stores.of(partition).run(fenced.reopen, now_ms)
        except (OSError, OttlaError) as error:
            logger.warning("%s: still fenced: %s", partition.name, error)
            return
        try:
            await self._renew_epoch(partition)
        except (OSError, OttlaError) as error:
            logger.warning("%s: still fenced, it has no new epoch: %s", partition.name, error)
        is_wanted = not (partition.is_retired or partition.is_offline or fenced.corruption)
        if is_wanted and partition.leader_epoch > epoch:
            partition.heal(log, now_ms)
        else:
            log.abandon()

    async def _save(self, store: Store, kind: str) -> None:
        save = partial(self._write_checkpoint, store, kind, self._in(store))
        async with store.saving:
            # Where a log begins has to be written for anything to be deleted.
            await store.run(*((store.with_reserve, save) if kind == START_OFFSETS else (save,)))

    def _write_checkpoint(self, store: Store, kind: str, partitions: Sequence[Partition]) -> None:
        """Blocking. With the ids by which topics are told from their namesakes.

        The offsets are read here, since for many partitions that is too much for one loop turn.
        """
        read = _CHECKPOINTED[kind]
        offsets = {partition.name: read(partition) for partition in partitions}
        topic_ids = {partition.name.topic: partition.topic_id for partition in partitions}
        topic_ids.pop(METADATA_TOPIC, None)
        moved = {name: offset for name, offset in offsets.items() if offset > 0}
        write_offsets(self._disk, f"{store.path}/{kind}", moved, topic_ids)

    def _read_checkpoints(self, store: Store) -> dict[str, dict[TopicPartition, int]]:
        """Blocking."""
        topics = self._metadata.image.topics_by_name.values()
        topic_ids = {topic.name: topic.id for topic in topics}
        nothing: dict[TopicPartition, int] = {}
        return {
            kind: self._with(store, read_offsets, self._disk, f"{store.path}/{kind}", topic_ids)
            or nothing
            for kind in (RECOVERY_POINTS, START_OFFSETS, LOG_SIZES)
        }

    async def save_recovery_points(self, store: Store) -> None:
        """Returns when a start after a crash knows what is synced there now."""
        await self._save(store, RECOVERY_POINTS)

    async def save_start_offsets(self, moved: Iterable[Partition] | None = None) -> None:
        """Returns when the log start offsets of these partitions are on disk, or of all."""
        touched = self if moved is None else moved
        stores = dict.fromkeys(self.stores.of(partition) for partition in touched)
        if moved is None:
            stores[self.stores.metadata] = None
        for store in stores:
            if store.is_online:
                await self._save(store, START_OFFSETS)

    async def save_recovery_point(self, partition: Partition) -> None:
        """Returns when it is on disk, with those of its neighbours."""
        await self._save(self.stores.of(partition), RECOVERY_POINTS)

    # -------------------------------------------------------------------------------- closing

    def stop_checkpoints(self) -> None:
        """Nothing more is begun of what comes round; what is under way is waited for by `close`."""
        self._is_closing = True
        for timer in (self._checkpoint_timer, self._probe_timer, self._expiring):
            if timer is not None:
                timer.cancel()

    async def close(self) -> list[Store]:
        """Closes every log, synced. Returns the directories that need no recovery."""
        self.stop_checkpoints()
        for partition in self:
            partition.retire(NotLeader("the broker stops"))
        leaving = self._loop.create_task(self._departures.close())
        for store, task in self._saving.items():
            if not store.is_online:
                task.cancel()
        await asyncio.wait((leaving, *self._saving.values()), timeout=STOP_S_MAX)
        stores = self.stores.online()
        closing = [asyncio.ensure_future(store.run(self._close_all, store)) for store in stores]
        if closing:
            await asyncio.wait(closing, timeout=STOP_S_MAX)
        return [
            store
            for store, closed in zip(stores, closing, strict=True)
            if closed.done()
            and not closed.cancelled()
            and not closed.exception()
            and closed.result()
        ]

    def _close_all(self, store: Store) -> bool:
        partitions = [partition for partition in self if partition.data is store.data]
        closing = Closing(self._disk, store.path)
        closing.close_all(partitions)
        try:
            closing.save_short_logs()
            for kind in _CHECKPOINTED:
                self._write_checkpoint(store, kind, self._in(store))
        except OSError as error:
            logger.error("checkpoints could not be written: %s", error)
            return False
        return closing.is_clean


async def _written(partition: Partition) -> None:
    """Returns when no thread writes to its files."""
    told = asyncio.Event()
    partition.when_not_busy(told.set)
    await told.wait()
