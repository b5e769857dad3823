"""Apache Kafka in KRaft mode from its own jars, as the peer that Ottla is compared with."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import maven
from bench.librdkafka import LoadFailed
from bench.nodes import data_root, free_port

KAFKA_VERSION: Final = "4.0.0"
SLF4J_VERSION: Final = "1.7.36"
START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.01

# The heap of kafka-server-start.sh and the flags of kafka-run-class.sh, as Kafka ships them.
BROKER_HEAP: Final = ("-Xmx1G", "-Xms1G")
JVM_FLAGS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

# The load's, and no part of the broker; all that its few classes need is there anyway.
TOOLS_JAR: Final = f"kafka-tools-{KAFKA_VERSION}.jar"
POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
      <version>{kafka}</version>
      <exclusions>
        <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
      <version>{slf4j}</version>
    </dependency>
  </dependencies>
</project>
"""

# A deleted topic's files go at once, as Ottla's do: new pages are dear where a hypervisor must
# first find them, and a side that keeps its old ones for a minute would pay for all the others.
PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
log.dirs={data_dir}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=200
"""


MEMBER_PROPERTIES: Final = """process.roles=broker,controller
node.id={node_id}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.quorum.voters={voters}
log.dirs={data_dir}
num.partitions=1
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=200
"""


class Member(NamedTuple):
    """One of several nodes."""

    node_id: int
    port: int
    controller_port: int
    voters: str
    cluster_id: str


class KafkaNode:
    """Kafka as shipped: one node that is broker and controller, alone or of several."""

    side = "kafka"
    replicas = 1

    def __init__(self, member: Member | None = None) -> None:
        self.port = free_port() if member is None else member.port
        self._member = member
        self._jars = resolve_jars()
        self._home = Path(tempfile.mkdtemp(prefix="kafka-bench-", dir=data_root()))
        self._process: subprocess.Popen[bytes] | None = None
        self._format()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LoadFailed("Kafka has not been started")
        return self._process.pid

    @property
    def pids(self) -> Sequence[int]:
        return (self.pid,)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """As a crash: kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        with (self._home / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(self._home / "server.properties")],
                cwd=self._home,
                stdout=log,
                stderr=log,
            )
        self._await_port()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        try:
            self.stop()
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self._home, ignore_errors=True)

    def topic_configs(self, *, is_cached: bool) -> dict[str, str]:
        return {} if is_cached else {"flush.messages": "1"}

    def package_bytes(self) -> int:
        jars = (path for path in self._jars.iterdir() if path.name != TOOLS_JAR)
        return sum(path.stat().st_size for path in jars)

    def _java(self) -> list[str]:
        return [java(), *BROKER_HEAP, *JVM_FLAGS, "-cp", f"{self._jars}/*"]

    def _format(self) -> None:
        config = self._home / "server.properties"
        config.write_text(self._properties())
        command = [java(), "-Xmx256M", "-cp", f"{self._jars}/*", "kafka.tools.StorageTool"]
        command += ["format", "-c", str(config), "-t"]
        if self._member is None:
            command += [new_cluster_id(), "--standalone"]
        else:
            command += [self._member.cluster_id]
        done = subprocess.run(
            command, cwd=self._home, capture_output=True, timeout=START_TIMEOUT_S, check=False
        )
        if done.returncode:
            raise LoadFailed(f"Kafka's storage was not formatted:\n{done.stderr.decode()[-2000:]}")

    def _properties(self) -> str:
        data_dir = self._home / "data"
        if self._member is not None:
            return MEMBER_PROPERTIES.format(**self._member._asdict(), data_dir=data_dir)
        return PROPERTIES.format(port=self.port, controller_port=free_port(), data_dir=data_dir)

    def _await_port(self) -> None:
        """Kafka opens its port when it is ready to serve."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                log = (self._home / "kafka.log").read_text(errors="replace")
                raise LoadFailed(f"Kafka ended before it was ready:\n{log[-2000:]}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(POLL_S)
        raise LoadFailed(f"Kafka was not ready in {START_TIMEOUT_S:g} s")


def new_cluster_id() -> str:
    """None that begins with a dash."""
    return f"A{base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')[1:]}"


def java() -> str:
    """Java 17 or newer, which Kafka 4 needs."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if found is None:
        raise LoadFailed("Kafka needs Java 17 or newer: install a JRE")
    return found


def java_version() -> str:
    done = subprocess.run(
        [java(), "-version"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
    )
    return done.stderr.partition('"')[2].partition('"')[0]


def resolve_jars() -> Path:
    """The directory with Kafka's jars."""
    home = Path(".cache/kafka").absolute() / KAFKA_VERSION
    return maven.resolve(home, POM.format(kafka=KAFKA_VERSION, slf4j=SLF4J_VERSION), "Kafka's")
