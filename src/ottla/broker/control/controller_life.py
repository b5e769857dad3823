"""The life of this controller in its cluster (KIP-919): the others know where it is, and of which
levels of features.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.control.channel import ControllerChannel
from ottla.cluster.features import SUPPORTED
from ottla.config import BrokerConfig
from ottla.errors import CannotStart, OttlaError, UnsupportedVersion
from ottla.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    Feature,
    Listener,
)

if TYPE_CHECKING:
    from ottla.wire.messages.broker_registration import Listener as Endpoint

logger = logging.getLogger(__name__)

FEATURES: Final = [Feature(name, *levels) for name, levels in SUPPORTED.items()]
PAUSE_S: Final = 1.0


class ControllerLife:
    def __init__(
        self, config: BrokerConfig, incarnation_id: bytes, channel: ControllerChannel
    ) -> None:
        self._config = config
        self._incarnation_id = incarnation_id
        self._channel = channel
        self._telling: asyncio.Task[None] | None = None

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Returns when the cluster knows this controller."""
        try:
            await self._register(endpoints)
        except UnsupportedVersion as error:
            raise CannotStart(str(error)) from error

    def register_meanwhile(self, endpoints: Sequence[Endpoint]) -> None:
        """The same for a node that is a broker too: its clients need not wait for this."""
        loop = asyncio.get_running_loop()
        self._telling = loop.create_task(self._register_at_last(endpoints))

    async def _register_at_last(self, endpoints: Sequence[Endpoint]) -> None:
        while True:
            try:
                await self._register(endpoints)
            except OttlaError as error:
                logger.warning("this controller is not registered: %s", error)
                await asyncio.sleep(PAUSE_S)
            else:
                return

    async def _register(self, endpoints: Sequence[Endpoint]) -> None:
        request = ControllerRegistrationRequest(
            controller_id=self._config.node_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                Listener(point.name, point.host, point.port, point.security_protocol)
                for point in endpoints
            ],
            features=FEATURES,
        )
        timeout_s = self._config.request_timeout_ms / 1000
        await self._channel.ask(request, ControllerRegistrationResponse, timeout_s)

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
