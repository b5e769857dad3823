"""A Python that has everything imported before Spark asks for its first worker.

Spark starts one Python for each kind of work (finding formats, planning, reading, writing …), and
every one of them imports PySpark, Arrow, numba and our kernels: more than a second each. On this
machine `python -m ottla.spark.startup.nursery FD` is started beside the JVM and imports all that
once. What Spark then starts in place of Python (`stand_in.py`) hands its pipes over, and the
process that is forked here does what it was asked for. Whatever goes wrong with that, the real
Python is started.

The nursery has one thread, as forking asks for, and ends when its driver has gone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any, Final, NoReturn

from ottla.spark.startup.stand_in import LENGTH_BYTES, likeness

# Arrow's allocator and BLAS would start some.
WITHOUT_THREADS: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OMP_NUM_THREADS": "1"}
# As Spark has it: what a function prints is seen, though a worker's end flushes nothing.
UNBUFFERED: Final = {"PYTHONUNBUFFERED": "YES"}
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
# Stdin, stdout and stderr.
PIPES: Final = 3
PATIENCE_S: Final = 5.0
WARMED: Final = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.pandas.serializers",
    "pyspark_ottla",
    "ottla.spark.batch_reader",
    "ottla.spark.stream_reader",
    "ottla.spark.writer",
)
# In the directory of the kernels' machine code: it is whole.
COMPILED: Final = "compiled"
NICENESS: Final = 19
KERNELS: Final = (
    "ottla.spark.decoding.rows_numba",
    "ottla.spark.encoding.rows_numba",
    "ottla.spark.formats.json_screen_numba",
)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nobody waits for those that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Before anything that is imported can change it.
    own = likeness()
    installed = _installed()
    listening = socket.socket(fileno=int(sys.argv[1]))
    warm(listening)
    if _thread_count() > 1:
        # Somebody's sitecustomize, or a library with pools of its own.
        return
    asked = select.poll()
    # The driver's end of a pipe, which says nothing until it closes.
    asked.register(0, select.POLLIN)
    asked.register(listening, select.POLLIN)
    while True:
        ready = [number for number, _ in asked.poll()]
        if 0 in ready:
            return
        connection, _ = listening.accept()
        with connection, suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(PATIENCE_S)
            head, pipes, _, _ = socket.recv_fds(connection, LENGTH_BYTES, PIPES)
            try:
                request = _request(connection, head)
                if request["is"] == own and len(pipes) == PIPES and os.fork() == 0:
                    listening.close()
                    _stand_in(connection, request, pipes, installed)
            finally:
                for number in pipes:
                    os.close(number)


def warm(listening: socket.socket) -> None:
    """What cannot be imported here says so where it is needed."""
    for name in WARMED:
        with suppress(Exception):
            importlib.import_module(name)
    with suppress(Exception):
        _load_kernels(listening)
    with suppress(Exception):
        import numpy as np

        # Python's own generator does so; with numpy's every worker would draw the same numbers.
        os.register_at_fork(after_in_child=np.random.seed)
    gc.collect()
    # Pages of what is there already stay shared with every fork.
    gc.freeze()


def _load_kernels(listening: socket.socket) -> None:
    """Those that are compiled; the first time a process of its own does that, for the next one.

    It takes longer than Spark waits for a Python that has begun.
    """

    from ottla.spark import kernels

    directory = kernels.kept_directory() if kernels.is_available() else None
    if directory is None:
        return
    if (directory / COMPILED).exists():
        import_kernels()
    elif os.fork() == 0:
        # Forked twice and without pipes, so that nothing that reads this command's output waits.
        if os.fork() == 0:
            listening.close()
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in range(PIPES):
                os.dup2(nothing, number)
            with suppress(Exception):
                os.nice(NICENESS)
                import_kernels()
                (directory / COMPILED).touch()
        os._exit(0)


def import_kernels() -> None:
    for name in KERNELS:
        importlib.import_module(name)


def _request(connection: socket.socket, head: bytes) -> dict[str, Any]:
    length = int.from_bytes(head, "big")
    if len(head) < LENGTH_BYTES or length > REQUEST_BYTES_MAX:
        raise ValueError("no request")
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            raise ValueError("half a request")
        parts += part
    request: dict[str, Any] = json.loads(parts)
    return request


def _stand_in(
    connection: socket.socket, request: dict[str, Any], pipes: list[int], installed: list[str]
) -> NoReturn:
    """`python -m MODULE …` in every respect, but for what it need not import any more."""
    code = 1
    try:
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        environment = request["environment"]
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(request["directory"])
        module, *arguments = request["arguments"]
        sys.argv[:] = [module, *arguments]
        first = [] if sys.flags.safe_path else [os.getcwd()]
        sys.path[:] = [*first, *_python_path(environment.get("PYTHONPATH")), *installed]
        time.tzset()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.settimeout(None)
        connection.sendall(os.getpid().to_bytes(LENGTH_BYTES, "big"))
        # It closes when this process ends, and not when the last of its workers does.
        os.register_at_fork(after_in_child=connection.close)
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _installed() -> list[str]:
    """What is on the path without the working directory and PYTHONPATH."""
    own = set(_python_path(os.environ.get("PYTHONPATH")))
    rest = sys.path if sys.flags.safe_path else sys.path[1:]
    return [path for path in rest if path not in own]


def _python_path(text: str | None) -> list[str]:
    return [os.path.abspath(path) for path in (text or "").split(os.pathsep) if path]


def _thread_count() -> int:
    """Also those of libraries, of which Python knows nothing."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


if __name__ == "__main__":
    main()
