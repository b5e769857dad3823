"""Nodes and clients on a network of their own: a namespace for each, links that a story can cut.

All hang on one bridge in a namespace of its own, so nothing of it is seen on the machine. What cuts
are made of is nftables inside the namespace of the node concerned: `drop` is a cut that nobody
notices, `reject` a firewall that answers.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from ottla.testing import Broker, Cluster
from ottla.testing.broker import Setting

CLONE_NEWNET: Final = 0x40000000
PORT: Final = 9092
CLIENTS: Final = 100
REJECT: Final = "meta l4proto tcp reject with tcp reset"
_libc = ctypes.CDLL(None, use_errno=True)


def run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _enter(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        if _libc.setns(handle, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(handle)


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """What this thread opens and starts in here, sockets, threads, processes, is in there."""
    own = f"/proc/self/task/{threading.get_native_id()}/ns/net"
    before = os.open(own, os.O_RDONLY)
    _enter(f"/run/netns/{namespace}")
    try:
        yield
    finally:
        try:
            if _libc.setns(before, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(before)


class Wires:
    """A bridge, and one namespace on it for each node and one for all clients."""

    def __init__(self, nodes: int) -> None:
        self._tag = f"ot{os.getpid()}"
        self._hub = f"{self._tag}-hub"
        self.members = [*range(1, nodes + 1), CLIENTS]
        self._made: list[str] = []
        self._slowed: list[int] = []

    def address(self, member: int) -> str:
        return f"10.77.0.{member}"

    def namespace(self, member: int) -> str:
        return f"{self._tag}-{member}"

    def __enter__(self) -> Self:
        """Skips the test where the kernel, or who runs it, does not allow this."""
        try:
            self._make()
            run("ip", "netns", "exec", self._hub, "nft", "list", "ruleset")
        except OSError as error:
            self.close()
            pytest.skip(f"networks cannot be made and cut here: {error}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _make(self) -> None:
        self._add(self._hub)
        run("ip", "-n", self._hub, "link", "add", "hub", "type", "bridge")
        run("ip", "-n", self._hub, "link", "set", "hub", "up")
        for member in self.members:
            own = self.namespace(member)
            self._add(own)
            plug = ("peer", "name", "eth0", "netns", own)
            run("ip", "-n", self._hub, "link", "add", f"to{member}", "type", "veth", *plug)
            run("ip", "-n", self._hub, "link", "set", f"to{member}", "master", "hub", "up")
            run("ip", "-n", own, "addr", "add", f"{self.address(member)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", own, "link", "set", device, "up")

    def _add(self, namespace: str) -> None:
        run("ip", "netns", "add", namespace)
        self._made.append(namespace)

    def close(self) -> None:
        while self._made:
            run("ip", "netns", "del", self._made.pop())

    # -------------------------------------------------------------------------------- trouble

    def _filter(self, member: int, rules: str) -> None:
        """These rules for what comes in there, instead of all before."""
        table = "table inet story"
        chain = f"chain input {{\ntype filter hook input priority 0; policy accept;\n{rules}\n}}"
        wanted = f"{table} {{ }}\ndelete {table}\n{table} {{\n{chain}\n}}\n"
        run("ip", "netns", "exec", self.namespace(member), "nft", "-f", "-", given=wanted)

    def cut(self, member: int, *others: int) -> None:
        """Nothing gets from `member` to the others, nor from them to it."""
        self.deafen(member, *others)
        for other in others:
            self.deafen(other, member)

    def deafen(self, member: int, *senders: int, verdict: str = "drop") -> None:
        """What these send does not get to `member`; the other way is open."""
        named = ", ".join(map(self.address, senders))
        self._filter(member, f"ip saddr {{ {named} }} {verdict};")

    def slow(self, member: int) -> None:
        """What it sends goes out no faster than an old telephone line takes it."""
        rate = ("tbf", "rate", "512kbit", "burst", "8kb", "latency", "300ms")
        run("tc", "-n", self.namespace(member), "qdisc", "replace", "dev", "eth0", "root", *rate)
        self._slowed.append(member)

    def heal(self) -> None:
        for member in self.members:
            self._filter(member, "")
            self.plug_in(member)
        while self._slowed:
            slowed = self.namespace(self._slowed.pop())
            run("tc", "-n", slowed, "qdisc", "del", "dev", "eth0", "root")

    def unplug(self, member: int) -> None:
        run("ip", "-n", self._hub, "link", "set", f"to{member}", "down")

    def plug_in(self, member: int) -> None:
        run("ip", "-n", self._hub, "link", "set", f"to{member}", "up")

    def lose(self, member: int, percent: int) -> None:
        """Of what comes in there, so many of a hundred packets are lost."""
        self._filter(member, f"numgen random mod 100 < {percent} drop;")


class WiredBroker(Broker):
    """A broker in a namespace of its own."""

    def __init__(self, namespace: str, settings: Mapping[str, Setting], **options: Any) -> None:
        super().__init__(settings, **options)
        self._namespace = namespace

    def start(self) -> None:
        with inside(self._namespace):
            super().start()


class WiredCluster(Cluster):
    """Three nodes on the wires, as a story sees them that runs among the clients."""

    def __init__(
        self, wires: Wires, data_dir: Path, settings: Mapping[str, Setting] | None = None
    ) -> None:
        super().__init__(settings, nodes=len(wires.members) - 1, data_dir=data_dir)
        self._wires = wires
        self._home = data_dir

    def start(self) -> None:
        nodes = [member for member in self._wires.members if member != CLIENTS]
        voters = ",".join(f"{node}@{self._wires.address(node)}:{PORT}" for node in nodes)
        cluster_id = self._cluster_id(self._home)
        for node in nodes:
            settings = {
                **self._settings,
                "node.id": node,
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{self._wires.address(node)}:{PORT}",
            }
            self.nodes[node] = WiredBroker(
                self._wires.namespace(node),
                settings,
                data_dir=self._home / f"node-{node}",
                cluster_id=cluster_id,
                ready_timeout_s=90.0,
            )
        with ThreadPoolExecutor(len(nodes)) as threads:
            for started in [threads.submit(self.nodes[node].start) for node in nodes]:
                started.result()
