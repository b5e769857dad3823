"""Loads with consumer groups: a backlog read by several, a live topic, and many that join."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from bench.group_reader import DONE, READING, group_readers
from bench.librdkafka import LoadFailed, Producer
from bench.loads import LARGE_BATCHES, Backlog, fresh_name
from bench.nodes import Lab, Meter, Node, bootstrap, topic
from bench.spread import Figures

JOIN_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """A backlog that is there, read by so many groups at once, their joining included."""

    groups: int
    load: Backlog

    def run(self, lab: Lab) -> Figures:
        return self.run_on(lab.node)

    def run_on(self, node: Node) -> Figures:
        name, count = fresh_name("groups"), self.load.count
        with topic(node, name, self.load.partitions, is_cached=self.load.is_cached):
            self.load.produce(node, name)
            meter = Meter(node)
            with group_readers(bootstrap(node), name, self.groups, count) as readers, meter:
                readers.begin()
                readers.await_all(READING)
                readers.await_all(DONE)
        return read_figures(count * self.groups, self.load.message_bytes, meter)


@dataclass(frozen=True, slots=True)
class Live:
    """One writer in large batches while groups read what it writes."""

    groups: int
    load: Backlog

    def run(self, lab: Lab) -> Figures:
        node, name, count = lab.node, fresh_name("live"), self.load.count
        settings = {**LARGE_BATCHES, "acks": self.load.acks}
        payload = bytes(self.load.message_bytes)
        with (
            topic(node, name, is_cached=self.load.is_cached),
            Producer(bootstrap(node), settings) as producer,
            group_readers(bootstrap(node), name, self.groups, count + 1) as readers,
        ):
            producer.send(name, b"probe")
            producer.flush()
            readers.begin()
            readers.await_all(READING)
            with Meter(node) as both:
                with Meter(node) as write:
                    producer.enqueue(name, payload, count)
                    producer.flush()
                readers.await_all(DONE)
        figures = read_figures(count * self.groups, self.load.message_bytes, both)
        del figures["consume_cpu_us"]
        rate = count / write.seconds
        return {
            "produce_per_s": rate,
            "produce_mb_per_s": rate * self.load.message_bytes / 1e6,
            **figures,
            "both_cpu_us": both.cpu_seconds / count * 1e6,
        }


@dataclass(frozen=True, slots=True)
class Join:
    """Consumers that join one group, until each has its partition."""

    members: int

    def run(self, lab: Lab) -> Figures:
        return self.run_on(lab.node)

    def run_on(self, node: Node) -> Figures:
        name = fresh_name("join")
        with topic(node, name, self.members), Meter(node) as meter:
            done = subprocess.run(
                [sys.executable, "-m", "bench.joiners", bootstrap(node), name, str(self.members)],
                capture_output=True,
                text=True,
                timeout=JOIN_TIMEOUT_S,
                check=False,
            )
        if done.returncode:
            raise LoadFailed(f"the consumers did not join: {done.stderr.strip()[-500:]}")
        return {"join_s": float(done.stdout), "join_cpu_s": meter.cpu_seconds}


def read_figures(messages: int, message_bytes: int, meter: Meter) -> Figures:
    """Of all groups together."""
    rate = messages / meter.seconds
    return {
        "consume_per_s": rate,
        "consume_mb_per_s": rate * message_bytes / 1e6,
        "consume_cpu_us": meter.cpu_seconds / messages * 1e6,
    }


def warm_up(node: Node) -> None:
    """The first group makes the log of offsets, and a JVM compiles what it meets: not measured."""
    GroupBacklog(1, Backlog(100, 200_000)).run_on(node)
    Join(10).run_on(node)
