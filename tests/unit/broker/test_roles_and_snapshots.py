"""A node that is given the lead of the metadata, or loses it, while it reads its snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.control.metadata import MetadataCache
from ottla.broker.control.runtime import Runtime
from ottla.broker.control.snapshots import MetadataSnapshots
from ottla.cluster import snapshot_file
from ottla.cluster.controller import Controller
from ottla.cluster.snapshot import copy_of
from ottla.errors import NotController
from unit.broker.metadata_node import DIRECTORY, Node, SeededRandom, live, new_disk

# Reading the snapshot and the log after it takes fewer.
TURNS_MAX = 16


@pytest.fixture(autouse=True)
def _snapshots_of_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "BATCH_RECORDS_MAX", 2)


class OneTurnEach:
    """An executor whose work takes one turn of the loop."""

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return work(*arguments)


class Reader:
    """As a start has it: nothing is told yet, a snapshot is there and a log after it."""

    def __init__(self, node: Node) -> None:
        executor: Any = OneTurnEach()
        snapshots = MetadataSnapshots(node.clock, executor, node.disk, DIRECTORY, node.config)
        self.cache = MetadataCache(node.config)
        self.runtime = Runtime(
            asyncio.get_running_loop(),
            node.clock,
            executor,
            node.partition,
            Controller(node.config, SeededRandom(1)),
            self.cache.committed,
            snapshots.newest,
            on_snapshot=self.cache.replaced,
        )

    def told_topics(self) -> list[str]:
        return sorted(self.cache.image.topics_by_name)

    def knows_what_it_tells(self) -> bool:
        told, folded = self.cache.image, self.runtime.machine.image
        return list(copy_of(told).records()) == list(copy_of(folded).records())


async def a_log_with_a_snapshot() -> Node:
    """In which a topic goes after the snapshot, and another comes."""
    node = Node(new_disk(), {}, clean=True)
    await node.start()
    await node.register()
    await node.create("gone")
    await node.create("stays")
    await node.snapshots.take()
    await node.delete("gone")
    await node.create("new")
    return node


@pytest.mark.parametrize("turns", range(TURNS_MAX))
def test_who_is_given_the_lead_while_it_reads_a_snapshot_tells_of_it_once(turns: int) -> None:
    async def story() -> None:
        node = await a_log_with_a_snapshot()
        reader = Reader(node)
        telling = reader.runtime.tell_committed()
        assert telling is not None
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.gather(telling, reader.runtime.start_leading())
        assert reader.told_topics() == ["new", "stays"]
        assert reader.knows_what_it_tells()
        node.stop()

    live(story)


@pytest.mark.parametrize("turns", range(TURNS_MAX))
def test_who_loses_the_lead_while_it_reads_a_snapshot_tells_of_it_as_a_follower(
    turns: int,
) -> None:
    async def story() -> None:
        node = await a_log_with_a_snapshot()
        reader = Reader(node)
        loading = reader.runtime.start_leading()
        for _ in range(turns):
            await asyncio.sleep(0)
        reader.runtime.stop_leading(NotController("another node is the controller now"))
        await asyncio.wait((loading,))
        telling = reader.runtime.tell_committed()
        if telling is not None:
            await telling
        assert reader.told_topics() == ["new", "stays"]
        node.stop()

    live(story)
