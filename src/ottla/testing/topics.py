"""Creates a topic with nothing but a socket: CreateTopics version 4, spelled out.

The fixtures may import only the standard library, and auto-creation knows no partition numbers.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Final

CREATE_TOPICS: Final = 19
VERSION: Final = 4
TIMEOUT_S: Final = 30


class TopicNotCreated(Exception):
    """The broker refused, with its error code and words."""


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int,
    configs: Mapping[str, str],
    replication_factor: int = -1,
) -> None:
    """A factor of -1 is the broker's default."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    body = _request(name, partitions, configs, replication_factor)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (length,) = struct.unpack(">i", _receive(connection, 4))
        reply = _receive(connection, length)
    # Correlation id, throttle time, one topic, its name; then the error code and its words.
    (name_length,) = struct.unpack_from(">h", reply, 12)
    code, text_length = struct.unpack_from(">hh", reply, 14 + name_length)
    if code:
        text = reply[-text_length:].decode() if text_length > 0 else ""
        raise TopicNotCreated(f"{name}: error {code} {text}".rstrip())


def _request(
    name: str, partitions: int, configs: Mapping[str, str], replication_factor: int
) -> bytes:
    head = struct.pack(">hhi", CREATE_TOPICS, VERSION, 0) + _string("ottla.testing")
    assignments = 0
    topic = _string(name) + struct.pack(">ihi", partitions, replication_factor, assignments)
    topic += struct.pack(">i", len(configs))
    topic += b"".join(_string(key) + _string(value) for key, value in configs.items())
    validate_only = False
    return head + struct.pack(">i", 1) + topic + struct.pack(">i?", TIMEOUT_S * 1000, validate_only)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        received = connection.recv(count - len(data))
        if not received:
            raise TopicNotCreated("the broker closed the connection")
        data += received
    return data
