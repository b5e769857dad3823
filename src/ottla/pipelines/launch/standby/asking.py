"""A command's side: it gives itself to the process that stands by, and leaves one for the next."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ottla.pipelines.launch.standby import place
from ottla.pipelines.launch.standby.likeness import Wish
from ottla.pipelines.launch.standby.memory import available_bytes

CONNECT_S: Final = 2.0
POLL_S: Final = 0.05
# It may still be starting, which is sooner over than a start of one's own beside it.
PATIENCE_S: Final = 45.0
IDLE_S: Final = 600.0
# What it takes for a while, and some for everybody else.
BYTES_MIN: Final = 3 * 1024**3
STANDARD: Final = (0, 1, 2)
STDIN, STDOUT, STDERR = STANDARD
FORWARDED: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Outcome:
    """How a command ended in the other process: with a code, or by asking for a new one."""

    exit_code: int = 0
    start_again: bool = False
    words: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


class LeftAlone(Exception):
    """The process that had taken the command over has gone in the midst of it."""


def hand_over(wish: Wish) -> Outcome | None:
    """None when nobody stands by for just this: the command is to be done here.

    Raises LeftAlone.
    """
    where = place.directory()
    if where is None:
        return None
    try:
        with place.connect(where, CONNECT_S) as connection:
            connection.settimeout(PATIENCE_S)
            place.send(connection, _request(wish), STANDARD)
            answer, _ = place.receive(connection)
            if "taken_by" not in answer:
                return None
            connection.settimeout(None)
            return _outcome(connection, answer["taken_by"])
    except (place.NotThere, OSError):
        return None


def _request(wish: Wish) -> dict[str, Any]:
    return {
        "kind": "command",
        "key": wish.key(),
        "arguments": sys.argv,
        "path": sys.path,
        "environment": dict(os.environ),
    }


def _outcome(connection: socket.socket, process: int) -> Outcome:
    try:
        with _signals_forwarded(connection, process):
            answer, _ = place.receive(connection)
            return Outcome(**answer)
    except place.NotThere:
        raise LeftAlone(f"process {process}, which ran this command, has gone") from None


@contextmanager
def _signals_forwarded(connection: socket.socket, process: int) -> Iterator[None]:
    """Ctrl-C and Ctrl-Z in a terminal come here, and are meant for the command."""

    def forward(number: int, _: FrameType | None) -> None:
        with suppress(OSError):
            connection.sendall(bytes([number]))

    def pause(number: int, _: FrameType | None) -> None:
        # The other has a group of its own, with its JVM.
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGCONT)

    handlers: dict[int, Callable[[int, FrameType | None], None]] = {
        **dict.fromkeys(FORWARDED, forward),
        signal.SIGTSTP: pause,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_one(
    wish: Wish, command: Sequence[str], environment: Mapping[str, str], *, idle_s: float = IDLE_S
) -> bool:
    """Starts it with what this command began with, and goes; whether it could be started.

    It outlives this process and concerns nobody: it has neither our terminal nor our output.
    """
    if place.directory() is None or available_bytes() < BYTES_MIN:
        return False
    request = {"wish": wish.to_json(), "idle_s": idle_s, "began": time.time()}
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None
        # Not as arguments, which everybody could read.
        with process.stdin as stdin:
            stdin.write(json.dumps(request).encode())
    except OSError:
        return False
    # Nobody waits for it: without this Python would warn that it is still at work.
    process.returncode = 0
    return True


def await_ready(deadline: float) -> str | None:
    """Until one stands by and is warm; else why not."""
    where = place.directory()
    if where is None:
        return "there is no directory that only you can enter; set XDG_CACHE_HOME"
    while True:
        try:
            with place.connect(where, CONNECT_S) as connection:
                connection.settimeout(max(1.0, deadline - time.monotonic()))
                place.send(connection, {"kind": "ready"})
                answer, _ = place.receive(connection)
                return str(answer["failed"]) if "failed" in answer else None
        except (place.NotThere, OSError) as error:
            if time.monotonic() > deadline:
                return str(error) or "it has not started in time"
        time.sleep(POLL_S)


def end_one(where: Path, *, other_than: str | None = None) -> bool:
    """Asks whoever stands by to end; one of that key may stay. Whether it has ended."""
    try:
        with place.connect(where, CONNECT_S) as connection:
            connection.settimeout(PATIENCE_S)
            place.send(connection, {"kind": "end", "other_than": other_than})
            answer, _ = place.receive(connection)
            if answer.get("stays"):
                return False
            # Until it has closed everything.
            connection.recv(1)
    except (place.NotThere, OSError):
        return False
    return True
