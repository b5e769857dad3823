"""The real network: sockets that the event loop listens on."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, Final

# Nothing is sent there.
ANY_PORT: Final = 9


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
        *,
        is_shared: bool = False,
    ) -> SocketListener:
        server = await asyncio.get_running_loop().create_server(
            protocol_factory,
            host,
            port,
            backlog=backlog,
            start_serving=False,
            reuse_port=is_shared or None,
        )
        return SocketListener(server, backlog)

    async def is_own(self, host: str) -> bool:
        """What would be sent there would come from there."""
        found = await asyncio.get_running_loop().getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)
        return bool(found) and all(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: tuple[Any, ...]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(address)
        except OSError:
            return False
        return bool(asking.getsockname()[0] == address[0])


def shut_socket(transport: asyncio.Transport) -> None:
    """Of a connection whose loop may be unable to close it: the other side sees its end at once."""
    of_loop = transport.get_extra_info("socket")
    try:
        # Its own number for it, which nobody else closes meanwhile.
        with socket.socket(fileno=os.dup(of_loop.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It is closed already.
        return
