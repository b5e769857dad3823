"""The way to the controller, wherever it is: in this process, or on another node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar, cast

from ottla.broker.control.node_connection import open_connection
from ottla.client.failures import ClientFailed
from ottla.errors import ErrorCode, NotController, error_of
from ottla.ports import Random
from ottla.types import NodeId
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.broker.control.needs import Leadership
    from ottla.client.connection import Connection

R = TypeVar("R", bound=Message)

FIRST_PAUSE_MS: Final = 10
PAUSE_MS_MAX: Final = 500
# A controller that takes longer than this may be frozen: it is asked again, on a new connection.
TRY_S_MAX: Final = 5.0


class ControllerChannel:
    """One connection at a time; a reply without an error, or the error as ours."""

    def __init__(
        self,
        leadership: Leadership,
        random: Random,
        node_id: int,
        answer_here: Callable[[Message], Awaitable[Message]],
    ) -> None:
        self._leadership = leadership
        self._random = random
        self._answer_here = answer_here
        self._node_id = node_id
        self._connection: Connection | None = None
        self._turn = 0
        self._opening = asyncio.Lock()
        self._awaiting_change: dict[asyncio.Future[None], None] = {}
        leadership.on_leader_change(self._leader_changed)

    async def ask(
        self, request: Message, kind: type[R], timeout_s: float, try_s: float = TRY_S_MAX
    ) -> R:
        """Asks again, until the time is over, while nobody is the controller or it is lost.

        What a controller took that did not answer may be done twice: whoever asks counts on that.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        pause_ms = FIRST_PAUSE_MS
        while True:
            left_s = until_s - loop.time()
            with self._next_leader() as changed:
                try:
                    return await self._try(request, kind, min(left_s, try_s), changed)
                except (NotController, ClientFailed, TimeoutError) as error:
                    self._forget_connection()
                    # Half of it by chance, so that many nodes do not come back at once.
                    wait_s = (pause_ms + self._random.below(pause_ms)) / 1000
                    if loop.time() + wait_s >= until_s:
                        raise NotController(f"The controller does not answer: {error}") from error
                # A new leader ends it at once.
                await asyncio.wait((changed,), timeout=wait_s)
            pause_ms = min(pause_ms * 2, PAUSE_MS_MAX)

    async def _try(
        self, request: Message, kind: type[R], timeout_s: float, changed: asyncio.Future[None]
    ) -> R:
        """One controller is asked, as long as it is the one."""
        asking = asyncio.ensure_future(self._ask_once(request, kind, timeout_s))
        try:
            await asyncio.wait(
                (asking, changed), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if asking.done():
                return asking.result()
            if changed.done():
                raise NotController("Another node may be the controller by now.")
            raise NotController(f"It has not answered in {timeout_s:g} s.")
        finally:
            asking.cancel()

    async def _ask_once(self, request: Message, kind: type[R], timeout_s: float) -> R:
        if self._leadership.is_leader:
            reply = cast(R, await self._answer_here(request))
        else:
            connection = await self._connected(timeout_s)
            reply = await connection.ask(request, kind, timeout_s=timeout_s)
        code: int = getattr(reply, "error_code", ErrorCode.NONE)
        if code != ErrorCode.NONE:
            raise error_of(code, getattr(reply, "error_message", None))
        return reply

    async def _connected(self, timeout_s: float) -> Connection:
        async with self._opening:
            address = self._leadership.address_of(self._leadership.leader_id)
            address = address or self._address_of_another()
            if address is None:
                raise NotController("Nobody is known to be the controller.")
            kept = self._connection
            if kept is not None and kept.is_usable and kept.address == address:
                return kept
            self._forget_connection()
            async with asyncio.timeout(timeout_s):
                self._connection = await open_connection(self._node_id, address)
            return self._connection

    def _address_of_another(self) -> str | None:
        """Whoever does not know who leads asks the voters in turn. A node whose disk does not
        answer would else be the last to hear of it: a vote has to be written down.
        """
        others = sorted(self._leadership.voter_ids - {self._node_id})
        self._turn += 1
        if not others:
            return None
        return self._leadership.address_of(NodeId(others[self._turn % len(others)]))

    @contextmanager
    def _next_leader(self) -> Iterator[asyncio.Future[None]]:
        """Done when another node leads, or nobody, or the same under another epoch."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaiting_change[changed] = None
        try:
            yield changed
        finally:
            self._awaiting_change.pop(changed, None)

    def _leader_changed(self) -> None:
        for changed in self._awaiting_change:
            if not changed.done():
                changed.set_result(None)

    def _forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.abort("it is not the controller any more")
            self._connection = None

    def close(self) -> None:
        self._forget_connection()
