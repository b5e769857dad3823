"""Connections to other nodes. A node alone starts without the client that makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, cast

from ottla.client.failures import CannotConnect, ClientFailed
from ottla.types import NODE_SOFTWARE, NodeId
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache
    from ottla.client.connection import Connection
    from ottla.config import BrokerConfig

R = TypeVar("R", bound=Message)


async def open_connection(node_id: int, address: str) -> Connection:
    """To a node at host:port, from this one."""
    from ottla.client.connection import Connection
    from ottla.client.settings import ClientSettings

    return await Connection.open(address, ClientSettings((), f"node-{node_id}", NODE_SOFTWARE))


async def connect_to_broker(
    config: BrokerConfig, metadata: MetadataCache, node_id: NodeId
) -> Connection:
    """To another broker, where it has registered itself."""
    broker = metadata.image.brokers.get(node_id)
    name = config.advertised()[0].name
    endpoint = None if broker is None else broker.endpoints.get(name)
    if endpoint is None:
        raise CannotConnect(f"node {node_id} has no listener {name}")
    from ottla.client.settings import join_address

    return await open_connection(config.node_id, join_address(endpoint.host, endpoint.port))


class Brokers:
    """The brokers of the cluster, this one included, for questions of one to another."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataCache,
        answer_here: Callable[[Message], Awaitable[Message]],
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._answer_here = answer_here
        self._connections: dict[NodeId, Connection] = {}
        self._opening: dict[NodeId, asyncio.Lock] = {}

    async def ask(self, node_id: NodeId, request: Message, kind: type[R], timeout_s: float) -> R:
        """The reply, within so long; ClientFailed or TimeoutError where there is none."""
        async with asyncio.timeout(timeout_s):
            if node_id == self._config.node_id:
                return cast(R, await self._answer_here(request))
            connection = await self._connected(node_id)
            try:
                return await connection.ask(request, kind, timeout_s=timeout_s)
            except ClientFailed:
                self._forget(node_id, connection)
                raise

    async def _connected(self, node_id: NodeId) -> Connection:
        async with self._opening.setdefault(node_id, asyncio.Lock()):
            kept = self._connections.get(node_id)
            if kept is not None and kept.is_usable:
                return kept
            opened = await connect_to_broker(self._config, self._metadata, node_id)
            self._connections[node_id] = opened
            return opened

    def _forget(self, node_id: NodeId, connection: Connection) -> None:
        if self._connections.get(node_id) is connection:
            del self._connections[node_id]
        connection.abort("it does not answer")

    def close(self) -> None:
        for connection in self._connections.values():
            connection.abort("this node stops")
        self._connections.clear()
