"""Requests that were begun on a connection, each with its place in the order of replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ottla.wire.framing import RequestHead, frame_reply
from ottla.wire.schema import Buffer, Message

if TYPE_CHECKING:
    from ottla.broker.counters import ApiMetrics
    from ottla.broker.deferred import Deferred
    from ottla.broker.network.router import Reply, Route


class Exchange(ABC):
    """A request and, once it is done, its reply."""

    __slots__ = ("byte_count", "is_done", "metrics", "started_s")

    def __init__(self, metrics: ApiMetrics, byte_count: int, started_s: float) -> None:
        self.metrics = metrics
        self.byte_count = byte_count
        self.started_s = started_s
        self.is_done = False

    @property
    def is_parked(self) -> bool:
        """Whether it waits for something that may never happen, and the next request for it."""
        return False

    @abstractmethod
    def reply_chunks(self) -> list[Buffer]:
        """The whole reply as it goes to the client; empty where none is wanted."""

    @abstractmethod
    def abandon(self) -> None:
        """The client is gone: nobody waits any more."""


class RoutedExchange(Exchange):
    """A request that a handler answers with a message."""

    __slots__ = ("deferred", "head", "reply", "route")

    def __init__(self, route: Route, head: RequestHead, byte_count: int, started_s: float) -> None:
        super().__init__(route.metrics, byte_count, started_s)
        self.route = route
        self.head = head
        self.reply: Reply = None
        self.deferred: Deferred[Reply] | None = None

    @property
    def is_parked(self) -> bool:
        return self.deferred is not None and not self.deferred.pipelined

    def reply_chunks(self) -> list[Buffer]:
        reply: Message | None = self.reply
        if reply is None:
            return []
        head, api = self.head, self.route.api
        # A version that we do not know gets the answer that every client can read.
        version = head.version if head.version <= api.last else 0
        return frame_reply(head.correlation_id, version >= api.flexible, reply, version)

    def abandon(self) -> None:
        if self.deferred is not None:
            self.deferred.abandon()
