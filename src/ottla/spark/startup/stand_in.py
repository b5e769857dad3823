"""What Spark on this machine starts as its Python: a Python of the nursery, or else the real one.

A copy of this file, with the real Python in its first line, is given to Spark as PYSPARK_PYTHON. It
runs without installed packages, so that it is there at once, and imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

ADDRESS = "OTTLA_SPARK_NURSERY"
# What a Python and its libraries take from their environment once, so that nothing can change it
# later; `spark.executorEnv…` may say it.
FIXED = (
    "LANG",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONOPTIMIZE",
    "PYTHONSAFEPATH",
    "PYTHONUTF8",
    "PYTHONWARNINGS",
)
FIXED_BEGINNINGS = ("ARROW_", "LC_", "LD_", "MKL_", "NUMBA_", "OPENBLAS_")
# Spark sets these for the Pythons that run tasks; those that plan work with them as well.
DEFAULTS = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
LENGTH_BYTES = 4
# For a nursery that is still importing. Spark gives a stream's Python ten seconds to call back, and
# the real one needs its own time.
PATIENCE_S = 4.0


def likeness() -> list[str]:
    """What must be the same in a nursery and in the Python that it stands in for."""
    kept = (
        f"{name}={value}"
        for name, value in {**DEFAULTS, **os.environ}.items()
        if name in FIXED or name.startswith(FIXED_BEGINNINGS)
    )
    return [sys.version, *sorted(kept)]


def main() -> None:
    arguments = sys.argv[1:]
    address = os.environ.get(ADDRESS)
    is_spark = len(arguments) > 1 and arguments[0] == "-m" and arguments[1].startswith("pyspark.")
    if address is None or not is_spark or not was_taken_over(address, arguments[1:]):
        os.execv(sys.executable, [sys.executable, *arguments])


def was_taken_over(address: str, arguments: list[str]) -> bool:
    """Whether the nursery had a process in our place; it has ended then."""
    request = {
        "arguments": arguments,
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "is": likeness(),
    }
    text = json.dumps(request).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            socket.send_fds(connection, [len(text).to_bytes(LENGTH_BYTES, "big")], [0, 1, 2])
            connection.sendall(text)
            connection.settimeout(PATIENCE_S)
            number = connection.recv(LENGTH_BYTES)
            if not number:
                return False
            _stay(connection, int.from_bytes(number, "big"))
    except OSError:
        return False
    return True


def _stay(connection: socket.socket, pid: int) -> None:
    """Spark ends a Python by ending us."""

    def end(number: int, _: FrameType | None) -> None:
        # One that is over already is not to be started again.
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    connection.settimeout(None)
    try:
        connection.recv(1)
    except ConnectionError:
        return


if __name__ == "__main__":
    main()
