"""Two workers of one host beside one broker, the load on the same cores.

The load of the first case is as light as can be: frames that were made beforehand, many in flight
per connection, and replies of which only the bytes are counted. So it is the brokers that fill the
cores. That of the others is librdkafka, which takes its share of them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from bench import history, procfs, report, runner
from bench.librdkafka import QUIET, LoadFailed, Producer
from bench.loads import SMALLEST_REQUESTS, Backlog, fresh_name, touch_files
from bench.nodes import ADMIN_TIMEOUT_S, Node, OttlaNode, data_root, topic
from bench.report import Cell, Sheet
from ottla.testing import Broker
from ottla.testing.ports import free_port_of_workers
from ottla.wire.codec import encode
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.records import Record, encode_batch

WORKERS: Final = 2
PARTITIONS: Final = 8
CONNECTIONS: Final = 8
FRAMES: Final = 50
VERSION: Final = 9
PRODUCE_KEY: Final = 0
TIMEOUT_S: Final = 60.0
MESSAGE_BYTES: Final = 100
BATCHED: Final = 2_000_000
EACH: Final = 20_000
GOAL: Final = 1.6
SIDES: Final = ("one broker", "two workers")
# Run before it is measured, in parts of the whole.
WARM_UP_SHARE: Final = 0.1


class HostNode(OttlaNode):
    """`ottla start --workers`; its processes are the parent and the workers."""

    def __init__(self) -> None:
        self.port = free_port_of_workers(WORKERS)
        self._home = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=data_root()))
        self._broker = Broker(
            data_dir=self._home, port=self.port, workers=WORKERS, ready_timeout_s=ADMIN_TIMEOUT_S
        )

    @property
    def pids(self) -> Sequence[int]:
        return procfs.tree(self.pid)

    def close(self) -> None:
        try:
            self._broker.close()
        finally:
            shutil.rmtree(self._home, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Measured:
    per_s: float
    broker_cpu_us: float
    load_cpu_us: float


class Meter:
    """The CPU of the brokers, and of this process, which is the load."""

    def __init__(self, node: Node, count: int) -> None:
        self._pids = tuple(node.pids)
        self._count = count

    def __enter__(self) -> Meter:
        self._broker_s = sum(map(procfs.cpu_seconds, self._pids))
        self._load_s = procfs.cpu_seconds(os.getpid())
        self._started_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        took_s = time.perf_counter() - self._started_s
        broker_s = sum(map(procfs.cpu_seconds, self._pids)) - self._broker_s
        load_s = procfs.cpu_seconds(os.getpid()) - self._load_s
        per_message_us = 1e6 / self._count
        self.measured = Measured(
            self._count / took_s, broker_s * per_message_us, load_s * per_message_us
        )


def light_requests(node: Node, share: float) -> Measured:
    """One message per request, so many in flight per connection that nobody waits for anybody."""
    rounds = max(1, int(EACH * share) // FRAMES)
    with topic(node, name := fresh_name("light"), PARTITIONS):
        touch_files(node, name, PARTITIONS)
        works = [
            _Connection(address, _frames(name, partition))
            for partition, address in _leaders(node, name).items()
        ]
        failures: list[BaseException] = []

        def work(connection: _Connection) -> None:
            try:
                connection.run(rounds)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(each,)) for each in works]
        with Meter(node, rounds * FRAMES * len(works)) as meter:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    if failures:
        raise LoadFailed(str(failures[0]))
    return meter.measured


def _leaders(node: Node, name: str) -> dict[int, tuple[str, int]]:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": QUIET})
    seen = admin.list_topics(name, timeout=TIMEOUT_S)
    brokers = seen.brokers
    return {
        index: (str(brokers[each.leader].host), brokers[each.leader].port)
        for index, each in seen.topics[name].partitions.items()
    }


def _frames(name: str, partition: int) -> bytes:
    batch = encode_batch([Record(0, 0, None, bytes(MESSAGE_BYTES), ())])
    data = TopicProduceData(name, [PartitionProduceData(partition, batch)])
    request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data])
    frame = struct.pack(">hhih", PRODUCE_KEY, VERSION, 1, -1) + b"\0" + encode(request, VERSION)
    return (struct.pack(">i", len(frame)) + frame) * FRAMES


class _Connection:
    """Sends its frames again and again, half of them always under way."""

    def __init__(self, address: tuple[str, int], frames: bytes) -> None:
        self._socket = socket.create_connection(address, timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = frames

    def run(self, rounds: int) -> None:
        with self._socket:
            self._socket.sendall(self._frames)
            reply_bytes = 4 + struct.unpack(">i", self._receive(4))[0]
            self._receive(reply_bytes * FRAMES - 4)
            self._socket.sendall(self._frames)
            for _ in range(rounds - 2):
                self._socket.sendall(self._frames)
                self._receive(reply_bytes * FRAMES)
            self._receive(reply_bytes * FRAMES)

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise LoadFailed("the broker has closed the connection")
            parts += part
        return bytes(parts)


def small_requests(node: Node, share: float) -> Measured:
    """librdkafka, one message per request, one in flight per connection to each broker."""
    each = int(EACH / 2 * share)
    settings = {**SMALLEST_REQUESTS, "acks": "1"}
    payload = bytes(MESSAGE_BYTES)
    with topic(node, name := fresh_name("small"), PARTITIONS), ExitStack() as stack:
        touch_files(node, name, PARTITIONS)
        producers = [
            stack.enter_context(Producer(node.bootstrap, settings)) for _ in range(CONNECTIONS)
        ]
        for producer in producers:
            producer.enqueue(name, payload, PARTITIONS, PARTITIONS)
            producer.flush()
        with Meter(node, each * CONNECTIONS) as meter:
            for producer in producers:
                producer.enqueue(name, payload, each, PARTITIONS)
            for producer in producers:
                producer.flush()
    return meter.measured


def large_batches(node: Node, share: float) -> Measured:
    """librdkafka in full batches: most of the work is the load's."""
    load = Backlog(MESSAGE_BYTES, int(BATCHED * share), partitions=PARTITIONS)
    with topic(node, name := fresh_name("large"), PARTITIONS):
        touch_files(node, name, PARTITIONS)
        with Meter(node, load.count) as meter:
            load.produce(node, name)
    return meter.measured


LOADS: Final[Mapping[str, Callable[[Node, float], Measured]]] = {
    "smallest requests, frames made beforehand": light_requests,
    "smallest requests by librdkafka": small_requests,
    "large batches by librdkafka": large_batches,
}
Runs = dict[str, dict[str, list[Measured]]]


def steps(rounds: int) -> int:
    return rounds * len(SIDES) * len(LOADS)


def measure(rounds: int, tick: runner.Tick) -> Runs:
    """In turn, each side in a process, or several, of its own."""
    runs: Runs = {title: {side: [] for side in SIDES} for title in LOADS}
    for number in range(rounds):
        for side in SIDES:
            node: Node = OttlaNode() if side == SIDES[0] else HostNode()
            try:
                node.start()
                for title, load in LOADS.items():
                    tick(f"round {number + 1}, {side}: {title}")
                    load(node, WARM_UP_SHARE)
                    runs[title][side].append(load(node, 1.0))
            finally:
                node.close()
    return runs


def sheet(runs: Runs) -> Sheet:
    lines = []
    for title, by_side in runs.items():
        medians = {
            side: Measured(
                statistics.median(each.per_s for each in found),
                statistics.median(each.broker_cpu_us for each in found),
                statistics.median(each.load_cpu_us for each in found),
            )
            for side, found in by_side.items()
        }
        one, two = (medians[side] for side in SIDES)
        ratio = two.per_s / one.per_s
        is_goal = title == next(iter(LOADS))
        lines.append(
            [
                Cell(title),
                *(Cell(f"{each.per_s:,.0f}") for each in (one, two)),
                Cell(f"{ratio:.2f}", ratio >= GOAL if is_goal else None),
                Cell(f"≥ {GOAL}" if is_goal else ""),
                *(Cell(f"{each.broker_cpu_us:.2f}") for each in (one, two)),
                *(Cell(f"{each.load_cpu_us:.2f}") for each in (one, two)),
            ]
        )
    return Sheet(
        "Two workers beside one broker",
        (
            "100 B messages, 8 partitions, acks=1, write.caching",
            "one broker, messages/s",
            "two workers, messages/s",
            "ratio",
            "goal",
            "broker CPU µs per message, one",
            "two",
            "load's CPU µs per message, one",
            "two",
        ),
        lines,
        f"The load runs on the same {os.cpu_count()} cores, so that both together can be no faster "
        "than the cores: cores / (broker CPU + load's CPU) is the most that two workers could do.",
    )


def keep(runs: Runs, about: Mapping[str, Any], home: Path) -> list[Path]:
    home.mkdir(parents=True, exist_ok=True)
    table, samples = home / "workers.md", home / "workers.json"
    run = history.record("workers", about, {}, {})
    table.write_text(report.markdown("Workers", run, [sheet(runs)]))
    plain = {
        title: {
            side: [[each.per_s, each.broker_cpu_us, each.load_cpu_us] for each in found]
            for side, found in by_side.items()
        }
        for title, by_side in runs.items()
    }
    samples.write_text(json.dumps({**about, "runs": plain}, indent=1) + "\n")
    return [table, samples]
