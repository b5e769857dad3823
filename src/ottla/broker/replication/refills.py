"""Copies that are damaged: the leader is told, and when nobody counts on them they begin anew.

A damaged log keeps every byte that it has while it may be the last one, or be elected. Who follows
tells its leader how far its copy is intact, which takes it out of the in-sync replicas. Once the
metadata says so, all that is committed is elsewhere: the copy is emptied, and fetched again. This
node's metadata may be behind, though, so that is done only where the settings ask for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ottla.client.failures import ClientFailed
from ottla.errors import OttlaError
from ottla.types import NO_NODE

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.replication.followers import Followers
    from ottla.broker.storage.partition import Partition

logger = logging.getLogger(__name__)

SETTLED_S: Final = 10.0


class Refills:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: int,
        metadata: MetadataCache,
        followers: Followers,
        empty: Callable[[Partition], Awaitable[None]],
        *,
        may_empty: bool,
    ) -> None:
        self._may_empty = may_empty
        self._loop = loop
        self._node_id = node_id
        self._metadata = metadata
        self._followers = followers
        self._empty = empty
        self._works: dict[Partition, asyncio.Task[None]] = {}
        # Under which leader's epoch, and since when, that leader knows of the damage.
        self._reported: dict[Partition, tuple[int, float]] = {}

    def see(self, partition: Partition) -> None:
        """It is damaged; told again until it is not."""
        is_in_use = partition.is_elected or partition.is_busy or partition.is_retired
        if not is_in_use and not partition.is_offline and partition not in self._works:
            task = self._works[partition] = self._loop.create_task(self._mend(partition))
            task.add_done_callback(lambda _: self._works.pop(partition))

    async def stop(self) -> None:
        for task in tuple(self._works.values()):
            task.cancel()
            await asyncio.wait((task,))

    async def _mend(self, partition: Partition) -> None:
        try:
            if self._may_empty and self._is_dispensable(partition) and self._is_settled(partition):
                await self._empty(partition)
                self._reported.pop(partition, None)
                self._followers.log_renewed(partition)
            elif await self._followers.report(partition, partition.damaged_from):
                told = (partition.leader_epoch, self._loop.time())
                if self._reported.get(partition, told)[0] != partition.leader_epoch:
                    del self._reported[partition]
                self._reported.setdefault(partition, told)
        except (OttlaError, OSError, ClientFailed) as error:
            logger.warning("%s stays damaged for now: %s", partition.name, error)

    def _is_settled(self, partition: Partition) -> bool:
        """Whether the leader has known of the damage for long enough that what it had asked for
        before is decided, and has come here: this node's metadata may be a little behind.
        """
        epoch, told_s = self._reported.get(partition, (-1, 0.0))
        is_this_leader = epoch == partition.leader_epoch
        return is_this_leader and self._loop.time() - told_s >= SETTLED_S

    def _is_dispensable(self, partition: Partition) -> bool:
        """Whether another node leads, and nobody would elect this one."""
        topic = self._metadata.image.topics_by_id.get(partition.topic_id)
        image = None if topic is None else topic.partitions.get(partition.index)
        if image is None or image.leader in (NO_NODE, self._node_id):
            return False
        return self._node_id not in image.isr and self._node_id not in image.recovery.eligible
