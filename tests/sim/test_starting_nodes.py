"""What clients meet at a node that has not come to the end of its start."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ottla.client.cluster import Cluster
from ottla.client.failures import Unreachable
from ottla.testing.sim.node import DATA_DIR
from ottla.testing.sim.world import World
from ottla.types import METADATA_TOPIC
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


def test_a_node_whose_metadata_log_fails_a_sync_while_it_starts_comes_to_the_end_of_its_start() -> (
    None
):
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            world.nodes[3].kill()
            await create_topic(cluster, "orders", factor=2)
            log = f"{DATA_DIR}/{METADATA_TOPIC}-0"
            world.nodes[3].disk.fail("sync", errno.ENOSPC, under=log)
            await world.nodes[3].start()

    with World(seed=1) as world:
        world.run(story(world), limit_s=120)
        assert not world.unhandled
