"""Runs the nodes of a cluster: starts them, watches them, and stops them together.

A node that ends by itself is started again, after ever longer pauses; one that was stopped or
killed on purpose stays so until it is told to start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.cli.failures import CommandFailed
from ottla.cli.supervisor.home import HOST, Home, Plan
from ottla.cli.supervisor.node import Node, NodeEnded, State
from ottla.cli.supervisor.stream import Stream

# After Ctrl-C the shell is to know of it; the other two are how services are told to stop.
EXIT_CODES: Final = {signal.SIGINT: 130, signal.SIGTERM: 0, signal.SIGHUP: 0}
RESTART_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
# A node that has served so long begins with the shortest pause again.
SETTLED_S: Final = 60.0
# So many copies a topic gets that is created without a number.
REPLICAS_MAX: Final = 3
# What this command says of each node itself.
OWN_SETTINGS: Final = frozenset(
    {
        "node.id",
        "log.dir",
        "log.dirs",
        "listeners",
        "advertised.listeners",
        "http.listener",
        "controller.quorum.voters",
    }
)


class Supervisor:
    def __init__(self, home: Home, plan: Plan, sets: Sequence[str], stream: Stream) -> None:
        self.home = home
        self.plan = plan
        self._stream = stream
        environment = node_environment(os.environ)
        self.nodes = {
            number: Node(
                number,
                plan.address_of(number),
                node_command(home, plan, number, sets),
                environment,
                stream.tell_of,
                self._lost,
            )
            for number in plan.numbers
        }
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self._lost_at_s: dict[int, list[float]] = {number: [] for number in plan.numbers}
        self._killing: set[asyncio.Task[None]] = set()
        self._exit_code = 0
        self._told_to_stop = asyncio.Event()
        self.stopped = asyncio.Event()

    async def run(self) -> int:
        """Until a signal or `ottla cluster down`; the exit code. CommandFailed if one fails."""
        loop = asyncio.get_running_loop()
        for number, code in EXIT_CODES.items():
            loop.add_signal_handler(number, self._hear, code)
        started_s = time.monotonic()
        starting = [loop.create_task(node.start()) for node in self.nodes.values()]
        told = loop.create_task(self._told_to_stop.wait())
        try:
            all_started = asyncio.gather(*starting)
            await asyncio.wait((all_started, told), return_when=asyncio.FIRST_COMPLETED)
            if not self._told_to_stop.is_set():
                self._check_started(all_started)
                self._greet(time.monotonic() - started_s)
                await told
        finally:
            await self._stop_all()
            await asyncio.gather(*starting, return_exceptions=True)
            told.cancel()
        return self._exit_code

    def _check_started(self, all_started: asyncio.Future[list[None]]) -> None:
        try:
            all_started.result()
        except NodeEnded:
            node = next(node for node in self.nodes.values() if node.state is State.ENDED)
            words = node.last_line.removeprefix("ottla: ") or f"it {node.how_it_ended()}"
            raise CommandFailed(f"Node {node.number} does not start: {words}") from None

    def _greet(self, took_s: float) -> None:
        count = len(self.nodes)
        nodes = "1 node is" if count == 1 else f"{count} nodes are"
        self._stream.tell(f"{nodes} ready ({took_s:.1f} s), bootstrap {self.plan.bootstrap}")
        self._stream.tell(f"Ctrl-C stops them; look with: ottla cluster status {self.home.advice}")

    # -------------------------------------------------------------------------------- stopping

    def _hear(self, code: int) -> None:
        if self._told_to_stop.is_set():
            self._stream.tell("told to stop a second time: what is left is killed")
            loop = asyncio.get_running_loop()
            self._killing |= {loop.create_task(node.kill()) for node in self.nodes.values()}
            return
        self._exit_code = code
        self.begin_to_stop()

    def begin_to_stop(self) -> None:
        self._told_to_stop.set()

    async def _stop_all(self) -> None:
        self._told_to_stop.set()
        for task in self._restarts.values():
            task.cancel()
        if any(node.is_alive for node in self.nodes.values()):
            self._stream.tell("stopping")
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        self._stream.tell("stopped")
        self.stopped.set()

    # ---------------------------------------------------------------- nodes that end by themselves

    def _lost(self, node: Node) -> None:
        if self._told_to_stop.is_set():
            return
        now_s, lost_at_s = time.monotonic(), self._lost_at_s[node.number]
        if lost_at_s and now_s - lost_at_s[-1] > SETTLED_S:
            lost_at_s.clear()
        if len(lost_at_s) >= len(RESTART_PAUSES_S):
            self._stream.tell(
                f"node {node.number} {node.how_it_ended()} again and stays so; `ottla cluster "
                f"start {node.number} {self.home.advice}` starts it"
            )
            return
        pause_s = RESTART_PAUSES_S[len(lost_at_s)]
        lost_at_s.append(now_s)
        self._stream.tell(
            f"node {node.number} {node.how_it_ended()}; it is started again in {pause_s:g} s"
        )
        restart = asyncio.get_running_loop().create_task(self._restart(node, pause_s))
        self._restarts[node.number] = restart

    async def _restart(self, node: Node, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        try:
            await node.start()
        except NodeEnded:
            if node.state is State.ENDED:
                self._lost(node)
        else:
            self._stream.tell(f"node {node.number} is back")

    def leave_to_people(self, number: int) -> None:
        """Whether this node runs is decided by who asks from now on."""
        self._lost_at_s[number].clear()
        restart = self._restarts.pop(number, None)
        if restart is not None:
            restart.cancel()


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
