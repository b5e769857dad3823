"""The sockets that a broker listens on: bound first, opened when there is something to serve.

What cannot be bound stops the start, in words that name the setting, the address and a way out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

from ottla.config.listeners import Address
from ottla.errors import CannotStart
from ottla.ports import Listener, Network

logger = logging.getLogger(__name__)

BACKLOG: Final = 100
_TAKEN: Final = "the port is taken by another process"
_REASONS: Final = {
    errno.EADDRINUSE: _TAKEN,
    errno.EADDRNOTAVAIL: "that is no address of this machine",
    errno.EACCES: "this user may not take that port",
    errno.EPERM: "this user may not take that port",
}


class Door:
    """One address. `bind` takes it, `open` lets clients in; `address` has the port that was taken.

    `name` is what people know it by, `remedy` what they can do when it cannot be had. With
    `or_any_port` a port that is taken is no reason to stop: a free one will do.
    """

    def __init__(
        self,
        network: Network,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        wanted: Address,
        name: str,
        remedy: str,
        *,
        backlog: int = BACKLOG,
        or_any_port: bool = False,
        is_shared: bool = False,
    ) -> None:
        self._network = network
        self._protocol_factory = protocol_factory
        self._wanted = wanted
        self._name = name
        self._remedy = remedy
        self._backlog = backlog
        self._or_any_port = or_any_port
        self._is_shared = is_shared
        self._listener: Listener | None = None
        self.address = wanted

    async def bind(self) -> None:
        try:
            await self._bind(self._wanted)
        except (OSError, UnicodeError) as error:
            await self._take_another(error)

    async def open(self) -> None:
        """Clients are served from here on."""
        assert self._listener is not None
        try:
            self._listener.claim()
        except OSError as error:
            self.close()
            await self._take_another(error)
            self._listener.claim()
        await self._listener.open()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _bind(self, address: Address) -> None:
        self._listener = await self._network.bind(
            self._protocol_factory,
            address.host,
            address.port,
            self._backlog,
            is_shared=self._is_shared,
        )
        self.address = Address(address.host, self._listener.port)

    async def _take_another(self, error: OSError | UnicodeError) -> None:
        reason = _reason(error, self._wanted)
        if not (self._or_any_port and reason is _TAKEN):
            raise CannotStart(
                f"{self._name} cannot be served: {reason}; {self._remedy}."
            ) from error
        await self._bind(self._wanted._replace(port=0))
        logger.warning("%s: %s; it is %s instead", self._name, reason, self.address)


def _reason(error: OSError | UnicodeError, address: Address) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"the host {address.host} is not known"
    return _REASONS.get(error.errno or 0) or error.strerror or str(error)
