"""Which partitions this node follows, and from whom: a fetcher for each leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.broker.replication.limits import FetchLimits
from ottla.broker.replication.throttles import Throttles
from ottla.ports import Clock
from ottla.types import NO_NODE, NodeId
from ottla.wire.messages.fetch import ReplicaState

if TYPE_CHECKING:
    from ottla.broker.replication.fetcher import Fetcher
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.truncation import Truncation
    from ottla.client.connection import Connection


class Followers:
    """Told of every change of a partition's role; follows nothing before `start`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        node_id: NodeId,
        limits: FetchLimits,
        connect: Callable[[NodeId], Awaitable[Connection]],
        truncation: Truncation,
        shorten: Callable[[Partition, int], Awaitable[None]],
        throttles: Throttles,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._node_id = node_id
        self._limits = limits
        self._connect = connect
        self._truncation = truncation
        self._shorten = shorten
        self._throttles = throttles
        self._replica: ReplicaState | None = None
        self._followed: dict[Partition, NodeId] = {}
        self._fetchers: dict[NodeId, Fetcher] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def start(self, broker_epoch: int) -> None:
        """The node is registered: leaders count its fetches as those of this life."""
        self._replica = ReplicaState(self._node_id, broker_epoch)
        for leader in tuple(self._fetchers):
            self._let_go(leader)
        for partition, leader in self._followed.items():
            self._fetcher(leader).follow(partition)

    async def stop(self) -> None:
        for leader in tuple(self._fetchers):
            self._let_go(leader)
        if self._leaving:
            await asyncio.wait(self._leaving)

    def role_changed(self, partition: Partition) -> None:
        """The partition leads, follows somebody or goes on under a new epoch, or is gone."""
        before = self._followed.pop(partition, NO_NODE)
        is_gone = partition.is_elected or partition.is_retired or partition.is_offline
        leader = NO_NODE if is_gone else partition.leader_id
        if before not in (NO_NODE, leader) and before in self._fetchers:
            self._fetchers[before].leave(partition)
            if not len(self._fetchers[before]):
                self._let_go(before)
        if leader == NO_NODE:
            return
        self._followed[partition] = leader
        if self._replica is not None:
            self._fetcher(leader).follow(partition)

    def log_renewed(self, partition: Partition) -> None:
        """Its log was opened anew after a failed sync, and has lost what was not synced."""
        leader = self._followed.get(partition)
        if leader in self._fetchers:
            self._fetchers[leader].begin_anew(partition)

    async def report(self, partition: Partition, offset: int) -> bool:
        """Tells the leader that this copy is damaged from `offset` on; whether it has heard it."""
        fetcher = self._fetchers.get(self._followed.get(partition, NO_NODE))
        return fetcher is not None and await fetcher.report(partition, offset)

    def _fetcher(self, leader: NodeId) -> Fetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            # A node alone follows nobody, and starts sooner without it.
            from ottla.broker.replication.fetcher import Fetcher

            assert self._replica is not None
            fetcher = self._fetchers[leader] = Fetcher(
                self._loop,
                self._clock,
                leader,
                self._replica,
                self._limits,
                self._connect,
                self._truncation,
                self._shorten,
                self._throttles,
            )
            fetcher.start()
        return fetcher

    def _let_go(self, leader: NodeId) -> None:
        task = self._loop.create_task(self._fetchers.pop(leader).stop())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
