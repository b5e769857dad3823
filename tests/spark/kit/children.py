"""Spark drivers in processes of their own, that can be killed as a crash would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from spark.kit import session

STOP_TIMEOUT_S = 30.0


class Child:
    """Runs `module` with `job` as JSON in its first argument; ends with its owner."""

    def __init__(self, module: str, job: dict[str, Any], directory: Path) -> None:
        self._command = [sys.executable, "-m", module, json.dumps(job)]
        self._log = directory / f"{module}-{len(list(directory.iterdir()))}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **session.environment()},
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def check(self) -> bool:
        """Raises with the log's end if the process has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"ended with {self._process.returncode}:\n{self.log()[-3000:]}")
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self, timeout_s: float) -> str:
        """Waits for a good end; returns what it wrote."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        assert code == 0, f"ended with {code}:\n{self.log()[-6000:]}"
        return self.log()

    def end(self, timeout_s: float) -> int:
        """Waits for any end; what it ended with, negative for a signal."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def terminate(self) -> None:
        """As a service is told to stop."""
        assert self._process is not None
        self._process.terminate()

    def leave(self) -> None:
        """As an owner that has gone."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """-9 to the driver, its JVM and its Python workers, all at once."""
        assert self._process is not None
        family = []
        if self._process.poll() is None:
            family = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
        for process in family:
            kill_9(process)
        psutil.wait_procs(family, STOP_TIMEOUT_S)
        self._process.wait(STOP_TIMEOUT_S)
        if self._process.stdin is not None:
            self._process.stdin.close()


def kill_9(process: psutil.Process) -> bool:
    """Whether it was still there to be killed."""
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return False
    return True


def python_workers() -> list[psutil.Process]:
    """The processes of these sessions' executors that run tasks: children of the daemon."""
    workers = []
    for process in psutil.Process().children(recursive=True):
        try:
            family = [process, *process.parents()[:2]]
            is_forked_there = all("ottla.spark.startup.nursery" in one.cmdline() for one in family)
            if is_forked_there or all("pyspark.daemon" in one.cmdline() for one in family[:2]):
                workers.append(process)
        except psutil.NoSuchProcess:
            continue
    return workers
