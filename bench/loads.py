"""The loads, all made by librdkafka: what one run of each does to a broker and what it measures."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from bench.group_reader import DEEP_PREFETCH
from bench.librdkafka import Consumer, LoadFailed, Producer, RoundTrips, Settings
from bench.nodes import Lab, Meter, Node, bootstrap, topic
from bench.reader import READY as READER_READY
from bench.spread import CURVE_PREFIX, Figures, percentile

PROBE_REQUESTS: Final = 100
TOUCH_MESSAGES: Final = 100
STATISTICS_MS: Final = 500
BATCHED_STATISTICS_MS: Final = 1000
READER_TIMEOUT_S: Final = 60.0
FETCH_BYTES: Final = 65_536
FETCH_PARTS: Final = 50

# Idempotence is off because it would force acks=all; batches are librdkafka's largest by default.
LARGE_BATCHES: Final[Settings] = {
    "linger.ms": 20,
    "batch.num.messages": 10_000,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 * 1024,
}
# Nothing leaves before its batch is full, and everything has room in the queue.
EVEN_BATCHES: Final[Settings] = {
    "linger.ms": 1000,
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1024 * 1024,
}
# The next request leaves when the reply is there, so that requests/s is 1/latency per connection.
SMALLEST_REQUESTS: Final[Settings] = {
    "linger.ms": 0,
    "batch.num.messages": 1,
    "max.in.flight": 1,
    "socket.nagle.disable": "true",
    "queue.buffering.max.messages": 1_000_000,
}
# A sleep is not finer than this; at higher rates several messages leave together.
TICKS_PER_S: Final = 1000
CURVE_PERCENTS: Final = (
    *(1, 5, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 96, 97, 98, 99, 99.25),
    *(99.5, 99.7, 99.8, 99.9, 99.95, 99.99),
)  # fmt: skip

_numbers = itertools.count()


def fresh_name(what: str) -> str:
    return f"bench-{what}-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Backlog:
    """Writes a backlog in large batches, then reads it."""

    message_bytes: int
    count: int
    acks: str = "1"
    is_cached: bool = True
    partitions: int = 1
    codec: str = "none"
    # So many in every batch, whatever the broker's speed, for loads that must not depend on it.
    batch_messages: int = 0

    def run(self, lab: Lab) -> Figures:
        node, name = lab.node, fresh_name("backlog")
        with topic(node, name, self.partitions, is_cached=self.is_cached):
            figures = {**self.produce(node, name), **self.consume(node, name)}
        figures["both_cpu_us"] = figures["produce_cpu_us"] + figures["consume_cpu_us"]
        return figures

    def produce(self, node: Node, name: str) -> Figures:
        settings = {**LARGE_BATCHES, "acks": self.acks, "compression.codec": self.codec}
        if self.batch_messages:
            settings |= {**EVEN_BATCHES, "batch.num.messages": self.batch_messages}
        payload = bytes(self.message_bytes)
        with Producer(bootstrap(node), settings) as producer, Meter(node) as meter:
            producer.enqueue(
                name, payload, self.count, self.partitions, is_varied=self.codec != "none"
            )
            producer.flush()
        return self._figures("produce", meter)

    def consume(self, node: Node, name: str) -> Figures:
        with Consumer(bootstrap(node), DEEP_PREFETCH) as consumer:
            consumer.start(name, self.partitions)
            # librdkafka waits half a second before it asks for the first offset.
            consumer.consume(1)
            with Meter(node) as meter:
                consumer.consume(self.count - 1)
        return self._figures("consume", meter)

    def _figures(self, what: str, meter: Meter) -> Figures:
        rate = self.count / meter.seconds
        return {
            f"{what}_per_s": rate,
            f"{what}_mb_per_s": rate * self.message_bytes / 1e6,
            f"{what}_cpu_us": meter.cpu_seconds / self.count * 1e6,
        }


@dataclass(frozen=True, slots=True)
class Written:
    """Only the first half of a backlog: its writing."""

    backlog: Backlog

    def run(self, lab: Lab) -> Figures:
        node, name, load = lab.node, fresh_name("written"), self.backlog
        with topic(node, name, load.partitions, is_cached=load.is_cached):
            touch_files(node, name, load.partitions)
            return load.produce(node, name)


def touch_files(node: Node, name: str, partitions: int) -> None:
    """Two small batches to every partition, so that no side creates files while it is timed.

    Kafka makes a partition's files when its topic is created and Ottla with the first batch.
    """
    for _ in range(2):
        count = partitions * TOUCH_MESSAGES
        Backlog(100, count, partitions=partitions, batch_messages=TOUCH_MESSAGES).produce(
            node, name
        )


@dataclass(frozen=True, slots=True)
class Requests:
    """One message per produce request, each connection waiting for its reply before the next."""

    connections: int
    seconds: float
    acks: str = "1"
    is_cached: bool = True
    message_bytes: int = 100
    window_ms: int = STATISTICS_MS

    def run(self, lab: Lab) -> Figures:
        node = lab.node
        name = fresh_name("requests")
        with topic(node, name, is_cached=self.is_cached), ExitStack() as stack:
            producers = self._connect(node, stack)
            probe_s = self._send(producers, name, PROBE_REQUESTS)
            probe_s = self._send(producers, name, PROBE_REQUESTS)
            each = max(PROBE_REQUESTS, int(PROBE_REQUESTS * self.seconds / probe_s))
            for producer in producers:
                producer.round_trips.clear()
            with Meter(node) as meter:
                self._send(producers, name, each)
            trips = [trip for producer in producers for trip in producer.round_trips]
        total = each * self.connections
        return {
            "requests_per_s": total / meter.seconds,
            "request_cpu_us": meter.cpu_seconds / total * 1e6,
            **_round_trip_figures(trips),
        }

    def send_some(self, node: Node, name: str, each: int) -> int:
        """So many requests on each connection; returns how many in all."""
        with ExitStack() as stack:
            self._send(self._connect(node, stack), name, each)
        return each * self.connections

    def _connect(self, node: Node, stack: ExitStack) -> list[Producer]:
        settings = {
            **SMALLEST_REQUESTS,
            "acks": self.acks,
            "statistics.interval.ms": self.window_ms,
        }
        return [
            stack.enter_context(Producer(bootstrap(node), settings))
            for _ in range(self.connections)
        ]

    def _send(self, producers: list[Producer], name: str, each: int) -> float:
        """Returns how long it took until everything was acknowledged."""
        payload = bytes(self.message_bytes)
        started = time.perf_counter()
        for producer in producers:
            producer.enqueue(name, payload, each)
        for producer in producers:
            producer.flush()
        return time.perf_counter() - started


def _round_trip_figures(trips: Iterable[RoundTrips]) -> Figures:
    """The typical window's percentiles; windows with few requests say nothing about the tail."""
    whole = [trip for trip in trips if trip.requests >= PROBE_REQUESTS]
    if not whole:
        return {}
    return {
        "request_p50_ms": statistics.median(trip.p50_us for trip in whole) / 1000,
        "request_p99_ms": statistics.median(trip.p99_us for trip in whole) / 1000,
    }


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """From just before the send to just after the receipt, at a steady rate."""

    per_s: int
    seconds: float
    acks: str = "all"
    is_cached: bool = False
    message_bytes: int = 100
    linger_ms: int = 0

    def run(self, lab: Lab) -> Figures:
        node = lab.node
        count = int(self.per_s * self.seconds)
        name = fresh_name("latency")
        with (
            topic(node, name, is_cached=self.is_cached),
            Producer(bootstrap(node), self._settings()) as producer,
            subprocess.Popen(
                [sys.executable, "-m", "bench.reader", bootstrap(node), name, str(count)],
                stdout=subprocess.PIPE,
                text=True,
            ) as reader,
        ):
            try:
                producer.send(name, b"probe")
                _await_line(reader, READER_READY)
                with Meter(node) as meter:
                    self._send(producer, name, count)
                    output, _ = reader.communicate(timeout=READER_TIMEOUT_S)
            finally:
                reader.kill()
        times_ms = json.loads(output)
        if len(times_ms) != count:
            raise LoadFailed(f"{len(times_ms)} of {count} messages came")
        return {
            "latency_p50_ms": percentile(times_ms, 50),
            "latency_p99_ms": percentile(times_ms, 99),
            "latency_p999_ms": percentile(times_ms, 99.9),
            "latency_cpu_us": meter.cpu_seconds / count * 1e6,
            **_round_trip_figures(producer.round_trips),
            **curve(times_ms),
        }

    def write(self, node: Node, name: str) -> None:
        """Only the sending, to whoever reads it."""
        with Producer(bootstrap(node), self._settings()) as producer:
            self._send(producer, name, int(self.per_s * self.seconds))

    def _settings(self) -> Settings:
        return {
            "acks": self.acks,
            "linger.ms": self.linger_ms,
            "socket.nagle.disable": "true",
            # Batched requests are few; without batches a request is a message, which is timed.
            "statistics.interval.ms": BATCHED_STATISTICS_MS if self.linger_ms else 0,
        }

    def _send(self, producer: Producer, name: str, count: int) -> None:
        filler = bytes(max(0, self.message_bytes - 8))
        together = max(1, self.per_s // TICKS_PER_S)
        for _ in steadily(count // together, self.per_s / together):
            payload = time.monotonic_ns().to_bytes(8, "little") + filler
            if together == 1:
                producer.send(name, payload)
            else:
                producer.send_copies(name, payload, together)
        producer.flush()


@dataclass(frozen=True, slots=True)
class SteadyRequests:
    """Producers that together send so many messages per second, each in a request of its own."""

    connections: int
    per_s: int
    seconds: float
    window_ms: int = 2000

    def run(self, lab: Lab) -> Figures:
        node, name = lab.node, fresh_name("steady")
        settings = {
            **SMALLEST_REQUESTS,
            "acks": "all",
            "statistics.interval.ms": self.window_ms,
        }
        count, payload = int(self.per_s * self.seconds), bytes(100)
        with topic(node, name, is_cached=False), ExitStack() as stack:
            producers = [
                stack.enter_context(Producer(bootstrap(node), settings))
                for _ in range(self.connections)
            ]
            for producer in producers:
                producer.enqueue(name, payload, 1)
                producer.flush()
            with Meter(node) as meter:
                turns = itertools.cycle(producers)
                for producer, _ in zip(turns, steadily(count, self.per_s), strict=False):
                    producer.send(name, payload)
                for producer in producers:
                    producer.flush()
            trips = [trip for producer in producers for trip in producer.round_trips]
        return {
            **_round_trip_figures(trips),
            "request_cpu_us": meter.cpu_seconds / count * 1e6,
        }


@dataclass(frozen=True, slots=True)
class Fetches:
    """How long a fetch takes whose messages are there, while others are written steadily."""

    per_s: int
    seconds: float
    backlog: Backlog = Backlog(1000, 300_000, batch_messages=60)

    def run(self, lab: Lab) -> Figures:
        node = lab.node
        settings: Settings = {
            "statistics.interval.ms": STATISTICS_MS,
            "fetch.message.max.bytes": FETCH_BYTES,
            "socket.nagle.disable": "true",
        }
        writer = EndToEnd(self.per_s, self.seconds, message_bytes=1000, linger_ms=5)
        backlog_name, name = fresh_name("fetched"), fresh_name("written")
        with topic(node, backlog_name), topic(node, name, is_cached=False):
            self.backlog.produce(node, backlog_name)
            writing = threading.Thread(target=writer.write, args=(node, name))
            writing.start()
            with Consumer(bootstrap(node), settings) as consumer:
                consumer.start(backlog_name)
                for _ in range(FETCH_PARTS):
                    consumer.consume(self.backlog.count // FETCH_PARTS)
                    consumer.poll()
            writing.join()
        figures = _round_trip_figures(consumer.round_trips)
        return {name.replace("request", "fetch"): value for name, value in figures.items()}


def steadily(count: int, per_s: float) -> Iterator[int]:
    """So many turns at a steady rate; a late one is not waited for, so that the rate holds."""
    due = time.monotonic()
    for turn in range(count):
        pause = due - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        yield turn
        due += 1 / per_s


def curve(times_ms: Sequence[float]) -> Figures:
    """The percentiles of a picture, which no table shows."""
    ordered = sorted(times_ms)
    last = len(ordered) - 1
    return {
        f"{CURVE_PREFIX}{percent:g}": ordered[min(last, int(len(ordered) * percent / 100))]
        for percent in CURVE_PERCENTS
    }


def _await_line(process: subprocess.Popen[str], line: str) -> None:
    """The other process says that it is there; it gives up by itself if nothing comes."""
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if said != line:
        raise LoadFailed(f"the reader said {said!r} and not {line!r}")
