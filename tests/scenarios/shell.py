"""Commands as a person or a script gives them, for tests."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from interrupts import ctrl_c_is_heard
from ottla.cli.main import main

TIMEOUT_S = 60
OTTLA = [sys.executable, "-m", "ottla"]


class Done(NamedTuple):
    stdout: str
    stderr: str


class Shell:
    """Gives commands against one broker.

    Most run in this process, which is twenty times faster; what is about processes does not.
    """

    def __init__(self, bootstrap: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OTTLA_")}
        self.environment = {**kept, "OTTLA_BOOTSTRAP": bootstrap}

    def run(self, *arguments: str, stdin: str = "", code: int = 0) -> Done:
        """The finished command; it must have ended with `code` and without a traceback."""
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin.encode())
            files[0].seek(0)
            for name, file in zip(("stdin", "stdout", "stderr"), files, strict=True):
                stream = stack.enter_context(io.TextIOWrapper(file, write_through=True))
                stack.enter_context(patch.object(sys, name, stream))
            stack.enter_context(patch.dict(os.environ, self.environment, clear=True))
            ended_with = main(arguments)
            sys.stdout.flush()
            texts = []
            for file in files[1:]:
                file.seek(0)
                texts.append(file.read().decode())
        done = Done(*texts)
        assert ended_with == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """What the command says with --json."""
        output = self.run(*arguments, "--json").stdout
        return [json.loads(line) for line in output.splitlines()]

    @contextmanager
    def start(self, *arguments: str, stdin: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """The running command; a test that fails does not leave it behind."""
        with ctrl_c_is_heard():
            process = subprocess.Popen(
                [*OTTLA, *arguments],
                env=self.environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def on_terminal(self, *arguments: str, typed: str = "", **environment: str) -> tuple[int, str]:
        """The exit code, and everything that the command wrote to its terminal."""
        person, terminal = pty.openpty()
        process = subprocess.Popen(
            [*OTTLA, *arguments],
            env={**self.environment, "TERM": "xterm", **environment},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        os.write(person, typed.encode())
        shown = b""
        while chunk := _read_terminal(person):
            shown += chunk
        os.close(person)
        return process.wait(TIMEOUT_S), shown.decode()


def _read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux says so when the other side is closed.
        return b""
