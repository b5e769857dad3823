"""One node in a process of its own, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

# What a process that has ended wrote last may still be on its way.
LAST_LINES_S: Final = 1.0
LINE_BYTES_MAX: Final = 65_536
PIPE_BYTES: Final = 1024 * 1024


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    # It ended by itself; soon it is started again, or it has been too often.
    ENDED = "ended"


ALIVE: Final = frozenset({State.STARTING, State.RUNNING, State.STOPPING})


class NodeEnded(Exception):
    """It ended before it was ready."""


class Node:
    """`start` after `start` is another process with the same data."""

    def __init__(
        self,
        number: int,
        address: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        stop_s_max: float,
        take_line: Callable[[int, str], None],
        on_lost: Callable[[Node], None],
    ) -> None:
        self.number = number
        self.address = address
        self.state = State.STOPPED
        self.pid: int | None = None
        self.http: str | None = None
        self.exit_code: int | None = None
        self._command = command
        self._environment = environment
        self._stop_s_max = stop_s_max
        self._take_line = take_line
        self._on_lost = on_lost
        self._process: asyncio.subprocess.Process | None = None
        self._spawning: asyncio.Task[asyncio.Future[str]] | None = None
        self._watching: asyncio.Future[None] | None = None
        self.last_line = ""

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    @property
    def last_words(self) -> str:
        """What it said last, as it would say it to people."""
        if not self.last_line.startswith("{"):
            return self.last_line.removeprefix("ottla: ")
        try:
            return str(json.loads(self.last_line)["message"])
        except (ValueError, KeyError, TypeError):
            return self.last_line

    async def start(self) -> None:
        """Returns when it serves; NodeEnded if it does not get so far."""
        assert not self.is_alive, f"node {self.number} is there already"
        self.state, self.last_line = State.STARTING, ""
        loop = asyncio.get_running_loop()
        self._watching = loop.create_future()
        self._spawning = loop.create_task(self._spawn(self._watching))
        said_ready = await asyncio.shield(self._spawning)
        await asyncio.wait((said_ready, self._watching), return_when=asyncio.FIRST_COMPLETED)
        if self._watching.done():
            said_ready.cancel()
            raise NodeEnded(self.how_it_ended())
        self.http = json.loads(said_ready.result()).get("http")
        if self.state is State.STARTING:
            self.state = State.RUNNING

    async def stop(self) -> None:
        """Asks for a clean stop and waits for it."""
        if not self.is_alive:
            return
        self.state = State.STOPPING
        ended = await self._signalled(signal.SIGTERM)
        await asyncio.wait((ended,), timeout=self._stop_s_max)
        if not ended.done():
            self._take_line(self.number, f"did not stop in {self._stop_s_max:g} s and is killed")
            await self._signalled(signal.SIGKILL)
            await asyncio.wait((ended,))
        if self.state is State.STOPPING:
            self.state = State.STOPPED

    async def kill(self) -> None:
        """As a crash: kill -9."""
        if self.is_alive:
            self.state = State.KILLED
            await asyncio.wait((await self._signalled(signal.SIGKILL),))

    async def _signalled(self, number: signal.Signals) -> asyncio.Future[None]:
        """The process, if it is still there, has the signal; done when it has ended."""
        assert self._watching is not None
        if self._spawning is not None:
            await asyncio.shield(self._spawning)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
        return self._watching

    def how_it_ended(self) -> str:
        code = self.exit_code
        if code is not None and code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    async def _spawn(self, ended: asyncio.Future[None]) -> asyncio.Future[str]:
        """The process; what is returned has what it says when it is ready."""
        ready_read, ready_write = os.pipe()
        log_read, log_write = _log_pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--ready-fd",
                str(ready_write),
                # It also ends when this pipe does: so it sees its supervisor die.
                stdin=asyncio.subprocess.PIPE,
                stdout=log_write,
                stderr=log_write,
                env=dict(self._environment),
                pass_fds=(ready_write,),
                # Ctrl-C is for the supervisor, which stops all of them in good order.
                process_group=0,
            )
        finally:
            os.close(ready_write)
            os.close(log_write)
        self.pid, self.exit_code = self._process.pid, None
        loop = asyncio.get_running_loop()
        said: asyncio.Future[str] = loop.create_future()

        def take_ready(line: str) -> None:
            if not said.done():
                said.set_result(line)

        await _read_lines(ready_read, take_ready)
        log_ended = await _read_lines(log_read, self._take)
        self._watch_task = loop.create_task(self._watch(self._process, log_ended, ended))
        return said

    def _take(self, line: str) -> None:
        self.last_line = line
        self._take_line(self.number, line)

    async def _watch(
        self,
        process: asyncio.subprocess.Process,
        log_ended: asyncio.Future[None],
        ended: asyncio.Future[None],
    ) -> None:
        self.exit_code = await process.wait()
        # Another process of the node, which compacts, may hold the log open a little longer.
        await asyncio.wait((log_ended,), timeout=LAST_LINES_S)
        was, self.pid, self.http = self.state, None, None
        if was in (State.STARTING, State.RUNNING):
            self.state = State.ENDED
        ended.set_result(None)
        if was is State.RUNNING:
            self._on_lost(self)


def _log_pipe() -> tuple[int, int]:
    """A node writes to it without ever waiting: what nobody reads for too long is lost."""
    read, write = os.pipe()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.set_blocking(write, False)
    return read, write


class _Lines(asyncio.Protocol):
    def __init__(self, take: Callable[[str], object]) -> None:
        self._take = take
        self._rest = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            whole, self._rest = [*whole, self._rest], b""
        for line in whole:
            self._take(line.decode(errors="replace"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._rest:
            self._take(self._rest.decode(errors="replace"))
        if not self.ended.done():
            self.ended.set_result(None)


async def _read_lines(descriptor: int, take: Callable[[str], object]) -> asyncio.Future[None]:
    """Hands over each line as it comes; what is returned is done when the last one has come."""
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    _, protocol = await loop.connect_read_pipe(lambda: _Lines(take), pipe)
    return protocol.ended
