"""Three nodes elect a controller and share the metadata log, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.control import metadata_fetcher, snapshot_fetch
from ottla.broker.control.metadata import BrokersChanged
from ottla.broker.control.quorum_peers import QuorumPeers
from ottla.broker.main import Broker
from ottla.broker.storage.disk import RealDisk
from ottla.client.connection import Connection
from ottla.client.failures import ClientFailed, ConnectionLost
from ottla.client.settings import ClientSettings
from ottla.config import BrokerConfig
from ottla.errors import NotController
from ottla.log.directory import DataDirectory, Identity
from ottla.machine import Decision
from ottla.quorum.node import LogEnd
from ottla.testing.disks import FaultyDisk
from ottla.types import METADATA_TOPIC, NODE_SOFTWARE, Offset
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
)
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.metadata_records import ConfigRecord
from ottla.wire.messages.vote import VotePartition, VoteRequest, VoteResponse, VoteTopic

WITHIN_S = 60.0
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"


class SlowVotes(FaultyDisk):
    """Holds back what a voter must remember, as long as a test likes."""

    def __init__(self) -> None:
        super().__init__(RealDisk())
        self.is_free = threading.Event()
        self.is_free.set()
        self.is_asked = threading.Event()

    def write_file(self, path: str, data: bytes) -> None:
        if path.endswith("quorum-state"):
            self.is_asked.set()
            assert self.is_free.wait(WITHIN_S)
        super().write_file(path, data)


class Node(Broker):
    @property
    def quorum(self):
        return self._quorum

    @property
    def controller(self):
        return self._controller

    @property
    def metadata(self):
        return self._metadata

    async def die(self) -> None:
        """As by kill -9, as far as the others can tell: no word of farewell."""
        self._membership.vanish()
        self._quorum.close()
        for door in self._doors:
            door.close()
        await self._connections.stop(0)


class Nodes:
    def __init__(self, path, ports, settings) -> None:
        self._path = path
        self._settings = settings
        self._ports = ports
        self.running: dict[int, Node] = {}
        self.disks = {node_id: SlowVotes() for node_id in ports}

    def new(self, node_id: int) -> Node:
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in self._ports.items())
        config = BrokerConfig.parse(
            {
                "node.id": str(node_id),
                "log.dirs": str(self._path / f"node-{node_id}"),
                "listeners": f"127.0.0.1:{self._ports[node_id]}",
                "http.listener": "",
                "controller.quorum.voters": voters,
                # As often a log that is fenced after a failed sync is opened again.
                "log.flush.offset.checkpoint.interval.ms": "500",
                **self._settings,
            }
        )
        home = self._path / f"node-{node_id}"
        if not home.exists():
            home.mkdir()
            identity = Identity(CLUSTER_ID, node_id, bytes([node_id]) * 16)
            DataDirectory(RealDisk(), str(home)).write_identity(identity)
        node = self.running[node_id] = Node(config, self.disks[node_id])
        return node

    async def start(self, *node_ids: int) -> None:
        nodes = [self.new(node_id) for node_id in node_ids]
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(node.start() for node in nodes))

    async def stop(self, node_id: int) -> None:
        await self.running.pop(node_id).stop()

    def saved_state(self, node_id: int) -> dict[str, Any]:
        file = self._path / f"node-{node_id}" / f"{METADATA_TOPIC}-0" / "quorum-state"
        state: dict[str, Any] = json.loads(file.read_text())
        return state

    async def leader(self) -> Node:
        """Once all agree on one that is running and decides."""

        def agreed() -> bool:
            nodes = self.running.values()
            known = {(node.quorum.leader_id, node.quorum.leader_epoch) for node in nodes}
            return len(known) == 1 and sum(node.quorum.is_leader for node in nodes) == 1

        await until(agreed)
        return next(node for node in self.running.values() if node.quorum.is_leader)

    def followers(self) -> list[Node]:
        return [node for node in self.running.values() if not node.quorum.is_leader]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not is_so():  # noqa: ASYNC110 - of several loops' worth of state nobody tells
            await asyncio.sleep(0.005)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@asynccontextmanager
async def three_nodes(path, settings: dict[str, str] | None = None) -> AsyncIterator[Nodes]:
    nodes = Nodes(path, dict(zip((1, 2, 3), free_ports(3), strict=True)), settings or {})
    try:
        await nodes.start(1, 2, 3)
        yield nodes
    finally:
        for node_id in list(nodes.running):
            await nodes.stop(node_id)


def a_story(tell: Callable[[Nodes], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A test with three nodes of its own."""

    async def run(path: Path) -> None:
        async with three_nodes(path) as nodes:
            await tell(nodes)

    def test(tmp_path: Path) -> None:
        asyncio.run(run(tmp_path))

    return test


def note(name: str, machine, now, ticket):
    """A decision that everybody can see."""
    record = ConfigRecord(2, f"topic-{name}", "retention.ms", "1")
    return Decision([record], [(ticket, name)])


def knows(node: Node, name: str) -> bool:
    return bool(node.metadata.image.topic_configs(f"topic-{name}"))


def all_know(nodes: Nodes, name: str) -> bool:
    return all(knows(node, name) for node in nodes.running.values())


async def decide(node: Node, name: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        await node.controller.submit(partial(note, name))


@a_story
async def test_three_nodes_have_one_controller_and_the_same_metadata(nodes):
    leader = await nodes.leader()
    await decide(leader, "a")
    await until(lambda: all(knows(node, "a") for node in nodes.running.values()))
    for follower in nodes.followers():
        refused = follower.controller.submit(partial(note, "b"))
        assert isinstance(refused.exception(), NotController)
        assert follower.quorum.address_of(leader.quorum.node_id) == (
            leader.quorum.address_of(leader.quorum.node_id)
        )


@a_story
async def test_a_dead_controller_is_replaced(nodes):
    first = await nodes.leader()
    epoch = first.quorum.leader_epoch
    await decide(first, "a")
    died = nodes.running.pop(first.quorum.node_id)
    await died.die()
    second = await nodes.leader()
    assert second.quorum.leader_epoch > epoch
    await until(lambda: second.controller.is_deciding)
    await decide(second, "b")
    await until(lambda: all(knows(node, "b") for node in nodes.running.values()))
    assert all(knows(node, "a") for node in nodes.running.values())
    await died.stop()


@a_story
async def test_a_controller_that_stops_hands_over(nodes):
    first = await nodes.leader()
    await nodes.stop(first.quorum.node_id)
    second = await nodes.leader()
    await until(lambda: second.controller.is_deciding)
    await decide(second, "a")


@a_story
async def test_without_a_majority_nothing_is_committed(nodes):
    leader = await nodes.leader()
    for follower in nodes.followers():
        del nodes.running[follower.quorum.node_id]
        await follower.stop()
    decided = leader.controller.submit(partial(note, "a"))
    await until(decided.done)
    assert isinstance(decided.exception(), NotController)
    assert not knows(leader, "a")
    assert not leader.quorum.is_leader


@a_story
async def test_a_node_that_was_away_catches_up_and_what_only_it_had_is_cut(nodes):
    first = await nodes.leader()
    node_id = first.quorum.node_id
    for follower in nodes.followers():
        await nodes.stop(follower.quorum.node_id)
    lost = first.controller.submit(partial(note, "lost"))
    await until(lambda: first.quorum.partition.is_all_synced)
    ends_at = first.quorum.partition.end_offset
    await nodes.stop(node_id)
    assert isinstance(lost.exception(), Exception)
    others = [each for each in (1, 2, 3) if each != node_id]
    await nodes.start(*others)
    second = await nodes.leader()
    await until(lambda: second.controller.is_deciding)
    for name in ("a", "b", "c"):
        await decide(second, name)
    await nodes.start(node_id)
    back = nodes.running[node_id]
    await until(lambda: knows(back, "c"))
    assert not knows(back, "lost")
    assert second.quorum.partition.end_offset >= ends_at
    partitions = [node.quorum.partition for node in nodes.running.values()]
    await until(lambda: len({each.end_offset for each in partitions}) == 1)
    logs = {
        bytes(each.read_uncommitted(0, 1 << 20, cached_only=False) or b"") for each in partitions
    }
    assert len(logs) == 1


@a_story
async def test_a_vote_is_on_disk_before_anybody_hears_of_it(nodes):
    await nodes.leader()
    asked, candidate = nodes.followers()
    node_id, disk = asked.quorum.node_id, nodes.disks[asked.quorum.node_id]
    address = asked.quorum.address_of(node_id)
    settings = ClientSettings((address,), "candidate", NODE_SOFTWARE)
    connection = await Connection.open(address, settings)
    epoch, last = asked.quorum.leader_epoch + 1, asked.quorum.log_end()
    wanted = VotePartition(
        replica_epoch=epoch,
        replica_id=candidate.quorum.node_id,
        last_offset_epoch=last.last_epoch,
        last_offset=last.end_offset,
    )
    request = VoteRequest(CLUSTER_ID, node_id, [VoteTopic(METADATA_TOPIC, [wanted])])
    disk.is_asked.clear()
    disk.is_free.clear()
    reply = asyncio.create_task(connection.ask(request, VoteResponse))
    await until(disk.is_asked.is_set)
    await asyncio.wait([reply], timeout=0.3)
    was_told_early = reply.done()
    disk.is_free.set()
    result = (await reply).topics[0].partitions[0]
    connection.abort("done")
    assert not was_told_early
    assert result.vote_granted
    assert result.leader_epoch == epoch
    saved = nodes.saved_state(node_id)
    assert saved["leaderEpoch"] >= epoch


@a_story
async def test_the_quorum_is_described_by_its_leader(nodes):
    leader = await nodes.leader()
    await decide(leader, "a")
    address = leader.quorum.address_of(leader.quorum.node_id)
    settings = ClientSettings((address,))
    connection = await Connection.open(address, settings)
    request = DescribeQuorumRequest(
        [DescribeQuorumTopic(METADATA_TOPIC, [DescribeQuorumPartition(0)])]
    )

    async def described():
        reply = await connection.ask(request, DescribeQuorumResponse)
        return reply, reply.topics[0].partitions[0]

    reply, seen = await described()
    while {voter.log_end_offset for voter in seen.current_voters} != {seen.high_watermark}:
        await asyncio.sleep(0.01)
        reply, seen = await described()
    connection.abort("done")
    assert seen.leader_id == leader.quorum.node_id
    assert seen.leader_epoch == leader.quorum.leader_epoch
    assert [voter.replica_id for voter in seen.current_voters] == [1, 2, 3]
    now_ms = time.time() * 1000
    assert all(now_ms - 20_000 < v.last_caught_up_timestamp for v in seen.current_voters)
    assert [node.node_id for node in reply.nodes] == [1, 2, 3]
    assert seen.observers == []


def test_a_change_is_everywhere_without_a_follower_asking_again(tmp_path, monkeypatch):
    """A fetch that waits is woken by what is written and by its commit, even where the leader's own
    disk takes its time: here a follower would not ask again while this test runs.
    """
    monkeypatch.setattr(metadata_fetcher, "WAIT_MS_MAX", 600_000)

    async def story():
        async with three_nodes(
            tmp_path, {"controller.quorum.fetch.timeout.ms": "1200000"}
        ) as nodes:
            leader = await nodes.leader()
            await decide(leader, "a")
            await until(lambda: all_know(nodes, "a"))
            disk = nodes.disks[leader.quorum.node_id]
            disk.hold("sync", under=leader.quorum.partition._log.segments[-1].handle.path)
            leader.controller.submit(partial(note, "b"))
            await until(lambda: all(knows(node, "b") for node in nodes.followers()))
            assert not knows(leader, "b")
            disk.heal()
            await until(lambda: all_know(nodes, "b"))

    asyncio.run(story())


@a_story
async def test_a_fetch_of_what_is_not_in_memory_waits_in_a_thread(nodes):
    leader = await nodes.leader()
    disk, directory = nodes.disks[leader.quorum.node_id], leader.quorum.partition.directory
    disk.cool(under=directory)
    disk.hold("read", under=directory)
    # Held on the loop, it would be held for ever.
    rescue = threading.Timer(WITHIN_S, disk.heal)
    rescue.start()
    try:
        connection, request = await a_fetch_from_the_start(leader, nodes.followers()[0])
        reply = asyncio.create_task(connection.ask(request, FetchResponse))
        await until(lambda: disk.is_holding)
        assert not reply.done()
        assert rescue.is_alive(), "the loop has waited for the disk"
        disk.heal()
        records = (await reply).responses[0].partitions[0].records
        connection.abort("done")
    finally:
        rescue.cancel()
        disk.heal()
    assert records


def has_parked(leader: Node, count: int) -> bool:
    """Whether so many followers wait at the leader for more."""
    return len(leader.quorum.partition.waiters.replica_fetches) >= count


async def a_fetch_from_the_start(leader: Node, sender: Node) -> tuple[Connection, FetchRequest]:
    address = leader.quorum.address_of(leader.quorum.node_id)
    connection = await Connection.open(address, ClientSettings((address,), "cold", NODE_SOFTWARE))
    nothing = LogEnd(Offset(0), 0, Offset(0))
    request = sender.quorum._fetcher._request(nothing, leader.quorum.leader_epoch, 0)
    return connection, request


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_new_controller_that_cannot_write_gives_up_the_lead(tmp_path, operation):
    @a_story
    async def story(nodes):
        while not await a_poor_one_has_led(nodes, operation):
            await until(lambda: any_decides(nodes))
        await until(lambda: any_decides(nodes))
        leader = next(node for node in nodes.running.values() if node.controller.is_deciding)
        await decide(leader, "a")
        await until(lambda: all(knows(node, "a") for node in nodes.running.values()))

    story(tmp_path)


async def a_poor_one_has_led(nodes: Nodes, operation: str) -> bool:
    """The lead goes to a node that cannot write, unless another one is quicker."""
    leader = await nodes.leader()
    await until(lambda: all_have_all(nodes, leader))
    # Of equals the one with the lowest id is the first successor.
    poor = min(nodes.followers(), key=lambda node: node.quorum.node_id)
    node_id, leaders = poor.quorum.node_id, []
    poor.quorum.on_leader_change(partial(note_leader, poor, leaders))
    log = poor.quorum.partition._log.segments[-1].handle.path
    nodes.disks[node_id].fail(operation, errno.ENOSPC, under=log)
    await leader.quorum.resign()
    await until(lambda: node_id in leaders or any_decides(nodes))
    if node_id in leaders:
        await until(lambda: leaders[-1] != node_id)
    nodes.disks[node_id].heal()
    return node_id in leaders


def note_leader(node: Node, leaders: list[int]) -> None:
    leaders.append(node.quorum.leader_id)


def all_have_all(nodes: Nodes, leader: Node) -> bool:
    """Whether nothing is under way any more, and the leader knows."""
    seen = leader.quorum.describe()
    ends = {voter.log_end_offset for voter in seen.voters}
    ends |= {node.quorum.partition.high_watermark.offset for node in nodes.running.values()}
    return ends == {leader.quorum.partition.end_offset}


def any_decides(nodes: Nodes) -> bool:
    return any(node.controller.is_deciding for node in nodes.running.values())


EAGER = {"metadata.log.max.record.bytes.between.snapshots": "500"}


async def many_changes(nodes: Nodes, prefix: str) -> None:
    """More than two snapshots' worth, so that the log begins later than at 0."""
    leader = await nodes.leader()
    await until(lambda: leader.controller.is_deciding)
    begins_at, number = leader.quorum.partition.start_offset, 0
    while leader.quorum.partition.start_offset <= begins_at or number < 10:
        number += 1
        await decide(leader, f"{prefix}{number}")
        for _ in range(20):
            await leader.controller.submit(partial(note, f"{prefix}filler"))
        await leader._snapshots.run()


def test_a_node_whose_log_ends_before_the_leaders_begins_goes_on_from_its_snapshot(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(snapshot_fetch, "PIECE_BYTES_MAX", 256)

    async def story():
        async with three_nodes(tmp_path, EAGER) as nodes:
            await decide(await nodes.leader(), "first")
            away = nodes.followers()[0].quorum.node_id
            await until(lambda: all_know(nodes, "first"))
            await nodes.stop(away)
            await many_changes(nodes, "x")
            await nodes.start(away)
            back = nodes.running[away]
            leader = await nodes.leader()
            assert back.quorum.partition.start_offset > 0
            await decide(leader, "last")
            await until(lambda: all_know(nodes, "last"))
            assert knows(back, "first")
            assert back.metadata.image == leader.metadata.image
            # And after another start of its own.
            await nodes.stop(away)
            await nodes.start(away)
            assert nodes.running[away].metadata.image == leader.metadata.image

    asyncio.run(story())


def test_a_running_node_takes_a_snapshot_and_hears_what_it_changes(tmp_path):
    """It was cut off, not stopped: those who listen are told of what has changed meanwhile."""

    async def story():
        async with three_nodes(tmp_path, EAGER) as nodes:
            leader = await nodes.leader()
            await decide(leader, "first")
            await until(lambda: all_know(nodes, "first"))
            cut_off = nodes.followers()[0]
            heard = []
            cut_off.metadata.on_change(heard.extend)
            fetch = cut_off.quorum._peers.fetch
            cut_off.quorum._peers.fetch = no_fetch
            await until(lambda: not has_parked(leader, 2))
            await many_changes(nodes, "y")
            ends_at = cut_off.quorum.partition.end_offset
            assert ends_at < (await nodes.leader()).quorum.partition.start_offset
            cut_off.quorum._peers.fetch = fetch
            leader = await nodes.leader()
            await decide(leader, "last")
            await until(lambda: all_know(nodes, "last"))
            assert cut_off.quorum.partition.start_offset > ends_at
            assert cut_off.metadata.image == leader.metadata.image
            assert any(isinstance(change, BrokersChanged) for change in heard)

    asyncio.run(story())


async def no_fetch(*_args):
    await asyncio.sleep(0.02)
    raise ClientFailed("it is cut off")


async def newer_snapshots_are_taken(nodes: Nodes, _away: int) -> None:
    await many_changes(nodes, "z")


async def the_leader_resigns(nodes: Nodes, away: int) -> None:
    leader = next(node for node in nodes.running.values() if node.quorum.is_leader)
    await leader.quorum.resign()


async def a_piece_is_lost(nodes: Nodes, away: int) -> None:
    raise ConnectionLost("in the middle of a snapshot")


@pytest.mark.parametrize(
    "trouble", [newer_snapshots_are_taken, the_leader_resigns, a_piece_is_lost]
)
def test_trouble_in_the_middle_of_a_snapshot_costs_no_more_than_a_new_beginning(
    tmp_path, monkeypatch, trouble
):
    monkeypatch.setattr(snapshot_fetch, "PIECE_BYTES_MAX", 256)
    asked: list[tuple[int, int]] = []
    honest = QuorumPeers.fetch_snapshot

    async def story():
        async with three_nodes(tmp_path, EAGER) as nodes:
            away = (await nodes.leader()) and nodes.followers()[0].quorum.node_id
            await nodes.stop(away)
            await many_changes(nodes, "x")

            async def troubled(peers, node_id, request):
                piece = request.topics[0].partitions[0]
                asked.append((piece.current_leader_epoch, piece.position))
                reply = await honest(peers, node_id, request)
                if len(asked) == 3:
                    await trouble(nodes, away)
                return reply

            monkeypatch.setattr(QuorumPeers, "fetch_snapshot", troubled)
            await nodes.start(away)
            leader = await nodes.leader()
            await until(lambda: leader.controller.is_deciding)
            await decide(leader, "last")
            await until(lambda: all_know(nodes, "last"))
            assert nodes.running[away].metadata.image == leader.metadata.image

    asyncio.run(story())
    if trouble is a_piece_is_lost and asked[3][0] == asked[2][0]:
        assert asked[3] == asked[2]


def test_a_node_that_dies_in_the_middle_of_a_snapshot_begins_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_fetch, "PIECE_BYTES_MAX", 256)
    honest, asked = QuorumPeers.fetch_snapshot, asyncio.Event()

    async def stuck(peers, node_id, request):
        if request.topics[0].partitions[0].position:
            asked.set()
            await asyncio.Event().wait()
        return await honest(peers, node_id, request)

    async def story():
        async with three_nodes(tmp_path, EAGER) as nodes:
            away = (await nodes.leader()) and nodes.followers()[0].quorum.node_id
            await nodes.stop(away)
            await many_changes(nodes, "x")
            home = tmp_path / f"node-{away}" / f"{METADATA_TOPIC}-0"
            before = sorted(home.glob("*.checkpoint"))
            monkeypatch.setattr(QuorumPeers, "fetch_snapshot", stuck)
            dying = nodes.new(away)
            starting = asyncio.create_task(dying.start())
            await asked.wait()
            starting.cancel()
            dying.quorum.close()
            for door in dying._doors:
                door.close()
            dying._stores.close()
            assert list(home.glob("*.part"))
            assert sorted(home.glob("*.checkpoint")) == before
            monkeypatch.setattr(QuorumPeers, "fetch_snapshot", honest)
            await nodes.start(away)
            leader = await nodes.leader()
            await decide(leader, "last")
            await until(lambda: all_know(nodes, "last"))
            assert nodes.running[away].metadata.image == leader.metadata.image

    asyncio.run(story())


def test_a_voter_with_an_emptied_disk_votes_again_only_when_it_has_caught_up(tmp_path):
    async def story():
        async with three_nodes(tmp_path) as nodes:
            leader = await nodes.leader()
            await decide(leader, "a")
            wiped, other = (node.quorum.node_id for node in nodes.followers())
            await nodes.stop(wiped)
            shutil.rmtree(tmp_path / f"node-{wiped}")
            await nodes.stop(other)
            await nodes.stop(leader.quorum.node_id)
            # The one with an empty disk and another one are a majority, and may decide nothing.
            starting = [asyncio.create_task(nodes.start(each)) for each in (wiped, other)]
            await until(lambda: was_asked(nodes, wiped))
            assert nodes.saved_state(wiped)["ottlaIsBlank"]
            assert not any(node.quorum.is_leader for node in nodes.running.values())
            await nodes.start(leader.quorum.node_id)
            await asyncio.gather(*starting)
            leader = await nodes.leader()
            assert leader.quorum.node_id != wiped
            await decide(leader, "b")
            await until(lambda: all_know(nodes, "b"))
            await until(lambda: "ottlaIsBlank" not in nodes.saved_state(wiped))

    asyncio.run(story())


def was_asked(nodes: Nodes, node_id: int) -> bool:
    """Whether another node has asked it for its vote."""
    node = nodes.running.get(node_id)
    router = None if node is None else getattr(node, "_services", None)
    return router is not None and router.metrics.api(VoteRequest.API_KEY, "Vote").count >= 3
