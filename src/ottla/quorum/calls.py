"""Requests to other voters that still want an answer, and when to send each again."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.quorum.times import Times
from ottla.quorum.voters import ReplicaKey
from ottla.types import NodeId


class Calls:
    def __init__(self, times: Times) -> None:
        self._times = times
        self._due_ms: dict[ReplicaKey, int] = {}

    def begin(self, peers: Iterable[ReplicaKey], now_ms: int) -> None:
        """From now on these are called, and nobody else."""
        self._due_ms = dict.fromkeys(peers, now_ms)

    def add(self, peer: ReplicaKey, now_ms: int) -> None:
        self._due_ms.setdefault(peer, now_ms)

    def answered(self, peer_id: NodeId) -> None:
        for peer in [peer for peer in self._due_ms if peer.id == peer_id]:
            del self._due_ms[peer]

    def failed(self, peer_id: NodeId, now_ms: int) -> None:
        self.repeat(peer_id, now_ms + self._times.retry_backoff_ms)

    def repeat(self, peer_id: NodeId, at_ms: int) -> None:
        """The answer may be another one later."""
        for peer in self._due_ms:
            if peer.id == peer_id:
                self._due_ms[peer] = at_ms

    def take_due(self, now_ms: int) -> list[ReplicaKey]:
        """Whom to call now; they are called again if they have not answered in time."""
        due = [peer for peer, due_ms in self._due_ms.items() if due_ms <= now_ms]
        for peer in due:
            self._due_ms[peer] = now_ms + self._times.request_timeout_ms
        return due

    @property
    def next_ms(self) -> int | None:
        return min(self._due_ms.values(), default=None)
