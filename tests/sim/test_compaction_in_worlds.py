"""Compacted topics of a simulated cluster."""

from __future__ import annotations

import asyncio

from ottla.client.cluster import Cluster
from ottla.testing.sim.world import World
from sim.worlds_kit import ORDERS, create_topic, keyed, read, settings, write_batches

HASTE = {"log.cleaner.backoff.ms": "500", "log.flush.offset.checkpoint.interval.ms": "1000"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
    "segment.ms": "1000",
}


def test_every_replica_compacts_and_the_last_value_of_each_key_stays() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            await create_topic(cluster, "orders", configs=COMPACTED)
            batches = [keyed(b"%d" % (number % 7), b"%d" % number) for number in range(200)]
            await write_batches(cluster, ORDERS, batches)
            await asyncio.sleep(30)
            leader = cluster.leader_of(ORDERS)
            assert leader is not None
            world.nodes[leader].power_cut()
            await write_batches(cluster, ORDERS, [keyed(b"last", b"200")])
            values = await read(cluster, ORDERS)
            assert len(values) < 100
            assert {b"%d" % number for number in range(193, 201)} <= set(values)

    with World(seed=1, settings=HASTE) as world:
        world.run(story(world), limit_s=300)
        assert not world.unhandled
