"""A follower that fetches from a real broker over a real socket."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from ottla.broker.clock import SystemClock
from ottla.broker.control.metadata import MetadataCache
from ottla.broker.counters import TopicMetrics
from ottla.broker.main import Broker
from ottla.broker.network.connection import Outbox
from ottla.broker.replication.fetcher import until_durable
from ottla.broker.replication.followers import Followers
from ottla.broker.replication.limits import FetchLimits
from ottla.broker.replication.throttles import Throttles
from ottla.broker.storage.flusher import Flusher
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.truncation import Truncation
from ottla.broker.threads import RealThreads
from ottla.client.connection import Connection
from ottla.client.settings import ClientSettings
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import ErrorCode
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import FaultyDisk, MemoryDisk
from ottla.types import LeaderEpoch, NodeId, TopicId, TopicPartition
from ottla.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from records_kit import batch

LEADER, FOLLOWER = NodeId(1), NodeId(2)
NAME = TopicPartition("t", 0)
LIFE = 11
DEADLINE_S = 30.0


class Waiter:
    def __init__(self) -> None:
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def succeeded(self, item: object) -> None:
        self.told.set_result(None)

    def failed(self, item: object, error: Exception) -> None:
        self.told.set_exception(error)


class FollowerNode:
    """A copy of the leader's partition with a disk, a flusher and checkpoints of its own."""

    def __init__(self, topic_id: TopicId, address: str) -> None:
        self.medium = MemoryDisk()
        self.disk = FaultyDisk(self.medium)
        # A cut is held up while this is not set.
        self.may_cut = asyncio.Event()
        self.may_cut.set()
        self.clock = SystemClock()
        self.flusher = Flusher(
            asyncio.get_running_loop(),
            RealThreads(),
            self.clock,
            self.disk,
            "follower",
            lambda _: None,
            Outbox(),
        )
        self.disk.make_directory("/data")
        data = DataDirectory(self.disk, "/data")
        log = Log.open(self.disk, data.partition_path(NAME), LogConfig(), now_ms=0, clean=True)
        self.partition = Partition(
            NAME,
            topic_id,
            log,
            LeaderEpoch(0),
            TopicConfig.resolve(BrokerConfig(), {}),
            self.flusher,
            TopicMetrics("t"),
            Home(data, NAME, topic_id, is_durable=False),
            FOLLOWER,
        )
        any_self: Any = self
        settings = ClientSettings(bootstrap=(address,), client_id="replica")

        async def connect(leader: NodeId) -> Connection:
            assert leader == LEADER
            return await Connection.open(address, settings)

        self.followers = Followers(
            asyncio.get_running_loop(),
            self.clock,
            FOLLOWER,
            FetchLimits(wait_ms=200, min_bytes=1, max_bytes=1 << 20, partition_bytes_max=1 << 16),
            connect,
            Truncation(self.clock, any_self, any_self),
            self.shorten,
            Throttles(self.clock, MetadataCache(BrokerConfig())),
        )
        self.followers.start(LIFE)

    # What a truncation asks of stores and checkpoints.

    def of(self, partition: Partition) -> FollowerNode:
        return self

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    async def save_recovery_point(self, partition: Partition) -> None:
        await self.may_cut.wait()

    async def save_start_offsets(self, moved: list[Partition]) -> None: ...

    async def shorten(self, partition: Partition, offset: int) -> None:
        raise AssertionError("nothing is deleted in these stories")

    def follow(self, epoch: LeaderEpoch) -> None:
        self.partition.follow(epoch, LEADER)
        self.followers.role_changed(self.partition)

    async def open_again(self) -> None:
        """As `Repairs` does after a failed sync."""
        now_ms = self.clock.wall_ms()
        with self.partition.reopening():
            log = await asyncio.to_thread(self.partition.reopened_log, now_ms)
        self.partition.heal(log, now_ms)
        self.followers.log_renewed(self.partition)

    async def stop(self) -> None:
        await self.followers.stop()
        await self.flusher.stop()


class Pair:
    """A leader in a broker of its own, and who follows it."""

    def __init__(self, broker: Broker, address: str) -> None:
        self.broker = broker
        self.address = address
        self.leader = broker._services.partitions.get("t", 0)
        self.joining: list[Partition] = []
        broker._services.on_misplaced = self.joining.append
        self.follower = FollowerNode(self.leader.topic_id, address)

    def lead(self, isr: tuple[int, ...] = (LEADER, FOLLOWER), epochs: int = 0) -> LeaderEpoch:
        """The metadata tells of two replicas."""
        epoch = LeaderEpoch(self.leader.leader_epoch + epochs)
        known = self.leader.replicas
        partition_epoch = 1 + (0 if known is None else known.partition_epoch)
        now_ms = SystemClock().now().steady_ms
        self.leader.lead(epoch, (LEADER, FOLLOWER), isr, partition_epoch, now_ms)
        return epoch

    def produce(self, text: str) -> asyncio.Future[None]:
        """Acknowledged as with acks=all."""
        end_offset = self.leader.append(batch(text.encode()), SystemClock().wall_ms()).end_offset
        waiter = Waiter()
        self.leader.wait_committed(end_offset, waiter, None)
        return waiter.told

    def bytes_of(self, partition: Partition) -> bytes:
        found, offset = b"", 0
        while offset < partition.end_offset:
            data = partition.read_uncommitted(offset, 1 << 20, cached_only=False)
            assert data
            found += bytes(data)
            offset = partition.end_offset
        return found


@asynccontextmanager
async def a_pair(tmp_path: Any) -> AsyncIterator[Pair]:
    config = BrokerConfig.parse(
        {
            "node.id": "1",
            "log.dirs": str(tmp_path / "leader"),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "http.listener": "127.0.0.1:0",
        }
    )
    broker = Broker(config)
    info = await broker.start()
    try:
        connection = await Connection.open(info.kafka, ClientSettings(bootstrap=(info.kafka,)))
        created = await connection.ask(
            CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)], timeout_ms=5000),
            CreateTopicsResponse,
        )
        assert created.topics[0].error_code == 0, created
        connection.abort("done")
        pair = Pair(broker, info.kafka)
        try:
            yield pair
        finally:
            await pair.follower.stop()
    finally:
        await broker.stop()


def live(tmp_path: Any, story: Callable[[Pair], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), a_pair(tmp_path) as pair:
            await story(pair)

    asyncio.run(run())


def durable(partition: Partition) -> bool:
    return until_durable(partition).done()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_what_is_acknowledged_is_in_both_logs(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.follower.follow(pair.lead())
        for number in range(20):
            await asyncio.gather(*(pair.produce(f"{number}/{more}") for more in range(5)))
        follower = pair.follower.partition
        assert follower.end_offset == pair.leader.end_offset == 100
        assert pair.bytes_of(follower) == pair.bytes_of(pair.leader)
        left = pair.follower.medium.after_crash(Random(1))
        kept = Log.open(left, f"/data/{NAME}", LogConfig(), now_ms=0, clean=False)
        assert kept.end_offset == 100, "acknowledged, and lost with the follower's power"

    live(tmp_path, story)


def test_nothing_is_acknowledged_without_the_follower(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        epoch = pair.lead()
        acknowledged = pair.produce("one")
        await until(lambda: not pair.leader.is_busy and pair.leader.written_offset == 1)
        assert not acknowledged.done()
        assert pair.leader.high_watermark.offset == 0
        pair.follower.follow(epoch)
        await acknowledged

    live(tmp_path, story)


def test_a_follower_learns_what_is_committed(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.follower.follow(pair.lead())
        await pair.produce("one")
        await until(lambda: pair.follower.partition.high_watermark.offset == 1)

    live(tmp_path, story)


def test_who_has_caught_up_asks_to_be_in_sync(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        epoch = pair.lead(isr=(LEADER,))
        await pair.produce("one")
        assert not pair.joining
        pair.follower.follow(epoch)
        await until(lambda: bool(pair.joining))
        assert pair.leader.is_misplaced(FOLLOWER)

    live(tmp_path, story)


def test_a_follower_with_a_tail_of_its_own_is_cut_where_the_epochs_part(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        epoch = pair.lead()
        pair.follower.follow(epoch)
        await pair.produce("shared")
        follower = pair.follower.partition
        # It led under the next epoch, and nobody took what it wrote then.
        follower.lead(LeaderEpoch(epoch + 1), (FOLLOWER,), (FOLLOWER,), 5, 0)
        pair.follower.followers.role_changed(follower)
        waiter = Waiter()
        end_offset = follower.append(batch(b"stray"), pair.follower.clock.wall_ms()).end_offset
        follower.wait_committed(end_offset, waiter, None)
        await waiter.told
        pair.follower.follow(pair.lead(epochs=2))
        await pair.produce("after")
        assert pair.bytes_of(follower) == pair.bytes_of(pair.leader)
        assert b"stray" not in pair.bytes_of(follower)

    live(tmp_path, story)


def test_a_follower_goes_on_after_its_connection_was_lost(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(pair: Pair) -> None:
        pair.follower.follow(pair.lead())
        await pair.produce("one")
        (fetcher,) = pair.follower.followers._fetchers.values()
        assert fetcher._connection is not None
        fetcher._connection.abort("somebody pulled the cable")
        await pair.produce("two")
        assert pair.bytes_of(pair.follower.partition) == pair.bytes_of(pair.leader)

    live(tmp_path, story)


async def some_rounds() -> None:
    """Enough for a fetch that ought not to be sent; what it shows does not depend on it."""
    for _ in range(100):
        await asyncio.sleep(0.002)


def test_what_a_follower_could_not_sync_is_not_counted_as_its_own(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.follower.follow(pair.lead())
        await pair.produce("one")
        follower = pair.follower.partition
        pair.follower.disk.fail("sync", errno.ENOSPC, times=1)
        acknowledged = pair.produce("two")
        await until(lambda: follower.is_fenced)
        (fetcher,) = pair.follower.followers._fetchers.values()
        (copy,) = fetcher._copies.values()
        await until(lambda: copy.is_busy)
        await until(lambda: not copy.is_busy)
        await some_rounds()
        assert not acknowledged.done(), "the follower's disk does not have it"
        assert pair.leader.high_watermark.offset == 1
        await pair.follower.open_again()
        await acknowledged
        assert pair.bytes_of(follower) == pair.bytes_of(pair.leader)
        left = pair.follower.medium.after_crash(Random(1))
        kept = Log.open(left, f"/data/{NAME}", LogConfig(), now_ms=0, clean=False)
        assert kept.end_offset == 2

    live(tmp_path, story)


def test_a_disk_that_stands_still_is_left_out_of_the_rounds_until_it_goes_on(
    tmp_path: Any,
) -> None:
    async def story(pair: Pair) -> None:
        pair.follower.follow(pair.lead())
        await pair.produce("one")
        pair.follower.disk.hold("sync")
        acknowledged = pair.produce("two")
        (fetcher,) = pair.follower.followers._fetchers.values()
        (copy,) = fetcher._copies.values()
        await until(lambda: copy.is_busy)
        assert not acknowledged.done(), "the follower's disk does not have it"
        pair.follower.disk.heal()
        await acknowledged
        assert pair.bytes_of(pair.follower.partition) == pair.bytes_of(pair.leader)

    live(tmp_path, story)


def test_an_answer_for_a_longer_log_leaves_no_hole_in_a_shorter_one(tmp_path: Any) -> None:
    """With write.caching a failed sync takes what was told of: the answer asked for comes late."""

    async def story(pair: Pair) -> None:
        cached = TopicConfig.resolve(BrokerConfig(), {"write.caching": "true"})
        follower = pair.follower.partition
        for partition in (pair.leader, follower):
            partition.configure(cached)
        epoch = pair.lead()
        pair.follower.follow(epoch)
        await asyncio.gather(*(pair.produce(str(number)) for number in range(5)))
        replicas = pair.leader.replicas
        assert replicas is not None
        await until(lambda: replicas.progress()[FOLLOWER].end_offset == 5)
        ticket = follower.begin_sync()
        assert ticket is not None
        follower.fail_sync(ticket, OSError(errno.ENOSPC, "no room"))
        await pair.follower.open_again()
        assert follower.end_offset == 0
        await pair.produce("six")
        await until(lambda: follower.end_offset == 6)
        assert pair.bytes_of(follower) == pair.bytes_of(pair.leader)

    live(tmp_path, story)


def test_a_follower_that_has_lost_what_is_committed_is_told_of(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        epoch = pair.lead()
        await until(lambda: durable(pair.leader))
        acknowledged = pair.produce("one")
        await ask_as_a_follower(pair, 1, epoch, epoch)
        await acknowledged
        assert not pair.joining
        await ask_as_a_follower(pair, 0, epoch, -1)
        assert pair.joining == [pair.leader]
        assert pair.leader.high_watermark.offset == 1

    live(tmp_path, story)


@pytest.mark.parametrize("epochs", [0, 1], ids=["other in-sync replicas", "another epoch"])
def test_metadata_that_comes_during_a_cut_does_not_disturb_it(tmp_path: Any, epochs: int) -> None:
    async def story(pair: Pair) -> None:
        epoch = pair.lead()
        pair.follower.follow(epoch)
        await pair.produce("shared")
        follower = pair.follower.partition
        follower.lead(LeaderEpoch(epoch + 1), (FOLLOWER,), (FOLLOWER,), 5, 0)
        pair.follower.followers.role_changed(follower)
        waiter = Waiter()
        end_offset = follower.append(batch(b"stray"), pair.follower.clock.wall_ms()).end_offset
        follower.wait_committed(end_offset, waiter, None)
        await waiter.told
        pair.follower.may_cut.clear()
        pair.follower.follow(pair.lead(epochs=2))
        await until(lambda: follower.is_being_cut)
        pair.follower.follow(pair.lead(epochs=epochs))
        acknowledged = pair.produce("after")
        await some_rounds()
        pair.follower.may_cut.set()
        await acknowledged
        assert pair.bytes_of(follower) == pair.bytes_of(pair.leader)

    live(tmp_path, story)


def test_a_cut_that_an_earlier_leader_asked_for_is_not_begun_under_the_next(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        epoch = pair.lead()
        pair.follower.follow(epoch)
        await pair.produce("shared")
        follower = pair.follower.partition
        follower.lead(LeaderEpoch(epoch + 1), (FOLLOWER,), (FOLLOWER,), 5, 0)
        pair.follower.followers.role_changed(follower)
        waiter = Waiter()
        end_offset = follower.append(batch(b"stray"), pair.follower.clock.wall_ms()).end_offset
        follower.wait_committed(end_offset, waiter, None)
        await waiter.told
        pair.follower.follow(pair.lead(epochs=2))
        fetcher = pair.follower.followers._fetchers[LEADER]
        await until(lambda: len(fetcher._session) == 1)
        # In the turn in which the answer has come, and nothing has been done about it yet.
        await until(lambda: any(copy.is_busy for copy in fetcher._copies.values()))
        works = list(fetcher._works)
        pair.follower.follow(LeaderEpoch(epoch + 3))
        await until(lambda: all(work.done() for work in works))
        assert b"stray" in pair.bytes_of(follower), "the next leader may have it, and count on it"

    live(tmp_path, story)


def test_what_lies_in_a_directory_that_has_failed_is_not_asked_for_again_and_again(
    tmp_path: Any,
) -> None:
    async def story(pair: Pair) -> None:
        pair.follower.follow(pair.lead(isr=(LEADER,)))
        await pair.produce("one")
        await until(lambda: pair.follower.partition.end_offset == 1)
        session = pair.follower.followers._fetchers[LEADER]._session
        assert len(session) == 1
        pair.follower.partition.go_offline(OSError(errno.EIO, "gone"))
        await pair.produce("two")
        await until(lambda: len(session) == 0)

    live(tmp_path, story)


def test_who_has_registered_again_fetches_as_of_its_new_life(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.follower.follow(pair.lead())
        await pair.produce("one")
        replicas = pair.leader.replicas
        assert replicas is not None
        assert replicas.broker_epoch(FOLLOWER) == LIFE
        pair.follower.followers.start(LIFE + 1)
        await pair.produce("two")
        assert replicas.broker_epoch(FOLLOWER) == LIFE + 1

    live(tmp_path, story)


async def ask_as_a_follower(pair: Pair, offset: int, epoch: int, last_epoch: int) -> None:
    """One fetch that says: I have everything before this offset."""
    asked = FetchPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        partition_max_bytes=1 << 16,
    )
    request = FetchRequest(
        replica_state=ReplicaState(FOLLOWER, LIFE),
        max_bytes=1 << 16,
        topics=[FetchTopic(topic_id=pair.leader.topic_id, partitions=[asked])],
    )
    settings = ClientSettings(bootstrap=(pair.address,))
    connection = await Connection.open(pair.address, settings)
    await connection.ask(request, FetchResponse)
    connection.abort("done")


@pytest.mark.parametrize(
    ("epochs", "last_epochs", "is_counted"),
    [(0, 0, True), (-1, 0, False), (1, 0, False), (0, 1, False)],
    ids=["as it should be", "an epoch that is over", "an epoch to come", "logs that have parted"],
)
def test_an_offset_counts_only_in_this_epoch_and_on_this_way(
    tmp_path: Any, epochs: int, last_epochs: int, is_counted: bool
) -> None:
    async def story(pair: Pair) -> None:
        epoch = pair.lead(epochs=1)
        acknowledged = pair.produce("one")
        await until(lambda: durable(pair.leader))
        await ask_as_a_follower(pair, 1, epoch + epochs, epoch + last_epochs)
        assert acknowledged.done() == is_counted
        assert pair.leader.high_watermark.offset == (1 if is_counted else 0)

    live(tmp_path, story)


def test_a_fetcher_that_is_stopped_begins_nothing_while_its_works_end(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.follower.follow(pair.lead())
        await pair.produce("one")
        fetcher = pair.follower.followers._fetchers[LEADER]
        is_freed = asyncio.Event()

        async def stubborn() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await is_freed.wait()

        copy = next(iter(fetcher._copies.values()))
        fetcher._work(copy, stubborn())
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(fetcher.stop())
        await until(lambda: fetcher._task is not None and fetcher._task.done())
        assert not stopping.done()
        is_freed.set()
        await stopping
        assert not fetcher._works

    live(tmp_path, story)


def test_a_leader_that_has_no_room_for_a_session_is_copied_all_the_same(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.broker._services.fetch_sessions._slots_max = 0
        pair.follower.follow(pair.lead())
        await pair.produce("one")
        await pair.produce("two")
        assert pair.bytes_of(pair.follower.partition) == pair.bytes_of(pair.leader)

    live(tmp_path, story)


def test_an_empty_follower_beyond_the_leaders_end_begins_where_its_leader_does(
    tmp_path: Any,
) -> None:
    async def story(pair: Pair) -> None:
        pair.lead(isr=(LEADER,))
        await pair.produce("one")
        follower = pair.follower
        await follower.followers._truncation.restart_at(follower.partition, 100)
        follower.follow(pair.lead(isr=(LEADER,), epochs=1))
        await until(lambda: follower.partition.end_offset == 1)
        await until(lambda: durable(follower.partition))
        assert follower.partition.start_offset == 0
        assert pair.bytes_of(follower.partition) == pair.bytes_of(pair.leader)

    live(tmp_path, story)


def test_an_empty_follower_beyond_the_leaders_end_has_nothing_of_it(tmp_path: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.lead(isr=(LEADER,))
        await pair.produce("one")
        follower = pair.follower
        await follower.followers._truncation.restart_at(follower.partition, 100)
        epoch = pair.lead(isr=(LEADER,), epochs=1)
        connection = await Connection.open(
            pair.address, ClientSettings(bootstrap=(pair.address,), client_id="replica")
        )
        asked = FetchPartition(
            partition=0,
            current_leader_epoch=epoch,
            fetch_offset=follower.partition.end_offset,
            last_fetched_epoch=follower.partition.last_batch_epoch,
            log_start_offset=follower.partition.start_offset,
            partition_max_bytes=1 << 16,
        )
        request = FetchRequest(
            replica_state=ReplicaState(FOLLOWER, LIFE),
            max_wait_ms=0,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic_id=pair.leader.topic_id, partitions=[asked])],
        )
        response = await connection.ask(request, FetchResponse)
        assert response.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert pair.joining == []
        connection.abort("done")

    live(tmp_path, story)
