"""A controller that gets its vote by itself, without an operator (KIP-853, 1186).

With `controller.quorum.auto.join.enable` a controller that follows the metadata and has no vote
asks for one. A vote of its own number that is with another disk goes first: that disk is gone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.errors import OttlaError
from ottla.types import NO_NODE
from ottla.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    VoterListener,
)
from ottla.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse

if TYPE_CHECKING:
    from ottla.broker.control.channel import ControllerChannel
    from ottla.broker.control.metadata_quorum import MetadataQuorum

logger = logging.getLogger(__name__)


class AutoJoin:
    def __init__(
        self, quorum: MetadataQuorum, channel: ControllerChannel, cluster_id: str, pause_ms: int
    ) -> None:
        self._quorum = quorum
        self._channel = channel
        self._cluster_id = cluster_id
        self._pause_s = pause_ms / 1000
        self._joining: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._joining = asyncio.get_running_loop().create_task(self._join())

    async def _join(self) -> None:
        """Ends with the first vote: one that is taken later is not asked for again."""
        quorum = self._quorum
        while quorum.voters.key_of(quorum.own.key) is None:
            if quorum.kraft_version and quorum.leader_id not in (NO_NODE, quorum.node_id):
                try:
                    await self._ask()
                except OttlaError as error:
                    logger.debug("this controller has no vote yet: %s", error)
            await asyncio.sleep(self._pause_s)

    async def _ask(self) -> None:
        own = self._quorum.own
        old = self._quorum.voters.get(own.key.id)
        if old is not None:
            logger.warning("the vote of this controller is with another disk, and is taken from it")
            removal = RemoveRaftVoterRequest(self._cluster_id, *old.key)
            await self._channel.ask(removal, RemoveRaftVoterResponse, self._pause_s)
            return
        request = AddRaftVoterRequest(
            self._cluster_id,
            int(self._pause_s * 1000),
            *own.key,
            [VoterListener(*endpoint) for endpoint in own.endpoints],
            # Its own vote may be needed for the commit.
            ack_when_committed=False,
        )
        await self._channel.ask(request, AddRaftVoterResponse, self._pause_s)

    def close(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
