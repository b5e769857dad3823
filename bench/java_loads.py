"""The loads made by the Java client's own tools, so that not only librdkafka's habits count."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import Final

from bench.librdkafka import LoadFailed
from bench.loads import fresh_name
from bench.nodes import Lab, Meter, Node, bootstrap, topic
from bench.peers import JVM_FLAGS, java, resolve_jars
from bench.spread import Figures

TOOL_TIMEOUT_S: Final = 60.0
TAIL_CHARACTERS: Final = 2000

# The heap of kafka-producer-perf-test.sh; in other languages numbers have a decimal comma.
TOOL_FLAGS: Final = ("-Xmx512M", *JVM_FLAGS, "-Duser.language=en")

# What a tool prints at its end; they also end well when messages are missing.
SENT: Final = r"^{count} records sent, ([\d.]+) records/sec .* 99\.9th\.$"
# The last column is the rate without the joining of the group, which has a row of its own.
READ: Final = r"^[^,]*, [^,]*, [^,]*, [^,]*, {count}, .*, ([\d.]+)$"
PERCENTILES: Final = r"^Percentiles: 50th = (\d+), 99th = (\d+), 99\.9th = (\d+)$"


@dataclass(frozen=True, slots=True)
class JavaBacklog:
    """Writes a backlog with ProducerPerformance, then reads it with ConsumerPerformance."""

    message_bytes: int
    count: int
    acks: str = "1"
    is_cached: bool = True
    batch_bytes: int = 1_000_000
    linger_ms: int = 20

    def run(self, lab: Lab) -> Figures:
        node, name = lab.node, fresh_name("java-backlog")
        with topic(node, name, is_cached=self.is_cached):
            return {**self._produce(node, name), **self._consume(node, name)}

    def _produce(self, node: Node, name: str) -> Figures:
        settings = {
            "bootstrap.servers": bootstrap(node),
            "acks": self.acks,
            "batch.size": self.batch_bytes,
            "linger.ms": self.linger_ms,
        }
        arguments = ["--topic", name, "--num-records", str(self.count), "--throughput", "-1"]
        arguments += ["--record-size", str(self.message_bytes), "--producer-props"]
        arguments += [f"{key}={value}" for key, value in settings.items()]
        with Meter(node) as meter:
            (rate,) = _tool("ProducerPerformance", arguments, SENT.format(count=self.count))
        return self._figures("produce", meter, rate)

    def _consume(self, node: Node, name: str) -> Figures:
        arguments = ["--bootstrap-server", bootstrap(node), "--topic", name, "--group", name]
        arguments += ["--messages", str(self.count)]
        with Meter(node) as meter:
            (rate,) = _tool("ConsumerPerformance", arguments, READ.format(count=self.count))
        return self._figures("consume", meter, rate)

    def _figures(self, what: str, meter: Meter, rate: float) -> Figures:
        """Our MB are not the tools', which are MiB."""
        return {
            f"{what}_per_s": rate,
            f"{what}_mb_per_s": rate * self.message_bytes / 1e6,
            f"{what}_cpu_us": meter.cpu_seconds / self.count * 1e6,
        }


@dataclass(frozen=True, slots=True)
class JavaLatency:
    """EndToEndLatency: one message at a time, sent, acknowledged and read; in whole ms."""

    count: int
    acks: str = "all"
    is_cached: bool = False
    message_bytes: int = 100

    def run(self, lab: Lab) -> Figures:
        node, name = lab.node, fresh_name("java-latency")
        arguments = [bootstrap(node), name, str(self.count), self.acks, str(self.message_bytes)]
        with topic(node, name, is_cached=self.is_cached):
            p50, p99, p999 = _tool("EndToEndLatency", arguments, PERCENTILES)
        return {"latency_p50_ms": p50, "latency_p99_ms": p99, "latency_p999_ms": p999}


def _tool(name: str, arguments: list[str], result: str) -> list[float]:
    """The numbers in the line that is the tool's result."""
    command = [java(), *TOOL_FLAGS, "-cp", f"{resolve_jars()}/*", f"org.apache.kafka.tools.{name}"]
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, timeout=TOOL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"{name} took {TOOL_TIMEOUT_S:g} s:\n{_tail(error.stderr)}") from error
    if done.returncode:
        raise LoadFailed(f"{name} ended with {done.returncode}:\n{_tail(done.stderr)}")
    found = re.search(result, done.stdout.decode(), re.MULTILINE)
    if found is None:
        raise LoadFailed(f"{name} did not finish:\n{_tail(done.stdout)}\n{_tail(done.stderr)}")
    return [float(number) for number in found.groups()]


def _tail(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")[-TAIL_CHARACTERS:]
