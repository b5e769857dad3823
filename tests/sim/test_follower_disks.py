"""Followers whose disk refuses what their leader sends."""

from __future__ import annotations

import asyncio
import errno

from ottla.client.cluster import Cluster
from ottla.testing.sim.world import World
from sim.worlds_kit import ORDERS, create_topic, read, settings, write

FULL_S = 10.0
# Once a second, of one log file and its two indexes, give or take.
TRIES_MAX = 60


def test_a_follower_on_a_full_disk_tries_now_and_then_and_goes_on_when_there_is_room() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            await create_topic(cluster, "orders")
            await write(cluster, ORDERS, [b"before"])
            leader = cluster.leader_of(ORDERS)
            follower = next(node for node in world.nodes.values() if node.id != leader)
            tries: list[str] = []
            follower.disk.on_failure = lambda operation, path: tries.append(path)
            follower.disk.fail("write", errno.ENOSPC, times=10**6, under="/data/orders-0")
            writing = asyncio.ensure_future(write(cluster, ORDERS, [b"1", b"2", b"3"]))
            await asyncio.sleep(FULL_S)
            assert 1 < len(tries) < TRIES_MAX
            follower.heal_disk()
            await writing
            assert await read(cluster, ORDERS) == [b"before", b"1", b"2", b"3"]

    with World(seed=1) as world:
        world.run(story(world), limit_s=120)
        assert not world.unhandled


def test_a_follower_goes_on_after_a_failed_sync() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            await create_topic(cluster, "orders")
            await write(cluster, ORDERS, [b"before"])
            leader = cluster.leader_of(ORDERS)
            follower = next(node for node in world.nodes.values() if node.id != leader)
            follower.disk.fail("sync", errno.ENOSPC, under="/data/orders-0")
            values = [b"%d" % number for number in range(20)]
            await write(cluster, ORDERS, values)
            await asyncio.sleep(FULL_S)
            await write(cluster, ORDERS, [b"after"])
            assert await read(cluster, ORDERS) == [b"before", *values, b"after"]

    with World(seed=1) as world:
        world.run(story(world), limit_s=120)
        assert not world.unhandled
