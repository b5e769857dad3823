"""Three nodes grow to five and shrink to three under load, with two kills on the way.

A thousand partitions, librdkafka and Java as load, the commands of docs/operating.md: nothing that
was acknowledged is lost or out of order, and the nodes carry alike in the end. And all nodes are
restarted one by one, with the pause that clients see.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from cluster.steady_load import CLIENTS, PARTITIONS, SteadyLoad, all_flow, finish_all
from cluster.stories import SAFE
from ottla.testing import Broker, Cluster
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from scenarios.moving import ask
from scenarios.polling import until

MANY = int(os.environ.get("GROWING_PARTITIONS", "1000"))
PATIENCE_S = 600.0
SKEW_MAX = 0.10
# Below this a difference in bytes is none: the planner does not move anything for it.
BYTES_SLACK = 1024 * 1024
VALUE = b"x" * 2_000


def ottla(cluster: Cluster, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "ottla", *arguments, "--bootstrap", cluster.bootstrap]


def run(cluster: Cluster, *arguments: str) -> str:
    ended = subprocess.run(
        ottla(cluster, *arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def rows(cluster: Cluster) -> dict[int, dict[str, Any]]:
    found = map(json.loads, run(cluster, "nodes", "list", "--json").splitlines())
    return {row["node"]: row for row in found if row["state"] != "controller"}


def moving(cluster: Cluster) -> int:
    request = ListPartitionReassignmentsRequest(topics=None)
    reply = ask(cluster, request, ListPartitionReassignmentsResponse)
    return sum(len(topic.partitions) for topic in reply.topics)


def with_a_kill(cluster: Cluster, victim: int, *arguments: str) -> None:
    """The command goes on while a node dies in the middle of it, and comes back."""
    with subprocess.Popen(
        ottla(cluster, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as command:
        try:
            until(
                lambda: moving(cluster) or command.poll() is not None, "nothing moves", PATIENCE_S
            )
            cluster[victim].kill()
            until(lambda: victim not in leaders(cluster, "many"), "nobody takes over", PATIENCE_S)
            cluster[victim].start()
            _, said = command.communicate(timeout=PATIENCE_S)
        finally:
            command.kill()
    assert command.returncode == 0, said[-3000:]


def leaders(cluster: Cluster, topic: str) -> set[int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions.values()
    return {partition.leader for partition in partitions}


def all_in_sync(cluster: Cluster) -> bool:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    return all(
        partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
        for topic in admin.list_topics(timeout=60).topics.values()
        for partition in topic.partitions.values()
    )


@contextmanager
def loaded(cluster: Cluster) -> Iterator[Sequence[SteadyLoad]]:
    loads = [SteadyLoad(client, cluster.bootstrap) for client in CLIENTS]
    for load in loads:
        cluster.create_topic(load.topic, PARTITIONS, SAFE, replication_factor=3)
    with ExitStack() as stack:
        for load in loads:
            stack.enter_context(load)
        all_flow(loads)
        yield loads


def fill(cluster: Cluster, topic: str, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for index in range(partitions):
        for _ in range(1 + index % 5):
            producer.produce(topic, VALUE, partition=index)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def check_even(cluster: Cluster, nodes: Sequence[int]) -> None:
    found = rows(cluster)
    assert sorted(found) == list(nodes)
    for name in ("leaders", "replicas", "bytes"):
        carried = [found[node][name] for node in nodes]
        spread, mean = max(carried) - min(carried), sum(carried) / len(carried)
        print(name, carried, f"skew {spread / mean:.3f}")
        slack = BYTES_SLACK if name == "bytes" else 1
        assert spread <= max(SKEW_MAX * mean, slack), (name, carried)


def forget(cluster: Cluster, node: int) -> None:
    stop = f"kill {cluster[node].pid}"
    run(cluster, "nodes", "remove", str(node), "--yes", "--with", stop)
    until(lambda: not cluster[node].is_running, "it does not stop", PATIENCE_S)
    cluster[node].stop()


@pytest.mark.seconds(1_800)
def test_three_nodes_grow_to_five_and_shrink_to_three_with_two_kills() -> None:
    settings = {"offsets.topic.num.partitions": 5}
    with Cluster(settings, nodes=5, controllers=3) as cluster:
        for node in (4, 5):
            run(cluster, "nodes", "drain", str(node), "--yes")
            forget(cluster, node)
        cluster.create_topic("many", MANY, SAFE, replication_factor=3)
        fill(cluster, "many", MANY)
        with loaded(cluster) as loads:
            cluster[4].start()
            cluster[5].start()
            with_a_kill(cluster, 2, "nodes", "add", "4", "--yes", "--sample", "2")
            run(cluster, "balance", "--yes", "--sample", "2")
            until(lambda: all_in_sync(cluster), "not all are in sync", PATIENCE_S)
            check_even(cluster, (1, 2, 3, 4, 5))
            all_flow(loads)
            with_a_kill(cluster, 1, "nodes", "drain", "5", "--yes")
            run(cluster, "nodes", "drain", "4", "--yes")
            forget(cluster, 5)
            forget(cluster, 4)
            run(cluster, "balance", "--yes", "--sample", "2")
            until(lambda: all_in_sync(cluster), "not all are in sync", PATIENCE_S)
            check_even(cluster, (1, 2, 3))
            all_flow(loads)
            finish_all(loads)


def start_when_gone(broker: Broker, has_ended: threading.Event) -> None:
    """As a service manager would, once."""
    pid = broker.pid
    until(lambda: not broker.is_running or has_ended.is_set(), "nobody stops it", PATIENCE_S)
    if not has_ended.is_set():
        broker.stop()
        broker.start()
        assert broker.pid != pid


def test_a_rolling_restart_fails_no_send(tmp_path: Path) -> None:
    with Cluster(nodes=3) as cluster, loaded(cluster) as loads:
        has_ended = threading.Event()
        helpers = [
            threading.Thread(target=start_when_gone, args=(broker, has_ended))
            for broker in cluster.nodes.values()
        ]
        script = tmp_path / "stop.sh"
        cases = "".join(f"{node}) kill {cluster[node].pid};; " for node in (1, 2, 3))
        script.write_text(f"case $1 in {cases} esac\n")
        for helper in helpers:
            helper.start()
        try:
            told = f"sh {script} {{node}}"
            run(cluster, "nodes", "restart", "--rolling", "--yes", "--with", told)
        finally:
            has_ended.set()
            for helper in helpers:
                helper.join()
        all_flow(loads)
        finish_all(loads)
