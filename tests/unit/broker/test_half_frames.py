"""Requests that arrive in pieces: memory follows what has arrived, not what was announced."""

from __future__ import annotations

import random
import struct
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.counters import Metrics
from ottla.broker.network.connection import (
    FRAME_FIRST_BYTES,
    FRAME_SILENCE_FULL_S_MAX,
    Connection,
    Connections,
    Limits,
    Outbox,
)
from ottla.config import BrokerConfig
from ottla.wire.one_batch import PRODUCE_KEY

MIB = 1024 * 1024


class Wire:
    """As much of a transport as a connection needs to read."""

    def __init__(self) -> None:
        self.is_reading = True
        self.is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 4711)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None:
        self.is_reading = False

    def abort(self) -> None:
        self.is_aborted = True


class House:
    """A listener whose requests are only gathered."""

    def __init__(self, **settings: str) -> None:
        self.now_s = 0.0
        config = BrokerConfig.parse({name.replace("_", "."): v for name, v in settings.items()})
        self.received: list[bytearray] = []
        loop: Any = SimpleNamespace(time=lambda: self.now_s)
        router: Any = SimpleNamespace(one_batch_produces=self)
        self.listener = Connections(loop, router, Limits(config), Metrics(), Outbox())

    def begin(self, connection: Connection, frame: bytearray, started_s: float) -> bool:
        """Takes the place of the short way for produce requests; answered at once."""
        self.received.append(frame)
        connection._bytes_in_flight -= len(frame)
        self.listener.bytes_in_flight -= len(frame)
        return True

    def connect(self) -> Connection:
        connection = self.listener.connection("PLAINTEXT")
        connection.connection_made(Wire())  # type: ignore[arg-type]
        return connection


def feed(connection: Connection, data: bytes) -> None:
    """As the loop does: into the connection's buffer, as much as it takes."""
    view = memoryview(data)
    while view:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(view))
        assert count, "a buffer without room"
        buffer[:count] = view[:count]
        del buffer
        connection.buffer_updated(count)
        view = view[count:]


def frame_of(size: int) -> bytes:
    return PRODUCE_KEY + random.Random(size).randbytes(size - len(PRODUCE_KEY))


def announced(size: int, *parts: bytes) -> bytes:
    return struct.pack(">i", size) + b"".join(parts)


def test_five_thousand_that_announce_much_and_send_little_hold_little() -> None:
    house = House()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(5_000):
            feed(house.connect(), announced(100 * MIB, b"ten bytes!"))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 48 * MIB
    assert house.listener.held_bytes < 32 * MIB


@pytest.mark.parametrize("sent", [10, 1_000, 70_000, 3_000_000])
def test_no_more_is_held_than_twice_what_has_arrived(sent: int) -> None:
    house = House()
    feed(house.connect(), announced(100 * MIB, bytes(sent)))
    assert sent <= house.listener.held_bytes <= max(2 * sent, FRAME_FIRST_BYTES)


@pytest.mark.parametrize("size", [9, 4_096, 4_097, 65_536, 1_000_000, 9_000_001])
def test_a_request_in_pieces_of_any_size_arrives_whole(size: int) -> None:
    house = House()
    connection, frame = house.connect(), frame_of(size)
    pieces = random.Random(size)
    stream = announced(size, frame) * 3
    while stream:
        count = pieces.choice([1, 3, 100, 5_000, 70_000, 2_000_000])
        feed(connection, stream[:count])
        stream = stream[count:]
    assert house.received == [frame] * 3
    assert house.listener.held_bytes == 0


def test_who_has_sent_a_large_request_gets_room_for_the_next_at_once() -> None:
    house = House()
    connection, frame = house.connect(), frame_of(MIB)
    feed(connection, announced(MIB, frame))
    feed(connection, announced(MIB, frame[:10]))
    assert house.listener.held_bytes == MIB
    feed(connection, frame[10:])
    feed(connection, announced(100 * MIB, b"much more than ever before"))
    assert house.listener.held_bytes == MIB
    assert house.received == [frame] * 2


def test_what_is_earned_is_not_given_while_requests_fill_the_memory() -> None:
    house = House(queued_max_request_bytes=str(3 * MIB))
    connections = [house.connect() for _ in range(200)]
    for connection in connections:
        feed(connection, announced(MIB, frame_of(MIB)))
    for connection in connections:
        feed(connection, announced(MIB, b"ten bytes!"))
    assert house.listener.held_bytes <= 4 * MIB + 200 * FRAME_FIRST_BYTES


def test_a_closed_connection_holds_nothing() -> None:
    house = House()
    connection = house.connect()
    feed(connection, announced(MIB, bytes(100_000)))
    assert house.listener.held_bytes
    connection.connection_lost(None)
    assert house.listener.held_bytes == 0


def test_the_silent_are_let_go_sooner_when_they_fill_the_memory() -> None:
    house = House(queued_max_request_bytes=str(MIB))
    silent, talking = house.connect(), house.connect()

    def is_gone(connection: Connection) -> bool:
        return bool(connection._transport.is_aborted)  # type: ignore[union-attr]

    feed(silent, announced(100 * MIB, bytes(100_000)))
    house.now_s = FRAME_SILENCE_FULL_S_MAX + 1
    silent.check_time(house.now_s)
    assert not is_gone(silent)
    feed(talking, announced(100 * MIB, bytes(2 * MIB)))
    for connection in (silent, talking):
        connection.check_time(house.now_s)
    assert is_gone(silent)
    assert not is_gone(talking)
