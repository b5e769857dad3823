"""Machines of a world: what outlives a process, and what does not outlive the power."""

from __future__ import annotations

import asyncio

import pytest

from ottla.testing.sim.node import DATA_DIR, NotRunning
from ottla.testing.sim.world import World

FILE = f"{DATA_DIR}/file"


def write(world: World, *, is_synced: bool) -> None:
    disk = world.nodes[1].disk
    file = disk.open(FILE, create=True)
    file.write([b"x" * 4096], 0)
    if is_synced:
        file.sync()
        disk.sync_directory(DATA_DIR)


def test_a_killed_process_leaves_what_it_has_written() -> None:
    with World(seed=1, nodes=1) as world:
        world.run(world.nodes[1].start(), 60)
        write(world, is_synced=False)
        world.nodes[1].kill()
        assert not world.nodes[1].is_running
        assert world.nodes[1].disk.contents(FILE) == b"x" * 4096


def test_a_power_cut_takes_what_was_not_synced_and_nothing_else() -> None:
    lost = 0
    for seed in range(10):
        with World(seed, nodes=1) as world:
            write(world, is_synced=True)
            world.nodes[1].power_cut()
            assert world.nodes[1].disk.contents(FILE) == b"x" * 4096
        with World(seed, nodes=1) as world:
            write(world, is_synced=False)
            world.nodes[1].power_cut()
            lost += world.nodes[1].disk.contents(FILE) != b"x" * 4096
    assert lost


def test_power_may_fail_in_the_middle_of_a_start() -> None:
    for operations in (0, 3, 10):
        with World(seed=1, nodes=1) as world:
            node = world.nodes[1]
            node.power_cut(in_operations=operations)
            with pytest.raises(NotRunning):
                world.run(node.start(), 60)
            assert not node.is_running
            world.run(node.start(), 60)
            assert node.incarnation == 2
            assert not world.unhandled


def test_each_start_is_a_new_incarnation_and_a_stop_is_clean() -> None:
    async def story(world: World) -> None:
        node = world.nodes[1]
        await node.start()
        first = node.broker
        await node.stop()
        assert node.broker is None
        await node.start()
        assert node.broker is not first
        assert node.incarnation == 2

    with World(seed=1, nodes=1) as world:
        world.run(story(world), 60)
        assert not world.unhandled


def test_work_on_a_client_host_is_awaited_from_another_and_ends_with_its_host() -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(number)
        return 2 * number

    async def fail() -> None:
        raise ValueError("no")

    async def story(world: World) -> None:
        client = world.client("client")
        assert await client.spawn(double(3)) == 6
        with pytest.raises(ValueError, match="no"):
            await client.spawn(fail())
        endless = client.spawn(double(10**6))
        await asyncio.sleep(1)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        dropped = client.spawn(double(1))
        await asyncio.sleep(0.5)
        client.kill()
        await asyncio.sleep(5)
        assert not dropped.done()
        assert await client.spawn(double(1)) == 2

    with World(seed=1, nodes=1) as world:
        world.run(story(world), 10**4)


def test_a_world_says_when_its_time_is_over() -> None:
    with World(seed=1, nodes=1) as world:
        with pytest.raises(TimeoutError):
            world.run(asyncio.sleep(100), limit_s=10)
        assert world.now_s == 10


def test_a_bit_may_flip_in_a_segment_only() -> None:
    with World(seed=1, nodes=1) as world:
        assert world.nodes[1].flip_bit(world.random("flips")) is None
        world.run(world.nodes[1].start(), 60)
        path = world.nodes[1].flip_bit(world.random("flips"))
        assert path is not None
        assert path.endswith(".log")
