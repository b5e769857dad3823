"""A client that comes back and back is told of in a few lines."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable

import pytest

from ottla.broker.repeats import KIND_LINES_MAX, SAME_LINES_MAX
from ottla.testing import Broker
from raw_client import RawClient

TIMES = 1_500


def turned_away(broker: Broker, client_id: str, frame: Callable[[int], bytes]) -> list[int]:
    """Comes back again and again; the ports that it came from."""
    ports = []
    for number in range(TIMES):
        with RawClient(broker.bootstrap, client_id) as client:
            ports.append(client.socket.getsockname()[1])
            client.socket.sendall(frame(number))
            assert client.is_closed_by_peer()
    return ports


def head(api_key: int, version: int, client_id: bytes) -> bytes:
    frame = struct.pack(">hhih", api_key, version, 1, len(client_id)) + client_id
    return struct.pack(">i", len(frame)) + frame


def lines_of(broker: Broker) -> list[str]:
    return [line for line in broker.log_text().splitlines() if "connection from" in line]


def counted(line: str) -> int:
    more = re.search(r"\((\d+) more like this", line)
    return int(more[1]) if more else 1


def windows(lines: list[str]) -> int:
    return sum("more like this" in line for line in lines)


def test_a_version_that_we_lack_is_told_with_who_asked_and_how_often() -> None:
    with Broker() as broker:
        ports = turned_away(broker, "old", lambda _: head(1, 2, b"old client"))
        broker.stop()
        lines = lines_of(broker)
    assert (
        f"connection from 127.0.0.1:{ports[0]} (client 'old client') closed: Fetch has" in lines[0]
    )
    assert f"127.0.0.1:{ports[-1]} " in lines[-1]
    assert len(lines) == SAME_LINES_MAX + windows(lines)
    assert sum(map(counted, lines)) == TIMES


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(lambda number: struct.pack(">i", -1 - number), id="sizes"),
        pytest.param(lambda number: head(1000 + number, 0, b"x"), id="apis"),
        pytest.param(lambda number: head(1, 2, b"client-%d" % number), id="client-ids"),
    ],
)
def test_lines_that_differ_each_time_are_not_written_for_ever(
    frame: Callable[[int], bytes],
) -> None:
    with Broker() as broker:
        turned_away(broker, "x", frame)
        broker.stop()
        lines = lines_of(broker)
    # Each window that ends forgets whom it has no more to tell of.
    assert len(lines) <= KIND_LINES_MAX + windows(lines)
    assert sum(map(counted, lines)) == TIMES


def test_a_client_id_stays_within_its_line() -> None:
    with Broker({"log.format": "json"}) as broker:
        rude = "\n2026-01-01 error: all is lost " + "x" * 10_000
        with RawClient(broker.bootstrap) as client:
            client.socket.sendall(head(1, 2, rude.encode()))
            assert client.is_closed_by_peer()
        broker.stop()
        (line,) = lines_of(broker)
    message = json.loads(line)["message"]
    assert "\n" not in message
    assert len(message) < 300
