"""Several brokers that are one cluster, each in a process of its own on this machine."""

from __future__ import annotations

import base64
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ottla.testing.broker import Broker, Setting
from ottla.testing.ports import free_ports
from ottla.testing.topics import create_topic

NODES: Final = 3
NODE_PREFIX: Final = "node-"


class Cluster:
    """Nodes 1 to `nodes`, which `with` starts and stops; `cluster[2].kill()` is a crash of one.

    Settings are Kafka's names with their values, for all nodes. Without `data_dir` the data goes
    when the cluster is closed.
    """

    def __init__(
        self,
        settings: Mapping[str, Setting] | None = None,
        *,
        nodes: int = NODES,
        data_dir: str | Path | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        self._count = nodes
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._own_dir: Path | None = None
        self.nodes: dict[int, Broker] = {}

    def __getitem__(self, node_id: int) -> Broker:
        return self.nodes[node_id]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """All nodes, for a client's `bootstrap.servers`."""
        return ",".join(broker.bootstrap for broker in self.nodes.values())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        replication_factor: int = -1,
    ) -> None:
        create_topic(self.bootstrap, name, partitions, configs or {}, replication_factor)

    def start(self) -> None:
        """Returns when all nodes serve; raises BrokerFailed if one does not."""
        if self._data_dir is None:
            self._own_dir = self._data_dir = Path(tempfile.mkdtemp(prefix="ottla-cluster-"))
        cluster_id = self._cluster_id(self._data_dir)
        ports = free_ports(self._count)
        voters = ",".join(
            f"{node_id}@127.0.0.1:{port}" for node_id, port in enumerate(ports, start=1)
        )
        for node_id, port in enumerate(ports, start=1):
            settings = {**self._settings, "node.id": node_id, "controller.quorum.voters": voters}
            directory = self._data_dir / f"{NODE_PREFIX}{node_id}"
            self.nodes[node_id] = Broker(
                settings, data_dir=directory, port=port, cluster_id=cluster_id
            )
        self._on_all([broker.start for broker in self.nodes.values()])

    def _cluster_id(self, data_dir: Path) -> str:
        """That of the nodes that are there already, or a new one."""
        for identity in sorted(data_dir.glob(f"{NODE_PREFIX}*/meta.properties")):
            found = re.search(r"^cluster\.id=(\S+)$", identity.read_text(), re.MULTILINE)
            if found is not None:
                return found[1]
        return base64.urlsafe_b64encode(b"\x01" + secrets.token_bytes(15)).decode()[:22]

    def close(self) -> None:
        """Stops all nodes for good and removes what belonged to this cluster alone."""
        try:
            self._on_all([broker.close for broker in self.nodes.values()])
        finally:
            if self._own_dir is not None:
                shutil.rmtree(self._own_dir, ignore_errors=True)

    def _on_all(self, works: Iterable[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(self._count) as threads:
            outcomes = [threads.submit(work) for work in works]
        for outcome in outcomes:
            outcome.result()
