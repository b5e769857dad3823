"""Ports for servers that cannot choose one themselves, such as Apache Kafka."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Where that file is missing, as Linux has it.
FIRST_EPHEMERAL: Final = 32768
FIRST: Final = 10_000
# Between a broker's port and those of its workers, as `ottla start --workers` has it.
WORKER_STEP: Final = 10


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free at the same time, and stay so until a server is up.

    Not from those that the system gives to clients: one of them might get it meanwhile, and a
    client that tries again and again to connect could in the end be connected to itself.
    """
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = random.randrange(FIRST, _first_ephemeral())
            with suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports


def free_port_of_workers(workers: int) -> int:
    """One that the workers of a broker can share, of which their own are free, too."""
    while True:
        (shared,) = free_ports(1)
        with ExitStack() as held, suppress(OSError):
            for number in range(1, workers + 1):
                own = ("127.0.0.1", shared + WORKER_STEP * number)
                held.enter_context(socket.create_server(own))
            return shared


def free_ports_in_a_row(count: int) -> int:
    """The first of them."""
    while True:
        (first,) = free_ports(1)
        with ExitStack() as held, suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def _first_ephemeral() -> int:
    try:
        first = int(RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = FIRST_EPHEMERAL
    # Where nearly all ports are for clients, any is as good as another.
    return first if first > FIRST + 1000 else 65536
