"""A partition that is one of several replicas: what a leader commits, what a follower takes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.broker.counters import TopicMetrics
from ottla.broker.storage import partition_replica
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_files import Home
from ottla.broker.storage.partition_writes import PartitionWrites
from ottla.broker.storage.truncation import Truncation
from ottla.broker.storage.write_states import WriteState
from ottla.config import BrokerConfig, TopicConfig
from ottla.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageFailed,
)
from ottla.log.directory import DataDirectory
from ottla.log.log import Log, LogConfig, SyncTicket
from ottla.testing.disks import FaultyDisk, MemoryDisk
from ottla.types import NO_NODE, LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from ottla.wire.records import headers_in
from records_kit import NOW_MS, batch
from unit.broker.metadata_node import HandClock

OWN, SECOND, THIRD = NodeId(1), NodeId(2), NodeId(3)
NAME = TopicPartition("t", 0)
TOPIC_ID = TopicId(bytes(range(16)))
FIRST_LIFE = 7


class FlusherByHand:
    """Writes and syncs when a test says so."""

    is_full = is_holding = is_overloaded = False

    def __init__(self) -> None:
        self.queued: list[PartitionWrites] = []
        self.wanted: list[PartitionWrites] = []

    def queue(self, partition: PartitionWrites) -> None:
        self.queued.append(partition)

    def forget(self, partition: PartitionWrites) -> None: ...

    def want_sync(self, partition: PartitionWrites) -> None:
        self.wanted.append(partition)


class Waiter:
    def __init__(self) -> None:
        self.told: dict[str, Exception | None] = {}

    def succeeded(self, item: str) -> None:
        assert item not in self.told, "told twice"
        self.told[item] = None

    def failed(self, item: str, error: Exception) -> None:
        assert item not in self.told, "told twice"
        self.told[item] = error


class Fetch:
    """A fetch that waits."""

    def __init__(self) -> None:
        self.arrived_bytes: list[int] = []
        self.is_woken = False

    def arrived(self, partition: Partition, byte_count: int) -> None:
        self.arrived_bytes.append(byte_count)

    def has_news(self, partition: Partition) -> None: ...

    def went_back(self, partition: Partition) -> None: ...

    def wake(self) -> None:
        self.is_woken = True


class Node:
    """One replica, on a disk of its own."""

    def __init__(self, node_id: NodeId = OWN, **settings: str) -> None:
        self.disk = FaultyDisk(MemoryDisk())
        self.flusher: Any = FlusherByHand()
        self.waiter = Waiter()
        self.clock = HandClock()
        data = DataDirectory(self.disk, "/data")
        self.disk.make_directory("/data")
        path = data.partition_path(NAME)
        log = Log.open(self.disk, path, LogConfig(), now_ms=NOW_MS, clean=True)
        settings = {key.replace("_", "."): value for key, value in settings.items()}
        self.partition = Partition(
            NAME,
            TOPIC_ID,
            log,
            LeaderEpoch(0),
            TopicConfig.resolve(BrokerConfig(), settings),
            self.flusher,
            TopicMetrics("t"),
            Home(data, NAME, TOPIC_ID, is_durable=False),
            node_id,
        )

    def lead(
        self,
        epoch: int = 1,
        replicas: tuple[int, ...] = (OWN, SECOND, THIRD),
        isr: tuple[int, ...] = (OWN, SECOND),
        partition_epoch: int = 0,
    ) -> None:
        self.partition.lead(LeaderEpoch(epoch), replicas, isr, partition_epoch, 0)

    def follow(self, epoch: int = 1, leader_id: NodeId = OWN) -> None:
        self.partition.follow(LeaderEpoch(epoch), leader_id)

    def produce(self, item: str) -> int:
        end_offset = self.partition.append(batch(item.encode()), NOW_MS).end_offset
        self.partition.wait_committed(end_offset, self.waiter, item)
        return end_offset

    def write(self) -> None:
        queued, self.flusher.queued = self.flusher.queued, []
        for partition in queued:
            partition.write_queued()

    def begin_sync(self) -> SyncTicket:
        ticket = self.partition.begin_sync()
        assert ticket is not None
        return ticket

    def sync(self) -> None:
        ticket = self.begin_sync()
        self.disk.sync_many(ticket.files, ticket.directories)
        self.partition.finish_sync(ticket)

    def flush(self) -> None:
        self.write()
        self.sync()

    def fetched_by(self, replica: int, offset: int, life: int = FIRST_LIFE) -> bool:
        return self.partition.fetched_by(NodeId(replica), life, offset, 0)

    @property
    def committed(self) -> int:
        return self.partition.high_watermark.offset


def replicate(leader: Node, follower: Node, max_bytes: int = 1 << 20) -> int:
    """What one fetch brings; it is queued."""
    ours = follower.partition
    data = leader.partition.read_uncommitted(ours.end_offset, max_bytes, cached_only=True)
    assert data is not None
    return ours.append_replicated(bytes(data), NOW_MS)


def live(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(run())


# ------------------------------------------------------------------------------- what is committed


def test_committed_is_what_all_in_sync_replicas_have_synced() -> None:
    node = Node()
    node.lead(isr=(OWN, SECOND, THIRD))
    end_offset = node.produce("a")
    node.flush()
    assert node.committed == 0
    assert node.partition.state_of(end_offset) is WriteState.SYNCED
    assert node.fetched_by(SECOND, 1)
    assert (node.committed, node.waiter.told) == (0, {})
    assert node.fetched_by(THIRD, 1)
    assert (node.committed, node.waiter.told) == (1, {"a": None})
    assert node.partition.state_of(end_offset) is WriteState.COMMITTED


def test_a_follower_that_is_quicker_than_the_leaders_own_disk_commits_nothing() -> None:
    node = Node()
    node.lead()
    node.produce("a")
    node.write()
    node.fetched_by(SECOND, 1)
    assert node.committed == 0
    node.sync()
    assert node.committed == 1


def test_with_write_caching_it_is_what_all_have_written() -> None:
    node = Node(write_caching="true")
    node.lead()
    node.produce("a")
    node.write()
    assert node.committed == 0
    node.fetched_by(SECOND, 1)
    assert node.committed == 1


def test_who_is_not_in_sync_is_not_waited_for_and_who_is_no_replica_does_not_count() -> None:
    node = Node()
    node.lead(isr=(OWN, SECOND))
    node.produce("a")
    node.flush()
    assert not node.fetched_by(9, 1)
    assert node.committed == 0
    node.fetched_by(SECOND, 1)
    assert node.committed == 1


def test_a_fetch_from_an_earlier_life_does_not_count() -> None:
    node = Node()
    node.lead()
    assert node.fetched_by(SECOND, 0, life=FIRST_LIFE + 1)
    node.produce("a")
    node.flush()
    assert not node.fetched_by(SECOND, 1, life=FIRST_LIFE)
    assert node.committed == 0


def test_the_high_watermark_stands_only_where_a_write_has_ended() -> None:
    node = Node()
    node.lead()
    for item in "ab":
        node.produce(item)
    node.flush()
    for item in "cd":
        node.produce(item)
    node.flush()
    for offset, committed in ((1, 0), (2, 2), (3, 2), (4, 4)):
        node.fetched_by(SECOND, offset)
        assert node.committed == committed
        position = node.partition.high_watermark
        assert sum(header.size for _, header in headers_in(all_of(node, committed))) == (
            position.bytes_in_segment
        )


def all_of(node: Node, end_offset: int) -> bytes:
    if not end_offset:
        return b""
    data = node.partition.read(0, 1 << 20, cached_only=True)
    assert data is not None
    return bytes(data)


def test_however_many_writes_wait_the_last_can_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_replica, "ENDS_MAX", 5)
    node = Node()
    node.lead()
    for number in range(40):
        node.produce(str(number))
        node.flush()
        assert len(node.partition._ends) <= 5
        assert node.partition._ends[-1].offset == number + 1
    node.fetched_by(SECOND, 30)
    assert 0 < node.committed <= 30
    node.fetched_by(SECOND, 40)
    assert node.committed == 40


def test_what_was_committed_stays_so_when_a_replica_comes_back_with_less() -> None:
    node = Node()
    node.lead()
    node.produce("a")
    node.flush()
    node.fetched_by(SECOND, 1)
    node.fetched_by(SECOND, 0, life=FIRST_LIFE + 1)
    assert node.committed == 1
    node.produce("b")
    node.flush()
    assert node.committed == 1


def test_a_leader_alone_commits_what_it_has_synced() -> None:
    node = Node()
    node.lead(replicas=(OWN,), isr=(OWN,))
    node.produce("a")
    node.flush()
    assert (node.committed, node.waiter.told) == (1, {"a": None})


def test_a_replica_that_joins_a_leader_alone_is_waited_for() -> None:
    node = Node()
    node.lead(replicas=(OWN,), isr=(OWN,))
    node.produce("a")
    node.flush()
    node.lead(isr=(OWN, SECOND), partition_epoch=1)
    node.produce("b")
    node.flush()
    assert node.committed == 1
    node.fetched_by(SECOND, 2)
    assert node.committed == 2


def test_what_was_written_before_a_replica_joined_is_committed_with_it() -> None:
    node = Node()
    node.lead(replicas=(OWN,), isr=(OWN,))
    node.produce("a")
    node.write()
    node.lead(isr=(OWN, SECOND), partition_epoch=1)
    node.sync()
    assert node.committed == 0
    node.fetched_by(SECOND, 1)
    assert node.committed == 1


# ------------------------------------------------------------------------------ enough replicas


def test_too_few_in_sync_take_no_acks_all_and_commit_nothing() -> None:
    node = Node(min_insync_replicas="2")
    node.lead()
    node.partition.check_min_isr()
    node.produce("a")
    node.flush()
    node.lead(isr=(OWN,), partition_epoch=1)
    with pytest.raises(NotEnoughReplicas, match="1 replicas in sync"):
        node.partition.check_min_isr()
    assert node.committed == 0
    assert isinstance(node.waiter.told["a"], NotEnoughReplicasAfterAppend)
    node.lead(isr=(OWN, SECOND), partition_epoch=2)
    node.partition.check_min_isr()
    node.fetched_by(SECOND, 1)
    assert node.committed == 1, "it is in the log, and now all in-sync replicas have it"


def test_a_minimum_that_is_changed_counts_at_once() -> None:
    node = Node(min_insync_replicas="3")
    node.lead(isr=(OWN, SECOND))
    node.partition.append(batch(b"a"), NOW_MS)
    node.flush()
    node.fetched_by(SECOND, 1)
    assert node.committed == 0
    node.partition.configure(TopicConfig.resolve(BrokerConfig(), {"min.insync.replicas": "2"}))
    assert node.committed == 1
    node.produce("b")
    node.partition.configure(TopicConfig.resolve(BrokerConfig(), {"min.insync.replicas": "3"}))
    assert isinstance(node.waiter.told["b"], NotEnoughReplicasAfterAppend)


def test_no_more_replicas_are_asked_for_than_there_are() -> None:
    node = Node(min_insync_replicas="2")
    node.lead(replicas=(OWN,), isr=(OWN,))
    node.partition.check_min_isr()
    node.produce("a")
    node.flush()
    assert node.committed == 1


# ---------------------------------------------------------------------------------------- roles


def test_only_a_leader_takes_batches_from_clients_and_from_the_broker_itself() -> None:
    node = Node()
    node.follow()
    with pytest.raises(NotLeader, match="led by node 1"):
        node.partition.append(batch(b"a"), NOW_MS)
    view = memoryview(batch(b"a"))
    (_, header) = next(iter(headers_in(view)))
    with pytest.raises(NotLeader):
        node.partition.append_own(view, header, NOW_MS)
    with pytest.raises(NotLeader):
        node.partition.check_epoch(1)
    node.partition.check_epoch(1, is_follower_enough=True)
    assert node.partition.end_offset == 0


@pytest.mark.parametrize("what", ["follows", "leads on", "has no leader"])
def test_whoever_waits_under_an_epoch_that_is_over_is_told_to_ask_the_leader(what: str) -> None:
    node, fetch = Node(), Fetch()
    node.lead()
    node.partition.add_fetch(fetch)
    node.produce("a")
    node.flush()
    if what == "follows":
        node.follow(2, SECOND)
    elif what == "leads on":
        node.lead(2)
    else:
        node.follow(2, NO_NODE)
    assert isinstance(node.waiter.told["a"], NotLeader)
    assert fetch.is_woken
    assert (node.partition.leader_epoch, node.partition.is_leader) == (2, what == "leads on")


def test_another_isr_under_the_same_epoch_fails_nobody_and_may_commit() -> None:
    node = Node()
    node.lead(isr=(OWN, SECOND))
    node.produce("a")
    node.flush()
    node.lead(isr=(OWN,), partition_epoch=1)
    assert node.waiter.told == {"a": None}


def test_metadata_that_comes_after_the_controllers_answers_changes_nothing() -> None:
    node = Node()
    node.lead(isr=(OWN,), partition_epoch=1)
    # Two answers of the controller are here before the metadata tells of the first.
    node.lead(isr=(OWN, SECOND), partition_epoch=2)
    node.lead(isr=(OWN, SECOND, THIRD), partition_epoch=3)
    node.lead(isr=(OWN, SECOND), partition_epoch=2)
    replicas = node.partition.replicas
    assert replicas is not None
    assert (replicas.isr, replicas.partition_epoch) == ({OWN, SECOND, THIRD}, 3)


def test_a_leader_without_its_lease_does_nothing_and_goes_on_when_it_has_one() -> None:
    node, fetch = Node(), Fetch()
    node.lead()
    node.produce("a")
    node.flush()
    node.fetched_by(SECOND, 0)
    node.partition.add_fetch(fetch)
    node.partition.suspend()
    assert isinstance(node.waiter.told["a"], NotLeader)
    assert fetch.is_woken
    with pytest.raises(NotLeader):
        node.partition.append(batch(b"b"), NOW_MS)
    for known_epoch in (-1, 1):
        with pytest.raises(NotLeader):
            node.partition.check_epoch(known_epoch, is_follower_enough=True)
    node.clock.ms += 1_000_000
    assert node.partition.wanted_isr(node.clock.ms, 1_000) is None, "nobody is put out of sync"
    node.fetched_by(SECOND, 1)
    assert node.committed == 0
    node.partition.resume()
    node.partition.check_epoch(1)
    assert node.committed == 1
    assert node.partition.append(batch(b"b"), NOW_MS).base_offset == 1


def test_metadata_that_says_the_same_does_not_end_a_suspension_and_a_new_leader_does() -> None:
    node = Node()
    node.lead()
    node.partition.suspend()
    node.lead(isr=(OWN,), partition_epoch=1)
    assert not node.partition.is_leader
    replicas = node.partition.replicas
    assert replicas is not None
    assert replicas.isr == {OWN}
    node.follow(2, SECOND)
    node.partition.resume()
    assert not node.partition.is_elected


def test_an_epoch_that_is_over_never_comes_again() -> None:
    node = Node()
    node.lead(epoch=3)
    with pytest.raises(AssertionError, match="past one"):
        node.follow(epoch=2)
    with pytest.raises(AssertionError, match="past one"):
        node.lead(epoch=2)


def test_a_replica_must_reach_the_start_of_the_epoch_to_be_in_sync() -> None:
    node = Node()
    node.lead(epoch=1)
    for item in "abc":
        node.produce(item)
    node.flush()
    node.fetched_by(THIRD, 0)
    assert node.partition.is_misplaced(THIRD)
    node.lead(epoch=2)
    node.fetched_by(THIRD, 2)
    assert not node.partition.is_misplaced(THIRD)
    node.fetched_by(THIRD, 3)
    assert node.partition.is_misplaced(THIRD)


# ----------------------------------------------------------------------------- reads of replicas


def test_a_new_leader_names_no_end_before_it_knows_what_was_committed() -> None:
    node = Node(SECOND)
    old = Node()
    old.lead()
    old.produce("a")
    old.flush()
    node.follow()
    replicate(old, node)
    node.flush()
    # The old leader has told consumers of it, and this one has not heard of that.
    node.partition.lead(LeaderEpoch(2), (SECOND, THIRD), (SECOND, THIRD), 1, 0)
    with pytest.raises(OffsetNotAvailable):
        node.partition.check_end_known()
    assert node.partition.fetched_by(THIRD, FIRST_LIFE, 1, 0)
    node.partition.check_end_known()
    assert node.committed == 1


def test_replicas_read_what_is_not_committed_and_consumers_do_not() -> None:
    node = Node()
    node.lead()
    node.produce("a")
    node.write()
    assert node.partition.read(0, 1000, cached_only=True) == b""
    data = node.partition.read_uncommitted(0, 1000, cached_only=True)
    assert data is not None
    assert [header.leader_epoch for _, header in headers_in(data)] == [1]
    with pytest.raises(OffsetOutOfRange):
        node.partition.read_uncommitted(2, 1000, cached_only=True)


def test_a_replicas_fetch_hears_of_a_write_and_a_consumers_of_a_commit() -> None:
    node, of_replica, of_consumer = Node(), Fetch(), Fetch()
    node.lead()
    node.partition.add_fetch(of_replica, of_replica=True)
    node.partition.add_fetch(of_consumer)
    node.produce("a")
    node.write()
    size = node.partition.size_bytes
    assert (of_replica.arrived_bytes, of_consumer.arrived_bytes) == ([size], [])
    node.sync()
    node.fetched_by(SECOND, 1)
    assert (of_replica.arrived_bytes, of_consumer.arrived_bytes) == ([size], [size])
    node.partition.drop_fetch(of_replica)
    node.produce("b")
    node.write()
    assert len(of_replica.arrived_bytes) == 1


def test_where_logs_part_is_told_by_epoch() -> None:
    node = Node()
    node.lead(epoch=1)
    node.produce("a")
    node.lead(epoch=3)
    node.produce("b")
    partition = node.partition
    assert partition.divergence(1, 1) is None
    assert partition.divergence(3, 2) is None
    assert partition.divergence(1, 2) == (1, 1)
    assert partition.divergence(2, 2) == (1, 1)
    assert partition.divergence(2, 1) == (1, 1), "nobody has led in epoch 2"


# -------------------------------------------------------------------------------------- followers


def test_a_follower_asks_for_more_only_when_it_has_synced_what_it_got() -> None:
    leader, follower = Node(), Node(SECOND)
    leader.lead()
    follower.follow()
    leader.produce("a")
    leader.flush()
    assert replicate(leader, follower) == leader.partition.size_bytes
    follower.partition.wait_durable(follower.waiter, "a")
    follower.write()
    assert follower.waiter.told == {}
    follower.sync()
    assert follower.waiter.told == {"a": None}
    follower.partition.wait_durable(follower.waiter, "at once")
    assert "at once" in follower.waiter.told
    assert follower.disk.read_file(f"/data/{NAME}/{0:020d}.log") == (
        leader.disk.read_file(f"/data/{NAME}/{0:020d}.log")
    )


def test_a_follower_commits_what_its_leader_has_and_never_more_than_it_has_synced() -> None:
    leader, follower = Node(), Node(SECOND)
    leader.lead()
    follower.follow()
    for item in "ab":
        leader.produce(item)
        leader.write()
        replicate(leader, follower)
        follower.write()
    follower.partition.take_leader_high_watermark(9)
    assert follower.committed == 0
    follower.sync()
    assert follower.committed == 2
    follower.partition.take_leader_high_watermark(1)
    assert follower.committed == 2


def test_a_follower_stops_where_its_leader_has_committed() -> None:
    leader, follower = Node(), Node(SECOND)
    leader.lead()
    follower.follow()
    for item in "ab":
        leader.produce(item)
        leader.write()
        replicate(leader, follower)
        follower.flush()
    assert follower.committed == 0
    follower.partition.take_leader_high_watermark(1)
    assert follower.committed == 1


def test_a_new_leader_goes_on_where_the_old_one_was() -> None:
    leader, follower = Node(), Node(SECOND)
    leader.lead()
    follower.follow()
    leader.produce("a")
    leader.flush()
    replicate(leader, follower)
    follower.flush()
    follower.lead(epoch=2, isr=(SECOND, THIRD))
    assert follower.produce("b") == 2
    assert follower.committed == 0, "the third may not have it"
    follower.flush()
    follower.fetched_by(THIRD, 2)
    assert follower.committed == 2


# ------------------------------------------------------------------------------------ cuts


class Storehouse:
    """A data directory and its checkpoints, as a truncation sees them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.saved: list[tuple[str, int]] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.refuses = False
        any_self: Any = self
        self.truncation = Truncation(node.clock, any_self, any_self)

    def of(self, partition: Partition) -> Storehouse:
        return self

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self.saved.append(("cut", self.node.partition.end_offset))
        self.meanwhile()
        await asyncio.sleep(0)
        return work(*arguments)

    async def save_recovery_point(self, partition: Partition) -> None:
        if self.refuses:
            raise OSError(errno.ENOSPC, "full")
        assert partition.begin_write() is None, "what is queued goes with the cut"
        self.saved.append(("recovery point", partition.recovery_point))

    async def save_start_offsets(self, moved: list[Partition]) -> None:
        self.saved.append(("start", moved[0].durable_start))


def a_stray_follower() -> Node:
    """It led in epoch 1, has three batches, and the new leader has one of them."""
    node = Node(SECOND)
    node.lead(isr=(OWN, SECOND))
    for item in "abc":
        node.produce(item)
        node.flush()
    node.follow(2, OWN)
    return node


def test_a_follower_is_cut_where_its_log_parts_from_the_leaders() -> None:
    async def story() -> None:
        node = a_stray_follower()
        store = Storehouse(node)
        assert await store.truncation.truncate_to(node.partition, LeaderEpoch(1), 1) == 1
        assert store.saved == [("recovery point", 1), ("cut", 3)]
        assert node.partition.end_offset == 1
        assert node.partition.recovery_point == 1
        assert node.flusher.wanted == [node.partition]

    live(story)


def test_whoever_waits_for_what_is_cut_off_is_told() -> None:
    async def story() -> None:
        leader, node = Node(), Node(SECOND)
        leader.lead()
        node.follow()
        for item in "ab":
            leader.produce(item)
        leader.write()
        replicate(leader, node)
        node.partition.wait_durable(node.waiter, "not yet")
        await Storehouse(node).truncation.truncate_to(node.partition, LeaderEpoch(1), 1)
        assert isinstance(node.waiter.told["not yet"], NotLeader)
        assert node.partition.end_offset == 0, "what was only queued is gone as well"

    live(story)


def test_a_cut_that_cannot_be_begun_leaves_everything_as_it_was() -> None:
    async def story() -> None:
        leader, node = Node(), Node(SECOND)
        leader.lead()
        node.follow()
        leader.produce("a")
        leader.write()
        replicate(leader, node)
        store = Storehouse(node)
        store.refuses = True
        with pytest.raises(OSError, match="full"):
            await store.truncation.truncate_to(node.partition, LeaderEpoch(1), 0)
        node.flush()
        assert (node.partition.end_offset, node.partition.recovery_point) == (1, 1)

    live(story)


def test_a_cut_waits_for_the_sync_that_is_under_way() -> None:
    async def story() -> None:
        node = a_stray_follower()
        leader = Node()
        leader.lead()
        for item in "abcd":
            leader.produce(item)
        leader.write()
        replicate(leader, node)
        node.write()
        ticket, store = node.begin_sync(), Storehouse(node)
        cut = asyncio.create_task(store.truncation.truncate_to(node.partition, LeaderEpoch(1), 1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (store.saved, node.partition.end_offset) == ([], 4)
        node.partition.finish_sync(ticket)
        assert await cut == 1

    live(story)


@pytest.mark.parametrize("what", ["leads", "follows another"])
def test_what_was_to_be_cut_in_an_epoch_that_is_over_stays(what: str) -> None:
    async def story() -> None:
        node = a_stray_follower()
        leader = Node()
        leader.lead()
        for item in "abcd":
            leader.produce(item)
        leader.write()
        replicate(leader, node)
        node.write()
        ticket, store = node.begin_sync(), Storehouse(node)
        cut = asyncio.create_task(store.truncation.truncate_to(node.partition, LeaderEpoch(1), 1))
        for _ in range(5):
            await asyncio.sleep(0)
        if what == "leads":
            node.lead(epoch=3)
        else:
            node.follow(3, THIRD)
        node.partition.finish_sync(ticket)
        with pytest.raises(NotLeader, match="leader epoch 3"):
            await cut
        assert node.partition.end_offset == 4

    live(story)


def test_nothing_is_written_synced_or_led_while_a_thread_cuts() -> None:
    async def story() -> None:
        node = a_stray_follower()
        store, partition = Storehouse(node), node.partition

        def meanwhile() -> None:
            assert partition.is_being_written
            assert partition.is_busy
            assert partition.begin_write() is None
            assert partition.take_hints() is None
            assert partition.delete_before(1) == ()
            node.lead(epoch=3, isr=(OWN, SECOND))
            with pytest.raises(NotLeader):
                partition.append(batch(b"x"), NOW_MS)

        store.meanwhile = meanwhile
        await store.truncation.truncate_to(partition, LeaderEpoch(1), 1)
        assert (partition.is_leader, partition.leader_epoch) == (True, 3)
        assert node.produce("x") == 2

    live(story)


def test_who_has_no_lease_does_not_lead_when_the_cut_is_over() -> None:
    async def story() -> None:
        node = a_stray_follower()
        store, partition = Storehouse(node), node.partition

        def meanwhile() -> None:
            node.lead(epoch=3, isr=(OWN, SECOND))
            partition.suspend()

        store.meanwhile = meanwhile
        await store.truncation.truncate_to(partition, LeaderEpoch(1), 1)
        assert (partition.is_leader, partition.is_elected) == (False, True)
        partition.resume()
        assert partition.is_leader

    live(story)


def test_what_followers_have_of_a_log_that_was_opened_anew_does_not_count() -> None:
    node = Node()
    node.lead(epoch=1, isr=(OWN,))
    node.produce("a")
    node.flush()
    node.produce("lost")
    node.write()
    node.fetched_by(SECOND, 2)
    node.partition.fail_sync(node.begin_sync(), OSError(errno.EIO, "sync failed"))
    node.lead(epoch=2, isr=(OWN,), partition_epoch=1)
    node.fetched_by(SECOND, 2)
    node.partition.heal(node.partition.reopened_log(NOW_MS), NOW_MS)
    assert node.partition.divergence(1, 2) == (1, 1), "it has what nobody else has any more"
    node.lead(epoch=2, isr=(OWN, SECOND), partition_epoch=2)
    node.produce("b")
    node.flush()
    assert "b" not in node.waiter.told, "the second has another message there"
    node.fetched_by(SECOND, 1)
    node.fetched_by(SECOND, 2)
    assert node.waiter.told["b"] is None


def test_a_log_that_is_fenced_is_not_cut() -> None:
    async def story() -> None:
        node = a_stray_follower()
        node.partition._log.fail_sync()
        with pytest.raises(StorageFailed):
            await Storehouse(node).truncation.truncate_to(node.partition, LeaderEpoch(1), 1)

    live(story)


def test_what_an_unclean_election_lost_is_lost_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        node = a_stray_follower()
        node.partition.take_leader_high_watermark(3)
        assert node.committed == 3
        await Storehouse(node).truncation.truncate_to(node.partition, LeaderEpoch(1), 1)
        assert node.committed == 1
        assert "committed up to 3" in caplog.text

    live(story)


def test_a_follower_whose_leader_begins_later_begins_there() -> None:
    async def story() -> None:
        node = a_stray_follower()
        store = Storehouse(node)
        await store.truncation.restart_at(node.partition, 10)
        assert store.saved == [("recovery point", 0), ("start", 10), ("cut", 3)]
        partition = node.partition
        assert (partition.start_offset, partition.end_offset, node.committed) == (10, 10, 10)
        assert partition.durable_start == 10

    live(story)


# --------------------------------------------------------------------------------- the majority


class Majority:
    def __init__(self) -> None:
        self.durable_here: list[int] = []
        self.elsewhere = 0

    def durable(self, offset: Offset) -> Offset:
        self.durable_here.append(offset)
        return Offset(min(offset, self.elsewhere))


def test_the_metadata_is_committed_by_a_majority_and_never_before_it_is_synced_here() -> None:
    node, majority = Node(), Majority()
    node.partition.commit_by(majority)
    node.lead(replicas=(OWN,), isr=(OWN,))
    node.produce("a")
    node.write()
    node.partition.commit_to(1)
    assert node.committed == 0
    node.sync()
    assert (node.committed, majority.durable_here[-1]) == (0, 1)
    majority.elsewhere = 1
    node.partition.commit_to(1)
    assert (node.committed, node.waiter.told) == (1, {"a": None})
