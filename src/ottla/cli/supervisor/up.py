"""`ottla cluster up`, from its arguments to its exit code."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.supervisor.home import Home, Plan, check_ports
from ottla.cli.supervisor.requests import Requests
from ottla.cli.supervisor.stream import Stream
from ottla.cli.supervisor.supervisor import OWN_SETTINGS, Supervisor
from ottla.config import load

OLD_NODES_S_MAX: Final = 60.0
OLD_NODES_PAUSE_S: Final = 0.1


def up(home: Home, nodes: int | None, base_port: int | None, sets: Sequence[str]) -> int:
    """Nothing is started before all that can be known to be wrong is told."""
    _check_settings(sets)
    # A directory that is there may have a supervisor, whose nodes have the ports.
    lock = home.hold() if home.path.is_dir() else None
    try:
        plan = home.plan(nodes, base_port)
        stream = Stream(sys.stderr)
        try:
            if lock is not None:
                _await_old_nodes(home, plan, stream)
            check_ports(plan)
            lock = lock or home.hold()
            home.write_plan(plan)
            return asyncio.run(_supervise(home, plan, sets, stream))
        finally:
            stream.close()
    finally:
        if lock is not None:
            lock.close()


def _check_settings(sets: Sequence[str]) -> None:
    """What is wrong for one node is wrong for all."""
    for text in sets:
        name = text.partition("=")[0].strip()
        if name in OWN_SETTINGS:
            raise WrongUsage(f"--set {name}: `ottla cluster up` gives each node its own.")
    load(sets=sets)


def _await_old_nodes(home: Home, plan: Plan, stream: Stream) -> None:
    """Those of a supervisor that was killed stop by themselves."""
    deadline_s = time.monotonic() + OLD_NODES_S_MAX
    is_told = False
    while busy := home.busy_nodes(plan):
        names = ", ".join(map(str, busy))
        if time.monotonic() > deadline_s:
            raise CommandFailed(
                f"Node {names} of this directory runs without a supervisor; end its process first."
            )
        if not is_told:
            stream.tell(f"waits for what is left of an earlier run to stop: node {names}")
            is_told = True
        time.sleep(OLD_NODES_PAUSE_S)


async def _supervise(home: Home, plan: Plan, sets: Sequence[str], stream: Stream) -> int:
    supervisor = Supervisor(home, plan, sets, stream)
    requests = Requests(supervisor)
    server = await requests.listen()
    try:
        return await supervisor.run()
    finally:
        server.close()
        await requests.finish()
