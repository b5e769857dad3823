"""What waits for partitions: produces, look-ups of their ends, and fetches; with deadlines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ottla.broker.deferred import Deferred
from ottla.broker.storage.write_states import WriteState
from ottla.errors import InvalidRecord, RequestTimedOut, code_of
from ottla.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
)
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.network.leader_hints import LeaderHints
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.waiters import EndWaiters

logger = logging.getLogger(__name__)

DEADLINE_STEP_S: Final = 0.005
# The loop's timers count whole milliseconds, and its clock stands still during a turn.
TIMER_EARLY_S_MAX: Final = 0.001
# Who asks for the end of a log is told what is committed when the sync takes longer than this.
END_WAIT_S_MAX: Final = 0.1


class Expirable(Protocol):
    def expire(self) -> None: ...


class Deadlines:
    """Coarse deadlines for very many things of which nearly none expires.

    Adding and forgetting are one look-up each. The loop holds one timer for all, set to the
    first of them; nothing expires later than a step, nor earlier than timers are exact.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[Expirable, None]] = {}
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
            items[item] = None
            return bucket
        self._buckets[bucket] = {item: None}
        if self._timer is None or bucket < self._first:
            self._set_timer(bucket)
        return bucket

    def forget(self, item: Expirable, bucket: int) -> None:
        items = self._buckets.get(bucket)
        if items is not None:
            items.pop(item, None)
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

    __slots__ = ("_bucket", "_deadlines", "_hints", "_open", "response", "waits")

    def __init__(self, response: ProduceResponse, deadlines: Deadlines, hints: LeaderHints) -> None:
        super().__init__(pipelined=True)
        self.response: ProduceResponse | None = response
        self._hints = hints
        self.waits: list[tuple[Partition, int, PartitionProduceResponse]] = []
        self._open = 0
        self._deadlines = deadlines
        self._bucket = -1

    def arm(self, timeout_s: float | None) -> None:
        """Starts to wait for what `waits` holds; without a timeout where this turn ends it."""
        self._open = len(self.waits)
        if timeout_s is not None:
            self._bucket = self._deadlines.add(self, timeout_s)

    def succeeded(self, item: PartitionProduceResponse) -> None:
        self._open -= 1
        if self._open == 0:
            self._finish()

    def failed(self, item: PartitionProduceResponse, error: Exception) -> None:
        answer_with(error, item)
        self._name_leader(item)
        self.succeeded(item)

    def _name_leader(self, item: PartitionProduceResponse) -> None:
        """Where another node leads by now, the batch is to be sent there."""
        for partition, _, answer in self.waits:
            if answer is item and self.response is not None:
                self._hints.in_produce(partition.name.topic, item, self.response)

    def expire(self) -> None:
        """The disk was too slow: what is not committed is answered as timed out."""
        error = RequestTimedOut("the batch was not on disk in time")
        for partition, end_offset, item in self.waits:
            is_committed = partition.state_of(end_offset) is WriteState.COMMITTED
            if not is_committed and item.error_code == 0:
                answer_with(error, item)
        self._finish()

    def _finish(self) -> None:
        if self._bucket >= 0:
            self._deadlines.forget(self, self._bucket)
        self.waits = []
        self.resolve(self.response)


def answer_with(error: Exception, item: PartitionProduceResponse) -> None:
    """Turns a partition's produce reply into an error."""
    item.error_code = code_of(error)
    item.error_message = str(error)
    item.base_offset = -1
    item.log_append_time_ms = -1
    if isinstance(error, InvalidRecord):
        item.record_errors = [BatchIndexAndErrorMessage(*each) for each in error.records]


class EndLookUp:
    """A request for the ends of partitions of which not all is committed.

    It waits for what they had when it came: acks=1 is answered before the sync, and whoever was
    told of a message may look for it.
    """

    __slots__ = ("_bucket", "_deadlines", "_waiting", "done")

    def __init__(self, deadlines: Deadlines, partitions: Iterable[Partition]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deadlines = deadlines
        self._waiting = {partition.end_waiters(): None for partition in partitions}
        for waiters in self._waiting:
            waiters.look_ups[self] = None
        self._bucket = deadlines.add(self, END_WAIT_S_MAX)

    def ended(self, waiters: EndWaiters) -> None:
        self._waiting.pop(waiters, None)
        if not self._waiting:
            self._deadlines.forget(self, self._bucket)
            self._finish()

    def expire(self) -> None:
        """The disk is too slow to be waited for."""
        for waiters in self._waiting:
            waiters.look_ups.pop(self, None)
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def wait_for_ends(deadlines: Deadlines, partitions: Iterable[Partition]) -> None:
    """Returns when what these have been given is committed or has failed, or takes too long."""
    waited_for = [partition for partition in partitions if partition.has_uncommitted]
    if waited_for:
        await EndLookUp(deadlines, waited_for).done


# What fetches of one turn have read, by partition, offset, bytes at most and high watermark.
ReadPlace: TypeAlias = "tuple[Partition, int, int, int]"
SharedReads: TypeAlias = "dict[ReadPlace, Buffer]"


class Parking:
    """Where fetches wait, and are woken together: once per loop turn, with all that it brought.

    Groups that read in step ask for the same bytes in the same turn. They get one buffer, which
    nobody writes into and which is forgotten with the turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self._loop = loop
        # Told before fetches are completed that have waited, perhaps for long.
        self.before_completing: Callable[[], None] | None = None
        self._woken: list[Callable[[SharedReads], None]] = []

    def wake(self, complete: Callable[[SharedReads], None]) -> None:
        if not self._woken:
            self._loop.call_soon(self._complete_all)
        self._woken.append(complete)

    def _complete_all(self) -> None:
        if self.before_completing is not None:
            self.before_completing()
        woken, self._woken = self._woken, []
        reads: SharedReads = {}
        for complete in woken:
            try:
                complete(reads)
            except Exception:
                logger.exception("a fetch that had waited failed")


class FetchSource(Protocol):
    """From where a parked fetch hears what has arrived."""

    def add_fetch(self, fetch: ParkedFetch) -> None: ...

    def drop_fetch(self, fetch: ParkedFetch) -> None: ...


class EachPartition:
    """Of fetches without a session: all that they ask for."""

    __slots__ = ("_of_replica", "_partitions")

    def __init__(self, partitions: list[Partition], *, of_replica: bool = False) -> None:
        self._partitions = partitions
        self._of_replica = of_replica

    def add_fetch(self, fetch: ParkedFetch) -> None:
        for partition in self._partitions:
            partition.waiters.add_fetch(fetch, of_replica=self._of_replica)

    def drop_fetch(self, fetch: ParkedFetch) -> None:
        for partition in self._partitions:
            partition.waiters.drop_fetch(fetch)


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
        "_is_stable_only",
        "_is_woken",
        "_missing_bytes",
        "_parking",
        "_source",
    )

    def __init__(
        self,
        parking: Parking,
        source: FetchSource,
        missing_bytes: int,
        wait_s: float,
        complete: Callable[[SharedReads], None],
        ahead: dict[Partition, int],
        count_missing: Callable[[SharedReads], int],
        is_stable_only: bool = False,
    ) -> None:
        """`is_stable_only`: nothing of an open transaction counts."""
        self._is_stable_only = is_stable_only
        self._parking = parking
        self._source = source
        self._missing_bytes = missing_bytes
        self._complete = complete
        self._ahead = ahead
        self._count_missing = count_missing
        self._is_woken = False
        source.add_fetch(self)
        self._bucket = parking.deadlines.add(self, wait_s)

    def arrived(self, partition: Partition, byte_count: int) -> None:
        if partition in self._ahead:
            self._caught_up(partition)
            return
        if self._is_stable_only and partition.has_transactions:
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

    def became_stable(self, partition: Partition) -> None:
        if self._is_stable_only and not self._is_woken:
            self._parking.wake(self._count_anew)

    def has_news(self, partition: Partition) -> None:
        """Other than records; it is told when the fetch is answered."""

    def went_back(self, partition: Partition) -> None:
        """The log's end is before what was appended: perhaps before the offset as well."""
        if self._ahead.get(partition, 0) > partition.end_offset:
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
        self._source.drop_fetch(self)
