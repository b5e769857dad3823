"""A disk that has decayed: what one replica has lost it gets again, and nobody misses anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.storage.partition import Partition
from ottla.client.cluster import Cluster
from ottla.testing.sim.node import DATA_DIR, Node
from ottla.testing.sim.world import World
from sim.worlds_kit import ORDERS, create_topic, read, settings, until, write

DIRECTORY = f"{DATA_DIR}/{ORDERS}"
VALUES = [b"%d" % number for number in range(30)]
SCRUBBED = {"log.scrub.interval.ms": "1000", "replica.damaged.refill.enable": "true"}
KEPT = {**SCRUBBED, "replica.damaged.refill.enable": "false"}
SMALL = {"segment.bytes": "1000", "min.insync.replicas": "2"}


def replica(node: Node) -> Partition:
    assert node.broker is not None
    found = node.broker._partitions.in_topic(ORDERS.topic)
    assert found is not None
    return found[ORDERS.partition]


def flip(node: Node, *, is_last: bool) -> None:
    logs = sorted(path for path in node.disk.paths_seen() if path.startswith(DIRECTORY))
    path = [path for path in logs if path.endswith(".log")][-1 if is_last else 0]
    node.disk.flip_bit(path, 8 * (len(node.disk.contents(path)) - 3))


def seen(node: Node) -> bytes:
    paths = [path for path in node.disk.paths_seen() if path.startswith(DIRECTORY)]
    return b"".join(node.disk.contents(path) for path in paths if path.endswith(".log"))


def in_sync(node: Node) -> set[int]:
    assert node.broker is not None
    image = node.broker._metadata.image.topics_by_name[ORDERS.topic]
    return set(image.partitions[ORDERS.partition].isr)


def run(
    story: Callable[[World, Cluster], Awaitable[None]], node_settings: dict[str, str] = SCRUBBED
) -> None:
    async def whole(world: World) -> None:
        await world.start_all()
        async with Cluster(settings(world)) as cluster:
            await create_topic(cluster, ORDERS.topic, configs=SMALL)
            await write(cluster, ORDERS, VALUES)
            await story(world, cluster)

    with World(seed=1, settings=node_settings) as world:
        world.run(whole(world), limit_s=120)
        assert not world.unhandled


def whose(world: World, cluster: Cluster, *, leads: bool) -> Node:
    leader = cluster.leader_of(ORDERS)
    return next(node for node in world.nodes.values() if (node.id == leader) == leads)


@pytest.mark.parametrize("leads", [False, True], ids=["a follower", "the leader"])
@pytest.mark.parametrize("is_last", [False, True], ids=["an old segment", "the active segment"])
def test_what_has_decayed_on_one_disk_is_copied_anew(leads: bool, is_last: bool) -> None:
    async def story(world: World, cluster: Cluster) -> None:
        node = whose(world, cluster, leads=leads)
        intact = seen(node)
        flip(node, is_last=is_last)
        await until(lambda: replica(node).refills == 1)
        await until(lambda: in_sync(node) == {1, 2, 3} and seen(node) == intact)
        assert not replica(node).is_damaged
        assert await read(cluster, ORDERS) == VALUES
        await write(cluster, ORDERS, [b"after"])

    run(story)


def test_a_copy_that_is_damaged_leaves_the_in_sync_replicas_before_it_is_emptied() -> None:
    async def story(world: World, cluster: Cluster) -> None:
        node = whose(world, cluster, leads=False)
        members: list[set[int]] = []
        refills = node.broker._replication.refills  # type: ignore[union-attr]

        async def watched(partition: Partition) -> None:
            members.append(in_sync(node))
            await whole(partition)

        whole = refills._empty
        refills._empty = watched
        flip(node, is_last=False)
        await until(lambda: replica(node).refills == 1)
        assert members
        assert node.id not in members[0]

    run(story)


def test_the_last_copy_is_never_emptied() -> None:
    async def story(world: World, cluster: Cluster) -> None:
        node = whose(world, cluster, leads=True)
        for other in world.nodes.values():
            if other is not node:
                other.kill()
        flip(node, is_last=False)
        before = seen(node)
        await until(lambda: replica(node).is_damaged)
        await asyncio.sleep(20)
        assert replica(node).refills == 0
        assert seen(node) == before

    run(story)


def test_without_its_setting_a_damaged_copy_leaves_the_in_sync_replicas_and_keeps_its_bytes() -> (
    None
):
    async def story(world: World, cluster: Cluster) -> None:
        node = whose(world, cluster, leads=False)
        flip(node, is_last=False)
        before = seen(node)
        await until(lambda: node.id not in in_sync(node))
        await asyncio.sleep(20)
        assert replica(node).refills == 0
        assert seen(node) == before
        assert await read(cluster, ORDERS) == VALUES

    run(story, KEPT)
