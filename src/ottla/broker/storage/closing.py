"""Closing all logs: in each data directory many share one sync.

Where they are few, each gets the files that Kafka would leave. Where they are very many, the short
ones share one file of ours instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.storage.flusher import STOP_S_MAX
from ottla.errors import NotLeader, OttlaError
from ottla.log.opening.short_logs import ShortLog, write_short_logs
from ottla.ports import Disk
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.storage.checkpoints import Checkpoints
    from ottla.broker.storage.departures import Departures
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.partitions import Partitions
    from ottla.broker.storage.stores import Store, Stores

logger = logging.getLogger(__name__)

# As many logs have their last files open together.
CLOSED_AT_ONCE: Final = 256
FAILURES_TOLD_MAX: Final = 10
# So many get files of their own, about two thousand in all, whatever is in them.
WITH_FILES_MAX: Final = 500


async def close_partitions(
    disk: Disk,
    stores: Stores,
    partitions: Partitions,
    checkpoints: Checkpoints,
    departures: Departures,
) -> list[Store]:
    """Closes every log, synced. Returns the directories that need no recovery."""
    checkpoints.stop()
    for partition in partitions:
        partition.retire(NotLeader("the broker stops"))
    leaving = asyncio.ensure_future(departures.close())
    await asyncio.wait((leaving, *checkpoints.under_way()), timeout=STOP_S_MAX)
    online = stores.online()
    closing = [store.run(_close, disk, store, partitions, checkpoints) for store in online]
    if closing:
        await asyncio.wait(closing, timeout=STOP_S_MAX)
    return [store for store, closed in zip(online, closing, strict=True) if _is_clean(closed)]


def leave_clean_markers(stores: Sequence[Store], broker_epoch: int) -> None:
    """The next start need not check what is there."""
    for store in stores:
        try:
            store.data.leave_clean_marker(broker_epoch)
        except OSError as error:
            logger.error("%s: the next start will check what is there: %s", store.path, error)


def _is_clean(closed: asyncio.Future[bool]) -> bool:
    has_ended = closed.done() and not closed.cancelled() and not closed.exception()
    return has_ended and closed.result()


def _close(disk: Disk, store: Store, partitions: Partitions, checkpoints: Checkpoints) -> bool:
    """Blocking."""
    closing = Closing(disk, store.path)
    closing.close_all([each for each in partitions if each.data is store.data])
    try:
        closing.save_short_logs()
        checkpoints.write_all(store)
    except OSError as error:
        logger.error("checkpoints could not be written: %s", error)
        return False
    return closing.is_clean


class Closing:
    """The logs of one data directory. All of it blocks."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._shorts: list[tuple[TopicPartition, ShortLog]] = []
        self._failures = 0
        self._shares = False

    @property
    def is_clean(self) -> bool:
        return not self._failures

    def close_all(self, partitions: Sequence[Partition]) -> None:
        self._shares = sum(each.size_bytes > 0 for each in partitions) > WITH_FILES_MAX
        for start in range(0, len(partitions), CLOSED_AT_ONCE):
            self._close_some(partitions[start : start + CLOSED_AT_ONCE])
        if self._failures > FAILURES_TOLD_MAX:
            logger.error("%d logs in all are not closed cleanly", self._failures)

    def save_short_logs(self) -> None:
        write_short_logs(self._disk, self._directory, self._shorts)

    def _close_some(self, partitions: Sequence[Partition]) -> None:
        """Many logs share one sync, as in the flusher."""
        closing = []
        for partition in partitions:
            try:
                take = partial(self._take_short, partition.name) if self._shares else None
                closing.append((partition, partition.begin_close(take)))
            except (OSError, OttlaError) as error:
                self._fail(partition, error)
        tickets = [ticket for _, ticket in closing if ticket is not None]
        try:
            is_all_synced = self._disk.sync_many(
                [file for ticket in tickets for file in ticket.files],
                [directory for ticket in tickets for directory in ticket.directories],
            )
            for partition, ticket in closing:
                if ticket is not None:
                    partition.make_directory_durable(is_all_synced)
                partition.finish_close(ticket)
        except OSError as error:
            for partition, _ in closing:
                self._fail(partition, error)

    def _take_short(self, name: TopicPartition, short: ShortLog) -> None:
        self._shorts.append((name, short))

    def _fail(self, partition: Partition, error: Exception) -> None:
        self._failures += 1
        if self._failures <= FAILURES_TOLD_MAX:
            logger.error("%s: not closed cleanly: %s", partition.name, error)
