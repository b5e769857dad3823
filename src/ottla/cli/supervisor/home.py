"""The directory of a cluster on this machine.

cluster.json      the cluster's id, how many nodes it has, and the port of the first
supervisor.lock   held while `ottla cluster up` runs here; the number of its process is in it
supervisor.sock   where the other commands ask that process
node-1/ …         the nodes' data
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from ottla.broker.storage.disk import RealDisk
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.formatting import new_id
from ottla.log.directory import META_PROPERTIES, make_durable_directory

PLAN: Final = "cluster.json"
SUPERVISOR_LOCK: Final = "supervisor.lock"
SUPERVISOR_SOCKET: Final = "supervisor.sock"
HOST: Final = "127.0.0.1"
NODES_DEFAULT: Final = 3
NODES_MAX: Final = 15
BASE_PORT_DEFAULT: Final = 9092
PORT_MAX: Final = 65_535


class Plan(NamedTuple):
    """What stays the same from one `up` to the next."""

    cluster_id: str
    nodes: int
    base_port: int

    @property
    def numbers(self) -> range:
        return range(1, self.nodes + 1)

    def port_of(self, number: int) -> int:
        return self.base_port + number - 1

    def address_of(self, number: int) -> str:
        return f"{HOST}:{self.port_of(number)}"

    @property
    def bootstrap(self) -> str:
        return ",".join(map(self.address_of, self.numbers))

    @property
    def voters(self) -> str:
        return ",".join(f"{number}@{self.address_of(number)}" for number in self.numbers)


class Home:
    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()
        self._given = path

    def node_dir(self, number: int) -> Path:
        return self.path / f"node-{number}"

    @property
    def advice(self) -> str:
        """How a command names this directory."""
        return f"--data-dir {self._given}"

    # ------------------------------------------------------------------------------- the plan

    def read_plan(self) -> Plan | None:
        path = self.path / PLAN
        try:
            found = json.loads(path.read_text())
            return Plan(str(found["cluster_id"]), int(found["nodes"]), int(found["base_port"]))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError):
            raise CommandFailed(f"{path} is not what `ottla cluster up` has written.") from None

    def known_plan(self) -> Plan:
        plan = self.read_plan()
        if plan is None:
            raise CommandFailed(
                f"{self._given} has no cluster; `ottla cluster up {self.advice}` makes one."
            )
        return plan

    def plan(self, nodes: int | None, base_port: int | None) -> Plan:
        """As it was, with what may be given anew; or a new one."""
        if (self.path / META_PROPERTIES).exists():
            raise CommandFailed(
                f"{self._given} is the data of one broker; choose another directory."
            )
        known = self.read_plan()
        if known is None:
            made = Plan(new_id(), nodes or NODES_DEFAULT, base_port or BASE_PORT_DEFAULT)
        elif nodes is not None and nodes != known.nodes:
            raise CommandFailed(
                f"{self._given} has a cluster of {known.nodes} nodes; leave out --nodes, or choose "
                "another directory."
            )
        else:
            made = known._replace(base_port=base_port or known.base_port)
        if made.port_of(made.nodes) > PORT_MAX:
            raise WrongUsage(f"--base-port {made.base_port} leaves no ports for all nodes.")
        return made

    def write_plan(self, plan: Plan) -> None:
        text = json.dumps(plan._asdict(), indent=2) + "\n"
        if not (self.path / PLAN).exists() or self.read_plan() != plan:
            RealDisk().write_file(str(self.path / PLAN), text.encode())

    # -------------------------------------------------------------------------- who is at work

    def hold(self) -> BinaryIO:
        """Keeps a second supervisor out until the file is closed, which a kill -9 does as well."""
        try:
            make_durable_directory(RealDisk(), str(self.path))
            lock = (self.path / SUPERVISOR_LOCK).open("a+b")
        except OSError as error:
            reason = error.strerror
            raise CommandFailed(f"{self._given} cannot hold a cluster: {reason}.") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read(20).decode(errors="replace").strip()
            lock.close()
            raise CommandFailed(
                f"{self._given} has a cluster that runs already (process {pid}); `ottla cluster "
                f"status {self.advice}` shows it, `ottla cluster down {self.advice}` stops it."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
        lock.flush()
        return lock

    def node_dirs(self, plan: Plan) -> dict[int, Path]:
        return {number: self.node_dir(number) for number in plan.numbers}

    # ----------------------------------------------------------------------------- the socket

    def listen(self) -> socket.socket:
        """By whoever holds this directory: a socket that is there is a dead one's."""
        listener = socket.socket(socket.AF_UNIX)
        # A path from the root may be longer than the system takes.
        with contextlib.chdir(self.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(SUPERVISOR_SOCKET)
            listener.bind(SUPERVISOR_SOCKET)
            os.chmod(SUPERVISOR_SOCKET, 0o600)
        listener.listen()
        return listener

    def connect(self) -> socket.socket | None:
        """To the supervisor; None when there is none."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            with contextlib.chdir(self.path):
                connection.connect(SUPERVISOR_SOCKET)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            connection.close()
            return None
        return connection


def check_ports(plan: Plan) -> None:
    """CommandFailed for the first that a node cannot have."""
    for number in plan.numbers:
        port = plan.port_of(number)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise CommandFailed(
                    f"Node {number} cannot have port {port}: {error.strerror}; choose other ports "
                    "with --base-port N."
                ) from None
