"""Three real brokers in virtual time: what a cluster promises, and that a seed replays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ottla.client.cluster import Cluster
from ottla.testing.sim.world import World
from sim.worlds_kit import ORDERS, create_topic, digest_of, read, settings, write

TESTS = Path(__file__).parent.parent


async def a_leader_loses_its_power(world: World) -> None:
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


def test_what_was_acknowledged_outlives_the_power_of_its_leader() -> None:
    with World(seed=1) as world:
        world.run(a_leader_loses_its_power(world), limit_s=120)
        assert not world.unhandled


def test_a_seed_replays_byte_for_byte_and_another_does_not() -> None:
    assert digest_of(2, a_leader_loses_its_power) == digest_of(2, a_leader_loses_its_power)
    assert digest_of(2, a_leader_loses_its_power) != digest_of(3, a_leader_loses_its_power)


def test_a_seed_replays_in_another_process_with_other_hashes() -> None:
    ours = digest_of(4, a_leader_loses_its_power)
    program = (
        "from sim.worlds_kit import digest_of; from sim.test_worlds import *; "
        "print(digest_of(4, a_leader_loses_its_power))"
    )
    for hash_seed in ("1", "2"):
        path = os.pathsep.join((*sys.path, str(TESTS)))
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        told = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert told.stdout.strip() == ours
