"""What the flusher does on the loop, what in a thread, and what becomes of a disk that stalls."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest

from ottla.broker.clock import SystemClock
from ottla.broker.counters import TopicMetrics
from ottla.broker.network.connection import Outbox
from ottla.broker.storage import flusher as flushers
from ottla.broker.storage.flusher import Flusher
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.threads import RealThreads
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import StorageFailed, UnknownTopicOrPartition
from ottla.log.corruption import Corruption
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig
from ottla.log.producer_state import ProducerState
from ottla.ports import File
from ottla.testing.disks import FaultyDisk, FaultyFile, MemoryDisk
from ottla.types import TopicPartition
from ottla.wire.schema import Buffer
from records_kit import batch
from unit.broker.partition_kit import lone_leader

NOW_MS = 1_790_000_000_000
TOPIC_ID = bytes(range(16))
MIB = 1024 * 1024


class WatchedFile(FaultyFile):
    def __init__(self, disk: WatchedDisk, file: File) -> None:
        super().__init__(disk, file)
        self._watched = disk

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self._watched.writers.append(threading.current_thread().name)
        if self._watched.permits is not None:
            self._watched.is_asking.release()
            assert self._watched.permits.acquire(timeout=20)
        super().write(buffers, position)

    def truncate(self, size: int) -> None:
        self._watched.cutters.append(threading.current_thread().name)
        super().truncate(size)


class WatchedDisk(FaultyDisk):
    """Remembers which thread wrote, opened, removed or cut; with `permits`, a write takes one."""

    def __init__(self) -> None:
        self.memory = MemoryDisk()
        super().__init__(self.memory)
        self.writers: list[str] = []
        self.permits: threading.Semaphore | None = None
        self.is_asking = threading.Semaphore(0)
        self.openers: list[str] = []
        self.cutters: list[str] = []

    def remove(self, path: str) -> None:
        self.cutters.append(threading.current_thread().name)
        super().remove(path)

    def open(self, path: str, *, create: bool = False) -> File:
        self.openers.append(threading.current_thread().name)
        file = super().open(path, create=create)
        assert isinstance(file, FaultyFile)
        return WatchedFile(self, file.file)


class Waiter:
    def __init__(self) -> None:
        self.told: dict[str, Exception | None] = {}
        self._changed = asyncio.Event()

    def succeeded(self, item: Any) -> None:
        assert item not in self.told, "told twice"
        self.told[item] = None
        self._changed.set()

    def failed(self, item: Any, error: Exception) -> None:
        assert item not in self.told, "told twice"
        self.told[item] = error
        self._changed.set()

    async def of(self, item: str) -> Exception | None:
        while item not in self.told:
            self._changed.clear()
            await self._changed.wait()
        return self.told[item]


class House:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.disk = WatchedDisk()
        self.disk.make_directory("/data")
        self.data = DataDirectory(self.disk, "/data")
        self.broken: list[OSError] = []
        self.waiter = Waiter()
        self.flusher = self._new_flusher("test")

    def _new_flusher(self, name: str) -> Flusher:
        return Flusher(
            asyncio.get_running_loop(),
            RealThreads(),
            SystemClock(),
            self.disk,
            name,
            lambda _: None,
            Outbox(),
            self.broken.append,
            stalled_bytes_max=MIB,
        )

    def new_neighbour(self) -> Flusher:
        """Of the same disk, as the one of internal logs is."""
        flusher = self._new_flusher("neighbour")
        flusher.neighbour = self.flusher
        return flusher

    def partition(self, index: int = 0) -> Partition:
        name = TopicPartition("t", index)
        path = self.data.partition_path(name)
        log = Log.open(self.disk, path, LogConfig(), now_ms=NOW_MS, clean=True)
        home = Home(self.data, name, TOPIC_ID, is_durable=False)
        config = TopicConfig.resolve(BrokerConfig(), {})
        return lone_leader(name, TOPIC_ID, log, 1, config, self.flusher, TopicMetrics("t"), home)

    async def warm(self, index: int = 0) -> Partition:
        """A partition that has its files."""
        partition = self.partition(index)
        self.produce(partition, f"warm {index}")
        assert await self.waiter.of(f"warm {index}") is None
        self.disk.writers.clear()
        return partition

    def produce(self, partition: Partition, item: str, **options: Any) -> int:
        appended = partition.append(batch(item.encode(), **options), NOW_MS)
        partition.wait_committed(appended.end_offset, self.waiter, item)
        return appended.base_offset

    async def stall(self, partition: Partition) -> None:
        """A sync is under way, and from here on any sync has taken for longer than is usual."""
        self.disk.hold("sync")
        self.produce(partition, "stalled")
        await asyncio.to_thread(self.disk.wait_until_held)
        for limit in ("QUICK_SYNC_S_MAX", "STALL_S", "STANDSTILL_S"):
            self.patch.setattr(flushers, limit, -1.0)


def in_a_house(
    story: Callable[[House], Awaitable[None]],
) -> Callable[[pytest.MonkeyPatch], None]:
    async def live(patch: pytest.MonkeyPatch) -> None:
        house = House(patch)
        try:
            await asyncio.wait_for(story(house), 20)
        finally:
            house.disk.heal()
            await house.flusher.stop()

    def test(monkeypatch: pytest.MonkeyPatch) -> None:
        asyncio.run(live(monkeypatch))

    test.__name__ = story.__name__
    return test


def _sequenced(sequence: int) -> dict[str, int]:
    return {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}


@in_a_house
async def test_only_adding_to_files_is_done_on_the_loop(house: House) -> None:
    partition = house.partition()
    house.produce(partition, "first")
    assert await house.waiter.of("first") is None
    assert set(house.disk.writers) == {"write-test"}, "files were made"
    house.disk.writers.clear()
    house.produce(partition, "second")
    assert await house.waiter.of("second") is None
    assert set(house.disk.writers) == {threading.main_thread().name}
    house.disk.writers.clear()
    partition._log.roll(NOW_MS)
    house.produce(partition, "third")
    assert await house.waiter.of("third") is None
    assert set(house.disk.writers) == {"write-test"}


@in_a_house
async def test_beside_a_long_sync_and_for_a_while_after_it_the_loop_writes_nothing(
    house: House,
) -> None:
    partition = await house.warm()
    await house.stall(partition)
    house.disk.writers.clear()
    house.disk.hold("write")
    for number in range(3):
        house.produce(partition, str(number))
        await asyncio.to_thread(house.disk.wait_until_held)
    assert "0" not in house.waiter.told
    house.disk.heal()
    assert await house.waiter.of("2") is None
    house.produce(partition, "after")
    assert await house.waiter.of("after") is None
    assert set(house.disk.writers) == {"write-test"}
    names = ["warm 0", "stalled", "0", "1", "2", "after"]
    assert list(house.waiter.told) == names
    assert partition.high_watermark.offset == len(names)


@in_a_house
async def test_beside_a_long_sync_of_other_logs_the_loop_writes_nothing(house: House) -> None:
    partition, other = await house.warm(), await house.warm(1)
    await house.stall(partition)
    other.flusher = neighbour = house.new_neighbour()
    house.disk.writers.clear()
    house.produce(other, "beside it")
    house.disk.heal()
    assert await house.waiter.of("beside it") is None
    assert set(house.disk.writers) == {"write-neighbour"}
    await neighbour.stop()


@in_a_house
async def test_a_write_that_fails_in_a_thread_fails_all_who_came_since(house: House) -> None:
    partition = await house.warm()
    await house.stall(partition)
    house.disk.hold("write")
    house.produce(partition, "refused", **_sequenced(0))
    partition.wait_written(house.waiter, "refused, asked only for a write")
    await asyncio.to_thread(house.disk.wait_until_held)
    house.produce(partition, "behind it", **_sequenced(1))
    await asyncio.sleep(0)
    house.disk.heal()
    house.disk.fail("write", errno.ENOSPC, times=1)
    for item in ("refused", "refused, asked only for a write", "behind it"):
        assert isinstance(await house.waiter.of(item), StorageFailed)
    assert await house.waiter.of("stalled") is None
    assert house.broken == []
    assert house.produce(partition, "again", **_sequenced(0)) == 2
    assert await house.waiter.of("again") is None


@in_a_house
async def test_a_repetition_of_what_is_being_written_is_not_told_that_it_is(house: House) -> None:
    partition = await house.warm()
    await house.stall(partition)
    house.disk.hold("write")
    house.produce(partition, "first", **_sequenced(0))
    await asyncio.to_thread(house.disk.wait_until_held)
    assert partition.append(batch(b"first", **_sequenced(0)), NOW_MS).is_duplicate
    partition.wait_written(house.waiter, "repeated")
    await asyncio.sleep(0)
    assert "repeated" not in house.waiter.told
    house.disk.heal()
    assert await house.waiter.of("repeated") is None


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize(("number", "is_broken"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_broken_disk_is_told_and_a_full_one_is_not(
    monkeypatch: pytest.MonkeyPatch, operation: str, number: int, is_broken: bool
) -> None:
    @in_a_house
    async def story(house: House) -> None:
        partition = await house.warm()
        house.disk.fail(operation, number)
        house.produce(partition, "refused")
        assert isinstance(await house.waiter.of("refused"), StorageFailed)
        await house.flusher.drain()
        assert [error.errno for error in house.broken] == [number] * is_broken

    story(monkeypatch)


@in_a_house
async def test_a_disk_that_stands_still_takes_no_more_than_its_share(house: House) -> None:
    partition, other = await house.warm(0), await house.warm(1)
    await house.stall(partition)
    house.disk.hold("write")
    taken = 0
    while not house.flusher.is_full:
        (partition, other)[taken // 50_000 % 2].append(batch(b"x" * 50_000), NOW_MS)
        taken += 50_000
        await asyncio.sleep(0)
        assert taken < 2 * MIB
    assert taken > MIB // 2
    with pytest.raises(StorageFailed, match="waits for the disk"):
        other.append(batch(b"no"), NOW_MS)
    house.disk.heal()
    await house.flusher.drain()
    house.produce(partition, "again")
    assert await house.waiter.of("again") is None


@in_a_house
async def test_a_partition_that_is_deleted_while_it_is_written_leaves_when_that_is_over(
    house: House,
) -> None:
    partition, left = house.partition(), []
    house.disk.hold("open")
    house.produce(partition, "first")
    await asyncio.to_thread(house.disk.wait_until_held)
    partition.leave(UnknownTopicOrPartition("deleted"))
    partition.abandon()
    partition.when_not_busy(lambda: left.append("now"))
    assert isinstance(await house.waiter.of("first"), UnknownTopicOrPartition)
    assert left == []
    house.disk.heal()
    await house.flusher.drain()
    assert left == ["now"]
    assert partition.has_directory, "what the thread made has to be removed"


@in_a_house
async def test_whether_there_is_room_again_is_tried_in_a_thread(house: House) -> None:
    partition = await house.warm()
    house.disk.fail("write", errno.ENOSPC)
    house.produce(partition, "refused")
    assert isinstance(await house.waiter.of("refused"), StorageFailed)
    house.flusher.probe(partition)
    await house.flusher.drain()
    assert partition.failure is not None
    house.disk.heal()
    house.disk.writers.clear()
    house.flusher.probe(partition)
    await house.flusher.drain()
    assert partition.failure is None
    assert house.disk.writers == ["write-test"]
    assert partition.size_bytes == len(house.disk.read_file(f"/data/t-0/{0:020d}.log"))


def test_stopping_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushers, "STOP_S_MAX", 0.05)

    async def live() -> None:
        house = House(monkeypatch)
        partition = await house.warm()
        await house.stall(partition)
        assert not await asyncio.wait_for(house.flusher.stop(), 10)
        assert "stalled" not in house.waiter.told
        house.disk.heal()

    asyncio.run(live())


@in_a_house
async def test_a_damaged_log_is_no_broken_disk(house: House) -> None:
    partition = await house.warm()
    partition.append(batch(b"queued"), NOW_MS)
    partition.condemn(Corruption("/data/t-0/0.log", 0, 0, 1, "a bit flipped"))
    await house.flusher.drain()
    assert partition.failure is not None
    assert house.broken == []


@in_a_house
async def test_a_write_that_held_up_the_loop_is_the_last_one_for_a_while(house: House) -> None:
    partition = await house.warm()
    house.patch.setattr(flushers, "STALL_S", -1.0)
    for item in ("held up", "in a thread"):
        house.produce(partition, item)
        assert await house.waiter.of(item) is None
    assert house.disk.writers == [threading.main_thread().name, "write-test"]


async def _write_without_end(house: House, partition: Partition) -> threading.Semaphore:
    """Written, not synced: "0"; asks for a permit to be written: "1"; waits after that: "2"."""
    house.produce(partition, "0")
    partition.wait_written(house.waiter, "0 written")
    assert await house.waiter.of("0 written") is None
    permits = house.disk.permits = threading.Semaphore(0)
    house.produce(partition, "1")
    partition.wait_written(house.waiter, "1 written")
    await asyncio.to_thread(house.disk.is_asking.acquire)
    house.produce(partition, "2")
    await asyncio.sleep(0)
    return permits


@in_a_house
async def test_a_sync_that_waits_goes_before_further_writes(house: House) -> None:
    partition = await house.warm()
    await house.stall(partition)
    permits = await _write_without_end(house, partition)
    house.disk.heal()
    assert await house.waiter.of("stalled") is None
    permits.release()
    assert await house.waiter.of("1") is None
    assert "2" not in house.waiter.told
    permits.release()
    assert await house.waiter.of("2") is None


@in_a_house
async def test_a_sync_that_waits_for_a_write_and_for_another_sync_goes_before_further_writes(
    house: House,
) -> None:
    partition, other = await house.warm(0), await house.warm(1)
    await house.stall(partition)
    house.produce(other, "other")
    permits = await _write_without_end(house, partition)
    house.disk.heal()
    house.disk.hold("sync", under="/data/t-1")
    assert await house.waiter.of("stalled") is None
    await asyncio.to_thread(house.disk.wait_until_held)
    permits.release()
    assert await house.waiter.of("1 written") is None
    house.disk.heal()
    assert await house.waiter.of("1") is None
    assert "2" not in house.waiter.told
    permits.release()
    assert await house.waiter.of("2") is None


@in_a_house
async def test_bytes_whose_sync_has_to_wait_stay_counted(house: House) -> None:
    partition = await house.warm()
    await house.stall(partition)
    permits = await _write_without_end(house, partition)
    house.disk.heal()
    assert await house.waiter.of("stalled") is None
    await asyncio.sleep(0)
    assert house.flusher.waiting_bytes == sum(len(batch(name)) for name in (b"0", b"1", b"2"))
    permits.release(2)
    await house.flusher.drain()
    assert house.flusher.waiting_bytes == 0


# ------------------------------------------------------------------------- hints for recovery


def _encoders(patch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which the states of producers are encoded from now on."""
    encode, threads = ProducerState.encode, list[str]()

    def told(state: ProducerState) -> bytes:
        threads.append(threading.current_thread().name)
        return encode(state)

    patch.setattr(ProducerState, "encode", told)
    return threads


@in_a_house
async def test_hints_for_recovery_are_written_in_a_thread_and_synced(house: House) -> None:
    partition = await house.warm()
    house.disk.openers.clear()
    for wanted in (1, 2):
        hints = partition.take_hints()
        assert hints is not None
        assert house.flusher.save(partition, hints)
        assert not house.flusher.save(partition, hints), "one after the other"
        await house.flusher.drain()
        assert house.disk.exists(f"/data/t-0/{wanted:020d}.snapshot")
        assert house.disk.writers
        assert {*house.disk.writers, *house.disk.openers} == {"write-test"}
        assert partition.take_hints() is None, "once is enough"
        for seed in range(10):
            crashed = house.disk.memory.after_crash(Random(seed))
            for name in crashed.list("/data/t-0"):
                path = f"/data/t-0/{name}"
                assert crashed.read_file(path) == house.disk.read_file(path)
            assert crashed.exists(f"/data/t-0/{wanted:020d}.snapshot")
        house.produce(partition, f"{wanted}", **_sequenced(wanted - 1))
        assert await house.waiter.of(f"{wanted}") is None
        house.disk.writers.clear()
    assert set(house.disk.memory.closed_unsynced) <= {"/data/t-0/partition.metadata"}


@in_a_house
async def test_while_hints_wait_for_the_disk_others_are_written_and_batches_kept(
    house: House,
) -> None:
    one, two = await house.warm(0), await house.warm(1)
    house.produce(one, "before", **_sequenced(0))
    assert await house.waiter.of("before") is None
    hints = one.take_hints()
    assert hints is not None
    house.disk.hold("open")
    assert house.flusher.save(one, hints)
    await asyncio.to_thread(house.disk.wait_until_held)
    house.produce(two, "other")
    assert await house.waiter.of("other") is None
    house.produce(one, "kept")
    repeated = one.append(batch(b"before", **_sequenced(0)), NOW_MS)
    assert repeated.is_duplicate
    one.wait_written(house.waiter, "repeated")
    assert "kept" not in house.waiter.told
    house.disk.heal()
    assert await house.waiter.of("kept") is None
    assert await house.waiter.of("repeated") is None


@in_a_house
async def test_who_repeats_while_hints_are_written_is_answered(house: House) -> None:
    partition = await house.warm()
    house.produce(partition, "first", **_sequenced(0))
    assert await house.waiter.of("first") is None
    hints = partition.take_hints()
    assert hints is not None
    house.disk.hold("open")
    assert house.flusher.save(partition, hints)
    await asyncio.to_thread(house.disk.wait_until_held)
    assert partition.append(batch(b"first", **_sequenced(0)), NOW_MS).is_duplicate
    partition.wait_written(house.waiter, "repeated")
    house.disk.heal()
    assert await house.waiter.of("repeated") is None


@in_a_house
async def test_hints_that_the_disk_refuses_harm_nobody(house: House) -> None:
    partition = await house.warm()
    hints = partition.take_hints()
    assert hints is not None
    house.disk.fail("open", errno.ENOSPC)
    assert house.flusher.save(partition, hints)
    await house.flusher.drain()
    assert partition.failure is None
    assert not house.disk.exists(f"/data/t-0/{1:020d}.snapshot")
    house.disk.heal()
    again = partition.take_hints()
    assert again is not None
    assert house.flusher.save(partition, again)
    await house.flusher.drain()
    assert house.disk.exists(f"/data/t-0/{1:020d}.snapshot")


@in_a_house
async def test_hints_are_outdated_once_the_segment_is_finished(house: House) -> None:
    partition = await house.warm()
    hints = partition.take_hints()
    assert hints is not None
    partition.roll(NOW_MS)
    await house.flusher.drain()
    house.disk.writers.clear()
    assert house.flusher.save(partition, hints)
    await house.flusher.drain()
    assert house.disk.writers == []


@in_a_house
async def test_a_partition_that_is_deleted_while_its_hints_are_written_leaves_afterwards(
    house: House,
) -> None:
    partition = await house.warm()
    hints = partition.take_hints()
    assert hints is not None
    house.disk.hold("open")
    assert house.flusher.save(partition, hints)
    await asyncio.to_thread(house.disk.wait_until_held)
    partition.leave(UnknownTopicOrPartition("deleted"))
    left = asyncio.Event()
    partition.when_not_busy(left.set)
    assert not left.is_set()
    house.disk.heal()
    await left.wait()


@in_a_house
async def test_the_state_of_producers_is_encoded_in_the_thread_that_writes_it(
    house: House,
) -> None:
    partition = await house.warm()
    threads = _encoders(house.patch)
    house.produce(partition, "a", **_sequenced(0))
    partition.roll(NOW_MS)
    # What comes behind the roll is not in its snapshot, whenever that is encoded.
    house.produce(partition, "b", **_sequenced(1))
    assert await house.waiter.of("b") is None
    assert threads == ["write-test"]
    data = house.disk.read_file(f"/data/t-0/{2:020d}.snapshot")
    producer = ProducerState.decode(data).get(5)
    assert producer is not None
    assert [span.last_sequence for span in producer.spans] == [0]


@in_a_house
async def test_what_a_refused_write_has_left_is_removed_in_the_thread_that_wrote(
    house: House,
) -> None:
    partition = await house.warm()
    size = partition.size_bytes
    house.disk.cutters.clear()
    house.produce(partition, "before the roll")
    partition.roll(NOW_MS)
    house.disk.fail("open", errno.ENOSPC)
    house.produce(partition, "behind it")
    assert isinstance(await house.waiter.of("behind it"), StorageFailed)
    assert isinstance(await house.waiter.of("before the roll"), StorageFailed)
    assert set(house.disk.cutters) == {"write-test"}
    assert len(house.disk.read_file(f"/data/t-0/{0:020d}.log")) == size
    assert not partition.is_fenced
