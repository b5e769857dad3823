"""A broker's life: its start, its memory when idle and after much work, and many partitions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from bench import procfs
from bench.librdkafka import Producer, Settings
from bench.loads import Backlog, fresh_name, touch_files
from bench.nodes import Lab, Meter, Node, bootstrap, create_topic, running, topic
from bench.spread import Figures

SETTLE_S: Final = 1.0
GB: Final = 1_000_000_000

# The client is there before the broker and knocks often, so that its patience is not measured.
IMPATIENT: Final[Settings] = {
    "acks": "all",
    "linger.ms": 0,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 5,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "retry.backoff.ms": 10,
    "log_level": 0,
}


@dataclass(frozen=True, slots=True)
class Start:
    """From the spawn of the process, on an empty disk, to the first acknowledged message."""

    def run(self, lab: Lab) -> Figures:
        node = lab.make()
        try:
            with Producer(bootstrap(node), IMPATIENT) as producer:
                producer.enqueue(fresh_name("first"), b"first", 1)
                started = time.perf_counter()
                node.start()
                ready_s = time.perf_counter() - started
                cpu_s = procfs.cpu_seconds(node.pid)
                producer.flush()
                first_ack_s = time.perf_counter() - started
            return {"ready_s": ready_s, "first_ack_s": first_ack_s, "ready_cpu_s": cpu_s}
        finally:
            node.close()


@dataclass(frozen=True, slots=True)
class Idle:
    """What a broker costs that nobody uses."""

    seconds: float

    def run(self, lab: Lab) -> Figures:
        with running(lab.make) as node:
            time.sleep(SETTLE_S)
            with Meter(node) as meter:
                time.sleep(self.seconds)
            memory = procfs.memory(node.pid)
        return {
            "rss_mb": memory.rss_mb,
            "anonymous_mb": memory.anonymous_mb,
            "idle_cpu_percent": meter.cpu_seconds / meter.seconds * 100,
        }


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a fresh broker: when nobody uses it, and its peak under a load."""

    idle_s: float
    load: Backlog

    def run(self, lab: Lab) -> Figures:
        with running(lab.make) as node:
            time.sleep(SETTLE_S)
            with Meter(node) as meter:
                time.sleep(self.idle_s)
            idle = procfs.memory(node.pid)
            with topic(node, fresh_name("memory"), self.load.partitions) as name:
                self.load.produce(node, name)
                self.load.consume(node, name)
            peak_mb = procfs.peak_rss_mb(node.pid)
        return {
            "rss_mb": idle.rss_mb,
            "anonymous_mb": idle.anonymous_mb,
            "idle_cpu_percent": meter.cpu_seconds / meter.seconds * 100,
            "peak_rss_mb": peak_mb,
        }


@dataclass(frozen=True, slots=True)
class Package:
    """What an installation puts on the disk, without the Python or Java below it."""

    def run(self, lab: Lab) -> Figures:
        node = lab.make()
        try:
            return {"package_mb": node.package_bytes() / procfs.MB}
        finally:
            node.close()


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Many partitions written in turn, once each of them has its files.

    The topic stays from round to round: one side makes a partition's files at its creation, the
    other at its first write, and Kafka's first writes to them take more than a minute here (the
    first touch of a page in each of its mapped indexes).
    """

    partitions: int
    batches_each: int
    batch_messages: int

    def run(self, lab: Lab) -> Figures:
        node, name = lab.node, f"bench-round-robin-{self.partitions}"
        figures = {}
        if lab.is_first(name):
            started = time.perf_counter()
            create_topic(node, name, self.partitions)
            touch_files(node, name, self.partitions)
            figures["create_s"] = time.perf_counter() - started
        count = self.partitions * self.batches_each * self.batch_messages
        load = Backlog(100, count, partitions=self.partitions, batch_messages=self.batch_messages)
        return figures | load.produce(node, name)


@dataclass(frozen=True, slots=True)
class Partitions:
    """Many partitions: creation, writes in turn to all, a clean stop, a start, and quiet."""

    partitions: int
    count: int
    idle_s: float

    def run(self, lab: Lab) -> Figures:
        name = fresh_name("partitions")
        with running(lab.make) as node:
            with Meter(node) as create:
                create_topic(node, name, self.partitions)
            write = Backlog(100, self.count, partitions=self.partitions).produce(node, name)
            rss_written_mb = procfs.memory(node.pid).rss_mb
            stop_s = _seconds(node.stop)
            start_s = _seconds(node.start)
            time.sleep(SETTLE_S)
            with Meter(node) as idle:
                time.sleep(self.idle_s)
            memory = procfs.memory(node.pid)
        return {
            "create_s": create.seconds,
            **write,
            "stop_s": stop_s,
            "restart_s": start_s,
            "idle_cpu_percent": idle.cpu_seconds / idle.seconds * 100,
            "rss_mb": max(memory.rss_mb, rss_written_mb),
            "anonymous_mb": memory.anonymous_mb,
        }


@dataclass(frozen=True, slots=True)
class Flat:
    """Anonymous memory while much passes through; what is read is deleted to spare the disk."""

    gigabytes: float
    chunks: int
    chunks_per_topic: int = 8
    message_bytes: int = 1000

    def run(self, lab: Lab) -> Figures:
        with running(lab.make) as node:
            samples = [*self._samples(node)]
        # The first tenth fills what stays: compiled codecs, caches, the allocator's own store.
        steady = samples[max(1, len(samples) // 10) :]
        middle = statistics.mean(steady)
        third = max(1, len(steady) // 3)
        growth = statistics.mean(steady[-third:]) - statistics.mean(steady[:third])
        return {
            "passed_gb": self.gigabytes,
            "anonymous_mb": middle,
            "anonymous_low_mb": min(steady),
            "anonymous_high_mb": max(steady),
            "swing_percent": max(max(steady) - middle, middle - min(steady)) / middle * 100,
            "growth_percent": growth / middle * 100,
        }

    def _samples(self, node: Node) -> Iterator[float]:
        """One per chunk, taken between writing it and reading it, and after reading it."""
        count = int(self.gigabytes * GB / self.message_bytes / self.chunks)
        for first in range(0, self.chunks, self.chunks_per_topic):
            name = fresh_name("flat")
            with topic(node, name):
                for _ in range(first, min(first + self.chunks_per_topic, self.chunks)):
                    load = Backlog(self.message_bytes, count)
                    load.produce(node, name)
                    produced = procfs.memory(node.pid).anonymous_mb
                    load.consume(node, name)
                    yield max(produced, procfs.memory(node.pid).anonymous_mb)


def _seconds(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started
