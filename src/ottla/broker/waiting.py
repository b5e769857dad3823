"""What waits for something: replies that come later, parked produces and parked fetches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ottla.errors import RequestTimedOut, code_of
from ottla.wire.messages.produce import PartitionProduceResponse, ProduceResponse

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

T = TypeVar("T")

DEADLINE_STEP_S: Final = 0.1


class Deferred(Generic[T]):
    """A reply that is not there yet.

    Lighter than a future: one callback, called at once and not a loop turn later. With
    `pipelined`, the connection goes on to its next request before this one is answered.
    """

    __slots__ = ("_callback", "_on_abandon", "_value", "is_resolved", "pipelined")

    def __init__(self, *, pipelined: bool = False) -> None:
        self.pipelined = pipelined
        self.is_resolved = False
        self._value: T | None = None
        self._callback: Callable[[Any], None] | None = None
        self._on_abandon: Callable[[], None] | None = None

    def resolve(self, value: T | None) -> None:
        if self.is_resolved:
            return
        self.is_resolved = True
        self._value = value
        # Callbacks hold those who hold this: without the cycle, all of it is freed at once.
        callback, self._callback, self._on_abandon = self._callback, None, None
        if callback is not None:
            callback(value)

    def when_resolved(self, callback: Callable[[T | None], None]) -> None:
        if self.is_resolved:
            callback(self._value)
        else:
            self._callback = callback

    def when_abandoned(self, callback: Callable[[], None]) -> None:
        self._on_abandon = callback

    def abandon(self) -> None:
        """The client is gone: nobody waits any more."""
        on_abandon, self._callback, self._on_abandon = self._on_abandon, None, None
        if on_abandon is not None:
            on_abandon()


class CommitWaiter(Protocol):
    """Is told once what became of something it appended."""

    def committed(self, item: Any) -> None: ...

    def failed(self, item: Any, error: Exception) -> None: ...


class Expirable(Protocol):
    def expire(self) -> None: ...


class Deadlines:
    """Coarse deadlines for very many things of which nearly none expires.

    Adding and forgetting are one set operation each; the loop holds one timer for all.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[Expirable]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: Expirable, delay_s: float) -> int:
        """Returns the bucket, which `forget` wants back."""
        bucket = int((self._loop.time() + delay_s) / DEADLINE_STEP_S) + 1
        items = self._buckets.get(bucket)
        if items is None:
            items = self._buckets[bucket] = set()
        items.add(item)
        if self._timer is None:
            self._timer = self._loop.call_later(DEADLINE_STEP_S, self._sweep)
        return bucket

    def forget(self, item: Expirable, bucket: int) -> None:
        items = self._buckets.get(bucket)
        if items is not None:
            items.discard(item)

    def _sweep(self) -> None:
        now = int(self._loop.time() / DEADLINE_STEP_S)
        due = [bucket for bucket in self._buckets if bucket <= now]
        for bucket in due:
            for item in self._buckets.pop(bucket):
                item.expire()
        self._timer = self._loop.call_later(DEADLINE_STEP_S, self._sweep) if self._buckets else None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._buckets.clear()


class PendingProduce(Deferred[ProduceResponse]):
    """A produce request of which some partitions are not yet as durable as it asked for."""

    __slots__ = ("_bucket", "_deadlines", "_open", "response", "waits")

    def __init__(self, response: ProduceResponse, deadlines: Deadlines) -> None:
        super().__init__(pipelined=True)
        self.response: ProduceResponse | None = response
        self.waits: list[tuple[Partition, int, PartitionProduceResponse]] = []
        self._open = 0
        self._deadlines = deadlines
        self._bucket = -1

    def arm(self, timeout_s: float | None) -> None:
        """Starts to wait for what `waits` holds; without a timeout where this turn ends it."""
        self._open = len(self.waits)
        if timeout_s is not None:
            self._bucket = self._deadlines.add(self, timeout_s)

    def committed(self, item: PartitionProduceResponse) -> None:
        self._open -= 1
        if self._open == 0:
            self._finish()

    def failed(self, item: PartitionProduceResponse, error: Exception) -> None:
        refuse(item, error)
        self.committed(item)

    def expire(self) -> None:
        """The disk was too slow: what is not committed is answered as timed out."""
        error = RequestTimedOut("the batch was not on disk in time")
        for partition, end_offset, item in self.waits:
            if partition.high_watermark.offset < end_offset and item.error_code == 0:
                refuse(item, error)
        self._finish()

    def _finish(self) -> None:
        if self._bucket >= 0:
            self._deadlines.forget(self, self._bucket)
        self.waits = []
        self.resolve(self.response)


def refuse(item: PartitionProduceResponse, error: Exception) -> None:
    """Turns a partition's produce reply into an error."""
    item.error_code = code_of(error)
    item.error_message = str(error)
    item.base_offset = -1
    item.log_append_time_ms = -1


class ParkedFetch:
    """A fetch that waits until enough bytes are committed, or its time is over."""

    __slots__ = ("_complete", "_is_woken", "_loop", "_missing_bytes", "_partitions", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        partitions: list[Partition],
        missing_bytes: int,
        wait_s: float,
        complete: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._partitions = partitions
        self._missing_bytes = missing_bytes
        self._complete = complete
        self._is_woken = False
        for partition in partitions:
            partition.fetch_waiters.add(self)
        self._timer = loop.call_later(wait_s, self.wake)

    def arrived(self, byte_count: int) -> None:
        self._missing_bytes -= byte_count
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Answers at the end of this loop turn, so that one turn's commits are read together."""
        if not self._is_woken:
            self._is_woken = True
            self.leave()
            self._loop.call_soon(self._complete)

    def leave(self) -> None:
        self._timer.cancel()
        for partition in self._partitions:
            partition.fetch_waiters.discard(self)
