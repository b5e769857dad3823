"""How long this broker may act as a leader without hearing from the controller (ADR 0011).

A controller gives a broker's partitions to others when it has not heard of it for
`broker.session.timeout.ms`. So each heartbeat that it answers is a lease: for a session from the
moment when the heartbeat was *sent*, less a margin for clocks that do not run alike. Who is cut off
stops before another can have begun. What a controller answers to its own broker is good for less
(`cluster/sessions.py`). A node that is the only voter is never cut off from itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.ports import Clock
from ottla.types import NO_NODE, NodeId

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache
    from ottla.broker.control.metadata_quorum import MetadataQuorum
    from ottla.broker.storage.partitions import Partitions
    from ottla.config import BrokerConfig

logger = logging.getLogger(__name__)

# By so much the clocks of two nodes may differ in speed.
DRIFT_SHARE: Final = 0.05


class Lease:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        session_timeout_ms: int,
        is_needed: Callable[[], bool],
        on_needed: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        """From `on_needed` on, which is told once, somebody has to `look` before each request."""
        self._loop = loop
        self._clock = clock
        self._seconds = session_timeout_ms / 1000 * (1 - DRIFT_SHARE)
        self._is_needed = is_needed
        self._on_needed: Callable[[], None] | None = on_needed
        self._on_change = on_change
        self._until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_held = not is_needed()

    def extend(self, sent_s: float, share: float = 1.0) -> None:
        """A heartbeat that was sent then is answered, and the broker is not fenced."""
        self._until_s = max(self._until_s, sent_s + self._seconds * share)
        left_s = self._until_s - self._clock.steady_s()
        if left_s <= 0:
            return
        if self._timer is None and self._is_needed():
            self._timer = self._loop.call_later(left_s, self._wake)
            if self._on_needed is not None:
                self._on_needed()
                self._on_needed = None
        if not self.is_held:
            self.is_held = True
            self._on_change()

    def look(self) -> None:
        """Before anything is done as a leader: a process may have slept through its timers."""
        if self.is_held and self._clock.steady_s() >= self._until_s and self._is_needed():
            logger.warning("the controller does not answer: nothing is led here until it does")
            self.lose()

    def lose(self) -> None:
        """It has ended, or the controller has fenced this broker."""
        if self.is_held and self._is_needed():
            self.is_held = False
            self._on_change()

    def _wake(self) -> None:
        self._timer = None
        self.look()
        left_s = self._until_s - self._clock.steady_s()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._wake)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def new_lease(
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    config: BrokerConfig,
    quorum: MetadataQuorum,
    metadata: MetadataCache,
    partitions: Partitions,
    on_needed: Callable[[], None],
) -> Lease:
    """Without it this node leads none of its partitions, and sends nobody to itself."""

    def changed() -> None:
        metadata.set_absent_leader(NO_NODE if lease.is_held else NodeId(config.node_id))
        for partition in partitions:
            if lease.is_held:
                partition.resume()
            else:
                partition.suspend()

    timeout_ms = config.broker_session_timeout_ms
    lease = Lease(loop, clock, timeout_ms, lambda: quorum.has_others, on_needed, changed)
    changed()
    return lease
