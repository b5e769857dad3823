"""The brokers under test, each in a process of its own and behind the same few calls."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from bench import procfs
from bench.librdkafka import QUIET, LoadFailed
from ottla.testing import Broker
from ottla.testing.ports import free_ports

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ADMIN_TIMEOUT_S: Final = 60.0
CREATE_ATTEMPTS: Final = 3


class Node(Protocol):
    """One broker. `start` returns as soon as clients may come; the port is known beforehand.

    A cluster is a node with several processes, to which each topic's replicas go.
    """

    side: str
    port: int
    replicas: int

    @property
    def pid(self) -> int: ...

    @property
    def pids(self) -> Sequence[int]: ...

    @property
    def bootstrap(self) -> str: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def topic_configs(self, *, is_cached: bool) -> dict[str, str]:
        """The settings by which this broker answers before (cached) or after syncing to disk."""
        ...

    def package_bytes(self) -> int:
        """What its installation takes on the disk, without the language's own."""
        ...


NodeFactory = Callable[[], Node]


class OttlaNode:
    """Ottla from this working tree."""

    side = "ottla"
    replicas = 1

    def __init__(self, settings: Mapping[str, str | int] | None = None) -> None:
        self.port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=data_root()))
        self._broker = Broker(
            dict(settings or {}),
            data_dir=self._home,
            port=self.port,
            ready_timeout_s=ADMIN_TIMEOUT_S,
        )

    @property
    def pid(self) -> int:
        return self._broker.pid

    @property
    def pids(self) -> Sequence[int]:
        return (self.pid,)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._broker.start()

    def stop(self) -> None:
        code = self._broker.stop()
        if code != 0:
            raise LoadFailed(f"the broker stopped with {code}:\n{self._broker.log_text()[-4000:]}")

    def close(self) -> None:
        try:
            self._broker.close()
        finally:
            shutil.rmtree(self._home, ignore_errors=True)

    def topic_configs(self, *, is_cached: bool) -> dict[str, str]:
        return {"write.caching": "true"} if is_cached else {}

    def package_bytes(self) -> int:
        return sum(map(_distribution_bytes, _needed("ottla")))


class PinnedNode:
    """A node whose process, with all its threads, has one core; the load has the others."""

    def __init__(self, node: Node, core: int, others: set[int]) -> None:
        self.side = node.side
        self.port = node.port
        self.replicas = node.replicas
        self._node = node
        self._core = core
        self._others = others

    @property
    def pid(self) -> int:
        return self._node.pid

    @property
    def pids(self) -> Sequence[int]:
        return self._node.pids

    @property
    def bootstrap(self) -> str:
        return self._node.bootstrap

    def start(self) -> None:
        # A child inherits the cores of the thread that makes it.
        os.sched_setaffinity(0, {self._core})
        try:
            self._node.start()
        finally:
            os.sched_setaffinity(0, self._others)

    def stop(self) -> None:
        self._node.stop()

    def close(self) -> None:
        self._node.close()

    def topic_configs(self, *, is_cached: bool) -> dict[str, str]:
        return self._node.topic_configs(is_cached=is_cached)

    def package_bytes(self) -> int:
        return self._node.package_bytes()


def pinned(make: NodeFactory) -> NodeFactory:
    """Brokers on the machine's last core; from now on this process and its children on the rest."""
    *rest, core = sorted(os.sched_getaffinity(0))
    if not rest:
        raise LoadFailed("pinning needs two cores")
    others = set(rest)

    def make_pinned() -> Node:
        os.sched_setaffinity(0, others)
        return PinnedNode(make(), core, others)

    return make_pinned


def _needed(name: str) -> set[str]:
    """The distribution and all that it needs without extras."""
    from packaging.requirements import Requirement

    found, open_names = set[str](), [name]
    while open_names:
        current = open_names.pop()
        if current in found:
            continue
        found.add(current)
        for line in metadata.requires(current) or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": ""}):
                open_names.append(canonical(requirement.name))
    return found


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _distribution_bytes(name: str) -> int:
    """Its files; our own lie in the source tree, where the wheel takes them from."""
    if name == "ottla":
        files = [path for path in Path("src").rglob("*") if "__pycache__" not in path.parts]
    else:
        listed = metadata.files(name) or ()
        files = [Path(str(path.locate())) for path in listed if path.suffix != ".pyc"]
    return sum(path.stat().st_size for path in files if path.is_file())


def data_root() -> Path:
    """On the disk of the working tree: /tmp is a memory disk on many machines."""
    root = Path(".cache/bench").absolute()
    root.mkdir(parents=True, exist_ok=True)
    return root


def bootstrap(node: Node) -> str:
    return node.bootstrap


def free_port() -> int:
    return free_ports(1)[0]


@contextlib.contextmanager
def running(make: NodeFactory) -> Iterator[Node]:
    """A started node that goes away with its data."""
    node = make()
    try:
        node.start()
        yield node
    finally:
        node.close()


@contextlib.contextmanager
def topic(node: Node, name: str, partitions: int = 1, *, is_cached: bool = True) -> Iterator[str]:
    """A fresh topic that is deleted at the end, so that the disk does not fill up."""
    create_topic(node, name, partitions, is_cached=is_cached)
    try:
        yield name
    finally:
        admin = _admin(node)
        for deleted in admin.delete_topics([name], request_timeout=ADMIN_TIMEOUT_S).values():
            deleted.result(ADMIN_TIMEOUT_S)


def create_topic(node: Node, name: str, partitions: int = 1, *, is_cached: bool = True) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.cimpl import NewTopic

    new = NewTopic(name, partitions, node.replicas, config=node.topic_configs(is_cached=is_cached))
    for attempt in range(CREATE_ATTEMPTS):
        admin = _admin(node)
        created = admin.create_topics([new], request_timeout=ADMIN_TIMEOUT_S)[name]
        try:
            created.result(ADMIN_TIMEOUT_S)
            return
        except KafkaException as failure:
            error = failure.args[0].name()
            if attempt and error == "TOPIC_ALREADY_EXISTS":
                return
            # librdkafka lets a request go with the first address that it knew a broker by.
            if error != "_DESTROY_BROKER" or attempt == CREATE_ATTEMPTS - 1:
                raise


def _admin(node: Node) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap(node), "log_level": QUIET})


class Lab:
    """One side of a benchmark: makes brokers, and keeps a running one for the loads to share."""

    def __init__(self, make: NodeFactory, warm_up: Callable[[Node], object]) -> None:
        self.make = make
        self._warm_up = warm_up
        self._shared: Node | None = None
        self._prepared: set[str] = set()

    @property
    def node(self) -> Node:
        if self._shared is None:
            self._shared = self.make()
            self._shared.start()
            self._warm_up(self._shared)
        return self._shared

    def is_first(self, name: str) -> bool:
        """Whether nobody has asked this before of the shared broker: what stays is made once."""
        is_new = name not in self._prepared
        self._prepared.add(name)
        return is_new

    def memory(self) -> dict[str, float]:
        """What the shared broker holds after a load."""
        if self._shared is None:
            return {}
        return {"load_rss_mb": sum(procfs.memory(pid).rss_mb for pid in self._shared.pids)}

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None
            self._prepared.clear()


class Meter:
    """Seconds on the wall and on the CPU account of all its processes while `with` lasts."""

    def __init__(self, node: Node) -> None:
        self._pids = tuple(node.pids)
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def __enter__(self) -> Meter:
        self.cpu_seconds = -sum(map(procfs.cpu_seconds, self._pids))
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_seconds += sum(map(procfs.cpu_seconds, self._pids))
