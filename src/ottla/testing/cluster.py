"""Several brokers that are one cluster, each in a process of its own on this machine."""

from __future__ import annotations

import base64
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ottla.testing.broker import Broker, Setting
from ottla.testing.ports import free_ports
from ottla.testing.topics import create_topic

NODES: Final = 3
NODE_PREFIX: Final = "node-"
# All start at once, on the cores of one machine, and each waits for a majority.
READY_TIMEOUT_S: Final = 90.0


class Cluster:
    """Nodes 1 to `nodes`, which `with` starts and stops; `cluster[2].kill()` is a crash of one.

    Each is broker and controller. With `controllers` they are brokers alone, and so many nodes
    with the numbers after theirs are the controllers. Settings are Kafka's names with their
    values, for all nodes; with `racks`, node N stands in the Nth of them, and with `disks` each has
    so many data directories. Without `data_dir` the data goes when the cluster is closed.
    """

    def __init__(
        self,
        settings: Mapping[str, Setting] | None = None,
        *,
        nodes: int = NODES,
        controllers: int = 0,
        racks: Sequence[str] = (),
        disks: int = 1,
        data_dir: str | Path | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        self._count = nodes
        self._controllers = controllers
        self._racks = dict(enumerate(racks, start=1))
        self._disks = disks
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
        """All brokers, for a client's `bootstrap.servers`."""
        brokers = range(1, self._count + 1)
        return ",".join(self.nodes[node_id].bootstrap for node_id in brokers)

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
        ports = dict(enumerate(free_ports(self._count + self._controllers), start=1))
        for node_id, port in ports.items():
            settings = {**self._settings, "node.id": node_id, **self._roles(node_id, ports)}
            if node_id in self._racks:
                settings["broker.rack"] = self._racks[node_id]
            directory = self._data_dir / f"{NODE_PREFIX}{node_id}"
            if self._disks > 1:
                further = [f"{directory}-disk-{number}" for number in range(2, self._disks + 1)]
                settings["log.dirs"] = ",".join([str(directory), *further])
            where = 0 if "listeners" in settings else port
            self.nodes[node_id] = Broker(
                settings,
                data_dir=directory,
                port=where,
                ready_timeout_s=READY_TIMEOUT_S,
                cluster_id=cluster_id,
            )
        self._on_all([broker.start for broker in self.nodes.values()])

    def _roles(self, node_id: int, ports: Mapping[int, int]) -> dict[str, Setting]:
        """What a node is, and where the controllers are."""
        voters = {id: port for id, port in ports.items() if not self._controllers}
        voters = voters or {id: port for id, port in ports.items() if id > self._count}
        named = ",".join(f"{id}@127.0.0.1:{port}" for id, port in voters.items())
        settings: dict[str, Setting] = {"controller.quorum.voters": named}
        if self._controllers:
            settings["controller.listener.names"] = "CONTROLLER"
            settings["process.roles"] = "controller" if node_id in voters else "broker"
            if node_id in voters:
                settings["listeners"] = f"CONTROLLER://127.0.0.1:{ports[node_id]}"
        return settings

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
            # While there is a controller, brokers hand over what they lead, and stop at once.
            brokers = [node_id for node_id in self.nodes if node_id <= self._count]
            self._on_all([self.nodes[node_id].close for node_id in brokers])
            self._on_all([broker.close for broker in self.nodes.values()])
        finally:
            if self._own_dir is not None:
                shutil.rmtree(self._own_dir, ignore_errors=True)

    def _on_all(self, works: Iterable[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(max(1, len(self.nodes))) as threads:
            outcomes = [threads.submit(work) for work in works]
        for outcome in outcomes:
            outcome.result()
