"""The real network: sockets that the event loop listens on."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable


class SocketListener:
    def __init__(self, server: asyncio.Server, backlog: int) -> None:
        self._server = server
        self._backlog = backlog
        self.port: int = server.sockets[0].getsockname()[1]

    def claim(self) -> None:
        """Until somebody listens, several may have bound a port; uvloop would not say who lost."""
        for bound in self._server.sockets:
            with socket.socket(fileno=os.dup(bound.fileno())) as twin:
                twin.listen(self._backlog)

    async def open(self) -> None:
        await self._server.start_serving()

    def close(self) -> None:
        self._server.close()


class SocketNetwork:
    async def bind(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        backlog: int,
    ) -> SocketListener:
        server = await asyncio.get_running_loop().create_server(
            protocol_factory, host, port, backlog=backlog, start_serving=False
        )
        return SocketListener(server, backlog)
