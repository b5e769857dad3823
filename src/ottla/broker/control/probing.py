"""The controller looks after a broker that has fallen silent: is its process still there?

A kill -9 closes a broker's sockets at once. Where nobody listens at its address it is fenced
without waiting for its session to end. On the way to another machine a firewall may refuse as well,
while the broker leads on under its lease (ADR 0011): where there are such, `broker.refusal.fences`
is false, and only this machine itself is believed. One that takes connections, or is not to be
reached at all, keeps its session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.errors import OttlaError
from ottla.ports import Network

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.control.needs import Leadership
    from ottla.cluster.image import Endpoint
    from ottla.config import BrokerConfig

logger = logging.getLogger(__name__)

# A dying process closes its sockets one by one: its listener may go a moment after the others.
PAUSES_S: Final = (0.0, 0.05, 0.2)
CONNECT_TIMEOUT_S: Final = 1.0


class HeartbeatsOf(NamedTuple):
    """Remembered by a connection: the broker that has sent its heartbeats here, and its epoch."""

    node_id: int
    epoch: int


class Probes:
    def __init__(
        self,
        config: BrokerConfig,
        leadership: Leadership,
        metadata: MetadataCache,
        fence: Callable[[int, int], Awaitable[Any]],
        network: Network,
    ) -> None:
        self._network = network
        self._believes_others = config.broker_refusal_fences
        self._node_id = config.node_id
        self._leadership = leadership
        self._metadata = metadata
        self._fence = fence
        self._under_way: dict[int, asyncio.Task[bool]] = {}
        leadership.on_leader_change(self._lead)

    def connection_lost(self, memory: dict[Any, Any]) -> None:
        of = memory.get(HeartbeatsOf)
        if of is not None and self._leadership.is_leader:
            self._begin(of.node_id)

    def _lead(self) -> None:
        """A new controller has heard nothing of anybody."""
        if self._leadership.is_leader:
            for broker in self._metadata.brokers():
                self._begin(broker.id)

    def _begin(self, node_id: int) -> asyncio.Task[bool] | None:
        if node_id == self._node_id:
            return None
        task = self._under_way.get(node_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._probe(node_id))
            self._under_way[node_id] = task
            task.add_done_callback(lambda _: self._under_way.pop(node_id, None))
        return task

    async def is_gone(self, node_id: int) -> bool:
        """Whether the broker was found gone, and is fenced now."""
        task = self._begin(node_id)
        return task is not None and await task

    async def _probe(self, node_id: int) -> bool:
        for pause_s in PAUSES_S:
            await asyncio.sleep(pause_s)
            broker = self._metadata.image.brokers.get(node_id)
            if broker is None or broker.is_fenced:
                return False
            points = broker.endpoints.values()
            refused = [await self._is_refused(point) for point in points]
            if not refused or not all(refused):
                continue
            try:
                await self._fence(node_id, broker.epoch)
            except OttlaError as error:
                logger.info("broker %d is gone and not fenced yet: %s", node_id, error)
            else:
                logger.warning("broker %d is gone, nobody listens there: it is fenced", node_id)
                return True
        return False

    async def _is_refused(self, point: Endpoint) -> bool:
        """Whether nobody can be listening there."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if not (self._believes_others or await self._network.is_own(point.host)):
                    return False
                _, writer = await asyncio.open_connection(point.host, point.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    def close(self) -> None:
        for task in tuple(self._under_way.values()):
            task.cancel()
