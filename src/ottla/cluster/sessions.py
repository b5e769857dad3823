"""Which brokers the controller has heard of, and when: soft state, forgotten with the lead.

Times are the steady clock's. A broker that the log knows as unfenced has a whole session from the
moment the controller begins; who is silent for longer than that is to be fenced. The broker in the
controller's own process lives as long as the controller does and has no session; what it gives
itself is a shorter lease, so that its successor, whose election has taken a while, need not wait
for a whole session if both have stopped (ADR 0011).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.cluster.image import BrokerImage
from ottla.types import NO_OFFSET

# The share of a session for which a controller's answer to its own broker is good.
OWN_SHARE: Final = 2 / 3


class Predecessor(NamedTuple):
    """The controller before this one, and when its successor had heard that it was elected."""

    node_id: int
    since_ms: int


@dataclass(slots=True)
class Session:
    contact_ms: int
    # A session that was only given, at a registration or with a new lead, proves no life.
    was_heard: bool = False
    metadata_offset: int = NO_OFFSET
    # How far the broker must have read to be unfenced: to its registration, or to where it was
    # fenced, or beyond.
    caught_up_offset: int | None = None
    # How far the others must have read before a leaving broker may stop.
    moved_offset: int | None = None


class Sessions:
    def __init__(self, own_id: int, timeout_ms: int) -> None:
        self._own_id = own_id
        self._timeout_ms = timeout_ms
        self._by_id: dict[int, Session] = {}

    def begin(self, node_id: int, now_ms: int, predecessor: Predecessor | None = None) -> None:
        """The leases that others have given to the controller before were given before it was."""
        contact_ms = now_ms
        if predecessor is not None and predecessor.node_id == node_id:
            spared_ms = int(self._timeout_ms * (1 - OWN_SHARE))
            contact_ms = max(now_ms - spared_ms, predecessor.since_ms)
        self._by_id[node_id] = Session(contact_ms)

    def end(self, node_id: int) -> None:
        self._by_id.pop(node_id, None)

    def heard(self, node_id: int, metadata_offset: int, end_offset: int, now_ms: int) -> Session:
        """A broker is heard of while the metadata log ends at `end_offset`."""
        session = self._by_id.setdefault(node_id, Session(now_ms))
        session.contact_ms = now_ms
        session.was_heard = True
        session.metadata_offset = metadata_offset
        if session.caught_up_offset is None:
            # Its registration is before the end; which record it was nobody needs to know.
            session.caught_up_offset = end_offset - 1
        return session

    def is_alive(self, node_id: int, now_ms: int) -> bool:
        session = self._by_id.get(node_id)
        return (
            session is not None
            and session.was_heard
            and now_ms < session.contact_ms + self._timeout_ms
        )

    def next_deadline_ms(self, brokers: Mapping[int, BrokerImage]) -> int | None:
        return min(
            (session.contact_ms + self._timeout_ms for _, session in self._watched(brokers)),
            default=None,
        )

    def expired(self, brokers: Mapping[int, BrokerImage], now_ms: int) -> list[int]:
        """The brokers to be fenced. A controller that has slept gives everybody a new session."""
        watched = self._watched(brokers)
        late = [
            (node_id, now_ms - session.contact_ms - self._timeout_ms)
            for node_id, session in watched
            if now_ms >= session.contact_ms + self._timeout_ms
        ]
        if any(late_ms > self._timeout_ms // 2 for _, late_ms in late):
            for _, session in watched:
                session.contact_ms = now_ms
            return []
        return [node_id for node_id, _ in late]

    def lowest_offset(self, others: Collection[int]) -> int | None:
        """How far the slowest of these brokers has read; None where there is none to wait for."""
        awaited = [node_id for node_id in others if node_id != self._own_id]
        return min(
            (
                self._by_id[node_id].metadata_offset if node_id in self._by_id else NO_OFFSET
                for node_id in awaited
            ),
            default=None,
        )

    def _watched(self, brokers: Mapping[int, BrokerImage]) -> list[tuple[int, Session]]:
        return [
            (node_id, session)
            for node_id, session in self._by_id.items()
            if node_id != self._own_id and node_id in brokers and not brokers[node_id].is_fenced
        ]
