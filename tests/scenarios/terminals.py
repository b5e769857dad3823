"""Commands at a terminal of their own, as a shell starts them."""

from __future__ import annotations

import os
import pty
import struct
import termios
from collections.abc import Mapping, Sequence
from fcntl import ioctl
from pathlib import Path

WIDTH = 57
INTERRUPT, SUSPEND = b"\x03", b"\x1a"


def at_a_terminal(
    command: Sequence[str], environment: Mapping[str, str], directory: Path
) -> tuple[int, int]:
    """The process, and the terminal as its person has it."""
    process, terminal = pty.fork()
    if process == 0:
        ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 20, WIDTH, 0, 0))
        os.chdir(directory)
        os.execve(command[0], list(command), environment)
    return process, terminal


def all_of(terminal: int) -> str:
    """What is shown until the last process that has it is gone."""
    parts = []
    try:
        while part := os.read(terminal, 4096):
            parts.append(part)
    except OSError:
        # So a terminal ends on Linux.
        pass
    os.close(terminal)
    return b"".join(parts).decode()
