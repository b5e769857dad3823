"""Over a real network: who is cut off from the other nodes stops serving before another begins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.namespaces import CLIENTS, REJECT, WiredCluster, Wires, inside
from ottla.errors import ErrorCode
from ottla.testing import Cluster
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from raw_client import RawClient
from scenarios.polling import until
from scenarios.test_cluster import all_in_sync, controller_of, leaders_of

NODES = 3
PATIENCE_S = 90.0
SETTINGS = {
    "broker.session.timeout.ms": 6_000,
    "broker.heartbeat.interval.ms": 500,
    # A firewall that rejects must not be taken for a process that is gone.
    "broker.refusal.fences": "false",
}


@pytest.fixture
def wires() -> Iterator[Wires]:
    with Wires(nodes=NODES) as made, inside(made.namespace(CLIENTS)):
        yield made


@pytest.fixture
def cluster(wires: Wires, tmp_path: Path) -> Iterator[Cluster]:
    with WiredCluster(wires, tmp_path, SETTINGS) as started:
        try:
            yield started
        finally:
            wires.heal()


def leads(client: RawClient, partition: int) -> bool:
    """Whether this node answers as the leader when it is asked for the end of the log."""
    asked = ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="orders", partitions=[asked])])
    reply = client.ask(request, 7).topics[0].partitions[0]
    # The second is said by a leader that has not heard of its followers yet.
    return reply.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE)


@pytest.mark.parametrize(
    ("verdict", "is_controller"),
    [("drop", False), (REJECT, True)],
    ids=["a broker is not heard", "the controller is rejected"],
)
def test_a_leader_that_is_cut_off_from_the_nodes_stops_before_another_begins(
    verdict: str, is_controller: bool, wires: Wires, cluster: Cluster
) -> None:
    cluster.create_topic("orders", NODES, replication_factor=NODES)
    controller = controller_of(cluster)
    leaders = leaders_of(cluster, "orders")
    partition, victim = next(
        (partition, leader)
        for partition, leader in leaders.items()
        if (leader == controller) == is_controller
    )
    others = [node for node in cluster.nodes if node != victim]
    with ExitStack() as stack:
        old, *clients = [
            stack.enter_context(RawClient(cluster[node].bootstrap)) for node in (victim, *others)
        ]
        until(lambda: leads(old, partition), "it does not lead")
        wires.deafen(victim, *others, verdict=verdict)
        deadline = time.monotonic() + PATIENCE_S
        while not any(leads(client, partition) for client in clients):
            assert time.monotonic() < deadline, "nobody takes over"
        assert not leads(old, partition), "two lead at a time"
    wires.heal()
    until(lambda: all_in_sync(cluster, "orders"), "it is not in sync again", PATIENCE_S)
