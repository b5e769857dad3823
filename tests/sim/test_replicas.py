"""Replicas in trouble, in virtual time: another leads before anybody notices much."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from typing import Any

from ottla.broker.main import Broker
from ottla.broker.storage.partition import Partition
from ottla.client.cluster import Cluster
from ottla.testing.sim.world import Spawned, World
from sim.worlds_kit import ORDERS, create_topic, read, settings, until, write

# Virtual seconds: a story that takes longer has come to a stand.
LIMIT_S = 300


def broker_of(world: World, node_id: int) -> Broker:
    broker = world.nodes[node_id].broker
    assert broker is not None
    return broker


def partition_of(world: World, node_id: int) -> Partition:
    return broker_of(world, node_id)._partitions.get(*ORDERS)


def controller_of(world: World) -> int:
    (found,) = (node_id for node_id in world.nodes if broker_of(world, node_id)._quorum.is_leader)
    return found


def leader_of(world: World) -> int:
    (found,) = (node_id for node_id in world.nodes if partition_of(world, node_id).is_leader)
    return found


def in_sync(world: World) -> frozenset[int]:
    replicas = partition_of(world, leader_of(world)).replicas
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
            await on_its_loop(world, leader, broker_of(world, leader)._lifecycle._beat())
            assert world.now_s - began_s < 6, "another controller was there to be asked"
            world.nodes[frozen].kill()

    with World(seed=1) as world:
        world.run(story(world), limit_s=LIMIT_S)
