"""Retention against a plain list: any history of appends, settings, clocks, crashes, restarts.

What is left is what the rules leave of the list; no start that somebody has seen moves back.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.broker.counters import TopicMetrics
from ottla.broker.storage import retention
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.partition_opener import log_config
from ottla.broker.storage.retention import RetentionChore, Shortener
from ottla.config import BrokerConfig, TopicConfig
from ottla.log.checkpoints import RECOVERY_POINTS, START_OFFSETS, read_offsets, write_offsets
from ottla.log.directory import DataDirectory
from ottla.log.handles import Handles
from ottla.log.log import Log
from ottla.testing.disks import MemoryDisk, PowerLoss
from ottla.types import Now, TopicPartition
from ottla.wire.records import headers_in, read_header
from unit.broker.partition_kit import lone_leader
from unit.log.house import NOW_MS, make_batch, read_all
from unit.log.retention_rules import Rules

NAME = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))
BROKER = BrokerConfig()


class Entry(NamedTuple):
    """A batch of the list."""

    base: int
    end: int
    timestamp: int
    data: bytes


class HandClock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now(self) -> Now:
        return Now(self.ms, self.ms)

    def wall_ms(self) -> int:
        return self.ms


class InlineStore:
    """A data directory whose thread is this one."""

    is_online = True
    is_full = False
    meanwhile: Callable[[], None] | None = None

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        outcome = work(*arguments)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return outcome

    def of(self, partition: Partition) -> InlineStore:
        return self


class NoFlusher:
    """The machine itself says what is written and synced when."""

    is_full = is_holding = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def queue(self, partition: Partition) -> None:
        """What retention wants written, it gets."""
        if self._loop.is_running():
            partition.write_queued()


class RetentionAgainstAList(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.disk = MemoryDisk()
        self.disk.make_directory("/data")
        self.clock = HandClock()
        self.settings: dict[str, str] = {"segment.bytes": "400", "index.interval.bytes": "100"}
        self.entries: list[Entry] = []
        self.seen_start = 0
        self.epoch = 0
        self.open(clean=True)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    # -------------------------------------------------------------- a broker, as small as can be

    def open(self, *, clean: bool) -> None:
        self.disk.now_ms = self.clock.ms
        data = DataDirectory(self.disk, "/data")
        starts = self.read(START_OFFSETS)
        config = self.topic_config()
        self.epoch += 1
        log = Log.open(
            self.disk,
            data.partition_path(NAME),
            log_config(config, BROKER),
            now_ms=self.clock.ms,
            clean=clean,
            recovery_point=self.read(RECOVERY_POINTS),
            start_offset=starts,
            handles=Handles(self.disk, 4),
        )
        home = Home(data, NAME, TOPIC_ID, is_durable=data.read_topic_id(NAME) is not None)
        self.partition = lone_leader(
            NAME,
            TOPIC_ID,
            log,
            self.epoch,
            config,
            NoFlusher(self.loop),
            TopicMetrics("t"),
            home,  # type: ignore[arg-type]
        )
        store: Any = InlineStore()
        self.store = store
        self.shortener = Shortener(self.loop, self.disk, store, self.save_starts)
        self.chore = RetentionChore(
            [self.partition], store, self.shortener, self.clock, self.disk, BROKER
        )

    def topic_config(self) -> TopicConfig:
        return TopicConfig.resolve(BROKER, self.settings)

    def read(self, kind: str) -> int:
        return read_offsets(self.disk, f"/data/{kind}").get(NAME, 0)

    def save(self, kind: str, offset: int) -> None:
        write_offsets(self.disk, f"/data/{kind}", {NAME: offset} if offset else {})

    async def save_starts(self, moved: Iterable[Partition]) -> None:
        # What a client can see just now must be there after a crash that comes just now.
        self.seen_start = max(self.seen_start, self.log.start_offset)
        self.save(START_OFFSETS, self.partition.durable_start)

    def live(self, work: Any) -> Any:
        """And a few turns more, for what was put off."""

        async def some_turns() -> Any:
            outcome = await work
            for _ in range(5):
                await asyncio.sleep(0)
            return outcome

        return self.loop.run_until_complete(some_turns())

    @property
    def log(self) -> Log:
        return self.partition._log

    @property
    def committed(self) -> int:
        return self.partition.high_watermark.offset

    # ----------------------------------------------------------------------------------- writing

    @rule(
        count=st.integers(1, 3),
        size=st.sampled_from([1, 50, 150, 500]),
        age_ms=st.sampled_from([0, 0, 500, 5000, None]),
    )
    def append(self, count: int, size: int, age_ms: int | None) -> None:
        timestamp = -1 if age_ms is None else self.clock.ms - age_ms
        batch = make_batch(count, value=b"v" * size, timestamps=[timestamp])
        view = memoryview(batch)
        appended = self.partition.append_own(view, read_header(view), self.clock.ms)
        self.entries.append(Entry(appended.base_offset, appended.end_offset, timestamp, batch))

    @rule()
    def write(self) -> None:
        self.disk.now_ms = self.clock.ms
        self.partition.write_queued()

    @rule()
    def commit(self) -> None:
        self.write()
        ticket = self.partition.begin_sync()
        if ticket is not None:
            self.disk.sync_many(ticket.files, ticket.directories)
            self.partition.make_directory_durable(False)
            self.partition.finish_sync(ticket)

    @rule(count=st.integers(2, 6), age_ms=st.sampled_from([0, 5000]))
    def append_and_commit(self, count: int, age_ms: int) -> None:
        for _ in range(count):
            self.append(1, 150, age_ms)
            self.write()
        self.commit()

    @rule(step_ms=st.sampled_from([1, 400, 3000]))
    def wait(self, step_ms: int) -> None:
        self.clock.ms += step_ms

    @rule(
        name=st.sampled_from(["retention.ms", "retention.bytes"]),
        value=st.sampled_from([-1, 0, 300, 1000, 4000]),
    )
    def limit(self, name: str, value: int) -> None:
        self.configure(name, str(value))

    @rule(policy=st.sampled_from(["delete", "delete", "compact", "compact,delete"]))
    def choose_a_policy(self, policy: str) -> None:
        self.configure("cleanup.policy", policy)

    @rule(delay_ms=st.sampled_from([0, 60_000]))
    def keep_files_for(self, delay_ms: int) -> None:
        self.configure("file.delete.delay.ms", str(delay_ms))

    def configure(self, name: str, value: str) -> None:
        self.settings[name] = value
        config = self.topic_config()
        self.partition.configure(config, log_config(config, BROKER))

    # ----------------------------------------------------------------------------------- deleting

    def expected_start(self) -> int:
        """What the rules leave of the list, segment by segment."""
        config, bases = self.partition.config, [s.base_offset for s in self.log.segments]
        known = []
        for base, end in zip(bases, [*bases[1:], self.log.end_offset], strict=True):
            inside = [entry for entry in self.entries if base <= entry.base < end]
            size = sum(len(entry.data) for entry in inside)
            youngest = max((entry.timestamp for entry in inside), default=-1)
            if youngest < 0 and size:
                path = f"/data/t-0/{base:020d}.log"
                youngest = self.disk.modified_ms(path) if self.disk.exists(path) else self.clock.ms
            known.append((end, size, self.clock.ms - youngest))
        rules = Rules(known, self.committed)
        rules.by_start(self.log.start_offset)
        if "delete" in config.cleanup_policy:
            rules.by_size(config.retention_bytes)
            rules.by_age(config.retention_ms)
        gone = len(known) - len(rules.left)
        return max(self.log.start_offset, known[gone - 1][0]) if gone else self.log.start_offset

    @rule()
    def go_round(self) -> None:
        expected, segments = self.expected_start(), len(self.log.segments)
        before = self.log.start_offset
        self.live(self.chore.run())
        assert self.log.start_offset == expected
        if expected == before:
            assert len(self.log.segments) <= segments, "a segment was begun without need"
        assert self.log.size_bytes == sum(
            len(entry.data)
            for entry in self.entries
            if entry.base >= self.log.segments[0].base_offset
        )

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(-1, self.committed))
        expected = max(self.log.start_offset, self.committed if offset == -1 else offset)
        start = self.partition.start_for(offset)
        assert self.live(self.shortener.shorten({self.partition: start})) == {}
        assert self.log.start_offset == expected

    # --------------------------------------------------------------------- stopping and starting

    @rule()
    def checkpoint(self) -> None:
        self.save(RECOVERY_POINTS, self.log.synced.offset)
        self.save(START_OFFSETS, self.partition.durable_start)

    @rule()
    def restart(self) -> None:
        self.commit()
        start, end = self.log.start_offset, self.log.end_offset
        self.log.close()
        self.checkpoint()
        self.open(clean=True)
        assert (self.log.start_offset, self.log.end_offset) == (start, end)
        self.no_old_file_is_left()

    @rule(seed=st.integers(0, 2**16))
    def lose_power(self, seed: int) -> None:
        self.crash(seed, self.log.start_offset)

    @rule(seed=st.integers(0, 2**16), operations=st.integers(0, 3), data=st.data())
    def lose_power_while_deleting_records(
        self, seed: int, operations: int, data: st.DataObject
    ) -> None:
        start = self.partition.start_for(data.draw(st.integers(0, self.committed)))
        self.disk.lose_power_in(operations)
        with suppress(PowerLoss):
            self.live(self.shortener.shorten({self.partition: start}))
        self.crash(seed, start)

    @rule(seed=st.integers(0, 2**16), operations=st.one_of(st.integers(0, 3), st.integers(0, 30)))
    def lose_power_while_going_round(self, seed: int, operations: int) -> None:
        expected = self.expected_start()
        self.disk.lose_power_in(operations)
        with suppress(PowerLoss):
            self.live(self.chore.run())
        self.crash(seed, expected)

    @rule(seed=st.integers(0, 2**16), operations=st.integers(0, 12))
    def lose_power_while_starting(self, seed: int, operations: int) -> None:
        start = self.log.start_offset
        committed = self.committed
        self.disk = self.disk.after_crash(Random(seed))
        self.disk.lose_power_in(operations)
        with suppress(PowerLoss):
            self.open(clean=False)
        self.crash(seed + 1, start, committed)

    def crash(self, seed: int, latest_start: int, committed: int | None = None) -> None:
        committed = self.committed if committed is None else committed
        self.disk = self.disk.after_crash(Random(seed))
        self.open(clean=False)
        assert self.seen_start <= self.log.start_offset <= latest_start
        assert self.log.end_offset >= committed, "a crash took what was committed"
        self.entries = [entry for entry in self.entries if entry.end <= self.log.end_offset]
        assert (self.entries[-1].end if self.entries else 0) == self.log.end_offset
        self.no_old_file_is_left()

    def no_old_file_is_left(self) -> None:
        names = self.disk.list("/data/t-0") if self.disk.exists("/data/t-0") else []
        bases = {segment.base_offset for segment in self.log.segments}
        assert not [name for name in names if name.endswith(".deleted")]
        assert {int(name[:20]) for name in names if name.endswith(".log")} <= bases

    # --------------------------------------------------------------------------------- invariants

    @invariant()
    def what_is_read_is_what_the_list_keeps(self) -> None:
        start = self.log.start_offset
        assert start >= self.seen_start, "a start that was seen has moved back"
        assert start <= self.committed
        self.seen_start = start
        found = read_all(self.log, self.partition.high_watermark)
        kept = [entry for entry in self.entries if start < entry.end <= self.committed]
        assert found == b"".join(entry.data for entry in kept)
        assert [header.base_offset for _, header in headers_in(found)] == [e.base for e in kept]

    @invariant()
    def what_is_seen_is_durable(self) -> None:
        assert self.read(START_OFFSETS) >= self.log.start_offset


@pytest.fixture
def house() -> Iterator[RetentionAgainstAList]:
    """A log of five segments, all of it old."""
    house = RetentionAgainstAList()
    house.begin()
    try:
        house.append_and_commit(5, 5000)
        assert [segment.base_offset for segment in house.log.segments] == [0, 1, 2, 3, 4]
        house.limit("retention.ms", 1000)
        yield house
    finally:
        house.teardown()


def test_settings_that_change_while_a_round_judges_are_heeded(house: Any) -> None:
    house.store.meanwhile = lambda: house.limit("retention.ms", -1)
    house.live(house.chore.run())
    assert house.log.start_offset == 0
    house.limit("retention.ms", 1000)
    house.go_round()
    assert house.log.start_offset == 5


def test_the_segment_being_written_to_stays_when_a_batch_comes_while_it_is_judged(
    house: Any,
) -> None:
    house.store.meanwhile = lambda: house.append(1, 1, 0)
    house.live(house.chore.run())
    assert [segment.base_offset for segment in house.log.segments] == [4]
    assert house.log.start_offset == 4
    house.commit()
    house.what_is_read_is_what_the_list_keeps()


def test_a_checkpoint_that_cannot_be_written_leaves_everything_as_it_is(house: Any) -> None:
    house.disk.fail("write_file")
    house.live(house.chore.run())
    assert house.log.start_offset == house.partition.durable_start == 0
    house.what_is_read_is_what_the_list_keeps()
    house.go_round()
    assert house.log.start_offset == 5


def test_a_segment_that_cannot_be_begun_keeps_the_last_one_in_place(house: Any) -> None:
    house.disk.fail("create", errno.ENOSPC)
    house.live(house.chore.run())
    assert [segment.base_offset for segment in house.log.segments] == [4]
    house.go_round()
    assert house.log.start_offset == 5


def test_producers_are_known_after_all_their_batches_are_gone(house: Any) -> None:
    def send() -> tuple[int, bool]:
        batch = make_batch(
            producer_id=7, producer_epoch=0, base_sequence=0, timestamps=[NOW_MS - 5000]
        )
        view = memoryview(batch)
        appended = house.partition.append_own(view, read_header(view), house.clock.ms)
        return appended.base_offset, appended.is_duplicate

    house.go_round()
    house.commit()
    assert send() == (5, False)
    house.commit()
    house.live(house.chore.run())
    assert house.log.start_offset == 6
    left_by_the_round = house.disk
    for seed in range(100):
        house.disk = left_by_the_round.after_crash(Random(seed))
        house.open(clean=False)
        assert send() == (5, True), f"with what a crash has left by seed {seed}"


def test_a_fenced_log_is_left_alone(house: Any) -> None:
    house.log.fail_sync()
    house.live(house.chore.run())
    assert house.log.start_offset == 0
    failed = house.live(house.shortener.shorten({house.partition: 2}))
    assert list(failed) == [house.partition]


class StuckStore:
    """A data directory whose disk does not answer."""

    is_online = True

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.visits = 0

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self.visits += 1
        await self.is_over.wait()
        raise OSError(errno.EIO, "it was stuck")


def test_a_directory_that_is_stuck_holds_up_only_itself(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROUND_S_MAX", 0.01)
    stuck, free = StuckStore(), house.store
    neighbour = lone_leader(
        TopicPartition("n", 0),
        TOPIC_ID,
        Log.open(house.disk, "/data/n-0", house.log.config, now_ms=NOW_MS, clean=True),
        1,
        house.partition.config,
        NoFlusher(house.loop),  # type: ignore[arg-type]
        TopicMetrics("n"),
        Home(
            DataDirectory(house.disk, "/elsewhere"),
            TopicPartition("n", 0),
            TOPIC_ID,
            is_durable=False,
        ),
    )
    free.of = lambda partition: stuck if partition is neighbour else free
    chore = RetentionChore(
        [neighbour, house.partition], free, house.shortener, house.clock, house.disk, BROKER
    )

    def run_until_the_log_begins_at(offset: int) -> None:
        # On a busy machine even the free one may not be done in the time of one round.
        rounds = iter(range(1000))
        while house.log.start_offset < offset:
            next(rounds)
            house.live(chore.run())

    run_until_the_log_begins_at(5)
    house.append_and_commit(2, 5000)
    run_until_the_log_begins_at(7)
    assert stuck.visits == 1, "a round of it is still under way"
    stuck.is_over.set()
    house.live(asyncio.sleep(0))
    house.live(chore.run())
    assert stuck.visits == 2


TestRetentionAgainstAList = RetentionAgainstAList.TestCase
TestRetentionAgainstAList.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
