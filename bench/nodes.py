"""The brokers under test, each in a process of its own and behind the same few calls."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from bench import procfs
from bench.librdkafka import QUIET, LoadFailed
from ottla.testing import Broker

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

ADMIN_TIMEOUT_S: Final = 60.0


class Node(Protocol):
    """One broker. `start` returns as soon as clients may come; the port is known beforehand."""

    side: str
    port: int

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def topic_configs(self, *, is_cached: bool) -> dict[str, str]:
        """The settings by which this broker answers before (cached) or after syncing to disk."""
        ...


NodeFactory = Callable[[], Node]


class OttlaNode:
    """Ottla from this working tree."""

    side = "ottla"

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


def data_root() -> Path:
    """On the disk of the working tree: /tmp is a memory disk on many machines."""
    root = Path(".cache/bench").absolute()
    root.mkdir(parents=True, exist_ok=True)
    return root


def bootstrap(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
    from confluent_kafka.cimpl import NewTopic

    admin = _admin(node)
    new = NewTopic(name, partitions, 1, config=node.topic_configs(is_cached=is_cached))
    for created in admin.create_topics([new], request_timeout=ADMIN_TIMEOUT_S).values():
        created.result(ADMIN_TIMEOUT_S)


def _admin(node: Node) -> AdminClient:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap(node), "log_level": QUIET})


class Lab:
    """One side of a benchmark: makes brokers, and keeps a running one for the loads to share."""

    def __init__(self, make: NodeFactory, warm_up: Callable[[Node], object]) -> None:
        self.make = make
        self._warm_up = warm_up
        self._shared: Node | None = None

    @property
    def node(self) -> Node:
        if self._shared is None:
            self._shared = self.make()
            self._shared.start()
            self._warm_up(self._shared)
        return self._shared

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None


class Meter:
    """Seconds on the wall and on the broker's CPU account while `with` lasts."""

    def __init__(self, node: Node) -> None:
        self._pid = node.pid
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def __enter__(self) -> Meter:
        self.cpu_seconds = -procfs.cpu_seconds(self._pid)
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_seconds += procfs.cpu_seconds(self._pid)
