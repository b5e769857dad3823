"""A standalone Spark on this machine: a master, and workers of one core, as PySpark ships them."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

from bench.librdkafka import LoadFailed
from bench.nodes import free_port

HOME: Final = Path(pyspark.__file__).parent
LOOPBACK: Final = "127.0.0.1"
WORKERS: Final = 2
MEMORY: Final = "2g"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0


@contextmanager
def workers() -> Iterator[str]:
    """The master's address, once all workers have found it."""
    port = free_port()
    url = f"spark://{LOOPBACK}:{port}"
    place = ["--host", LOOPBACK, "--webui-port", "0"]
    with tempfile.TemporaryDirectory(prefix="ottla-bench-spark-") as name, ExitStack() as stack:
        directory = Path(name)
        master = [*place, "--port", str(port)]
        stack.enter_context(_daemon(directory / "master.log", "master.Master", master))
        logs = [directory / f"worker-{number}.log" for number in range(WORKERS)]
        for log in logs:
            own = ["--cores", "1", "--memory", MEMORY, "--work-dir", f"{log}.work", url]
            stack.enter_context(_daemon(log, "worker.Worker", [*place, *own]))
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all("registered with master" in log.read_text() for log in logs):
            if time.monotonic() > deadline:
                raise LoadFailed(f"no worker for {url}: {logs[0].read_text()[-1000:]}")
            time.sleep(0.1)
        yield url


@contextmanager
def _daemon(log: Path, name: str, arguments: list[str]) -> Iterator[None]:
    environment = {**os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": LOOPBACK}
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
