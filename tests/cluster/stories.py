"""What stories about clusters under load have in common: topics, loads, who leads what."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, PartitionMetadata

from cluster.steady_load import CLIENTS, PARTITIONS, SteadyLoad, all_flow
from ottla.testing import Broker, Cluster
from ottla.testing.broker import Setting
from ottla.testing.ports import free_ports
from scenarios.polling import until
from scenarios.test_cluster import controller_of

PATIENCE_S = 120.0
NO_LEADER = -1
SAFE = {"min.insync.replicas": "2"}


class ClusterOf(Cluster):
    """Of brokers that a story has made itself."""

    def __init__(self, nodes: Mapping[int, Broker]) -> None:
        super().__init__(nodes=len(nodes))
        self.nodes = dict(nodes)

    def start(self) -> None:
        self._on_all([broker.start for broker in self.nodes.values()])


def cluster_with(
    home: Path, node: int, log_dirs: Sequence[Path], metadata_dir: Path | None = None
) -> ClusterOf:
    """Three nodes, of which this one has its data there."""
    ports = dict(enumerate(free_ports(3), start=1))
    voters = ",".join(f"{id}@127.0.0.1:{port}" for id, port in ports.items())
    cluster_id = base64.urlsafe_b64encode(b"\x01" + secrets.token_bytes(15)).decode()[:22]
    nodes = {}
    for id, port in ports.items():
        settings: dict[str, Setting] = {"node.id": id, "controller.quorum.voters": voters}
        settings["log.dirs"] = log_dirs if id == node else [home / f"node-{id}"]
        if id == node and metadata_dir is not None:
            settings["metadata.log.dir"] = metadata_dir
        nodes[id] = Broker(settings, port=port, cluster_id=cluster_id, ready_timeout_s=90.0)
    return ClusterOf(nodes)


def move_controller(cluster: Cluster, is_right: Callable[[int], bool]) -> int:
    """Controllers are restarted until the right node is it."""
    while not is_right(leading := controller_of(cluster)):
        cluster[leading].restart()
    return leading


@contextmanager
def under_load(cluster: Cluster, clients: Sequence[str] = CLIENTS) -> Iterator[list[SteadyLoad]]:
    """Each client sends to a topic of its own; all of them are acknowledged by now."""
    loads = [SteadyLoad(client, cluster.bootstrap) for client in clients]
    for load in loads:
        cluster.create_topic(load.topic, PARTITIONS, SAFE, replication_factor=3)
    with ExitStack() as stack:
        await_in_sync(cluster, loads)
        for load in loads:
            stack.enter_context(load)
        all_flow(loads)
        yield loads


def partitions_by(cluster: Cluster, node: int, topic: str) -> list[PartitionMetadata]:
    """As this node says: one that is cut off says what it last heard."""
    admin = AdminClient({"bootstrap.servers": cluster[node].bootstrap, "log_level": 0})
    return list(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions.values())


def await_replaced(cluster: Cluster, loads: Sequence[SteadyLoad], node: int) -> None:
    """Until others say that it leads nothing of what the loads send to."""
    witness = next(each for each in cluster.nodes if each != node)
    for load in loads:
        until(
            lambda topic=load.topic: all(
                each.leader not in (node, NO_LEADER)
                for each in partitions_by(cluster, witness, topic)
            ),
            f"nobody has taken over from node {node}",
            PATIENCE_S,
        )


def await_in_sync(cluster: Cluster, loads: Sequence[SteadyLoad]) -> None:
    """Until all nodes say that all are."""
    for load in loads:
        until(
            lambda topic=load.topic: all(
                each.leader != NO_LEADER and len(each.isrs) == len(each.replicas)
                for node in cluster.nodes
                for each in partitions_by(cluster, node, topic)
            ),
            "not all are in sync again",
            PATIENCE_S,
        )
