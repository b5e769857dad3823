"""What this node tells the controller about its partitions and directories."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from ottla.broker.control.runtime import Runtime
from ottla.broker.storage.partition import Partition
from ottla.cluster.controller import Controller
from ottla.cluster.directories import RECORDS_PER_BATCH_MAX, Assignment
from ottla.machine import Decision, Ticket
from ottla.types import Now
from ottla.wire.schema import Message

logger = logging.getLogger(__name__)

Decide: TypeAlias = Callable[[Controller, Now, Ticket], Decision[Message]]


class Reports:
    """What the controller did not take in, it is told at the next start."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, controller: Runtime[Controller], node_id: int
    ) -> None:
        self._loop = loop
        self._controller = controller
        self._node_id = node_id
        self._under_way: dict[asyncio.Future[Any], None] = {}

    def places(self, assignments: list[Assignment]) -> None:
        """Where new partitions lie; the controller need not know before they serve."""
        for start in range(0, len(assignments), RECORDS_PER_BATCH_MAX):
            some = assignments[start : start + RECORDS_PER_BATCH_MAX]
            self._watch(self._controller.submit(partial(_assign, self._node_id, some)))

    def offline(self, directory_id: bytes) -> None:
        """A directory's disk has failed."""
        decide = partial(_take_offline, self._node_id, directory_id)
        self._watch(self._loop.create_task(self._tell_all(decide)))

    async def renew_epoch(self, partition: Partition) -> None:
        """Returns when this node leads the partition under a new epoch, if it still does."""
        place = (partition.topic_id, partition.index)
        await self._controller.submit(
            lambda machine, now, ticket: machine.renew_leader_epoch(
                self._node_id, *place, now, ticket
            )
        )

    def close(self) -> None:
        for told in tuple(self._under_way):
            told.cancel()

    async def _tell_all(self, decide: Decide) -> None:
        """Until the controller has nothing more to write down."""
        while await self._controller.submit(decide):
            continue

    def _watch(self, told: asyncio.Future[Any]) -> None:
        self._under_way[told] = None
        told.add_done_callback(self._told)

    def _told(self, told: asyncio.Future[Any]) -> None:
        self._under_way.pop(told, None)
        if not told.cancelled() and told.exception() is not None:
            logger.warning("the controller was not told of a directory: %s", told.exception())


def _assign(
    node_id: int, places: Sequence[Assignment], machine: Controller, now: Now, ticket: Ticket
) -> Decision[Message]:
    return machine.assign_directories(node_id, places, now, ticket)


def _take_offline(
    node_id: int, directory_id: bytes, machine: Controller, now: Now, ticket: Ticket
) -> Decision[Message]:
    return machine.take_directory_offline(node_id, directory_id, now, ticket)
