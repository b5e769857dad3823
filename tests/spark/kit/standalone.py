"""A standalone cluster of Spark's on this machine, as PySpark ships it: a master and workers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from ottla.testing.ports import free_ports
from scenarios.polling import until
from spark.kit.children import kill_9
from spark.kit.session import LOG4J, quick_java

HOME = Path(pyspark.__file__).parent
STOP_TIMEOUT_S = 30.0
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Cluster:
    url: str
    workers: tuple[psutil.Process, ...]

    def kill_worker_of(self, pid: int) -> None:
        """The machine on which this process runs: its worker, executors and their Pythons."""
        family = {pid, *(one.pid for one in psutil.Process(pid).parents())}
        (worker,) = (one for one in self.workers if one.pid in family)
        for process in [worker, *worker.children(recursive=True)]:
            kill_9(process)


@contextmanager
def standalone(directory: Path, workers: int = 1) -> Iterator[Cluster]:
    """Workers of one core each."""
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    common = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        stack.enter_context(_daemon(directory, "master.Master", *common, "--port", str(port)))
        processes = []
        for number in range(1, workers + 1):
            place = directory / f"worker-{number}"
            place.mkdir()
            own = ["--cores", "1", "--memory", "1g", "--work-dir", str(place / "work"), url]
            process = stack.enter_context(_daemon(place, "worker.Worker", *common, *own))
            processes.append(psutil.Process(process.pid))
        for number in range(1, workers + 1):
            log = directory / f"worker-{number}" / "worker.Worker.log"
            until(
                lambda log=log: "registered with master" in log.read_text(),
                "the worker found no master",
                PATIENCE_S,
            )
        yield Cluster(url, tuple(processes))


@contextmanager
def _daemon(directory: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    quiet = f"-Dlog4j2.configurationFile=file:{LOG4J.with_name('log4j2-daemon.properties')}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": f"{quiet} {quick_java()}",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    # Another machine has only what is sent there.
    environment.pop("PYTHONPATH", None)
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
