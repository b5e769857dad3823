"""Deadlines by the hundred on one timer, and fetches that are woken together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.connection import Outbox
from ottla.broker.flusher import Flusher
from ottla.broker.handlers import fetch
from ottla.broker.metrics import TopicMetrics
from ottla.broker.partition import Partition
from ottla.broker.partition_files import Home
from ottla.broker.services import RequestContext, Services
from ottla.broker.waiting import (
    DEADLINE_STEP_S,
    TIMER_EARLY_S_MAX,
    Deadlines,
    Deferred,
    ParkedFetch,
    Parking,
    SharedReads,
)
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import ErrorCode
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk
from ottla.types import TopicPartition
from records_kit import NOW_MS, batch, fetch_request

ALL_THE_TIME_S = 100.0


class Timer:
    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """A loop whose time the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.timers: list[Timer] = []
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def pending(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.is_cancelled]

    def move(self, seconds: float) -> None:
        """Every timer fires when it is due and finds the loop's clock there."""
        end_s = self.now_s + seconds
        while due := [timer for timer in self.pending() if timer.at_s <= end_s]:
            timer = min(due, key=lambda each: each.at_s)
            self.timers.remove(timer)
            self.now_s = max(self.now_s, timer.at_s)
            timer.callback()
        self.now_s = end_s

    def finish_turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


def on(loop: Loop) -> asyncio.AbstractEventLoop:
    return cast(asyncio.AbstractEventLoop, loop)


class Item:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.expired_s: list[float] = []

    def expire(self) -> None:
        self.expired_s.append(self._loop.now_s)


# ------------------------------------------------------------------------------------ deadlines

delays = st.one_of(st.floats(-0.1, 0.1), st.floats(0, 40), st.sampled_from([0.5, 0.5, 30.0]))
acts = st.one_of(
    st.tuples(st.just("add"), delays),
    st.tuples(st.just("forget"), st.integers(0, 100)),
    st.tuples(st.just("move"), st.floats(0, 2)),
)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(st.lists(acts, max_size=40))
def test_what_is_not_forgotten_expires_once_and_at_most_a_step_late(
    story: list[tuple[str, Any]],
) -> None:
    loop = Loop()
    deadlines = Deadlines(on(loop))
    waiting: list[tuple[Item, int, float]] = []
    forgotten: list[Item] = []
    for act, value in story:
        if act == "add":
            item = Item(loop)
            waiting.append((item, deadlines.add(item, value), loop.now_s + max(0.0, value)))
        elif act == "forget" and waiting:
            item, bucket, _ = waiting.pop(value % len(waiting))
            deadlines.forget(item, bucket)
            if not item.expired_s:
                forgotten.append(item)
        elif act == "move":
            loop.move(value)
        assert len(loop.pending()) <= 1
    loop.move(ALL_THE_TIME_S)
    for item, _, due_s in waiting:
        (expired_s,) = item.expired_s
        assert due_s - TIMER_EARLY_S_MAX <= expired_s <= due_s + DEADLINE_STEP_S + TIMER_EARLY_S_MAX
    assert not any(item.expired_s for item in forgotten)
    assert not loop.pending()


def test_the_forgotten_leave_nothing_behind() -> None:
    loop = Loop()
    deadlines = Deadlines(on(loop))
    for _ in range(1000):
        item = Item(loop)
        deadlines.forget(item, deadlines.add(item, 1_000_000.0))
        loop.move(1.0)
    assert len(deadlines) == 0
    assert len(loop.pending()) == 1


def test_a_timer_that_fires_a_little_early_is_not_set_again() -> None:
    loop = Loop()
    deadlines = Deadlines(on(loop))
    item = Item(loop)
    deadlines.add(item, 0.5)
    (timer,) = loop.timers
    loop.now_s = timer.at_s - TIMER_EARLY_S_MAX / 2
    loop.timers.clear()
    timer.callback()
    assert item.expired_s
    assert not loop.timers


def test_what_expires_may_wait_again() -> None:
    loop = Loop()
    deadlines = Deadlines(on(loop))

    class Again(Item):
        def expire(self) -> None:
            super().expire()
            if len(self.expired_s) < 3:
                deadlines.add(self, 0.0)

    item = Again(loop)
    deadlines.add(item, 0.1)
    loop.move(1.0)
    assert len(item.expired_s) == 3
    assert not loop.pending()


# -------------------------------------------------------------------------------------- parking


def test_all_that_were_woken_in_a_turn_answer_at_its_end_though_one_fails() -> None:
    loop = Loop()
    parking = Parking(on(loop), Deadlines(on(loop)))
    given_reads: list[SharedReads] = []

    def fail(reads: SharedReads) -> None:
        raise RuntimeError("unforeseen")

    parked = [
        ParkedFetch(parking, [], 1, 0.5, complete)
        for complete in (given_reads.append, fail, given_reads.append)
    ]
    parked[0].arrived(1)
    parked[1].arrived(1)
    loop.move(1.0)
    assert not given_reads
    assert len(loop.soon) == 1
    loop.finish_turn()
    first, second = given_reads
    assert first is second
    parked[0].wake()
    assert not loop.soon, "nobody is woken twice"


class Ask(NamedTuple):
    partition: int = 0
    offset: int = 1
    bytes_max: int = 1_000_000


async def reads_of(asks: Sequence[Ask]) -> tuple[int, list[Any]]:
    """How often the disk is read for fetches that had waited, and what each was told."""
    reads, told = await woken(asks)
    return reads, [response.responses[0].partitions[0] for response in told]


async def woken(asks: Sequence[Ask], fault: Exception | None = None) -> tuple[int, list[Any]]:
    """Parks these fetches and appends a batch; a fault meets them when they are to answer."""
    loop = asyncio.get_running_loop()
    disk = MemoryDisk()
    data = DataDirectory(disk, "/data")
    disk.make_directory("/data")
    flusher = Flusher(loop, disk, "test", lambda _: None, Outbox())
    flusher.start()
    partitions = {index: a_partition(index, disk, data, flusher) for index in (0, 1)}
    deadlines = Deadlines(loop)
    services = SimpleNamespace(
        config=BrokerConfig(),
        loop=loop,
        fetch_sessions=None,
        parking=Parking(loop, deadlines),
        partitions=SimpleNamespace(of_topic=lambda _: partitions),
    )
    context = RequestContext(1, 12, 0, None, "", "", {})
    told: dict[int, Any] = {}
    for index, partition in partitions.items():
        partition.append(batch(b"%d" % index), NOW_MS)
    await settle(flusher)
    for number, ask in enumerate(asks):
        asked = fetch_request(
            "t",
            {ask.partition: ask.offset},
            max_wait_ms=20_000,
            min_bytes=500,
            partition_max_bytes=ask.bytes_max,
            session_epoch=-1,
        )
        outcome = fetch.handle(cast(Services, services), context, asked)
        assert isinstance(outcome, Deferred)
        outcome.when_resolved(partial(told.__setitem__, number))
    if fault is not None:
        services.partitions = SimpleNamespace(of_topic=partial(_raise, fault))
    for index, partition in partitions.items():
        partition.append(batch(b"%d" % index * 10_000), NOW_MS)
    reads_before = disk.reads
    await settle(flusher)
    reads = disk.reads - reads_before
    assert len(deadlines) == 0
    deadlines.close()
    await flusher.stop()
    return reads, [told[number] for number in range(len(asks))]


def _raise(fault: Exception, topic: str) -> None:
    del topic
    raise fault


def a_partition(index: int, disk: MemoryDisk, data: DataDirectory, flusher: Flusher) -> Partition:
    name = TopicPartition("t", index)
    log = Log.open(disk, data.partition_path(name), LogConfig(), now_ms=NOW_MS, clean=True)
    config = TopicConfig.resolve(BrokerConfig(), {"write.caching": "true"})
    home = Home(data, name, bytes(16), is_settled=False)
    return Partition(name, bytes(16), log, 1, config, flusher, TopicMetrics("t"), home)


async def settle(flusher: Flusher) -> None:
    await flusher.drain()
    for _ in range(4):
        await asyncio.sleep(0)


def test_groups_that_read_in_step_share_one_read() -> None:
    reads, (alone,) = asyncio.run(reads_of([Ask()]))
    shared_reads, answers = asyncio.run(reads_of([Ask()] * 3))
    assert shared_reads == reads
    assert answers == [alone] * 3
    assert alone.records
    assert all(answer.records is answers[0].records for answer in answers)


def test_who_asks_for_something_else_gets_something_else() -> None:
    asks = [Ask(), Ask(offset=0), Ask(partition=1), Ask(bytes_max=100), Ask(offset=0, bytes_max=70)]
    _, together = asyncio.run(reads_of(asks))
    for ask, answer in zip(asks, together, strict=True):
        _, (alone,) = asyncio.run(reads_of([ask]))
        assert answer == alone
    assert len({bytes(answer.records) for answer in together}) == 4


def test_a_fetch_that_fails_when_it_is_woken_is_answered() -> None:
    _, told = asyncio.run(woken([Ask(), Ask(partition=1)], RuntimeError("unforeseen")))
    assert [response.error_code for response in told] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
