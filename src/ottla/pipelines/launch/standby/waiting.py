"""The process that stands by: Python and JVM, started and warmed, until one command takes it.

It ends by itself when nobody has come for a while, when memory runs low, when any file that it has
read was changed, and with the command that it has run; what it was used for never stays.
"""

from __future__ import annotations

import importlib
import io
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.launch.standby import place
from ottla.pipelines.launch.standby.asking import STANDARD, STDERR, STDIN, STDOUT, end_one
from ottla.pipelines.launch.standby.likeness import (
    Wish,
    changed_since,
    files_of_java,
    files_of_python,
)
from ottla.pipelines.launch.standby.memory import available_bytes
from ottla.spark.startup.environment import scratch

# Whoever connects has its request ready.
REQUEST_S: Final = 5.0
LOOK_S: Final = 5.0
# With less than this it gives its own back.
BYTES_MIN: Final = 1024**3
GONE: Final = 1

# Starts what was wished for; it may do less than all when somebody waits for it already.
Start = Callable[[Wish, Callable[[], bool]], None]
# Takes the other process's arguments and tells how it is to end there.
Perform = Callable[[Sequence[str]], Mapping[str, Any]]


class Ended(BaseException):
    """There is nothing to stand by for any more; no failure that somebody may pass over."""


@dataclass(frozen=True)
class Command:
    """What another process has handed over: its connection, words, and output."""

    connection: socket.socket
    request: Mapping[str, Any]
    descriptors: Sequence[int]

    def turn_away(self) -> None:
        with self.connection, suppress(OSError):
            place.send(self.connection, {"unfit": True})
        place.close_all(self.descriptors)

    def is_there(self) -> bool:
        """Nobody says a word before it is taken: what could be read is the end."""
        return not select.select([self.connection], [], [], 0)[0]


class Standby:
    """Owns the lock and the socket until a command has come, or it ends."""

    def __init__(self, wish: Wish, *, began: float, idle_s: float) -> None:
        self._wish = wish
        self._began = began
        self._idle_s = idle_s
        self._key = wish.key()
        self._locked: int | None = None
        self._listening: socket.socket | None = None
        self._commands: list[Command] = []
        # Who only want to know when it is ready.
        self._curious: list[socket.socket] = []

    def claim(self) -> bool:
        """Whether the place is ours: one that another command has left goes, its like stays."""
        where = place.directory()
        if where is None:
            return False
        end_one(where, other_than=self._key)
        self._locked = place.lock(where, scratch())
        if self._locked is None:
            return False
        self._listening = place.listen(where)
        return True

    def wait(self) -> Command:
        """Raises Ended when none has come in time."""
        self._answer_curious({"ready": True})
        deadline = time.monotonic() + self._idle_s
        while (left_s := deadline - time.monotonic()) > 0:
            if available_bytes() < BYTES_MIN or self._is_outdated():
                break
            if self.has_command(min(LOOK_S, left_s)) and not self._is_outdated():
                command = self._commands.pop(0)
                if command.is_there():
                    return command
                command.turn_away()
            self._answer_curious({"ready": True})
        raise Ended

    def close(self, failure: str = "it has ended") -> None:
        """From here on the place is free for another; who has come too late helps himself."""
        if self._listening is None:
            return
        with suppress(OSError):
            os.unlink(self._listening.getsockname())
        self._listening.close()
        self._listening = None
        self._answer_curious({"failed": failure})
        for command in self._commands:
            command.turn_away()
        if self._locked is not None:
            place.unlock(self._locked)

    def has_command(self, timeout_s: float = 0.0) -> bool:
        """Takes in whatever has come by then."""
        assert self._listening is not None
        while not self._commands and select.select([self._listening], [], [], timeout_s)[0]:
            connection, _ = self._listening.accept()
            connection.settimeout(REQUEST_S)
            try:
                request, descriptors = place.receive(connection)
            except place.NotThere:
                # Killed in the midst of it: it has lost nothing but itself.
                connection.close()
            else:
                self._take_in(Command(connection, request, descriptors))
            timeout_s = 0.0
        return bool(self._commands)

    def _take_in(self, asked: Command) -> None:
        kind = asked.request.get("kind")
        if kind == "ready":
            self._curious.append(asked.connection)
        elif kind == "end":
            stays = asked.request.get("other_than") == self._key and not self._is_outdated()
            with suppress(OSError):
                place.send(asked.connection, {"stays": stays})
            if not stays:
                # The other waits until this process is gone, and what it leaves open with it.
                asked.connection.detach()
                raise Ended
            asked.connection.close()
        elif asked.request.get("key") == self._key and len(asked.descriptors) == len(STANDARD):
            self._commands.append(asked)
        else:
            asked.turn_away()

    def _answer_curious(self, answer: Mapping[str, Any]) -> None:
        while self._curious:
            with self._curious.pop() as connection, suppress(OSError):
                place.send(connection, answer)

    def _is_outdated(self) -> bool:
        files = [*files_of_python(), *files_of_java(), *self._wish.files]
        return changed_since(self._began, files) is not None


def stand_by(request: Mapping[str, Any], start: Start, perform: Perform) -> None:
    """From the request of the command that leaves us to the end of the one that takes us."""
    # Whatever it is told to end by, it leaves nothing behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(GONE))
    wish = Wish.from_json(request["wish"])
    standby = Standby(wish, began=request["began"], idle_s=request["idle_s"])
    if not standby.claim():
        return
    try:
        start(wish, standby.has_command)
        command = standby.wait()
    except Ended:
        return
    except PipelineFailed as failed:
        standby.close(str(failed))
        return
    finally:
        standby.close()
    _become(command.request, command.descriptors)
    connection = command.connection
    connection.settimeout(None)
    is_over = threading.Event()
    obeying = threading.Thread(
        target=_obey, args=(connection, is_over), name="ottla-standby", daemon=True
    )
    with suppress(OSError):
        place.send(connection, {"taken_by": os.getpid()})
        obeying.start()
        answer = perform(command.request["arguments"][1:])
        is_over.set()
        place.send(connection, answer)


def _become(command: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """The other process in all that a command can see of it; the rest is in the key."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, theirs in zip(STANDARD, descriptors, strict=True):
        os.dup2(theirs, number)
        os.close(theirs)
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.argv[:] = command["arguments"]
    sys.path[:] = command["path"]
    # What was installed meanwhile is found.
    importlib.invalidate_caches()
    sys.stdin = _text_of(STDIN, "r", sys.stdin)
    sys.stdout = _text_of(STDOUT, "w", sys.stdout)
    sys.stderr = _text_of(STDERR, "w", sys.stderr)


def _text_of(number: int, mode: str, like: Any) -> io.TextIOWrapper:
    """As Python opens them at its start: a terminal gets line by line, and stderr always."""
    raw = open(number, f"{mode}b", closefd=False)  # noqa: SIM115 - for as long as we live
    in_lines = mode == "w" and (number == STDERR or os.isatty(number))
    return io.TextIOWrapper(
        raw, encoding=like.encoding, errors=like.errors, line_buffering=in_lines
    )


def _obey(connection: socket.socket, is_over: threading.Event) -> None:
    """The other's signals are ours, and so is its end."""
    while not is_over.is_set():
        try:
            numbers = connection.recv(64)
        except OSError:
            numbers = b""
        if not numbers and not is_over.is_set():
            _end_at_once()
        for number in numbers:
            os.kill(os.getpid(), signal.Signals(number))


def _end_at_once() -> NoReturn:
    """The JVM ends when its Python is gone, as the Python does that waits for its workers."""
    shutil.rmtree(scratch(), ignore_errors=True)
    os._exit(GONE)
