"""Requests to change who votes on the metadata log (KIP-853), until the quorum has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.features import KRAFT_VERSION
from ottla.errors import ErrorCode, NotController
from ottla.quorum.events import (
    AddVoterAsked,
    Event,
    RemoveVoterAsked,
    UpdateVoterAsked,
    UpgradeAsked,
)
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter
from ottla.types import NODE_SOFTWARE

if TYPE_CHECKING:
    from ottla.quorum.decisions import AnswerChange

# A new voter that does not answer within this time is not ready.
LOOK_S_MAX: Final = 5.0


class Outcome(NamedTuple):
    error: ErrorCode
    message: str | None


class VoterChanges:
    """Only the leader of the metadata log makes any; another one is answered so."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, node_id: int, tell: Callable[[Event], None]
    ) -> None:
        self._loop = loop
        self._node_id = node_id
        self._tell = tell
        self._last_ticket = 0
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}

    async def add(
        self,
        key: ReplicaKey,
        endpoints: tuple[Endpoint, ...],
        timeout_ms: int,
        *,
        waits: bool,
        cluster_id: str | None,
    ) -> Outcome:
        """What it knows of kraft.version is asked of itself, when nothing else is against it."""

        def asked(voter: Voter, *, validate_only: bool) -> Callable[[int], Event]:
            return lambda ticket: AddVoterAsked(
                ticket, voter, timeout_ms, waits, cluster_id, validate_only
            )

        first = await self._decided(asked(Voter(key, endpoints), validate_only=True))
        if first.error is not ErrorCode.NONE:
            return first
        levels = await self._kraft_versions(endpoints[0])
        if isinstance(levels, str):
            return Outcome(ErrorCode.REQUEST_TIMED_OUT, f"voter {key.id} is not ready: {levels}")
        return await self._decided(asked(Voter(key, endpoints, *levels), validate_only=False))

    async def remove(self, key: ReplicaKey, cluster_id: str | None) -> Outcome:
        return await self._decided(lambda ticket: RemoveVoterAsked(ticket, key, cluster_id))

    async def update(self, epoch: int, voter: Voter, cluster_id: str | None) -> Outcome:
        return await self._decided(
            lambda ticket: UpdateVoterAsked(ticket, epoch, voter, cluster_id)
        )

    async def upgrade(self, timeout_ms: int, *, validate_only: bool) -> Outcome:
        """To kraft.version 1: the voters of the setting become records."""
        return await self._decided(lambda ticket: UpgradeAsked(ticket, timeout_ms, validate_only))

    async def _decided(self, make: Callable[[int], Event]) -> Outcome:
        self._last_ticket += 1
        ticket = self._last_ticket
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._waiting[ticket] = future
        try:
            self._tell(make(ticket))
            return await future
        finally:
            self._waiting.pop(ticket, None)

    async def _kraft_versions(self, endpoint: Endpoint) -> tuple[int, int] | str:
        """The range that the node there supports, or why it is not known."""
        from ottla.broker.control.node_connection import open_connection
        from ottla.client.failures import ClientFailed
        from ottla.client.settings import join_address
        from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

        address = join_address(endpoint.host, endpoint.port)
        request = ApiVersionsRequest(NODE_SOFTWARE, "1")
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                connection = await open_connection(self._node_id, address)
                try:
                    reply = await connection.ask(request, ApiVersionsResponse, timeout_s=LOOK_S_MAX)
                finally:
                    connection.abort("it has said what it supports")
        except (ClientFailed, TimeoutError) as error:
            return str(error) or f"{address} does not answer"
        for feature in reply.supported_features:
            if feature.name == KRAFT_VERSION:
                return feature.min_version, feature.max_version
        return 0, 0

    def answered(self, decision: AnswerChange) -> None:
        future = self._waiting.get(decision.ticket)
        if future is not None and not future.done():
            future.set_result(Outcome(decision.error, decision.message))

    def close(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NotController("this node stops"))
