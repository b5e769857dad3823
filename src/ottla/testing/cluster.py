"""Several brokers that are one cluster, each in a process of its own on this machine."""

from __future__ import annotations

import base64
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ottla.testing.broker import Broker, BrokerFailed, Setting
from ottla.testing.ports import free_ports
from ottla.testing.topics import create_topic

NODES: Final = 3
FORMAT_TIMEOUT_S: Final = 60.0


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
        ports = free_ports(self._count)
        voters = ",".join(
            f"{node_id}@127.0.0.1:{port}" for node_id, port in enumerate(ports, start=1)
        )
        for node_id, port in enumerate(ports, start=1):
            settings = {**self._settings, "node.id": node_id, "controller.quorum.voters": voters}
            directory = self._data_dir / f"node-{node_id}"
            self.nodes[node_id] = Broker(settings, data_dir=directory, port=port)
        self._format()
        self._on_all([broker.start for broker in self.nodes.values()])

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(b"\x01" + secrets.token_bytes(15)).decode()[:22]
        formatting = [
            sys.executable,
            "-m",
            "ottla",
            "storage",
            "format",
            "--cluster-id",
            cluster_id,
        ]
        commands = [
            [*formatting, "--node-id", str(node_id), "--data-dir", str(broker.data_dir)]
            for node_id, broker in self.nodes.items()
            if not (broker.data_dir / "meta.properties").exists()
        ]
        formats = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for command in commands
        ]
        for each in formats:
            said, _ = each.communicate(timeout=FORMAT_TIMEOUT_S)
            if each.returncode:
                raise BrokerFailed(f"a node cannot be formatted: {said.decode()}")

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
