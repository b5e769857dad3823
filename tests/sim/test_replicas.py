"""Replicas in trouble, in virtual time: another leads before anybody notices much."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from ottla.broker.main import Broker
from ottla.broker.storage.partition import Partition
from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.settings import ClientSettings
from ottla.errors import ErrorCode
from ottla.testing.sim.world import Spawned, World
from ottla.types import NO_NODE, TopicPartition
from ottla.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.schema import Message
from sim.worlds_kit import ORDERS, create_topic, read, settings, until, write

R = TypeVar("R", bound=Message)

# Virtual seconds: a story that takes longer has come to a stand.
LIMIT_S = 300


def broker_of(world: World, node_id: int) -> Broker:
    broker = world.nodes[node_id].broker
    assert broker is not None
    return broker


def partition_of(world: World, node_id: int, index: int = 0) -> Partition:
    return broker_of(world, node_id)._partitions.get("orders", index)


def controller_of(world: World) -> int:
    (found,) = (node_id for node_id in world.nodes if broker_of(world, node_id)._quorum.is_leader)
    return found


def leader_of(world: World, index: int = 0) -> int:
    (found,) = (node for node in world.nodes if partition_of(world, node, index).is_leader)
    return found


def in_sync(world: World, index: int = 0) -> frozenset[int]:
    replicas = partition_of(world, leader_of(world, index), index).replicas
    return frozenset() if replicas is None else replicas.isr


async def on_its_loop(world: World, node_id: int, work: Coroutine[Any, Any, Any]) -> None:
    loop = world.nodes[node_id].loop
    assert loop is not None
    await Spawned(loop, work)


async def led_by_no_controller(world: World, cluster: Cluster) -> int:
    """A topic whose leader is not the controller; returns the leader."""
    await create_topic(cluster, "orders")
    await write(cluster, ORDERS, [b"first"])
    leader = leader_of(world)
    if leader == controller_of(world):
        await on_its_loop(world, leader, broker_of(world, leader)._quorum.resign())
        await until(lambda: any(broker_of(world, n)._quorum.is_leader for n in world.nodes))
    return leader


async def move_controller(world: World, wanted: int) -> None:
    """Until this node leads the metadata."""
    while not broker_of(world, wanted)._quorum.is_leader:
        leading = [node for node in world.nodes if broker_of(world, node)._quorum.is_leader]
        for node in leading:
            await on_its_loop(world, node, broker_of(world, node)._quorum.resign())
        await asyncio.sleep(0.5)


def test_a_leader_whose_sync_failed_is_replaced_and_comes_back() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            leader = await led_by_no_controller(world, cluster)
            world.nodes[leader].disk.fail("sync", errno.ENOSPC, under="/data/orders-0")
            began_s = world.now_s
            await write(cluster, ORDERS, [b"second"])
            assert leader_of(world) != leader
            assert world.now_s - began_s < 3, "another could have led at once"
            await until(lambda: in_sync(world) == {1, 2, 3})
            await write(cluster, ORDERS, [b"third"])
            assert await read(cluster, ORDERS) == [b"first", b"second", b"third"]

    with World(seed=1) as world:
        world.run(story(world), limit_s=LIMIT_S)
        assert not world.unhandled


def test_a_leader_whose_disk_takes_nothing_is_replaced() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            leader = await led_by_no_controller(world, cluster)
            disk = world.nodes[leader].disk
            disk.fail("write", errno.ENOSPC, under="/data/orders-0", times=1_000_000)
            began_s = world.now_s
            await write(cluster, ORDERS, [b"second"])
            assert leader_of(world) != leader
            assert world.now_s - began_s < 6
            disk.heal()
            await until(lambda: in_sync(world) == {1, 2, 3})
            assert await read(cluster, ORDERS) == [b"first", b"second"]

    with World(seed=1) as world:
        world.run(story(world), limit_s=LIMIT_S)
        assert not world.unhandled


def test_a_follower_whose_disk_takes_nothing_is_not_waited_for() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            leader = await led_by_no_controller(world, cluster)
            follower = next(node for node in world.nodes if node != leader)
            disk = world.nodes[follower].disk
            disk.fail("write", errno.ENOSPC, under="/data/orders-0", times=1_000_000)
            began_s = world.now_s
            await write(cluster, ORDERS, [b"second"])
            assert world.now_s - began_s < 6, "it knows that it cannot take it"
            assert in_sync(world) == {1, 2, 3} - {follower}
            disk.heal()
            await until(lambda: in_sync(world) == {1, 2, 3})
            assert await read(cluster, ORDERS) == [b"first", b"second"]

    with World(seed=1) as world:
        world.run(story(world), limit_s=LIMIT_S)
        assert not world.unhandled


# What `log.dir.stall.timeout.ms` says, a look at the disks, an election, a producer that asks.
STALLED_S_MAX = 10 + 5


@pytest.mark.parametrize("is_controller", [False, True], ids=["a broker", "the controller"])
def test_a_leader_whose_disk_hangs_is_replaced_and_comes_back(is_controller: bool) -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            leader = await led_by_no_controller(world, cluster)
            if is_controller:
                await move_controller(world, leader)
            world.nodes[leader].hang_disk()
            began_s = world.now_s
            await write(cluster, ORDERS, [b"second"])
            assert world.now_s - began_s < STALLED_S_MAX
            assert not partition_of(world, leader).is_leader, "another leads"
            assert not broker_of(world, leader)._quorum.is_leader
            await create_topic(cluster, "made-meanwhile", factor=2)
            assert await named_leader(world, leader, 0) == NO_NODE
            world.nodes[leader].heal_disk()
            await until(lambda: in_sync(world) == {1, 2, 3})
            await write(cluster, ORDERS, [b"third"])
            assert await read(cluster, ORDERS) == [b"first", b"second", b"third"]

    with World(seed=1) as world:
        world.run(story(world), limit_s=LIMIT_S)
        assert not world.unhandled


def test_a_follower_whose_disk_hangs_is_not_waited_for() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            leader = await led_by_no_controller(world, cluster)
            follower = next(n for n in world.nodes if n not in (leader, controller_of(world)))
            world.nodes[follower].hang_disk()
            began_s = world.now_s
            await write(cluster, ORDERS, [b"second"])
            assert world.now_s - began_s < STALLED_S_MAX
            assert follower not in in_sync(world)
            world.nodes[follower].heal_disk()
            await until(lambda: in_sync(world) == {1, 2, 3})
            assert await read(cluster, ORDERS) == [b"first", b"second"]

    with World(seed=1) as world:
        world.run(story(world), limit_s=LIMIT_S)
        assert not world.unhandled


def test_nodes_that_are_told_to_stop_together_do_not_wait_for_each_other() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            await create_topic(cluster, "orders")
            await write(cluster, ORDERS, [b"first"])
        began_s = world.now_s
        await asyncio.gather(*(node.stop() for node in world.nodes.values()))
        assert world.now_s - began_s < 3

    with World(seed=1) as world:
        world.run(story(world), limit_s=LIMIT_S)


def test_a_frozen_controller_is_not_waited_for() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            leader = await led_by_no_controller(world, cluster)
            frozen = controller_of(world)
            world.nodes[frozen].pause()
            began_s = world.now_s
            await on_its_loop(world, leader, broker_of(world, leader)._membership.lifecycle._beat())
            assert world.now_s - began_s < 6, "another controller was there to be asked"
            world.nodes[frozen].kill()

    with World(seed=1) as world:
        world.run(story(world), limit_s=LIMIT_S)


async def ask_leader(world: World, leader: int, request: Message, kind: type[R]) -> R:
    """On a connection of its own to this node, whatever the metadata says."""
    settings_here = ClientSettings((world.nodes[leader].address,), request_timeout_s=5.0)
    connection = await Connection.open(world.nodes[leader].address, settings_here)
    try:
        return await connection.ask(request, kind)
    finally:
        connection.abort("asked")


async def end_at(world: World, node_id: int, index: int = 0) -> int:
    """The error, if any, with which this node answers who asks it for the end of the log."""
    asked = ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=[asked])])
    reply = await ask_leader(world, node_id, request, ListOffsetsResponse)
    return reply.topics[0].partitions[0].error_code


async def named_leader(world: World, node_id: int, index: int) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    reply = await ask_leader(world, node_id, request, MetadataResponse)
    found = {each.partition_index: each.leader_id for each in reply.topics[0].partitions}
    return found[index]


def test_a_frozen_controller_that_leads_is_replaced_within_a_session_and_a_second() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            await create_topic(cluster, "orders")
            await write(cluster, ORDERS, [b"first"])
        frozen = leader_of(world)
        await move_controller(world, frozen)
        # Until it has no lease any more but those that it gives itself.
        await asyncio.sleep(10)
        world.nodes[frozen].pause()
        began_s = world.now_s
        others = [node for node in world.nodes if node != frozen]
        await until(lambda: any(partition_of(world, node).is_leader for node in others))
        assert world.now_s - began_s < 10
        world.nodes[frozen].kill()

    with World(seed=1) as world:
        world.run(story(world), limit_s=LIMIT_S)


SLOW_TO_NOTICE, QUICK_TO_NOTICE = "6000", "300"


async def prefer(cluster: Cluster, replicas: list[int]) -> None:
    """The replicas of the topic stay, and the first of them is to lead it."""
    partition = ReassignablePartition(0, replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="orders", partitions=[partition])]
    )
    reply = await cluster.ask_any(request, AlterPartitionReassignmentsResponse)
    assert [each.error_code for each in reply.responses[0].partitions] == [ErrorCode.NONE]


def test_a_leader_that_is_moved_and_cut_off_stops_before_more_is_committed() -> None:
    """Lag would put it out of sync sooner than its lease ends."""

    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            old = await led_by_no_controller(world, cluster)
            new = controller_of(world)
            (other,) = world.nodes.keys() - {old, new}
            await prefer(cluster, [new, old, other])
            for node in (new, other):
                world.network.cut(old, node)
            elect = ElectLeadersRequest(topic_partitions=[TopicPartitions("orders", [0])])
            connection = await cluster.to_address(world.nodes[new].address)
            await connection.ask(elect, ElectLeadersResponse)
            assert partition_of(world, old).is_leader, "it does not know yet"
            await until(lambda: partition_of(world, new).is_leader)
            await write(cluster, ORDERS, [b"second"])
            assert not partition_of(world, old).is_leader

    with World(seed=1, settings={"replica.lag.time.max.ms": "2000"}) as world:
        world.run(story(world), limit_s=LIMIT_S)
        assert not world.unhandled


@pytest.mark.parametrize(
    ("is_controller", "fetch_timeout_ms"),
    [(False, SLOW_TO_NOTICE), (True, SLOW_TO_NOTICE), (True, QUICK_TO_NOTICE)],
    ids=["a broker", "the controller", "a controller that others miss at once"],
)
def test_a_leader_that_is_cut_off_stops_before_another_begins(
    is_controller: bool, fetch_timeout_ms: str
) -> None:
    """Clients still reach it. A controller that is slow to notice must not answer itself."""

    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            await create_topic(cluster, "orders", partitions=3)
            for each in range(3):
                await write(cluster, TopicPartition("orders", each), [b"first"])
        controller = controller_of(world)
        leaders = {leader_of(world, index): index for index in range(3)}
        assert len(leaders) == 3, "each node leads one"
        leader = next(node for node in leaders if (node == controller) == is_controller)
        index = leaders[leader]
        place = TopicPartition("orders", index)
        # Until a controller has no lease any more but those that it gives itself.
        await asyncio.sleep(10)
        world.nodes[leader].drift_clock(0.97)
        others = [node_id for node_id in world.nodes if node_id != leader]
        for other in others:
            world.network.cut(leader, other)

        def others_lead() -> bool:
            return any(partition_of(world, other, index).is_leader for other in others)

        while not others_lead():
            assert await end_at(world, leader, index) in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            await asyncio.sleep(0.02)
        assert await end_at(world, leader, index) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not partition_of(world, leader, index).is_leader
        assert await named_leader(world, leader, index) == NO_NODE
        world.network.heal()
        for _ in range(1_000):
            leading = [node for node in world.nodes if partition_of(world, node, index).is_leader]
            assert leading != [leader], "it was replaced"
            assert len(leading) <= 1, "it was answered before it had read who leads now"
            await asyncio.sleep(0.005)
        async with Cluster(settings(world)) as cluster:
            await write(cluster, place, [b"second"])
            await until(lambda: in_sync(world, index) == {1, 2, 3})
            assert await read(cluster, place) == [b"first", b"second"]

    waits = {"controller.quorum.fetch.timeout.ms": fetch_timeout_ms}
    with World(seed=1, settings=waits) as world:
        world.run(story(world), limit_s=LIMIT_S)
