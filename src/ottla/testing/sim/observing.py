"""What can be seen of the nodes of a simulated cluster from outside of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.storage.partition import Partition
from ottla.cluster.image import NOT_MOVING, ResourceType
from ottla.cluster.snapshot import copy_of
from ottla.testing.sim.checkers import FinalLog, Stored
from ottla.testing.sim.history import History, Lead, TopicState
from ottla.testing.sim.in_sync_watch import InSyncWatch
from ottla.types import METADATA_TOPIC, NO_NODE
from ottla.wire.records import BATCH_HEADER_BYTES, crc_matches, decode_records, read_header
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.broker.main import Broker
    from ottla.testing.sim.troubles import Calm
    from ottla.testing.sim.world import Node, World

READ_BYTES: Final = 1 << 20
# What happens within this time of a trouble may be its consequence.
CALM_S: Final = 6.0
_NAMED_NUMBER: Final = re.compile(r"<\w+\.\w+: (-?\d+)>")
METADATA_DIRECTORY: Final = f"{METADATA_TOPIC}-0"


class Reign(NamedTuple):
    leader: int
    epoch: int
    follower: int


class Observer:
    """Looks at all nodes now and then, and writes down what it sees."""

    def __init__(self, world: World, history: History, calm: Calm) -> None:
        self._world = world
        self._history = history
        self._calm = calm
        self._ready_s: dict[tuple[int, int], float] = {}
        self._reign: Reign | None = None
        # By node and incarnation, why its broker could not go on.
        self.given_up: dict[tuple[int, int], str] = {}
        # By node, incarnation and partition: one that has left and come back begins anew.
        self._high_watermarks: dict[tuple[int, int, str], tuple[Partition, int]] = {}
        self._in_sync = InSyncWatch(history)

    def look(self) -> None:
        for node in self._world.nodes.values():
            broker = node.broker
            if broker is not None and node.is_running:
                self._look_at(node, broker)
                if node.is_ready:
                    self._ready_s.setdefault((node.id, node.incarnation), self._world.now_s)
        self._look_at_quorum()
        self._in_sync.look(
            {n.id: n.broker for n in self._world.nodes.values() if n.broker is not None}
        )

    def _look_at_quorum(self) -> None:
        """Who leads the metadata log and is heard leads on: nobody else deposes it (KIP-996)."""
        before, self._reign = self._reign, self._find_reign()
        if before is None:
            return
        leader, follower = self._world.nodes[before.leader], self._world.nodes[before.follower]
        calm_s = self._world.now_s - self._calm.since_s(leader.id, follower.id)
        ready_s = [self._ready_s.get((n.id, n.incarnation)) for n in (leader, follower)]
        if calm_s < CALM_S or any(
            at_s is None or self._world.now_s - at_s < CALM_S for at_s in ready_s
        ):
            return
        assert leader.broker is not None
        quorum = leader.broker._quorum
        if quorum.is_leader and quorum.leader_epoch == before.epoch:
            return
        if not self._vote_still(leader, follower):
            # Who loses its vote loses the lead; and who hears it may not be enough any more.
            return
        self._history.complain(
            f"node {leader.id} led the metadata log in epoch {before.epoch}, node "
            f"{follower.id} heard it all the time, and it was deposed"
        )

    def _vote_still(self, *nodes: Node) -> bool:
        """By what each of them knows of the voters, committed or not."""
        ids = {node.id for node in nodes}
        brokers = [node.broker for node in nodes]
        return all(broker is not None and ids <= broker._quorum.voter_ids for broker in brokers)

    def _find_reign(self) -> Reign | None:
        """A leader of the metadata log that another voter follows."""
        ready = [n for n in self._world.nodes.values() if n.is_ready and not n.is_paused]
        quorums = {n.id: n.broker._quorum for n in ready if n.broker is not None}
        for leader, quorum in quorums.items():
            for follower, other in quorums.items():
                view = (other.leader_id, other.leader_epoch)
                if (
                    quorum.is_leader
                    and follower != leader
                    and {leader, follower} <= quorum.voter_ids
                    and view
                    == (
                        leader,
                        quorum.leader_epoch,
                    )
                ):
                    return Reign(leader, quorum.leader_epoch, follower)
        return None

    def _look_at(self, node: Node, broker: Broker) -> None:
        given_up = getattr(broker, "given_up", None)
        if given_up is not None and given_up.done():
            self.given_up[node.id, node.incarnation] = given_up.result()
        quorum = getattr(broker, "_quorum", None)
        if quorum is not None and quorum.leader_id != NO_NODE:
            self._history.lead(Lead(METADATA_TOPIC, quorum.leader_epoch, quorum.leader_id))
        for partition in partitions_of(broker):
            name = _name(partition)
            if partition.is_leader:
                self._history.lead(Lead(name, partition.leader_epoch, node.id))
            # A copy that was damaged begins anew.
            key = (node.id, node.incarnation, f"{name} {partition.refills}")
            now = partition.high_watermark.offset
            known, before = self._high_watermarks.get(key, (partition, 0))
            if now < before and known is partition:
                self._history.complain(
                    f"{partition.name}: the high watermark of node {node.id} went from {before} "
                    f"to {now}"
                )
            self._high_watermarks[key] = (partition, now)

    def look_at_disk(self, node: Node) -> None:
        """What is written now another replica may have: under one epoch an offset is one batch."""
        for path in node.disk.paths_seen():
            if path.endswith(".log"):
                self._look_at_log(node, path)

    def _look_at_log(self, node: Node, path: str) -> None:
        directory = path.rpartition("/")[0]
        name = directory.rpartition("/")[2]
        if name.endswith(("-delete", "-stray")):
            return
        if name != METADATA_DIRECTORY:
            topic_id = node.disk.contents(f"{directory}/partition.metadata")
            if not topic_id.startswith(b"version: 0\ntopic_id: "):
                return
            name = f"{name} {topic_id.split()[-1].decode()}"
        data, at = node.disk.contents(path), 0
        while len(data) - at >= BATCH_HEADER_BYTES:
            header = read_header(data, at)
            if header.magic != 2 or not BATCH_HEADER_BYTES <= header.size <= len(data) - at:
                return
            if not crc_matches(data, at, header):
                return
            self._history.see_batch(name, header.base_offset, header.leader_epoch, header.crc)
            at += header.size


def partitions_of(broker: Broker) -> list[Partition]:
    """All but the metadata's, and none of a broker that has not come so far."""
    return list(getattr(broker, "_partitions", ()))


def partitions_in_sync(node: Node) -> list[str]:
    """Those of which all replicas are in sync, and none is known to be damaged."""
    broker = node.broker
    metadata = getattr(broker, "_metadata", None)
    if broker is None or metadata is None:
        return []
    damaged = {str(each.name) for each in partitions_of(broker) if each.is_damaged}
    return sorted(
        f"{topic.name}-{index}"
        for topic in metadata.image.topics_by_name.values()
        for index, partition in topic.partitions.items()
        if set(partition.isr) == set(partition.replicas) and f"{topic.name}-{index}" not in damaged
    )


def final_logs(world: World) -> list[FinalLog]:
    """Of all nodes. Nothing is compacted here, so that even the groups' logs must be equal."""
    logs: list[FinalLog] = []
    for node in world.nodes.values():
        broker = node.broker
        if broker is None:
            continue
        logs += [
            _final_log(node.id, partition)
            for partition in (broker._controller.partition, *partitions_of(broker))
        ]
    return logs


def _final_log(node: int, partition: Partition) -> FinalLog:
    is_load = not partition.name.topic.startswith("__")
    batches, at = [], partition.start_offset
    while at < partition.end_offset:
        data = partition.read_uncommitted(at, READ_BYTES, cached_only=False)
        if not data:
            break
        for batch in _stored(bytes(data), with_values=is_load):
            batches.append(batch)
            at = batch.next_offset
    return FinalLog(
        node,
        partition.name,
        partition.start_offset,
        partition.high_watermark.offset,
        tuple(batches),
    )


def _stored(data: bytes, *, with_values: bool) -> Iterator[Stored]:
    at = 0
    while len(data) - at >= BATCH_HEADER_BYTES:
        header = read_header(data, at)
        if header.size > len(data) - at:
            return
        values: tuple[tuple[int, bytes], ...] = ()
        if with_values and header.count > 0:
            records = decode_records(data, at)
            values = tuple((record.offset, record.value or b"") for record in records)
        yield Stored(
            header.base_offset, header.next_offset, header.leader_epoch, header.crc, values
        )
        at += header.size


def metadata_facts(world: World) -> dict[int, list[str]]:
    """By node: its metadata as lines, in an order that does not depend on how it came to be."""
    return {
        node.id: sorted(map(_fact, copy_of(node.broker._metadata.image).records()))
        for node in world.nodes.values()
        if node.broker is not None
    }


def _fact(record: Message) -> str:
    """Numbers by name or not, depending on who has made the record."""
    return _NAMED_NUMBER.sub(r"\1", repr(record))


def topics_found(world: World) -> dict[str, TopicState]:
    """As the first node knows them."""
    broker = next(node.broker for node in world.nodes.values() if node.broker is not None)
    image = broker._metadata.image
    return {
        name: TopicState(
            len(topic.partitions),
            tuple(sorted(image.configs.get((ResourceType.TOPIC, name), {}).items())),
        )
        for name, topic in image.topics_by_name.items()
        if not name.startswith("__")
    }


def what_is_stuck(world: World, *, at_rest: bool = True) -> list[str]:
    """Why the cluster is not whole, a line each; nor `at_rest`, with nothing under way."""
    stuck = []
    for node in world.nodes.values():
        if not node.is_running or node.broker is None:
            stuck.append(f"node {node.id} has no process")
        elif not node.is_ready:
            stuck.append(f"node {node.id} does not come to the end of its start")
    if stuck:
        return stuck
    brokers = {n.id: n.broker for n in world.nodes.values() if n.broker is not None}
    stuck += _stuck_quorum(brokers, at_rest)
    for broker in brokers.values():
        stuck += _stuck_partitions(brokers, broker, at_rest)
    return stuck


def _stuck_quorum(brokers: dict[int, Broker], at_rest: bool) -> list[str]:
    views = {(b._quorum.leader_id, b._quorum.leader_epoch) for b in brokers.values()}
    if len(views) > 1 or next(iter(views))[0] == NO_NODE:
        told = ", ".join(
            f"{b._quorum.leader_id}@{b._quorum.leader_epoch}" for b in brokers.values()
        )
        return [f"the nodes do not agree on who leads the metadata: {told}"]
    ends = {node: b._controller.partition.high_watermark.offset for node, b in brokers.items()}
    if at_rest and len(set(ends.values())) > 1:
        return [f"the metadata is committed up to {ends}"]
    voters = {b._quorum.voters.keys for b in brokers.values()}
    if at_rest and len(voters) > 1:
        return [f"the nodes do not agree on who votes on the metadata: {sorted(voters)}"]
    fenced = [
        broker.id
        for b in brokers.values()
        for broker in b._metadata.image.brokers.values()
        if broker.is_fenced
    ]
    return [f"nodes {sorted(set(fenced))} are fenced"] if fenced else []


def _stuck_partitions(brokers: dict[int, Broker], broker: Broker, at_rest: bool) -> list[str]:
    """What this broker leads, and what it thinks nobody leads."""
    stuck = []
    here = {(p.name.topic, p.index): p for p in partitions_of(broker)}
    own = broker.config.node_id
    for topic in broker._metadata.image.topics_by_name.values():
        for index, image in topic.partitions.items():
            name = f"{topic.name}-{index}"
            if image.leader == NO_NODE:
                stuck.append(f"{name} has no leader, in sync are {list(image.isr)}")
                continue
            if image.moving != NOT_MOVING:
                stuck.append(f"{name} is being moved: {image.moving}")
            if set(image.isr) != set(image.replicas):
                stuck.append(f"{name}: in sync are {list(image.isr)} of {list(image.replicas)}")
            if own not in image.replicas:
                continue
            partition = here.get((topic.name, index))
            if partition is None:
                stuck.append(f"{name} is not on node {own}")
            elif partition.failure is not None or partition.is_offline:
                stuck.append(f"{name} on node {own} has failed: {partition.failure}")
            elif partition.is_leader != (image.leader == own):
                stuck.append(f"{name}: node {own} does not know its role")
            elif at_rest:
                stuck += _behind(brokers, partition, image.leader, own)
    return stuck


def _behind(brokers: dict[int, Broker], partition: Partition, leader: int, own: int) -> list[str]:
    end, high_watermark = partition.end_offset, partition.high_watermark.offset
    if high_watermark != end:
        return [f"{partition.name} on node {own} ends at {end}, committed is {high_watermark}"]
    if leader == own:
        return []
    led = brokers[leader]._partitions.in_topic(partition.name.topic) or {}
    other = led.get(partition.index)
    if other is None or other.end_offset == end:
        return []
    return [
        f"{partition.name} on node {own} ends at {end}, on its leader {leader} at "
        f"{other.end_offset}"
    ]


def _name(partition: Partition) -> str:
    return f"{partition.name} {partition.topic_id.hex()[:8]}"
