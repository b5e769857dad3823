"""What waits for something: replies that come later, parked produces and parked fetches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from ottla.errors import InvalidRecord, RequestTimedOut, code_of
from ottla.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
)
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_STEP_S: Final = 0.005
# The loop's timers count whole milliseconds, and its clock stands still during a turn.
TIMER_EARLY_S_MAX: Final = 0.001
# More than any fetch waits for.
PLENTY_BYTES: Final = 1 << 62
# Who asks for the end of a log is told what is committed when the sync takes longer than this.
END_WAIT_S_MAX: Final = 0.1


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

    Adding and forgetting are one set operation each. The loop holds one timer for all, set to the
    first of them; nothing expires later than a step, nor earlier than timers are exact.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[Expirable]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._first = 0

    def __len__(self) -> int:
        """In how many steps something expires."""
        return len(self._buckets)

    def add(self, item: Expirable, delay_s: float) -> int:
        """Returns the bucket, which `forget` wants back."""
        bucket = int((self._loop.time() + delay_s) / DEADLINE_STEP_S) + 1
        items = self._buckets.get(bucket)
        if items is not None:
            items.add(item)
            return bucket
        self._buckets[bucket] = {item}
        if self._timer is None or bucket < self._first:
            self._set_timer(bucket)
        return bucket

    def forget(self, item: Expirable, bucket: int) -> None:
        items = self._buckets.get(bucket)
        if items is not None:
            items.discard(item)
            if not items:
                del self._buckets[bucket]

    def _set_timer(self, bucket: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._first = bucket
        self._timer = self._loop.call_at(bucket * DEADLINE_STEP_S, self._sweep)

    def _sweep(self) -> None:
        """The timer stays where it was when its bucket is forgotten, so there may be none due."""
        self._timer = None
        now = self._loop.time() + TIMER_EARLY_S_MAX
        for bucket in sorted(bucket for bucket in self._buckets if bucket * DEADLINE_STEP_S <= now):
            for item in self._buckets.pop(bucket, ()):
                item.expire()
        if self._buckets and self._timer is None:
            self._set_timer(min(self._buckets))

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
    if isinstance(error, InvalidRecord):
        item.record_errors = [BatchIndexAndErrorMessage(*each) for each in error.records]


class EndWaiters:
    """Look-ups that wait for one end of one partition: one entry there, however many they are."""

    __slots__ = ("look_ups",)

    def __init__(self) -> None:
        self.look_ups: set[EndLookUp] = set()

    def committed(self, item: object) -> None:
        look_ups, self.look_ups = self.look_ups, set()
        for look_up in look_ups:
            look_up.settled(self)

    def failed(self, item: object, error: Exception) -> None:
        """What was to come does not come: the end is where it was."""
        self.committed(item)


class EndLookUp:
    """A request for the ends of partitions that are settling.

    It waits for what they had when it came: acks=1 is answered before the sync, and whoever was
    told of a message may look for it.
    """

    __slots__ = ("_bucket", "_deadlines", "_waiting", "done")

    def __init__(self, deadlines: Deadlines, partitions: Iterable[Partition]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deadlines = deadlines
        self._waiting = {partition.end_waiters() for partition in partitions}
        for waiters in self._waiting:
            waiters.look_ups.add(self)
        self._bucket = deadlines.add(self, END_WAIT_S_MAX)

    def settled(self, waiters: EndWaiters) -> None:
        self._waiting.discard(waiters)
        if not self._waiting:
            self._deadlines.forget(self, self._bucket)
            self._finish()

    def expire(self) -> None:
        """The disk is too slow to be waited for."""
        for waiters in self._waiting:
            waiters.look_ups.discard(self)
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def settle_ends(deadlines: Deadlines, partitions: Iterable[Partition]) -> None:
    """Returns when what these have been given is committed or refused, or takes too long."""
    settling = [partition for partition in partitions if partition.is_settling]
    if settling:
        await EndLookUp(deadlines, settling).done


# What fetches of one turn have read, by partition, offset, bytes at most and high watermark.
SharedReads: TypeAlias = "dict[tuple[Partition, int, int, int], Buffer]"


class Parking:
    """Where fetches wait, and are woken together: once per loop turn, with all that it brought.

    Groups that read in step ask for the same bytes in the same turn. They get one buffer, which
    nobody writes into and which is forgotten with the turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self._loop = loop
        self._woken: list[Callable[[SharedReads], None]] = []

    def wake(self, complete: Callable[[SharedReads], None]) -> None:
        if not self._woken:
            self._loop.call_soon(self._complete_all)
        self._woken.append(complete)

    def _complete_all(self) -> None:
        woken, self._woken = self._woken, []
        reads: SharedReads = {}
        for complete in woken:
            try:
                complete(reads)
            except Exception:
                logger.exception("a fetch that had waited failed")


class ParkedFetch:
    """A fetch that waits until enough bytes are committed, or its time is over.

    Where it begins `ahead` of the high watermark, what is committed before its offset is nothing
    to it. Once its offset is passed, what there is from there on has to be counted.
    """

    __slots__ = (
        "_ahead",
        "_bucket",
        "_complete",
        "_count_missing",
        "_is_woken",
        "_missing_bytes",
        "_parking",
        "_partitions",
    )

    def __init__(
        self,
        parking: Parking,
        partitions: list[Partition],
        missing_bytes: int,
        wait_s: float,
        complete: Callable[[SharedReads], None],
        ahead: dict[Partition, int],
        count_missing: Callable[[SharedReads], int],
    ) -> None:
        self._parking = parking
        self._partitions = partitions
        self._missing_bytes = missing_bytes
        self._complete = complete
        self._ahead = ahead
        self._count_missing = count_missing
        self._is_woken = False
        for partition in partitions:
            partition.fetch_waiters.add(self)
        self._bucket = parking.deadlines.add(self, wait_s)

    def arrived(self, partition: Partition, byte_count: int) -> None:
        if partition in self._ahead:
            self._caught_up(partition)
            return
        self._missing_bytes -= byte_count
        if self._missing_bytes <= 0:
            self.wake()

    def _caught_up(self, partition: Partition) -> None:
        offset, committed = self._ahead[partition], partition.high_watermark.offset
        if offset <= committed:
            del self._ahead[partition]
        if offset < committed:
            self._parking.wake(self._count_anew)

    def _count_anew(self, reads: SharedReads) -> None:
        if not self._is_woken:
            self._missing_bytes = self._count_missing(reads)
            if self._missing_bytes <= 0:
                self.wake()

    def went_back(self, partition: Partition) -> None:
        """The log's end is before what was appended: perhaps before the offset as well."""
        if self._ahead.get(partition, 0) > partition.log.end_offset:
            self.wake()

    def expire(self) -> None:
        self.wake()

    def wake(self) -> None:
        """Answers at the end of this loop turn, so that one turn's commits are read together."""
        if not self._is_woken:
            self.leave()
            self._parking.wake(self._complete)

    def leave(self) -> None:
        self._is_woken = True
        self._parking.deadlines.forget(self, self._bucket)
        for partition in self._partitions:
            partition.fetch_waiters.discard(self)
