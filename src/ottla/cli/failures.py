"""How a command ends when it cannot do what it was asked: one line, and an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130


class CommandFailed(Exception):
    """The command was understood but did not succeed. The message says what to do."""

    exit_code = FAILED


class StartAgain(CommandFailed):
    """A new process is to take up the command, with these variables: here it cannot go on."""

    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        super().__init__(text)
        self.variables = variables


class WrongUsage(CommandFailed):
    """The command line or the configuration is wrong."""

    exit_code = WRONG_USAGE


class ReaderGone(Exception):
    """Whoever read our output has left, as `head` does. That is no failure."""
