"""Three nodes behind the calls of one: Ottla's and Kafka's, on the same cores."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from bench.librdkafka import QUIET, LoadFailed
from bench.nodes import Node, data_root
from bench.peers import KafkaNode, Member, new_cluster_id, resolve_jars
from ottla.testing import Cluster
from ottla.testing.ports import free_ports

NODES: Final = 3
JOIN_TIMEOUT_S: Final = 90.0
POLL_S: Final = 0.1
IN_SYNC_MIN: Final = {"min.insync.replicas": "2"}


class Nodes(Node, Protocol):
    """Nodes by their ids, each of which can be killed and come back."""

    def kill(self, node_id: int) -> None: ...

    def pid_of(self, node_id: int) -> int: ...

    def start_again(self, node_id: int) -> None:
        """Returns when its port is open; others may still take a moment to count on it."""
        ...


class OttlaCluster:
    side = "ottla"
    replicas = NODES

    def __init__(self, settings: Mapping[str, str | int] | None = None) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=data_root()))
        self._cluster = Cluster({**IN_SYNC_MIN, **(settings or {})}, data_dir=self._home)

    @property
    def port(self) -> int:
        return int(self._cluster[1].bootstrap.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._cluster[1].pid

    @property
    def pids(self) -> Sequence[int]:
        return [broker.pid for broker in self._cluster.nodes.values() if broker.is_running]

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def http(self, node_id: int) -> str:
        return self._cluster[node_id].http

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        _together(broker.stop for broker in self._cluster.nodes.values())

    def kill(self, node_id: int) -> None:
        self._cluster[node_id].kill()

    def pid_of(self, node_id: int) -> int:
        return self._cluster[node_id].pid

    def start_again(self, node_id: int) -> None:
        self._cluster[node_id].start()

    def close(self) -> None:
        try:
            self._cluster.close()
        finally:
            shutil.rmtree(self._home, ignore_errors=True)

    def topic_configs(self, *, is_cached: bool) -> dict[str, str]:
        return {**IN_SYNC_MIN, **({"write.caching": "true"} if is_cached else {})}

    def package_bytes(self) -> int:
        raise LoadFailed("a package is one node's")


class KafkaCluster:
    side = "kafka"
    replicas = NODES

    def __init__(self) -> None:
        ports = free_ports(2 * NODES)
        self.port = ports[0]
        voters = ",".join(f"{n}@127.0.0.1:{ports[NODES + n - 1]}" for n in range(1, NODES + 1))
        cluster_id = new_cluster_id()
        # Once, before three nodes want them at the same time.
        resolve_jars()
        members = [
            Member(n, ports[n - 1], ports[NODES + n - 1], voters, cluster_id)
            for n in range(1, NODES + 1)
        ]
        with ThreadPoolExecutor(NODES) as threads:
            made = list(threads.map(KafkaNode, members))
        self._nodes = dict(enumerate(made, start=1))

    @property
    def pid(self) -> int:
        return self._nodes[1].pid

    @property
    def pids(self) -> Sequence[int]:
        return [node.pid for node in self._nodes.values() if node.is_running]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self._nodes.values())

    def start(self) -> None:
        _together(node.start for node in self._nodes.values())
        await_nodes(self.bootstrap, NODES)

    def stop(self) -> None:
        _together(node.stop for node in self._nodes.values())

    def kill(self, node_id: int) -> None:
        self._nodes[node_id].kill()

    def pid_of(self, node_id: int) -> int:
        return self._nodes[node_id].pid

    def start_again(self, node_id: int) -> None:
        self._nodes[node_id].start()

    def close(self) -> None:
        """Stopped together they would wait for each other, and nothing of it is needed."""
        for node in self._nodes.values():
            node.kill()
        _together(node.close for node in self._nodes.values())

    def topic_configs(self, *, is_cached: bool) -> dict[str, str]:
        return {**IN_SYNC_MIN, **self._nodes[1].topic_configs(is_cached=is_cached)}

    def package_bytes(self) -> int:
        raise LoadFailed("a package is one node's")


def await_nodes(bootstrap: str, count: int) -> None:
    """Returns when so many brokers take part; an open port says less."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": QUIET})
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    while len(admin.list_topics(timeout=JOIN_TIMEOUT_S).brokers) < count:
        if time.monotonic() > deadline:
            raise LoadFailed(f"{count} nodes did not find each other in {JOIN_TIMEOUT_S:g} s")
        time.sleep(POLL_S)


def _together(works: Iterable[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(NODES) as threads:
        outcomes = [threads.submit(work) for work in works]
    for outcome in outcomes:
        outcome.result()
