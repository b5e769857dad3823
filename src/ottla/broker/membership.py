"""This node among the others, wired together: its way to the controller, its life, its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.broker.control.channel import ControllerChannel
from ottla.broker.control.controller_life import ControllerLife
from ottla.broker.control.lease import new_lease
from ottla.broker.control.lifecycle import Lifecycle
from ottla.broker.control.metadata import MetadataCache
from ottla.broker.control.metadata_quorum import MetadataQuorum
from ottla.broker.control.probing import Probes
from ottla.broker.control.reports import Reports
from ottla.broker.control.runtime import Runtime
from ottla.broker.control.standing_aside import StandingAside
from ottla.broker.network.listening import told_to_clients, told_to_nodes
from ottla.broker.storage.partitions import Partitions
from ottla.broker.storage.stores import Stores
from ottla.cluster.controller import Controller
from ottla.cluster.image import NO_BROKER_EPOCH
from ottla.config import BrokerConfig
from ottla.config.listeners import Address
from ottla.ports import Clock, Network, Random
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.broker.control.auto_join import AutoJoin
    from ottla.broker.control.leader_check import LeaderCheck


class Membership:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        random: Random,
        network: Network,
        config: BrokerConfig,
        stores: Stores,
        quorum: MetadataQuorum,
        controller: Runtime[Controller],
        metadata: MetadataCache,
        partitions: Partitions,
        answer: Callable[[Message], Awaitable[Message]],
        on_lease_needed: Callable[[], None],
    ) -> None:
        """`answer` takes what this node asks of itself."""
        self._clock = clock
        self._config = config
        self._stores = stores
        self._quorum = quorum
        self._controller = controller
        self._answer = answer
        self.channel = ControllerChannel(quorum, random, config.node_id, self._answer_here)
        incarnation_id = random.bytes(16)
        self._controller_life = ControllerLife(config, incarnation_id, self.channel)
        self.lease = new_lease(loop, clock, config, quorum, metadata, partitions, on_lease_needed)
        self.lifecycle = Lifecycle(
            config,
            stores.cluster_id,
            incarnation_id,
            NO_BROKER_EPOCH if stores.clean_epoch is None else stores.clean_epoch,
            self.channel,
            metadata,
            lambda: controller.published_offset,
            clock,
            self.lease,
        )
        self.probes = Probes(config, quorum, metadata, self._fence, network)
        self.reports = Reports(loop, config, self.channel, self.lifecycle)
        self.standing_aside = StandingAside(
            loop, stores.metadata, quorum, self.lifecycle.stand_aside
        )
        self._leader_check: LeaderCheck | None = None
        self._auto_join: AutoJoin | None = None

    async def _answer_here(self, request: Message) -> Message:
        self.lifecycle.asked_here(request)
        return await self._answer(request)

    async def _fence(self, node_id: int, epoch: int) -> None:
        await self._controller.submit(
            lambda machine, now, ticket: machine.fence_broker(node_id, epoch, now, ticket)
        )

    async def join_quorum(self) -> None:
        """Returns when there is a leader, and what it has committed is known here."""
        await self._quorum.start()
        await self._quorum.admission.ready()
        # A node alone starts without what only several need.
        from ottla.broker.control.auto_join import AutoJoin
        from ottla.broker.control.leader_check import LeaderCheck

        self._leader_check = LeaderCheck(self._config, self._clock, self.channel, self._quorum)
        await self._leader_check.at_start()
        if self._config.is_controller and self._config.controller_quorum_auto_join_enable:
            self._auto_join = AutoJoin(
                self._quorum,
                self.channel,
                self._stores.cluster_id,
                self._config.controller_quorum_fetch_timeout_ms,
            )
            self._auto_join.start()

    async def join_cluster(self, bound: dict[str, Address]) -> None:
        if not self._config.is_broker:
            await self._controller_life.register(told_to_nodes(self._config, bound))
            return
        listeners = told_to_clients(self._config, bound)
        online = [store for store in self._stores.online() if store.takes_partitions]
        await self.lifecycle.register(listeners, [store.directory_id for store in online])
        if self._config.is_controller:
            self._controller_life.register_meanwhile(told_to_nodes(self._config, bound))

    async def leave(self) -> None:
        """Others take over what this node leads, where there are others."""
        self._controller_life.close()
        self.standing_aside.close()
        if self._config.is_broker:
            await self.lifecycle.leave()
        if self._quorum.has_others:
            await self._quorum.resign()

    def vanish(self) -> None:
        """Tells nobody anything more."""
        self.lifecycle.close()
        self._controller_life.close()

    def close(self) -> None:
        self.reports.close()
        self.lease.close()
        self.channel.close()
        self.probes.close()
        if self._leader_check is not None:
            self._leader_check.close()
        if self._auto_join is not None:
            self._auto_join.close()
