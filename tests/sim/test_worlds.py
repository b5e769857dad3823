"""Three real brokers in virtual time: what a cluster promises, and that a seed replays."""

from __future__ import annotations

from ottla.client.cluster import Cluster
from ottla.testing.sim.world import World
from sim.worlds_kit import ORDERS, create_topic, read, settings, write


def test_what_was_acknowledged_outlives_the_power_of_its_leader() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            await create_topic(cluster, "orders")
            before = [b"%d" % number for number in range(50)]
            await write(cluster, ORDERS, before)
            leader = cluster.leader_of(ORDERS)
            assert leader is not None
            world.nodes[leader].power_cut()
            after = [b"%d" % number for number in range(50, 100)]
            await write(cluster, ORDERS, after)
            assert cluster.leader_of(ORDERS) not in (None, leader)
            assert await read(cluster, ORDERS) == before + after
            await world.nodes[leader].start()
            assert await read(cluster, ORDERS) == before + after

    with World(seed=1) as world:
        world.run(story(world), limit_s=120)
        assert not world.unhandled
