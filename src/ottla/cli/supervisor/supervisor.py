"""Runs several nodes on this machine: starts them, watches them, and stops them together.

A node that ends by itself is started again, after ever longer pauses; one that was stopped or
killed on purpose stays so until it is told to start.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.cli.failures import CommandFailed
from ottla.cli.supervisor.node import Node, NodeEnded, State
from ottla.cli.supervisor.stream import Stream

# After Ctrl-C the shell is to know of it; the other two are how services are told to stop.
EXIT_CODES: Final = {signal.SIGINT: 130, signal.SIGTERM: 0, signal.SIGHUP: 0}
RESTART_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
# A node that has served so long begins with the shortest pause again.
SETTLED_S: Final = 60.0


class Member(NamedTuple):
    number: int
    address: str
    command: Sequence[str]


class Crew(NamedTuple):
    """Who is to run, and how they are spoken of."""

    members: Sequence[Member]
    environment: Mapping[str, str]
    word: str
    """What people call one of them."""
    remedy: Callable[[int], str] | None
    """How a person starts one that has ended too often; None: it is tried for ever."""
    stop_s_max: float
    last: frozenset[int] = frozenset()
    """Those that the others need to stop cleanly."""


class Supervisor:
    def __init__(
        self, crew: Crew, stream: Stream, greet: Callable[[Supervisor, float], None]
    ) -> None:
        self._crew = crew
        self._stream = stream
        self._greet = greet
        self.nodes = {
            member.number: Node(
                *member, crew.environment, crew.stop_s_max, stream.tell_of, self._lost
            )
            for member in crew.members
        }
        self._restarts: dict[int, asyncio.Task[None]] = {}
        self._lost_at_s: dict[int, list[float]] = {number: [] for number in self.nodes}
        self._killing: set[asyncio.Task[None]] = set()
        self._exit_code = 0
        self._told_to_stop = asyncio.Event()
        self.stopped = asyncio.Event()

    async def run(self) -> int:
        """Until a signal, or told to stop; the exit code. CommandFailed if one does not start."""
        loop = asyncio.get_running_loop()
        for number, code in EXIT_CODES.items():
            loop.add_signal_handler(number, self._hear, number, code)
        started_s = time.monotonic()
        starting = [loop.create_task(node.start()) for node in self.nodes.values()]
        told = loop.create_task(self._told_to_stop.wait())
        try:
            all_started = asyncio.gather(*starting)
            await asyncio.wait((all_started, told), return_when=asyncio.FIRST_COMPLETED)
            if not self._told_to_stop.is_set():
                self._check_started(all_started)
                self._greet(self, time.monotonic() - started_s)
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
            words = node.last_words or f"it {node.how_it_ended()}"
            name = f"{self._crew.word} {node.number}".capitalize()
            raise CommandFailed(f"{name} does not start: {words}") from None

    # -------------------------------------------------------------------------------- stopping

    def _hear(self, number: signal.Signals, code: int) -> None:
        if self._told_to_stop.is_set():
            if number is not signal.SIGINT:
                # Programs may signal a process and then its group; only people are impatient.
                return
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
        last = [node for node in self.nodes.values() if node.number in self._crew.last]
        await asyncio.gather(*(node.stop() for node in self.nodes.values() if node not in last))
        await asyncio.gather(*(node.stop() for node in last))
        self._stream.tell("stopped")
        self.stopped.set()

    # ---------------------------------------------------------------- nodes that end by themselves

    def _lost(self, node: Node) -> None:
        if self._told_to_stop.is_set():
            return
        now_s, lost_at_s = time.monotonic(), self._lost_at_s[node.number]
        if lost_at_s and now_s - lost_at_s[-1] > SETTLED_S:
            lost_at_s.clear()
        name, times = f"{self._crew.word} {node.number}", len(lost_at_s)
        if times >= len(RESTART_PAUSES_S) and self._crew.remedy is not None:
            self._stream.tell(
                f"{name} {node.how_it_ended()} again and stays so; "
                f"{self._crew.remedy(node.number)} starts it"
            )
            return
        pause_s = RESTART_PAUSES_S[min(times, len(RESTART_PAUSES_S) - 1)]
        lost_at_s.append(now_s)
        self._stream.tell(f"{name} {node.how_it_ended()}; it is started again in {pause_s:g} s")
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
            self._stream.tell(f"{self._crew.word} {node.number} is back")

    def leave_to_people(self, number: int) -> None:
        """Whether this node runs is decided by who asks from now on."""
        self._lost_at_s[number].clear()
        restart = self._restarts.pop(number, None)
        if restart is not None:
            restart.cancel()
