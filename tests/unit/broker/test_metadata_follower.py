"""What becomes of this node's partitions as the metadata says it, also after a start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.clock import SystemClock
from ottla.broker.control.groups import GroupService
from ottla.broker.control.metadata import MetadataCache
from ottla.broker.control.metadata_follower import MetadataFollower
from ottla.broker.counters import Metrics
from ottla.broker.network.connection import Outbox
from ottla.broker.storage.checkpoints import Checkpoints
from ottla.broker.storage.closing import close_partitions
from ottla.broker.storage.departures import Departures
from ottla.broker.storage.flusher import Flusher
from ottla.broker.storage.partition import Partition
from ottla.broker.storage.partition_opener import PartitionOpener
from ottla.broker.storage.partitions import Partitions
from ottla.broker.storage.repairs import Repairs
from ottla.broker.storage.stores import Store, open_stores
from ottla.broker.storage.waiters import told
from ottla.broker.threads import RealThreads
from ottla.cluster.image import ResourceType
from ottla.config import BrokerConfig
from ottla.errors import (
    CoordinatorNotAvailable,
    NotCoordinator,
    NotLeader,
    UnknownTopicOrPartition,
)
from ottla.log.handles import Handles
from ottla.testing.disks import MemoryDisk
from ottla.types import OFFSETS_TOPIC, NodeId
from ottla.wire.messages.metadata_records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from ottla.wire.schema import Message
from records_kit import NOW_MS, batch
from unit.broker.metadata_node import SeededRandom

OWN, SECOND = NodeId(1), NodeId(2)
TOPIC_ID = bytes(range(16))
NO_PARTITION: Any = None


class House:
    """This node's partitions, on the disk that an earlier one may have left."""

    def __init__(self, disk: MemoryDisk, records: list[Message]) -> None:
        self.disk = disk
        disk.make_directory("/data/__cluster_metadata-0")
        self.loop = asyncio.get_running_loop()
        self.threads = RealThreads()
        self.clock = SystemClock()
        config = BrokerConfig.parse({"log.dirs": "/data", "node.id": str(OWN)})
        self.stores = open_stores(disk, config, SeededRandom(3), self.threads)
        self.stores.give_flushers(self._flusher)
        self.metadata = MetadataCache(config)
        self.metadata.committed(records)
        self.partitions = Partitions(NO_PARTITION, self.metadata.absence_of, ())
        self.config = config
        io = self.io = self.threads.executor("io", 1)
        self.departures = Departures(self.loop, io, disk, SeededRandom(4))
        self.checkpoints = Checkpoints(
            self.loop,
            self.clock,
            disk,
            self.stores,
            self.partitions,
            Repairs(
                self.loop,
                self.clock,
                self.partitions,
                self._no_epoch,
                self._no_epoch,
                lambda partition: None,
            ),
            60.0,
        )
        metrics = Metrics()
        opener = PartitionOpener(
            OWN,
            self.clock,
            disk,
            Handles(disk),
            metrics,
            self.departures,
            self.partitions.take_offline,
        )
        self.follower = MetadataFollower(
            OWN,
            self.clock,
            self.metadata,
            self.stores,
            self.partitions,
            opener,
            self.departures,
            metrics,
            lambda assignments: None,
            lambda partition: None,
            lambda: True,
            lambda name: None,
        )
        self.follower.open_all()
        self.metadata.on_change(self.follower.follow)

    def _flusher(self, store: Store, kind: str) -> Flusher:
        return Flusher(
            self.loop, self.threads, self.clock, self.disk, kind, lambda _: None, Outbox()
        )

    async def _no_epoch(self, *partitions: object) -> None:
        raise NotImplementedError

    @property
    def here(self) -> list[tuple[str, int]]:
        return [tuple(partition.name) for partition in self.partitions]

    async def produce(self, partition: Partition) -> None:
        partition.append(batch(b"a"), NOW_MS)
        await partition.flusher.drain()

    async def departed(self) -> None:
        """Returns when the directory's name is free."""
        if self.departures.is_taken("/data/t-0"):
            await told(partial(self.departures.when_free, "/data/t-0"))

    async def stop(self) -> None:
        for store in self.stores:
            for flusher in store.flushers:
                await flusher.stop()
        self.partitions.in_store = lambda store: list(self.partitions)  # type: ignore[method-assign]
        for store in await close_partitions(
            self.disk, self.stores, self.partitions, self.checkpoints, self.departures
        ):
            store.data.leave_clean_marker(1)
        self.stores.close()
        await asyncio.to_thread(self.threads.join)


def topic(*replicas: tuple[int, ...], leader: int = OWN, name: str = "t") -> list[Message]:
    """A topic with a partition for each list of replicas."""
    records: list[Message] = [TopicRecord(name=name, topic_id=TOPIC_ID)]
    for index, of_one in enumerate(replicas):
        records.append(
            PartitionRecord(
                partition_id=index,
                topic_id=TOPIC_ID,
                replicas=list(of_one),
                isr=list(of_one),
                leader=leader if leader in of_one else of_one[0],
                leader_epoch=1,
                partition_epoch=0,
            )
        )
    return records


def change(index: int = 0, **fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, **fields)


def live(
    story: Callable[[House], Awaitable[None]],
    records: list[Message] | None = None,
    disk: MemoryDisk | None = None,
) -> None:
    async def run() -> None:
        house = House(disk or MemoryDisk(), records or [])
        async with asyncio.timeout(20):
            await story(house)
            await house.stop()

    asyncio.run(run())


def test_only_partitions_with_a_replica_here_are_opened_and_created() -> None:
    async def story(house: House) -> None:
        assert house.here == [("t", 1)]
        with pytest.raises(NotLeader, match="led by node 2"):
            house.partitions.get("t", 0)
        with pytest.raises(UnknownTopicOrPartition):
            house.partitions.get("t", 2)
        house.metadata.committed([RemoveTopicRecord(topic_id=TOPIC_ID)])
        house.metadata.committed(topic((OWN,), (SECOND,), (SECOND, OWN)))
        assert house.here == [("t", 0), ("t", 2)]

    live(story, topic((SECOND,), (SECOND, OWN)))


def test_a_partition_leads_or_follows_as_the_metadata_says() -> None:
    async def story(house: House) -> None:
        partition = house.partitions.get("t", 0)
        assert (partition.is_leader, partition.leader_id) == (False, SECOND)
        house.metadata.committed([change(leader=OWN)])
        assert (partition.is_leader, partition.leader_epoch) == (True, 2)
        assert partition.replicas is not None
        assert partition.replicas.isr == {OWN, SECOND}
        house.metadata.committed([change(isr=[OWN])])
        assert partition.replicas.isr == {OWN}
        assert partition.leader_epoch == 2
        house.metadata.committed([change(leader=-1)])
        assert (partition.is_leader, partition.leader_id) == (False, -1)

    live(story, topic((OWN, SECOND), leader=SECOND))


def test_a_partition_that_moved_away_goes_with_its_files_and_one_that_comes_is_made() -> None:
    async def story(house: House) -> None:
        partition = house.partitions.get("t", 0)
        await house.produce(partition)
        assert house.disk.exists("/data/t-0")
        house.metadata.committed([change(replicas=[SECOND], isr=[SECOND], leader=SECOND)])
        assert house.here == []
        assert partition.is_retired
        with pytest.raises(NotLeader):
            house.partitions.get("t", 0)
        await house.departed()
        assert not house.disk.exists("/data/t-0")
        house.metadata.committed([change(replicas=[SECOND, OWN])])
        assert house.here == [("t", 0)]
        assert not house.partitions.get("t", 0).is_leader

    live(story, topic((OWN,)))


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "one by one"])
def test_a_minimum_that_was_raised_counts_before_the_replicas_that_left_after_it(
    together: bool,
) -> None:
    """By it the controller holds those who leave for complete, and may elect them."""

    async def story(house: House) -> None:
        partition = house.partitions.get("t", 0)
        await house.produce(partition)
        raised = ConfigRecord(
            resource_type=ResourceType.TOPIC,
            resource_name="t",
            name="min.insync.replicas",
            value="2",
        )
        left = change(isr=[OWN], eligible_leader_replicas=[SECOND])
        for records in [[raised, left]] if together else [[raised], [left]]:
            house.metadata.committed(records)
        assert partition.high_watermark.offset == 0, "the second may lead, and does not have it"

    live(story, topic((OWN, SECOND)))


LOST, ELSEWHERE = b"l" * 16, b"e" * 16


def lost(**fields: Any) -> list[Message]:
    """A topic whose replica here lay in a directory that is none of this node's."""
    return [*topic((OWN, SECOND), leader=SECOND), change(directories=[LOST, ELSEWHERE], **fields)]


def where(house: House) -> str:
    (partition,) = house.partitions
    return "nowhere" if house.stores.of(partition) is house.stores.nowhere else "here"


def test_a_replica_whose_directory_is_lost_is_begun_anew_where_nobody_counts_on_it() -> None:
    async def story(house: House) -> None:
        assert where(house) == "here"
        (partition,) = house.partitions
        assert not partition.is_offline
        assert partition.leader_id == SECOND

    live(story, lost(isr=[SECOND]))


@pytest.mark.parametrize(
    "counted_on",
    [{}, {"isr": [SECOND], "eligible_leader_replicas": [OWN]}],
    ids=["isr", "eligible"],
)
def test_a_lost_replica_that_may_be_the_last_to_have_something_is_not_begun_anew(
    counted_on: dict[str, Any],
) -> None:
    """Until the metadata says that others have all of it, which may also come later."""

    async def story(house: House) -> None:
        assert where(house) == "nowhere"
        (partition,) = house.partitions
        assert partition.is_offline
        house.metadata.committed([change(isr=[SECOND], eligible_leader_replicas=[])])
        assert where(house) == "here"
        assert partition.is_retired
        (partition,) = house.partitions
        assert not partition.is_offline

    live(story, lost(**counted_on))


def test_nothing_is_begun_anew_while_a_directory_is_out_of_sight() -> None:
    """It may be the one that has the replica."""

    async def story(house: House) -> None:
        (store,) = house.stores
        store.failure = OSError("gone")
        house.metadata.committed([change(isr=[SECOND])])
        assert where(house) == "nowhere"
        store.failure = None

    live(story, lost())


def groups_of(house: House) -> GroupService:
    services: Any = SimpleNamespace(
        loop=house.loop,
        clock=house.clock,
        random=SeededRandom(5),
        io=house.io,
        node_id=OWN,
        config=house.config,
        metadata=house.metadata,
        partitions=house.partitions,
    )
    groups = GroupService()
    groups.attach(services)
    groups.start()
    return groups


def test_groups_live_where_their_partition_is_led() -> None:
    async def story(house: House) -> None:
        groups = groups_of(house)
        with pytest.raises(NotCoordinator):
            groups.shard_of("g")
        house.metadata.committed([change(leader=OWN)])
        shard = groups.shard_of("g")
        await groups._loads[0]
        house.metadata.committed([change(leader=SECOND)])
        with pytest.raises(NotCoordinator):
            groups.shard_of("g")
        with pytest.raises(CoordinatorNotAvailable):
            await shard.read(lambda machine, now: None)

    live(story, topic((OWN, SECOND), leader=SECOND, name=OFFSETS_TOPIC))


def test_nobody_coordinates_groups_without_a_lease() -> None:
    async def story(house: House) -> None:
        groups = groups_of(house)
        shard = groups.shard_of("g")
        shard.partition.suspend()
        with pytest.raises(NotCoordinator):
            groups.shard_of("g")
        assert list(groups.shards()) == []
        shard.partition.resume()
        assert groups.shard_of("g") is shard

    live(story, topic((OWN, SECOND), name=OFFSETS_TOPIC))


def test_a_new_coordinator_decides_nothing_before_all_of_its_log_is_committed() -> None:
    """What it has not folded may be committed all the same, and would be contradicted."""

    async def story(house: House) -> None:
        partition = house.partitions.get(OFFSETS_TOPIC, 0)
        await house.produce(partition)
        groups = groups_of(house)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not groups._loads[0].done()
        now_ms = house.clock.now().steady_ms
        assert partition.fetched_by(SECOND, 1, partition.end_offset, now_ms)
        await groups._loads[0]
        assert groups.shard_of("g").is_deciding

    live(story, topic((OWN, SECOND), name=OFFSETS_TOPIC))


def test_what_was_committed_is_remembered_over_a_start_and_no_more_than_that() -> None:
    disk, records = MemoryDisk(), topic((OWN, SECOND))

    async def before(house: House) -> None:
        partition = house.partitions.get("t", 0)
        for _ in range(3):
            await house.produce(partition)
        assert partition.high_watermark.offset == 0
        partition.fetched_by(SECOND, 1, 2, 0)
        assert partition.high_watermark.offset == 2

    async def after(house: House) -> None:
        partition = house.partitions.get("t", 0)
        assert (partition.high_watermark.offset, partition.end_offset) == (2, 3)
        found = partition.read(0, 10_000, cached_only=False)
        assert found is not None
        assert len(found) == partition.high_watermark.bytes_in_segment
        partition.fetched_by(SECOND, 1, 3, 0)
        assert partition.high_watermark.offset == 3

    live(before, records, disk)
    live(after, records, disk)


def test_a_node_alone_commits_after_a_start_all_that_it_finds() -> None:
    disk, records = MemoryDisk(), topic((OWN,))

    async def before(house: House) -> None:
        await house.produce(house.partitions.get("t", 0))
        house.checkpoints.write_all = lambda store: None  # type: ignore[method-assign]

    async def after(house: House) -> None:
        assert house.partitions.get("t", 0).high_watermark.offset == 1

    live(before, records, disk)
    live(after, records, disk)


def test_a_directory_of_a_partition_that_is_elsewhere_is_set_aside() -> None:
    disk = MemoryDisk()

    async def before(house: House) -> None:
        await house.produce(house.partitions.get("t", 0))

    async def after(house: House) -> None:
        assert house.here == []
        await house.departed()
        assert not disk.exists("/data/t-0")
        assert [name for name in disk.list("/data") if name.endswith("-stray")]

    live(before, topic((OWN,)), disk)
    live(after, topic((SECOND,)), disk)


def test_what_is_left_of_a_partition_without_batches_is_no_stray() -> None:
    disk = MemoryDisk()

    async def before(house: House) -> None: ...

    async def after(house: House) -> None:
        assert house.here == [("t", 0)]
        await house.departed()
        await house.produce(house.partitions.get("t", 0))
        assert not [name for name in disk.list("/data") if name.endswith("-stray")]

    live(before, [], disk)
    # After a crash: it has led or followed, and nobody ever wrote to it.
    disk.remove("/data/.kafka_cleanshutdown")
    disk.make_directory("/data/t-0")
    disk.write_file("/data/t-0/leader-epoch-checkpoint", b"0\n1\n3 0\n")
    live(after, topic((OWN,)), disk)
