"""What clients meet at a node that has not come to the end of its start."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.cluster import Cluster
from ottla.client.failures import Unreachable
from ottla.testing.sim.world import World
from sim.worlds_kit import create_topic, settings


def test_a_node_that_waits_for_a_majority_does_not_say_that_there_are_no_topics() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            await create_topic(cluster, "orders")
            for node in world.nodes.values():
                node.kill()
            world.nodes[1].start_soon()
            await asyncio.sleep(5)
            assert world.nodes[1].is_running
            assert not world.nodes[1].is_ready
            with pytest.raises(Unreachable):
                await cluster.refresh(["orders"])
            world.nodes[2].start_soon()
            assert list(await cluster.topics(["orders"])) == ["orders"]

    with World(seed=1) as world:
        world.run(story(world), limit_s=120)
        assert not world.unhandled
