"""Compacted topics are compacted: the log with the largest dirty share first, one at a time.

The work on messages is done by a process of its own, which is started when a round finds something
to do and ended when there is nothing left. Here is decided which log is next, and each new segment
is put in the place of the old ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ottla.broker.storage.compaction_helper import CompactionFailed, HelperLost
from ottla.broker.storage.partition_look import PartitionLook
from ottla.broker.threads import wait_out
from ottla.errors import OttlaError
from ottla.log.checkpoints import read_offsets, write_offsets
from ottla.log.compaction.choice import Dirtiness, Rules, dirtiness
from ottla.log.compaction.job import CompactionJob, Source
from ottla.log.compaction.output import CleanedSegment
from ottla.log.compaction.swap import SwapAbandoned, remove_cleaned
from ottla.log.retention import extents
from ottla.types import TopicPartition
from ottla.wire.records import BATCH_HEADER_BYTES, read_header

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.stores import Store, StoresOf
    from ottla.config import BrokerConfig
    from ottla.log.handles import Handles
    from ottla.ports import Clock, Disk

logger = logging.getLogger(__name__)

CLEANED_OFFSETS: Final = "cleaner-offset-checkpoint"
# A directory whose disk is stuck is passed over until the next round.
LOOK_S_MAX: Final = 30.0
# What happens to a log that is being shortened, deleted or reopened: no reason for a warning.
_PASSING: Final = ("FileNotFoundError",)
# What the next round would find again, and what only a person can change.
_LASTING: Final = ("CorruptBatch", "KeyMapTooSmall")


class Compactor(Protocol):
    """Does the work on messages, one job at a time, wherever it runs."""

    cleaned_to: int

    @property
    def process_id(self) -> int: ...

    def compact(self, job: CompactionJob) -> AsyncGenerator[CleanedSegment, None]: ...

    async def close(self) -> None: ...


class RemovesLater(Protocol):
    def remove_later(self, partition: Partition, paths: Sequence[str]) -> None: ...


class _Look(NamedTuple):
    """A compacted partition at one moment, and by what it is judged."""

    at: PartitionLook
    rules: Rules
    cleaned_to: int | None

    @property
    def partition(self) -> Partition:
        return self.at.partition

    def judge(self, handles: Handles, now_ms: int) -> Dirtiness:
        """Blocking."""
        look = self.at

        def first_ms(at: int) -> int:
            segment = look.segments[at]
            if not segment.size:
                return -1
            data = segment.reader(handles)(BATCH_HEADER_BYTES, 0)
            return read_header(data).max_timestamp

        return dirtiness(
            extents(look.segments, look.end_offset),
            self.cleaned_to,
            look.start_offset,
            min(look.durable_base, look.stable_base),
            self.rules,
            now_ms,
            look.youngest_ms,
            first_ms,
        )


class _GivenUp(NamedTuple):
    """A log that could not be compacted with a buffer of so many bytes."""

    look: PartitionLook
    reason: str
    map_bytes: int


class CompactionChore:
    """`ratios` has the dirty share of each compacted log, as of the last round that saw it."""

    name = "compaction"

    def __init__(
        self,
        partitions: Iterable[Partition],
        stores: StoresOf,
        removals: RemovesLater,
        save_recovery_point: Callable[[Partition], Coroutine[Any, Any, None]],
        handles: Handles,
        clock: Clock,
        disk: Disk,
        config: Callable[[], BrokerConfig],
        start_compactor: Callable[[], Awaitable[Compactor]],
    ) -> None:
        self._start_compactor = start_compactor
        self._partitions = partitions
        self._stores = stores
        self._removals = removals
        self._save_recovery_point = save_recovery_point
        self._handles = handles
        self._clock = clock
        self._disk = disk
        self._config = config
        self._cleaned: dict[Store, dict[TopicPartition, int]] = {}
        self._topic_ids: dict[TopicPartition, bytes] = {}
        self._given_up: dict[TopicPartition, _GivenUp] = {}
        self._helper: Compactor | None = None
        self.ratios: dict[TopicPartition, float] = {}
        self.last_run_ms = 0
        self.logs_cleaned = 0
        self.bytes_cleaned = 0
        self.bytes_freed = 0

    @property
    def pause_s(self) -> float:
        return self._config().log_cleaner_backoff_ms / 1000

    @property
    def given_up(self) -> dict[TopicPartition, str]:
        """Logs that cannot be compacted, and why: damage, or a key map that is too small."""
        return {name: given_up.reason for name, given_up in self._given_up.items()}

    @property
    def helper_process_id(self) -> int | None:
        return None if self._helper is None else self._helper.process_id

    async def run(self) -> None:
        if not self._config().log_cleaner_enable:
            return
        passed_over: set[TopicPartition] = set()
        try:
            while (found := await self._dirtiest(passed_over)) is not None:
                look, state = found
                if not await self._compact(look, state):
                    passed_over.add(look.partition.name)
        except HelperLost as error:
            logger.warning("compaction goes on in the next round: %s", error)
        finally:
            await self._end_helper()
        self.last_run_ms = self._clock.wall_ms()

    # ------------------------------------------------------------------------------- choosing

    async def _dirtiest(self, passed_over: set[TopicPartition]) -> tuple[_Look, Dirtiness] | None:
        by_store: dict[Store, list[Partition]] = {}
        for partition in self._partitions:
            if "compact" in partition.config.cleanup_policy and self._is_cleanable(partition):
                by_store.setdefault(self._stores.of(partition), []).append(partition)
        ratios: dict[TopicPartition, float] = {}
        wanting: list[tuple[_Look, Dirtiness]] = []
        for store, partitions in by_store.items():
            # New segments get their names on the loop, which must not wait for a disk.
            if not store.is_online or any(flusher.is_slow for flusher in store.flushers):
                names = [partition.name for partition in partitions]
                ratios |= {name: self.ratios[name] for name in names if name in self.ratios}
                continue
            for look, state in await self._judge(store, partitions):
                name = look.partition.name
                ratios[name] = state.ratio
                if name not in passed_over and state.wants_compaction(look.rules):
                    wanting.append((look, state))
        self.ratios = ratios
        return max(wanting, key=lambda pair: pair[1].ratio, default=None)

    def _is_cleanable(self, partition: Partition) -> bool:
        given_up = self._given_up.get(partition.name)
        if given_up is not None and not self._still_holds(given_up, partition):
            del self._given_up[partition.name]
            given_up = None
        return given_up is None and not partition.is_fenced and not partition.is_retired

    def _still_holds(self, given_up: _GivenUp, partition: Partition) -> bool:
        """What was too much for the buffer may not be for one of another size."""
        map_bytes = self._config().log_cleaner_dedupe_buffer_size
        look = given_up.look
        is_same = look.partition is partition and look.is_current()
        return is_same and given_up.map_bytes == map_bytes

    async def _judge(
        self, store: Store, partitions: Sequence[Partition]
    ) -> list[tuple[_Look, Dirtiness]]:
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                cleaned = await self._cleaned_offsets(store, partitions)
                looks = [self._look(partition, cleaned) for partition in partitions]
                return await store.run(_judge_all, looks, self._handles, self._clock.wall_ms())
        except TimeoutError:
            logger.warning("%s: its logs cannot be looked at now", store.path)
            return []

    def _look(self, partition: Partition, cleaned: dict[TopicPartition, int]) -> _Look:
        config = partition.config
        return _Look(
            PartitionLook.at(partition),
            Rules(
                config.min_cleanable_dirty_ratio,
                config.min_compaction_lag_ms,
                config.max_compaction_lag_ms,
            ),
            cleaned.get(partition.name),
        )

    async def _cleaned_offsets(
        self, store: Store, partitions: Sequence[Partition]
    ) -> dict[TopicPartition, int]:
        """From the checkpoint file at first; without the topics that are gone, or new ones now."""
        cleaned = self._cleaned.get(store)
        if cleaned is None:
            by_name = {partition.name.topic: partition.topic_id for partition in self._partitions}
            path = f"{store.path}/{CLEANED_OFFSETS}"
            try:
                cleaned = await store.run(read_offsets, self._disk, path, by_name)
            except OttlaError as error:
                logger.warning("%s; compaction begins at the start of every log", error)
                cleaned = {}
            self._cleaned[store] = cleaned
        for partition in partitions:
            name, topic_id = partition.name, partition.topic_id
            if self._topic_ids.setdefault(name, topic_id) != topic_id:
                self._topic_ids[name] = topic_id
                cleaned.pop(name, None)
        return cleaned

    # ------------------------------------------------------------------------------ compacting

    async def _compact(self, look: _Look, state: Dirtiness) -> bool:
        """False when the log is no cleaner than before."""
        partition, name = look.partition, look.partition.name
        logger.info(
            "%s: compacting %d bytes, %.0f%% dirty",
            name,
            state.clean_bytes + state.dirty_bytes,
            100 * state.ratio,
        )
        if self._helper is None:
            self._helper = await self._start_compactor()
        job = self._job(look, state)
        try:
            await wait_out(self._save_recovery_point(partition))
            async with aclosing(self._helper.compact(job)) as segments:
                async for cleaned in segments:
                    if cleaned.is_changed:
                        await wait_out(self._swap(look, cleaned))
        except (SwapAbandoned, CompactionFailed, OSError) as error:
            self._note_failure(look, error, job.map_bytes)
            if not isinstance(error, CompactionFailed):
                # It waits to be told to go on, with what nobody wants any more.
                await self._end_helper()
            await self._clear_up(look)
            return False
        except (HelperLost, asyncio.CancelledError):
            await self._end_helper()
            await self._clear_up(look)
            raise
        cleaned_to = self._helper.cleaned_to
        logger.info("%s: compacted up to offset %d", name, cleaned_to)
        await self._save(look, cleaned_to)
        self.logs_cleaned += 1
        self.bytes_cleaned += state.dirty_bytes
        return cleaned_to > state.first_dirty

    def _job(self, look: _Look, state: Dirtiness) -> CompactionJob:
        config = look.at.log_config
        producers = look.partition.last_data_of_producers()
        return CompactionJob(
            directory=look.partition.directory,
            sources=[
                Source(segment.base_offset, segment.size)
                for segment in look.at.segments
                if segment.base_offset < state.end
            ],
            first_dirty=state.first_dirty,
            end=state.end,
            now_ms=self._clock.wall_ms(),
            delete_retention_ms=look.partition.config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes=self._config().log_cleaner_dedupe_buffer_size,
            producers={one: last for one, last in producers.items() if last[0] < state.end},
        )

    async def _swap(self, look: _Look, cleaned: CleanedSegment) -> None:
        """Renames happen on the loop, where nobody comes in between; syncs in a thread."""
        run = self._stores.of(look.partition).run
        swap = look.at.swap(self._handles, cleaned)
        try:
            await run(swap.begin)
            swap.announce()
            await run(swap.sync)
            aside = swap.replace()
            await run(swap.sync)
            swap.finish()
            await run(swap.sync)
        finally:
            swap.close()
        self.bytes_freed += swap.freed_bytes
        self._removals.remove_later(look.partition, aside)

    def _note_failure(self, look: _Look, error: OttlaError | OSError, map_bytes: int) -> None:
        name = look.partition.name
        kind = error.kind if isinstance(error, CompactionFailed) else type(error).__name__
        if not look.at.is_current() or isinstance(error, SwapAbandoned) or kind in _PASSING:
            logger.info("%s: compaction is put off: %s", name, error)
        elif kind in _LASTING:
            self._given_up[name] = _GivenUp(look.at, str(error), map_bytes)
            logger.error("%s: it cannot be compacted: %s", name, error)
        else:
            logger.warning("%s: compaction failed: %s", name, error)

    async def _clear_up(self, look: _Look) -> None:
        """New segments that will not be used."""
        if not look.at.is_current():
            return
        try:
            await self._stores.of(look.partition).run(
                remove_cleaned, self._disk, look.partition.directory
            )
        except OSError as error:
            logger.warning("%s: leftovers remain until a start: %s", look.partition.name, error)

    async def _save(self, look: _Look, cleaned_to: int) -> None:
        store = self._stores.of(look.partition)
        offsets = self._cleaned[store]
        offsets[look.partition.name] = cleaned_to
        here = {partition.name: partition.topic_id for partition in self._partitions}
        for name in offsets.keys() - here.keys():
            del offsets[name]
        for gone in self._given_up.keys() - here.keys():
            del self._given_up[gone]
        self._topic_ids = {name: self._topic_ids[name] for name in self._topic_ids if name in here}
        topic_ids = {name.topic: here[name] for name in offsets}
        path = f"{store.path}/{CLEANED_OFFSETS}"
        try:
            await wait_out(store.run(write_offsets, self._disk, path, dict(offsets), topic_ids))
        except OSError as error:
            logger.warning("%s: how far logs are compacted is not saved: %s", store.path, error)

    async def _end_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            await wait_out(helper.close())


def _judge_all(
    looks: Sequence[_Look], handles: Handles, now_ms: int
) -> list[tuple[_Look, Dirtiness]]:
    """In a thread."""
    found = []
    for look in looks:
        try:
            found.append((look, look.judge(handles, now_ms)))
        except (OSError, OttlaError) as error:
            if look.at.is_current() and look.at.has_same_segments():
                logger.warning("%s: compaction cannot judge it: %s", look.partition.name, error)
    return found
