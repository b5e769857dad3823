"""`ottla cluster up`, from its arguments to its exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.cli.failures import WrongUsage
from ottla.cli.supervisor.home import HOST, Home, Plan, check_ports
from ottla.cli.supervisor.leftovers import await_leftovers
from ottla.cli.supervisor.requests import Requests
from ottla.cli.supervisor.stream import Stream
from ottla.cli.supervisor.supervisor import Crew, Member, Supervisor
from ottla.config import load

STOP_S_MAX: Final = 60.0
# So many copies a topic gets that is created without a number.
REPLICAS_MAX: Final = 3
# What this command says of each node itself.
OWN_SETTINGS: Final = frozenset(
    {
        "node.id",
        "broker.id",
        "process.roles",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "listeners",
        "advertised.listeners",
        "bootstrap.listeners",
        "http.listener",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
    }
)


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
                await_leftovers(home.node_dirs(plan), "node", stream)
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


async def _supervise(home: Home, plan: Plan, sets: Sequence[str], stream: Stream) -> int:
    def greet(_: Supervisor, took_s: float) -> None:
        nodes = "1 node is" if plan.nodes == 1 else f"{plan.nodes} nodes are"
        stream.tell(f"{nodes} ready ({took_s:.1f} s), bootstrap {plan.bootstrap}")
        stream.tell(f"Ctrl-C stops them; look with: ottla cluster status {home.advice}")

    supervisor = Supervisor(_crew(home, plan, sets), stream, greet)
    requests = Requests(supervisor, home)
    server = await requests.listen()
    try:
        return await supervisor.run()
    finally:
        server.close()
        await requests.finish()


def _crew(home: Home, plan: Plan, sets: Sequence[str]) -> Crew:
    members = [
        Member(number, plan.address_of(number), node_command(home, plan, number, sets))
        for number in plan.numbers
    ]
    return Crew(
        members,
        node_environment(os.environ),
        word="node",
        remedy=lambda number: f"`ottla cluster start {number} {home.advice}`",
        stop_s_max=STOP_S_MAX,
    )


def node_command(home: Home, plan: Plan, number: int, sets: Sequence[str]) -> list[str]:
    """`ottla start` for one node; what the person has set wins over what a cluster needs."""
    replicas = min(plan.nodes, REPLICAS_MAX)
    wanted = {
        "default.replication.factor": replicas,
        # A majority of them: what is acknowledged outlives any one.
        "min.insync.replicas": replicas // 2 + 1 if replicas > 2 else 1,
        "controller.quorum.voters": plan.voters,
    }
    command = [sys.executable, "-m", "ottla", "start", "--die-with-parent"]
    command += ["--cluster-id", plan.cluster_id, "--node-id", str(number)]
    command += ["--data-dir", str(home.node_dir(number))]
    # Any port for health and metrics: `ottla cluster status` tells which.
    command += ["--listen", plan.address_of(number), "--http", f"{HOST}:0"]
    for text in (*(f"{name}={value}" for name, value in wanted.items()), *sets):
        command += ["--set", text]
    return command


def node_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Without what would place all nodes at the same address, or in the same directory."""
    own = {f"OTTLA_{name.replace('.', '_').upper()}" for name in OWN_SETTINGS}
    return {name: value for name, value in given.items() if name not in own}
