"""The entry point: what a command ends with, and the short way to `ottla start`."""

from __future__ import annotations

import atexit
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from ottla.cli import interrupts, output, serving
from ottla.cli.failures import (
    FAILED,
    INTERRUPTED,
    WRONG_USAGE,
    CommandFailed,
    ReaderGone,
    StartAgain,
)
from ottla.errors import InvalidConfig


def run() -> None:
    if isinstance(sys.stdout.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED would make a system call of every message.
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(sys.stdout.buffer))
    interrupts.listen()
    sys.exit(main(sys.argv[1:], start_again=_start_again))


def main(
    arguments: Sequence[str], *, start_again: Callable[[StartAgain], NoReturn] | None = None
) -> int:
    """Does what the arguments say; the exit code.

    Without `start_again` what only a new process can take up is a failure.
    """
    try:
        code = _perform(arguments)
        output.flush()
        return code
    except ReaderGone:
        output.drop()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except CommandFailed as failure:
        if isinstance(failure, StartAgain) and start_again is not None:
            start_again(failure)
        output.complain(failure)
        return failure.exit_code
    except InvalidConfig as error:
        output.complain(error)
        return WRONG_USAGE
    except Exception as error:
        if interrupts.were_heard():
            return INTERRUPTED
        if "OTTLA_DEBUG" in os.environ:
            raise
        if isinstance(error, OSError) and error.filename is not None:
            output.complain(f"{error.filename}: {error.strerror}.")
            return FAILED
        output.complain(
            f"This is a bug: {type(error).__name__}: {error}. OTTLA_DEBUG=1 shows where; "
            "please report it."
        )
        return FAILED


def _start_again(wanted: StartAgain) -> NoReturn:
    """The same command in a new program, with the same process id, output and terminal."""
    output.flush()
    # Temporary directories go with the program, and nobody else removes them.
    atexit._run_exitfuncs()
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **wanted.variables})


def _perform(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "start" and "_OTTLA_COMPLETE" not in os.environ:
        invocation = serving.parse(arguments[1:])
        if invocation is not None:
            return serving.serve(invocation)
    from ottla.cli.application import perform

    return perform(arguments)
