"""Partitions and their flusher on a disk that stalls and fails."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from ottla.broker.clock import SystemClock
from ottla.broker.control.metadata import MetadataCache
from ottla.broker.counters import TopicMetrics
from ottla.broker.network.connection import Outbox
from ottla.broker.network.leader_hints import LeaderHints
from ottla.broker.network.waiting import Deadlines, PendingProduce
from ottla.broker.storage.flusher import TICKETS_SINGLY_MAX, Flusher
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.threads import RealThreads
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import ErrorCode, StorageFailed, UnknownTopicOrPartition
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig
from ottla.ports import File
from ottla.testing.disks import MemoryDisk
from ottla.types import ALWAYS_SYNCED_TOPICS, LeaderEpoch, TopicPartition
from ottla.wire.messages.produce import PartitionProduceResponse, ProduceResponse
from records_kit import batch
from unit.broker.partition_kit import lone_leader

NOW_MS = 1_790_000_000_000
TOPIC_ID = bytes(range(16))


class StallingDisk(MemoryDisk):
    """The flusher's syncs wait for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.is_syncing = threading.Event()

    def sync_many(self, files: Sequence[File], directories: Sequence[str] = ()) -> bool:
        if threading.current_thread().name == "sync-test":
            self.is_syncing.set()
            assert self.go.wait(20)
        return super().sync_many(files, directories)


class Waiter:
    """Remembers what it is told, and by then what was durable."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, Exception | None]] = []
        self.changed = asyncio.Event()

    def succeeded(self, item: Any) -> None:
        self.told.append((item, None))
        self.changed.set()

    def failed(self, item: Any, error: Exception) -> None:
        self.told.append((item, error))
        self.changed.set()

    async def told_about(self, count: int) -> list[tuple[Any, Exception | None]]:
        while len(self.told) < count:
            self.changed.clear()
            await self.changed.wait()
        return self.told


class House:
    def __init__(self, disk: StallingDisk, flusher: Flusher) -> None:
        self.disk = disk
        self.flusher = flusher
        self.data = DataDirectory(disk, "/data")
        disk.make_directory("/data")

    def partition(self, index: int = 0, topic: str = "t", **settings: str) -> Partition:
        name = TopicPartition(topic, index)
        log = Log.open(
            self.disk, self.data.partition_path(name), LogConfig(), now_ms=NOW_MS, clean=True
        )
        config = TopicConfig.resolve(BrokerConfig(), settings)
        home = Home(self.data, name, TOPIC_ID, is_durable=False)
        metrics = TopicMetrics("t")
        return lone_leader(name, TOPIC_ID, log, 1, config, self.flusher, metrics, home)


@asynccontextmanager
async def a_house() -> AsyncIterator[House]:
    disk = StallingDisk()
    flusher = Flusher(
        asyncio.get_running_loop(),
        RealThreads(),
        SystemClock(),
        disk,
        "test",
        lambda _: None,
        Outbox(),
    )
    try:
        yield House(disk, flusher)
    finally:
        disk.go.set()
        await flusher.stop()


def in_a_house(story: Callable[[House], Awaitable[None]]) -> Callable[[], None]:
    async def live() -> None:
        async with a_house() as house:
            await asyncio.wait_for(story(house), 20)

    def test() -> None:
        asyncio.run(live())

    test.__name__ = story.__name__
    return test


def _produce(partition: Partition, waiter: Waiter, name: str, **options: Any) -> int:
    appended = partition.append(batch(name.encode(), **options), NOW_MS)
    partition.wait_committed(appended.end_offset, waiter, name)
    return appended.end_offset


def _sequenced(sequence: int) -> dict[str, int]:
    return {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}


@in_a_house
async def test_nothing_is_committed_before_it_is_synced(house: House) -> None:
    partition, waiter = house.partition(), Waiter()
    house.disk.go.clear()
    _produce(partition, waiter, "a")
    await asyncio.to_thread(house.disk.is_syncing.wait)
    assert partition._log.written.offset == 1
    assert partition.high_watermark.offset == 0
    assert waiter.told == []
    house.disk.go.set()
    assert await waiter.told_about(1) == [("a", None)]
    assert partition.high_watermark.offset == 1


@in_a_house
async def test_all_who_came_during_a_sync_share_the_next(house: House) -> None:
    partition, waiter = house.partition(), Waiter()
    house.disk.go.clear()
    _produce(partition, waiter, "first")
    await asyncio.to_thread(house.disk.is_syncing.wait)
    for number in range(10):
        _produce(partition, waiter, str(number))
    house.disk.go.set()
    await waiter.told_about(11)
    assert [name for name, _ in waiter.told] == ["first", *map(str, range(10))]


@in_a_house
async def test_a_cached_topic_commits_what_is_written(house: House) -> None:
    partition, waiter = house.partition(**{"write.caching": "true"}), Waiter()
    house.disk.go.clear()
    _produce(partition, waiter, "a")
    assert await waiter.told_about(1) == [("a", None)]


@pytest.mark.parametrize("topic", sorted(ALWAYS_SYNCED_TOPICS))
def test_the_brokers_own_logs_are_synced_whatever_the_settings_say(topic: str) -> None:
    async def story(house: House) -> None:
        cached = {"write.caching": "true"}
        partition, waiter = house.partition(topic=topic, **cached), Waiter()
        for _ in range(2):
            house.disk.go.clear()
            house.disk.is_syncing.clear()
            end_offset = _produce(partition, waiter, "a")
            assert await asyncio.to_thread(house.disk.is_syncing.wait, 10)
            assert partition._log.written.offset == end_offset
            assert partition.high_watermark.offset == end_offset - 1
            assert len(waiter.told) == end_offset - 1
            house.disk.go.set()
            await waiter.told_about(end_offset)
            assert partition.high_watermark.offset == end_offset
            partition.configure(TopicConfig.resolve(BrokerConfig(), cached))

    in_a_house(story)()


@in_a_house
async def test_an_offset_that_was_refused_and_given_anew_is_not_acknowledged_to_the_first(
    house: House,
) -> None:
    partition, waiter = house.partition(), Waiter()
    house.disk.go.clear()
    _produce(partition, waiter, "written", **_sequenced(0))
    await asyncio.to_thread(house.disk.is_syncing.wait)
    house.disk.fail("write", errno.ENOSPC)
    assert _produce(partition, waiter, "refused") == 2
    # A repetition of the first stands behind the refused one, with a smaller offset.
    _produce(partition, waiter, "repeated", **_sequenced(0))
    (told,) = await waiter.told_about(1)
    assert told[0] == "refused"
    assert isinstance(told[1], StorageFailed)
    assert _produce(partition, waiter, "accepted") == 2
    house.disk.go.set()
    await waiter.told_about(4)
    assert {name for name, error in waiter.told if error is None} == {
        "written",
        "repeated",
        "accepted",
    }


@in_a_house
async def test_a_failed_sync_fences_and_only_what_was_synced_is_left(house: House) -> None:
    partition, waiter = house.partition(), Waiter()
    _produce(partition, waiter, "kept", **_sequenced(0))
    await waiter.told_about(1)
    house.disk.fail("sync", errno.EIO)
    _produce(partition, waiter, "lost", **_sequenced(1))
    assert isinstance((await waiter.told_about(2))[1][1], StorageFailed)
    with pytest.raises(StorageFailed):
        partition.append(batch(b"later"), NOW_MS)
    assert partition.failure is not None
    partition.lead(LeaderEpoch(2), (1,), (1,), 0, NOW_MS)
    partition.heal(partition.reopened_log(NOW_MS), NOW_MS)
    assert partition.high_watermark.offset == partition.end_offset == 1
    # The producer's retry is taken as new, not answered as a repetition of what is not there.
    assert _produce(partition, waiter, "lost", **_sequenced(1)) == 2
    assert (await waiter.told_about(3))[2] == ("lost", None)


@in_a_house
async def test_a_sync_that_outlives_its_log_says_nothing_about_the_next_one(house: House) -> None:
    partition, waiter = house.partition(), Waiter()
    _produce(partition, waiter, "kept")
    await waiter.told_about(1)
    # As retention does, beside the flusher.
    partition.roll(NOW_MS)
    await house.flusher.drain()
    partition.append(batch(b"cut"), NOW_MS)
    partition._log.write()
    other_ticket = partition.begin_sync()
    assert other_ticket is not None
    house.disk.go.clear()
    house.disk.is_syncing.clear()
    _produce(partition, waiter, "cut as well")
    await asyncio.to_thread(house.disk.is_syncing.wait)
    partition.fail_sync(other_ticket, OSError(errno.ENOSPC, "full"))
    partition.lead(LeaderEpoch(2), (1,), (1,), 0, NOW_MS)
    partition.heal(partition.reopened_log(NOW_MS), NOW_MS)
    house.disk.go.set()
    await house.flusher.drain()
    assert partition.high_watermark.offset == partition.end_offset == 1
    house.disk.go.clear()
    house.disk.is_syncing.clear()
    _produce(partition, waiter, "anew")
    await asyncio.to_thread(house.disk.is_syncing.wait)
    assert [name for name, error in waiter.told if error is None] == ["kept"]
    house.disk.go.set()
    assert (await waiter.told_about(3))[2] == ("anew", None)
    paths = [file.path for file in house.disk.open_files]
    assert len(paths) == len(set(paths)), "the old log's files are closed"


@in_a_house
async def test_a_topics_id_whose_sync_failed_is_written_again(house: House) -> None:
    """Otherwise a crash takes it, and the partition is nobody's, with all that it holds."""
    partition, waiter = house.partition(), Waiter()
    house.disk.fail("sync", errno.ENOSPC, under="/data/t-0/partition.metadata")
    _produce(partition, waiter, "refused")
    assert isinstance((await waiter.told_about(1))[0][1], StorageFailed)
    house.disk.heal()
    partition.lead(LeaderEpoch(2), (1,), (1,), 0, NOW_MS)
    partition.heal(partition.reopened_log(NOW_MS), NOW_MS)
    _produce(partition, waiter, "kept")
    assert (await waiter.told_about(2))[1] == ("kept", None)
    for seed in range(50):
        found = DataDirectory(house.disk.after_crash(Random(seed)), "/data")
        assert found.read_topic_id(partition.name) == TOPIC_ID


@in_a_house
async def test_a_log_is_not_cut_within_an_epoch(house: House) -> None:
    partition, waiter = house.partition(), Waiter()
    partition.lead(LeaderEpoch(1), (1,), (1,), 0, NOW_MS)
    _produce(partition, waiter, "kept")
    await waiter.told_about(1)
    ticket = partition.begin_sync()
    partition._log.fail_sync(ticket)
    with pytest.raises(AssertionError, match="within an epoch"):
        partition.heal(partition.reopened_log(NOW_MS), NOW_MS)


@in_a_house
async def test_who_asked_only_for_a_write_is_not_lied_to_by_a_fenced_partition(
    house: House,
) -> None:
    partition, waiter = house.partition(), Waiter()
    partition.append(batch(b"a"), NOW_MS)
    partition.wait_written(waiter, "a")
    partition._log.fail_sync()
    assert isinstance((await waiter.told_about(1))[0][1], StorageFailed)


@in_a_house
async def test_deleting_a_topic_during_its_sync_harms_nobody(house: House) -> None:
    doomed, *others = [house.partition(index) for index in range(TICKETS_SINGLY_MAX + 2)]
    waiter = Waiter()
    house.disk.go.clear()
    _produce(doomed, waiter, "doomed")
    for other in others:
        _produce(other, waiter, str(other.index))
    await asyncio.to_thread(house.disk.is_syncing.wait)
    doomed.append(batch(b"still queued"), NOW_MS)
    doomed.leave(UnknownTopicOrPartition("deleted"))
    house.data.doom_partition(doomed.name, TOPIC_ID)
    # Another topic of the same name begins before the old one's sync is over.
    reborn = house.partition(0)
    _produce(reborn, waiter, "reborn")
    house.disk.go.set()
    told = dict(await waiter.told_about(2 + len(others)))
    assert isinstance(told.pop("doomed"), UnknownTopicOrPartition)
    assert set(told.values()) == {None}
    assert doomed.is_fenced
    assert reborn.size_bytes == len(house.disk.read_file(f"/data/t-0/{0:020d}.log"))
    assert house.data.read_topic_id(reborn.name) == TOPIC_ID


@in_a_house
async def test_a_produce_that_the_disk_keeps_waiting_times_out(house: House) -> None:
    partition = house.partition()
    house.disk.go.clear()
    appended = partition.append(batch(b"a"), NOW_MS)
    answer = PartitionProduceResponse(0)
    deadlines = Deadlines(asyncio.get_running_loop())
    pending = PendingProduce(
        ProduceResponse(), deadlines, LeaderHints(MetadataCache(BrokerConfig()), "PLAINTEXT")
    )
    pending.waits.append((partition, appended.end_offset, answer))
    pending.arm(0.01)
    partition.wait_committed(appended.end_offset, pending, answer)
    answered = asyncio.Event()
    pending.when_resolved(lambda _: answered.set())
    await answered.wait()
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    house.disk.go.set()
    await house.flusher.drain()
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT, "it was told so"


@in_a_house
async def test_a_partition_is_durable_with_its_first_acknowledged_batch(house: House) -> None:
    partition, waiter = house.partition(), Waiter()
    assert house.data.partitions() == {}
    _produce(partition, waiter, "a")
    await waiter.told_about(1)
    for seed in range(50):
        found = DataDirectory(house.disk.after_crash(Random(seed)), "/data")
        assert found.read_topic_id(partition.name) == TOPIC_ID
