"""Whether this node is let in: what its start waits for, and why it may not go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.errors import CannotStart
from ottla.ports import Clock
from ottla.types import NodeId

if TYPE_CHECKING:
    from ottla.quorum.quorum import Quorum

logger = logging.getLogger(__name__)

# So often a start says that it waits for other nodes.
WAIT_TOLD_S: Final = 5.0
# A node that was killed and has a new disk is taken for two until its last fetch is forgotten, or
# until the others have elected somebody else. For so many times as long there really are two.
DOUBLE_FETCH_TIMEOUTS: Final = 3


class Admission:
    def __init__(
        self,
        node_id: NodeId,
        clock: Clock,
        quorum: Callable[[], Quorum],
        address_of: Callable[[NodeId], str | None],
        addresses: Callable[[], str],
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._quorum = quorum
        self._address_of = address_of
        self._addresses = addresses
        self._is_over = asyncio.Event()
        self._strangers: set[NodeId] = set()
        self._refusal: CannotStart | None = None
        self._double_since_ms: int | None = None

    async def ready(self) -> None:
        """Returns when there is a leader, and all that it had committed is known here."""
        while not self._is_over.is_set():
            try:
                async with asyncio.timeout(WAIT_TOLD_S):
                    await self._is_over.wait()
            except TimeoutError:
                logger.warning("%s", self._awaited())
        if self._refusal is not None:
            raise self._refusal

    def let_in(self) -> None:
        self._is_over.set()

    def _refuse(self, reason: str) -> None:
        self._refusal = CannotStart(reason)
        self._is_over.set()

    def _awaited(self) -> str:
        quorum = self._quorum()
        if not quorum.is_voter:
            return f"waiting for the controllers at {self._addresses()}"
        names = ", ".join(str(voter.key.id) for voter in quorum.voters)
        return f"waiting for a majority of the voters {names}"

    def meet_double(self) -> None:
        """Others have heard of this node's number from another disk, and not long ago."""
        now_ms = self._clock.now().steady_ms
        if self._double_since_ms is None:
            self._double_since_ms = now_ms
        patience_ms = DOUBLE_FETCH_TIMEOUTS * self._quorum().fetch_timeout_ms
        if not self._is_over.is_set() and now_ms - self._double_since_ms < patience_ms:
            return
        listed, where = self._quorum().voters.get(self._node_id), ""
        if listed is not None and listed.endpoints:
            where = f", at {listed.endpoints[0].host}:{listed.endpoints[0].port}"
            where += "" if self._quorum().can_change else " by controller.quorum.voters"
        what = f"Another node with node.id={self._node_id} is running{where}"
        if self._is_over.is_set():
            logger.error("%s; stop one of the two", what)
        else:
            self._refuse(
                f"{what}; give this one another node.id. (Or it was this one, with another disk.)"
            )

    def meet_stranger(self, node_id: NodeId) -> None:
        """Of another cluster. Where no majority of our own is left, this node is the stranger."""
        if node_id in self._strangers:
            return
        self._strangers.add(node_id)
        quorum, address = self._quorum(), self._address_of(node_id)
        left = [key.id for key in quorum.voters.keys if key.id not in self._strangers]
        is_lost = not quorum.is_voter or len(left) < quorum.voters.majority
        if is_lost and not self._is_over.is_set():
            self._refuse(
                f"The node at {address} belongs to another cluster than this one's data directory: "
                "start with the directory of that cluster, or name the nodes of this one in "
                "controller.quorum.voters or controller.quorum.bootstrap.servers."
            )
        else:
            logger.error(
                "the node at %s belongs to another cluster: its data directory is not of this one, "
                "or controller.quorum.voters has a wrong address",
                address,
            )
