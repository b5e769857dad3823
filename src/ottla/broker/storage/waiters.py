"""Who waits for a partition: for its writes, for its commits, for more to read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from ottla.broker.storage.partition_writes import PartitionWrites

# More than any fetch waits for.
PLENTY_BYTES: Final = 1 << 62


class WriteWaiter(Protocol):
    """Is told once what became of something that was appended."""

    def succeeded(self, item: Any) -> None:
        """It is what was waited for: written, or committed."""

    def failed(self, item: Any, error: Exception) -> None: ...


class FetchWaiter(Protocol):
    def arrived(self, partition: Any, byte_count: int) -> None:
        """So many bytes more are committed."""

    def became_stable(self, partition: Any) -> None:
        """Transactions have ended: who reads only such ones can read more than has arrived."""

    def has_news(self, partition: Any) -> None:
        """Its start has moved, or its replicas are others; for one of a replica, its commits."""

    def went_back(self, partition: Any) -> None:
        """The log's end is before what was appended."""

    def wake(self) -> None:
        """There may be something to say other than records."""


class EndWaiter(Protocol):
    def ended(self, waiters: EndWaiters) -> None: ...


class EndWaiters:
    """Look-ups that wait for one end of one partition: one entry there, however many they are."""

    __slots__ = ("look_ups",)

    def __init__(self) -> None:
        self.look_ups: dict[EndWaiter, None] = {}

    def succeeded(self, item: object) -> None:
        look_ups, self.look_ups = self.look_ups, {}
        for look_up in look_ups:
            look_up.ended(self)

    def failed(self, item: object, error: Exception) -> None:
        """What was to come does not come: the end is where it was."""
        self.succeeded(item)


class Waiters:
    """Those of one partition, which adds to them and asks whether there are any.

    It does so for every batch, where a call would cost as much as what it does.
    """

    __slots__ = ("commits", "durables", "fetches", "replica_fetches", "writes")

    def __init__(self) -> None:
        self.writes: list[tuple[WriteWaiter, Any]] = []
        # In the order of the offsets that they wait for.
        self.commits: deque[tuple[int, WriteWaiter, Any]] = deque()
        self.durables: deque[tuple[int, WriteWaiter, Any]] = deque()
        # Those of consumers hear of commits, those of replicas of what is written.
        self.fetches: dict[FetchWaiter, None] = {}
        self.replica_fetches: dict[FetchWaiter, None] = {}

    def add_fetch(self, fetch: FetchWaiter, *, of_replica: bool = False) -> None:
        (self.replica_fetches if of_replica else self.fetches)[fetch] = None

    def drop_fetch(self, fetch: FetchWaiter) -> None:
        self.fetches.pop(fetch, None)
        self.replica_fetches.pop(fetch, None)

    def at_end(self, end_offset: int) -> EndWaiters | None:
        """Those who wait already for just this end."""
        commits = self.commits
        if commits and commits[-1][0] == end_offset and isinstance(commits[-1][1], EndWaiters):
            return commits[-1][1]
        return None

    def look_ups(self) -> list[int]:
        """How many look-ups wait, by the ends that they wait for."""
        waiters = (waiter for _, waiter, _ in self.commits)
        return [len(each.look_ups) for each in waiters if isinstance(each, EndWaiters)]

    # ----------------------------------------------------------------------------- telling them

    def take_writes(self) -> list[tuple[WriteWaiter, Any]]:
        """Those who wait for what is queued: they go with the write."""
        writes, self.writes = self.writes, []
        return writes

    def written(self, partition: PartitionWrites, byte_count: int) -> None:
        """Replicas read what is not committed yet."""
        for fetch in tuple(self.replica_fetches):
            fetch.arrived(partition, byte_count)

    def arrived(self, partition: PartitionWrites, byte_count: int) -> None:
        for fetch in tuple(self.fetches):
            fetch.arrived(partition, byte_count)

    def became_stable(self, partition: PartitionWrites) -> None:
        for fetch in tuple(self.fetches):
            fetch.became_stable(partition)

    def committed_more(self, partition: PartitionWrites) -> None:
        """Replicas have read it already, and are to know that it is committed."""
        for fetch in tuple(self.replica_fetches):
            fetch.has_news(partition)

    def have_news(self, partition: PartitionWrites) -> None:
        for fetch in (*self.fetches, *self.replica_fetches):
            fetch.has_news(partition)

    def went_back(self, partition: PartitionWrites) -> None:
        for fetch in (*self.fetches, *self.replica_fetches):
            fetch.went_back(partition)

    def wake_fetches(self) -> None:
        for fetch in (*self.fetches, *self.replica_fetches):
            fetch.wake()

    def fail_after(self, end_offset: int, error: Exception) -> None:
        """Offsets after the end will be given to others: nobody may go on waiting for them."""
        self.commits, late_commits = _parted(self.commits, end_offset)
        self.durables, late_durables = _parted(self.durables, end_offset)
        for _, waiter, item in (*late_commits, *late_durables):
            waiter.failed(item, error)

    def fail_commits(self, error: Exception) -> None:
        commits, self.commits = self.commits, deque()
        for _, waiter, item in commits:
            waiter.failed(item, error)

    def fail_all(self, error: Exception) -> None:
        writes, commits, durables = self.take_writes(), self.commits, self.durables
        self.commits, self.durables = deque(), deque()
        fail(writes, error)
        for _, waiter, item in (*commits, *durables):
            waiter.failed(item, error)


def tell(waiting: deque[tuple[int, WriteWaiter, Any]], offset: int) -> None:
    """That `offset` is reached, those who wait for it or for less."""
    while waiting and waiting[0][0] <= offset:
        _, waiter, item = waiting.popleft()
        waiter.succeeded(item)


def _parted(
    waiting: deque[tuple[int, WriteWaiter, Any]], end_offset: int
) -> tuple[deque[tuple[int, WriteWaiter, Any]], deque[tuple[int, WriteWaiter, Any]]]:
    """Those for what is there, and those for what comes after the end."""
    there = deque(entry for entry in waiting if entry[0] <= end_offset)
    return there, deque(entry for entry in waiting if entry[0] > end_offset)


class FutureWaiter:
    """A future that a partition can tell."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def succeeded(self, item: Any) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, item: Any, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


async def told(register: Callable[[Callable[[], None]], None]) -> None:
    """Returns when whoever is asked to tell has told."""
    is_told = asyncio.Event()
    register(is_told.set)
    await is_told.wait()


def succeed(waiters: list[tuple[WriteWaiter, Any]]) -> None:
    for waiter, item in waiters:
        waiter.succeeded(item)


def fail(waiters: list[tuple[WriteWaiter, Any]], error: Exception) -> None:
    for waiter, item in waiters:
        waiter.failed(item, error)
