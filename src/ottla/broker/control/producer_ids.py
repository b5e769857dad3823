"""The producer ids that this broker hands out: a block at a time, each of its own (KIP-730)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.broker.control.channel import ControllerChannel
from ottla.errors import CoordinatorLoading, OttlaError
from ottla.types import ProducerId
from ottla.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


class ProducerIds:
    """The rest of a block is forgotten with the process, never handed out again."""

    def __init__(
        self,
        channel: ControllerChannel,
        node_id: int,
        broker_epoch: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._timeout_s = timeout_s
        self._block = range(0)
        self._asking = asyncio.Lock()

    async def next(self) -> ProducerId:
        """An id that no producer had or will have: its block is committed."""
        if not self._block:
            async with self._asking:
                if not self._block:
                    self._block = await self._allocated()
        producer_id = ProducerId(self._block[0])
        self._block = self._block[1:]
        return producer_id

    async def _allocated(self) -> range:
        request = AllocateProducerIdsRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch()
        )
        try:
            reply = await self._channel.ask(request, AllocateProducerIdsResponse, self._timeout_s)
        except OttlaError as error:
            # As in Kafka: the next try may find a controller, or this broker registered anew.
            raise CoordinatorLoading(f"There are no producer ids just now: {error}") from error
        first = reply.producer_id_start
        return range(first, first + reply.producer_id_len)
