"""Deadlines by the hundred on one timer, and fetches that are woken together."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.clock import SystemClock
from ottla.broker.counters import TopicMetrics
from ottla.broker.handlers import fetch
from ottla.broker.network.connection import Outbox
from ottla.broker.network.waiting import (
    DEADLINE_STEP_S,
    TIMER_EARLY_S_MAX,
    Deadlines,
    Deferred,
    EachPartition,
    EndLookUp,
    ParkedFetch,
    Parking,
    SharedReads,
    wait_for_ends,
)
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.flusher import Flusher
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.threads import RealThreads
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import ErrorCode, UnknownTopicOrPartition
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk
from ottla.types import TopicPartition
from ottla.wire.records import read_header
from records_kit import NOW_MS, batch, fetch_request
from unit.broker.partition_kit import lone_leader

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
    partition = cast(Partition, object())
    given_reads: list[SharedReads] = []

    def fail(reads: SharedReads) -> None:
        raise RuntimeError("unforeseen")

    parked = [
        ParkedFetch(parking, EachPartition([]), 1, 0.5, complete, {}, lambda _: 1)
        for complete in (given_reads.append, fail, given_reads.append)
    ]
    parked[0].arrived(partition, 1)
    parked[1].arrived(partition, 1)
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
    flusher = Flusher(loop, RealThreads(), SystemClock(), disk, "test", lambda _: None, Outbox())
    partitions = {index: a_partition(index, disk, data, flusher) for index in (0, 1)}
    services = services_of(loop, partitions)
    deadlines = services.parking.deadlines
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
        services.partitions = SimpleNamespace(in_topic=partial(_raise, fault))
    for index, partition in partitions.items():
        partition.append(batch(b"%d" % index * 10_000), NOW_MS)
    reads_before = disk.reads
    await settle(flusher)
    reads = disk.reads - reads_before
    assert len(deadlines) == 0
    deadlines.close()
    await flusher.stop()
    return reads, [told[number] for number in range(len(asks))]


def services_of(
    loop: asyncio.AbstractEventLoop, partitions: dict[int, Partition]
) -> SimpleNamespace:
    """As much of them as a fetch without a session needs."""
    return SimpleNamespace(
        config=BrokerConfig(),
        loop=loop,
        fetch_sessions=None,
        parking=Parking(loop, Deadlines(loop)),
        partitions=SimpleNamespace(in_topic=lambda _: partitions),
    )


def _raise(fault: Exception, topic: str) -> None:
    del topic
    raise fault


def a_partition(index: int, disk: MemoryDisk, data: DataDirectory, flusher: Flusher) -> Partition:
    name = TopicPartition("t", index)
    log = Log.open(disk, data.partition_path(name), LogConfig(), now_ms=NOW_MS, clean=True)
    config = TopicConfig.resolve(BrokerConfig(), {"write.caching": "true"})
    home = Home(data, name, bytes(16), is_durable=False)
    return lone_leader(name, bytes(16), log, 1, config, flusher, TopicMetrics("t"), home)


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


# --------------------------------------------------- fetches that begin behind the high watermark


class Committing:
    """A partition with batches of one record each, whose high watermark the test moves."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.disk = MemoryDisk()
        self.disk.make_directory("/data")
        data = DataDirectory(self.disk, "/data")
        flusher = Flusher(
            self.loop, RealThreads(), SystemClock(), self.disk, "test", lambda _: None, Outbox()
        )
        self.partition = a_partition(0, self.disk, data, flusher)
        self.services = services_of(self.loop, {0: self.partition})
        self.deadlines: Deadlines = self.services.parking.deadlines
        self.places = [self.partition._log.written]
        self.told: list[Any] = []

    def append(self, byte_count: int) -> int:
        """Writes a batch that is not committed; returns its size."""
        log, data = self.partition._log, batch(b"x" * byte_count)
        log.append(memoryview(data), read_header(data), 1, NOW_MS)
        log.write()
        self.places.append(log.written)
        return len(data)

    def fetch(self, offset: int, min_bytes: int) -> None:
        asked = fetch_request(
            "t", {0: offset}, max_wait_ms=20_000, min_bytes=min_bytes, session_epoch=-1
        )
        context = RequestContext(1, 12, 0, None, "", "", {})
        outcome = fetch.handle(cast(Services, self.services), context, asked)
        if isinstance(outcome, Deferred):
            outcome.when_resolved(self.told.append)
        else:
            self.told.append(outcome)

    async def commit(self, end_offset: int) -> None:
        self.partition._advance(self.places[end_offset])
        for _ in range(4):
            await asyncio.sleep(0)

    def answer(self) -> Any:
        (response,) = self.told
        return response.responses[0].partitions[0]


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(
    sizes=st.lists(st.sampled_from([10, 100, 1000]), min_size=1, max_size=6),
    ends=st.lists(st.integers(0, 6), max_size=6),
    offset=st.integers(0, 7),
    min_bytes=st.sampled_from([1, 200, 1500, 2500]),
)
def test_a_fetch_waits_for_bytes_from_its_offset_on_and_for_no_others(
    sizes: list[int], ends: list[int], offset: int, min_bytes: int
) -> None:
    async def story() -> None:
        stage = Committing()
        batch_bytes = [stage.append(size) for size in sizes]
        first, *later = sorted(min(end, len(sizes)) for end in ends or [0])
        await stage.commit(first)
        stage.fetch(offset, min_bytes)
        if offset > len(sizes):
            assert stage.answer().error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            return
        for end in (first, *later):
            await stage.commit(end)
            is_enough = sum(batch_bytes[offset:end]) >= min_bytes
            assert len(stage.told) == is_enough
            if is_enough:
                assert len(stage.answer().records) == sum(batch_bytes[offset:end])
                return
        assert len(stage.deadlines) == 1
        stage.deadlines.close()

    asyncio.run(story())


def test_a_fetch_that_begins_ahead_looks_once_and_then_only_counts() -> None:
    async def story() -> None:
        stage = Committing()
        for _ in range(10):
            stage.append(1000)
        stage.fetch(2, 5000)
        await stage.commit(1)
        assert stage.disk.reads == 0, "nothing of it is committed"
        await stage.commit(3)
        looked = stage.disk.reads
        assert looked
        for end in (4, 5, 6):
            await stage.commit(end)
            assert (stage.disk.reads, stage.told) == (looked, [])
        await stage.commit(7)
        assert len(stage.answer().records) > 5000

    asyncio.run(story())


def test_a_client_that_goes_while_its_bytes_are_counted_is_not_read_for() -> None:
    async def story() -> None:
        stage = Committing()
        stage.append(10)
        stage.append(10)
        asked = fetch_request("t", {0: 1}, max_wait_ms=20_000, session_epoch=-1)
        context = RequestContext(1, 12, 0, None, "", "", {})
        outcome = fetch.handle(cast(Services, stage.services), context, asked)
        assert isinstance(outcome, Deferred)
        stage.partition._advance(stage.places[2])
        outcome.abandon()
        await asyncio.sleep(0)
        assert (stage.disk.reads, len(stage.deadlines)) == (0, 0)
        assert not stage.partition.waiters.fetches

    asyncio.run(story())


def test_a_segment_that_ends_with_the_batch_wakes_whoever_waits_for_it() -> None:
    async def story() -> None:
        stage = Committing()
        stage.fetch(0, 1)
        log, data = stage.partition._log, batch(b"last")
        log.append(memoryview(data), read_header(data), 1, NOW_MS)
        log.roll(NOW_MS)
        log.write()
        stage.places.append(log.written)
        assert log.written.bytes_in_segment == 0
        await stage.commit(1)
        assert len(stage.answer().records) == len(data)

    asyncio.run(story())


# -------------------------------------------------------------------------- look-ups of the end


def in_a_loop(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(story())

    test.__name__ = story.__name__
    return test


@in_a_loop
async def test_a_look_up_waits_for_the_end_that_it_found_and_for_no_later_one() -> None:
    stage = Committing()
    stage.append(10)
    look_up = EndLookUp(stage.deadlines, [stage.partition])
    stage.append(10)
    assert not look_up.done.done()
    await stage.commit(1)
    assert look_up.done.done()
    assert stage.partition.has_uncommitted
    assert len(stage.deadlines) == 0


@in_a_loop
async def test_a_look_up_waits_for_all_of_its_partitions() -> None:
    first, second = Committing(), Committing()
    first.append(10)
    second.append(10)
    look_up = EndLookUp(first.deadlines, [first.partition, second.partition])
    await second.commit(1)
    assert not look_up.done.done()
    await first.commit(1)
    assert look_up.done.done()


@in_a_loop
async def test_who_gave_up_is_not_remembered_however_often_they_ask() -> None:
    stage = Committing()
    stage.append(10)
    for _ in range(100):
        look_up = EndLookUp(stage.deadlines, [stage.partition])
        look_up.expire()
        assert look_up.done.done()
    assert len(stage.partition.waiters.commits) == 1
    assert not stage.partition.end_waiters().look_ups
    stage.deadlines.close()


@pytest.mark.parametrize(
    "end",
    [
        lambda partition: partition.fail_sync(
            partition.begin_sync(), OSError(errno.ENOSPC, "full")
        ),
        lambda partition: partition.go_offline(OSError(errno.EIO, "broken")),
        lambda partition: partition.retire(UnknownTopicOrPartition("deleted")),
    ],
    ids=["sync failed", "offline", "deleted"],
)
def test_a_look_up_ends_when_nothing_more_will_come(end: Callable[[Partition], None]) -> None:
    async def story() -> None:
        stage = Committing()
        stage.append(10)
        look_up = EndLookUp(stage.deadlines, [stage.partition])
        end(stage.partition)
        assert look_up.done.done()
        assert stage.partition.high_watermark.offset < stage.partition.end_offset
        assert not stage.partition.has_uncommitted, "nobody waits after it either"

    asyncio.run(story())


@in_a_loop
async def test_a_look_up_ends_when_the_write_is_refused() -> None:
    stage = Committing()
    log, data = stage.partition._log, batch(b"queued")
    log.append(memoryview(data), read_header(data), 1, NOW_MS)
    look_up = EndLookUp(stage.deadlines, [stage.partition])
    log.take_back()
    stage.partition._fail_write(OSError(errno.ENOSPC, "full"), [])
    assert look_up.done.done()


@in_a_loop
async def test_what_has_settled_meanwhile_is_not_waited_for() -> None:
    stage = Committing()
    stage.append(10)
    waiting = wait_for_ends(stage.deadlines, [stage.partition])
    await stage.commit(1)
    with pytest.raises(StopIteration):
        waiting.send(None)
