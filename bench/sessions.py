"""A fetch session of many partitions in which nothing happens."""

from __future__ import annotations

import socket
import statistics
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bench.librdkafka import LoadFailed
from bench.loads import fresh_name
from bench.nodes import Lab, Meter, Node, create_topic, running
from bench.spread import Figures
from ottla.wire.codec import decode, encode
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

VERSION: Final = 12
FETCH_KEY: Final = 1
TIMEOUT_S: Final = 60.0
WARM_UP: Final = 20


@dataclass(frozen=True, slots=True)
class IdleSession:
    """What a fetch costs that finds nothing new, by the number of partitions in its session."""

    partitions: int
    fetches: int

    def run(self, lab: Lab) -> Figures:
        name = fresh_name("idle-session")
        with running(lab.make) as node:
            create_topic(node, name, self.partitions)
            session = _Session(node, name, self.partitions)
            try:
                for _ in range(WARM_UP):
                    session.fetch()
                with Meter(node) as meter:
                    times_ms = sorted(self._times_ms(session))
            finally:
                session.close()
        return {
            "fetch_p50_ms": statistics.median(times_ms),
            "fetch_p99_ms": times_ms[int(len(times_ms) * 0.99)],
            "fetch_cpu_us": meter.cpu_seconds / self.fetches * 1e6,
        }

    def _times_ms(self, session: _Session) -> Iterator[float]:
        for _ in range(self.fetches):
            started = time.perf_counter()
            session.fetch()
            yield (time.perf_counter() - started) * 1000


class _Session:
    """One connection that asks for everything once, and then for what has changed."""

    def __init__(self, node: Node, topic: str, partitions: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", node.port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._epoch = 0
        self._id = 0
        asked = [
            FetchPartition(index, fetch_offset=0, partition_max_bytes=1_048_576)
            for index in range(partitions)
        ]
        self._id = self._ask([FetchTopic(topic, partitions=asked)]).session_id

    def fetch(self) -> None:
        if self._ask([]).responses:
            raise LoadFailed("a session in which nothing happens was told something")

    def close(self) -> None:
        self._socket.close()

    def _ask(self, topics: list[FetchTopic]) -> FetchResponse:
        request = FetchRequest(
            min_bytes=1, session_id=self._id, session_epoch=self._epoch, topics=topics
        )
        self._epoch += 1
        head = struct.pack(">hhih", FETCH_KEY, VERSION, self._epoch, -1) + b"\0"
        frame = head + encode(request, VERSION)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._receive(4))
        response = decode(FetchResponse, self._receive(size), VERSION, 5)
        if response.error_code:
            raise LoadFailed(f"a fetch is answered with error {response.error_code}")
        return response

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise LoadFailed("the broker has closed the connection")
            parts += part
        return bytes(parts)
