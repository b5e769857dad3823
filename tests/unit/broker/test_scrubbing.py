"""The scrub: slow, complete, and sure of what it says before it says it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.counters import TopicMetrics
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.scrub import ScrubChore
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import StorageFailed
from ottla.log.corruption import NOTE, Corruption
from ottla.log.directory import DataDirectory
from ottla.log.handles import Handles
from ottla.log.inspection.scrub import BATCH_COST_BYTES
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk, MemoryFile
from ottla.types import LeaderEpoch, TopicId, TopicPartition
from unit.broker.partition_kit import lone_leader
from unit.log.house import NOW_MS, append, make_batch, open_log, sync

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=500)
SIZE = len(make_batch())
FAST = 1 << 30


TOPIC_ID = TopicId(bytes(range(16)))
NO_FLUSHER: Any = None


class House:
    """Some logs on one disk, and a scrub that takes them for partitions."""

    def __init__(self, count: int = 3, rate: int = FAST) -> None:
        self.disk = MemoryDisk()
        self.handles = Handles(self.disk)
        self.now_ms = NOW_MS
        self.rate = rate
        self.before_thread: Callable[[], object] = lambda: None
        self.partitions = [self._partition(at) for at in range(count)]
        self.scrub = ScrubChore(
            lambda: self.partitions,
            SimpleNamespace(of=lambda partition: self),  # type: ignore[arg-type]
            self.handles,
            self.disk,
            SimpleNamespace(now=lambda: SimpleNamespace(wall_ms=self.now_ms)),  # type: ignore[arg-type]
            self._config,
        )

    def _config(self) -> BrokerConfig:
        return SimpleNamespace(  # type: ignore[return-value]
            log_scrub_bytes_per_second=self.rate, log_scrub_interval_ms=10_000
        )

    def _partition(self, index: int) -> Partition:
        name, data = TopicPartition("t", index), DataDirectory(self.disk, "/data")
        directory = data.partition_path(name)
        home = Home(data, name, TOPIC_ID, is_durable=True)
        config = TopicConfig.resolve(BrokerConfig(), {})
        log = open_log(self.disk, CONFIG, directory=directory, handles=self.handles)
        for _ in range(100):
            append(log)
        log.write()
        sync(log, self.disk)
        return lone_leader(
            name, TOPIC_ID, log, LeaderEpoch(1), config, NO_FLUSHER, TopicMetrics("t"), home
        )

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """As a store does."""
        self.before_thread()
        return work(*arguments)

    def round(self) -> None:
        asyncio.run(self.scrub.run())

    def damage(self, log: Log, segment: int, position: int) -> str:
        path = log.segments[segment].handle.path
        file = self.disk.open(path)
        byte = bytes(file.read(1, position))[0]
        file.write([bytes([byte ^ 8])], position)
        file.sync()
        file.close()
        return path


def test_healthy_logs_are_read_to_their_end() -> None:
    house = House()
    assert house.scrub.progress == 1.0
    house.round()
    assert house.scrub.last_full_pass_ms == NOW_MS
    assert house.scrub.bytes_read == 3 * 100 * SIZE
    assert house.scrub.corruptions_found == 0


def test_damage_is_told_with_its_place_and_the_others_are_read_on() -> None:
    house = House()
    log = house.partitions[1]._log
    path = house.damage(log, 2, 3 * SIZE + 70)
    house.round()
    first = log.segments[2].base_offset
    found = log.corruption
    assert found is not None
    assert found[:4] == (path, 3 * SIZE, first + 3, first + 4)
    assert house.disk.exists(f"/data/t-1/{NOTE}")
    assert [p.failure is None for p in house.partitions] == [True, False, True]
    assert house.scrub.corruptions_found == 1
    assert house.scrub.last_full_pass_ms == NOW_MS


def test_rate_is_kept_and_small_batches_count_for_more() -> None:
    house = House(rate=20 * BATCH_COST_BYTES)
    house.round()
    assert 0 < house.scrub.bytes_read <= 21 * SIZE
    assert 0.0 < house.scrub.progress < 0.2
    assert house.scrub.last_full_pass_ms == 0
    for _ in range(60):
        house.round()
    assert house.scrub.last_full_pass_ms == NOW_MS
    assert house.scrub.bytes_read == 300 * SIZE, "it goes on where it was, and reads nothing twice"


def test_next_pass_begins_when_it_is_due() -> None:
    house = House()
    house.round()
    house.damage(house.partitions[0]._log, 0, 70)
    house.now_ms += 9_999
    house.round()
    assert house.partitions[0].failure is None
    house.now_ms += 1
    house.round()
    assert house.partitions[0].failure is not None


def test_nothing_is_read_when_it_is_switched_off() -> None:
    house = House(rate=0)
    house.damage(house.partitions[0]._log, 0, 70)
    house.round()
    assert house.scrub.bytes_read == 0
    assert house.partitions[0].failure is None


@pytest.mark.parametrize("what", ["deleted", "truncated", "reopened"])
def test_segment_that_changed_meanwhile_is_no_damage(what: str) -> None:
    house = House(count=1)
    partition = house.partitions[0]
    log = partition._log
    house.damage(log, 0, SIZE + 70)
    calls = iter(range(100))

    def meanwhile() -> None:
        if next(calls) == 1:  # Between the finding and the second look.
            if what == "deleted":
                log.delete_before(log.segments[1].base_offset)
            elif what == "truncated":
                log.truncate(0, NOW_MS)
            else:
                partition._log = open_log(house.disk, CONFIG, directory="/data/t-0")

    house.before_thread = meanwhile
    house.round()
    assert partition.failure is None
    assert house.scrub.last_full_pass_ms == NOW_MS


def test_what_is_not_synced_yet_is_left_alone() -> None:
    house = House(count=1)
    log = house.partitions[0]._log
    append(log)
    log.write()
    house.damage(log, len(log.segments) - 1, log.synced.bytes_in_segment + 70)
    house.round()
    assert house.partitions[0].failure is None
    assert house.scrub.last_full_pass_ms == NOW_MS


def test_suspicion_of_a_reader_is_followed_at_once_and_without_a_pass() -> None:
    house = House(count=2, rate=0)
    log = house.partitions[1]._log
    path = house.damage(log, 1, SIZE + 8)
    offset = log.segments[1].base_offset + 1
    with pytest.raises(StorageFailed):
        log.read(offset + 2, 5000, log.written, cached_only=False)
    house.round()
    assert log.corruption is not None
    assert log.corruption[:3] == (path, SIZE, offset)
    assert house.partitions[0].failure is None


def test_suspicion_without_a_reason_is_forgotten() -> None:
    house = House(count=1, rate=0)
    log = house.partitions[0]._log
    log.suspicion = Corruption(log.segments[0].handle.path, 0, 0, 1, "a reader saw a ghost")
    house.round()
    assert house.partitions[0].failure is None
    assert log.suspicion is None


@pytest.mark.parametrize("is_cold", [True, False])
def test_only_what_came_from_the_disk_is_dropped_from_memory_again(
    monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    house = House(count=1)
    house.disk.is_cold = is_cold
    dropped: list[int] = []
    monkeypatch.setattr(
        MemoryFile, "let_pages_go", lambda self, count, position: dropped.append(count)
    )
    house.round()
    assert sum(dropped) == (100 * SIZE if is_cold else 0)
