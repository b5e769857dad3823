"""What this node tells the controller about its partitions and directories."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from ottla.broker.control.channel import ControllerChannel
from ottla.broker.control.lifecycle import Lifecycle
from ottla.cluster.directories import RECORDS_PER_BATCH_MAX, Assignment
from ottla.config import BrokerConfig
from ottla.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)

logger = logging.getLogger(__name__)


class Reports:
    """What the controller did not take in, it is told at the next start."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        channel: ControllerChannel,
        lifecycle: Lifecycle,
    ) -> None:
        self._loop = loop
        self._config = config
        self._channel = channel
        self._lifecycle = lifecycle
        self._under_way: dict[asyncio.Future[Any], None] = {}

    def places(self, assignments: list[Assignment]) -> None:
        """Where new partitions lie; the controller need not know before they serve."""
        for start in range(0, len(assignments), RECORDS_PER_BATCH_MAX):
            self._watch(self._assign(assignments[start : start + RECORDS_PER_BATCH_MAX]))

    def offline(self, directory_id: bytes) -> None:
        """A directory's disk has failed."""
        self._watch(self._lifecycle.take_offline(directory_id))

    def close(self) -> None:
        for told in tuple(self._under_way):
            told.cancel()

    async def _assign(self, assignments: Sequence[Assignment]) -> None:
        request = AssignReplicasToDirsRequest(
            broker_id=self._config.node_id,
            broker_epoch=self._lifecycle.epoch,
            directories=_by_directory(assignments),
        )
        timeout_s = self._config.request_timeout_ms / 1000
        await self._channel.ask(request, AssignReplicasToDirsResponse, timeout_s)

    def _watch(self, telling: Coroutine[Any, Any, None]) -> None:
        told = self._loop.create_task(telling)
        self._under_way[told] = None
        told.add_done_callback(self._told)

    def _told(self, told: asyncio.Future[Any]) -> None:
        self._under_way.pop(told, None)
        if not told.cancelled() and told.exception() is not None:
            logger.warning("the controller was not told of a directory: %s", told.exception())


def _by_directory(assignments: Sequence[Assignment]) -> list[DirectoryData]:
    found: dict[bytes, dict[bytes, list[PartitionData]]] = {}
    for topic_id, index, directory_id in assignments:
        topics = found.setdefault(directory_id, {})
        topics.setdefault(topic_id, []).append(PartitionData(index))
    return [
        DirectoryData(
            directory_id, [TopicData(topic_id, parts) for topic_id, parts in topics.items()]
        )
        for directory_id, topics in found.items()
    ]
