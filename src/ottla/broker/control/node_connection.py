"""Connections to other nodes. A node alone starts without the client that makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.types import NODE_SOFTWARE

if TYPE_CHECKING:
    from ottla.client.connection import Connection


async def open_connection(node_id: int, address: str) -> Connection:
    """To a node at host:port, from this one."""
    from ottla.client.connection import Connection
    from ottla.client.settings import ClientSettings

    return await Connection.open(address, ClientSettings((), f"node-{node_id}", NODE_SOFTWARE))
