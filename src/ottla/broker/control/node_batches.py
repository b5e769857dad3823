"""What is to be told to other nodes, gathered: one request to a node at a time.

Everything of one turn of the loop goes in one request, and so does all that comes while a request
is under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from ottla.types import NodeId

I = TypeVar("I")  # noqa: E741


class NodeBatches(Generic[I]):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[NodeId, list[I]], Awaitable[None]],
        key_of: Callable[[I], Hashable],
        items_max: int,
    ) -> None:
        """`send` sees to failures itself. Of items with one key, a request has only the first."""
        self._loop = loop
        self._send = send
        self._key_of = key_of
        self._items_max = items_max
        self._queues: dict[NodeId, deque[I]] = {}
        self._senders: dict[NodeId, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def add(self, node_id: NodeId, item: I) -> None:
        self._queues.setdefault(node_id, deque()).append(item)
        if node_id not in self._senders:
            task = self._loop.create_task(self._run(node_id), name=f"batches-to-{node_id}")
            self._senders[node_id] = task

    async def _run(self, node_id: NodeId) -> None:
        try:
            while queue := self._queues.get(node_id):
                await self._send(node_id, self._next(queue))
        finally:
            self._senders.pop(node_id, None)
            if not self._queues.get(node_id):
                self._queues.pop(node_id, None)

    def _next(self, queue: deque[I]) -> list[I]:
        batch: dict[Hashable, I] = {}
        later: list[I] = []
        while queue and len(batch) < self._items_max:
            item = queue.popleft()
            if batch.setdefault(self._key_of(item), item) is not item:
                later.append(item)
        queue.extendleft(reversed(later))
        return list(batch.values())

    def close(self) -> None:
        for task in self._senders.values():
            task.cancel()
        self._queues.clear()
