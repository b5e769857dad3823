"""Python workers that are ready sooner than the JVM is: see `ottla.spark.startup.nursery`."""

from __future__ import annotations

import atexit
import functools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from ottla.spark.startup import stand_in
from ottla.spark.startup.nursery import UNBUFFERED, WITHOUT_THREADS

# Longer ones, and those with blanks, cannot stand in a script's first line everywhere.
INTERPRETER_CHARS_MAX: Final = 110


@functools.cache
def start_nursery(directory: Path) -> dict[str, str]:
    """The environment in which Spark finds it; none when it cannot start, which only costs time."""
    if len(sys.executable) > INTERPRETER_CHARS_MAX or " " in sys.executable:
        return {}
    # A Python that needs it does not start without, and what stands in for it does.
    if "PYTHONHOME" in os.environ:
        return {}
    address, python = directory / "nursery", directory / "python3"
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            source = Path(stand_in.__file__).read_text(encoding="utf-8")
            # Without installed packages, whatever the environment says.
            python.write_text(f"#!{sys.executable} -SE\n{source}", encoding="utf-8")
            python.chmod(0o700)
            # Not where the file system runs no programs.
            if not os.access(python, os.X_OK):
                return {}
            listening.bind(str(address))
            listening.listen()
            process = subprocess.Popen(
                [sys.executable, "-m", "ottla.spark.startup.nursery", str(listening.fileno())],
                pass_fds=[listening.fileno()],
                # It ends when this does.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**stand_in.DEFAULTS, **os.environ, **WITHOUT_THREADS, **UNBUFFERED},
                # Ctrl-C in a terminal is for the driver.
                start_new_session=True,
            )
        except OSError:
            return {}
    atexit.register(_end, process)
    return {
        stand_in.ADDRESS: str(address),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Those that were forked from it have the JVM to tell them when to end."""
    process.kill()
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
