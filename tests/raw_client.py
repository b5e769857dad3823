"""A blocking client of raw frames, for tests that look at single requests and replies."""

from __future__ import annotations

import importlib
import re
import socket
import struct
from types import TracebackType
from typing import Any, Self

from ottla.broker.network.router import APIS
from ottla.wire.codec import decode, encode
from ottla.wire.schema import Message

TIMEOUT_S = 20.0


class RawClient:
    """One connection. Requests can be pipelined: `send` several times, then `receive`."""

    def __init__(self, bootstrap: str, client_id: str = "raw") -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._client_id = client_id.encode()
        self._next_id = 0
        self._waiting: dict[int, tuple[type[Message], int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def ask(self, request: Message, version: int) -> Any:
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int) -> int:
        body = encode(request, version)
        return self.send_bytes(type(request), request.API_KEY, version, body)

    def send_bytes(self, kind: type[Message], api_key: int, version: int, body: bytes) -> int:
        """Sends a body as it is, under a right head."""
        self._next_id += 1
        head = struct.pack(">hhih", api_key, version, self._next_id, len(self._client_id))
        api = APIS.get(api_key)
        tags = b"\0" if api is not None and version >= api.flexible else b""
        self.send_frame(head + self._client_id + tags + body)
        self._waiting[self._next_id] = (_reply_kind(kind), version)
        return self._next_id

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> Any:
        """The next reply, whose turn it must be."""
        frame = self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        kind, version = self._waiting.pop(correlation_id)
        assert not self._waiting or correlation_id < min(self._waiting), "replies out of order"
        api = APIS[kind.API_KEY]
        has_tags = version >= api.flexible and api.module != "api_versions"
        return decode(kind, frame, min(version, api.last), 5 if has_tags else 4)

    def expect_no_reply(self, correlation_id: int) -> None:
        del self._waiting[correlation_id]

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def is_closed_by_peer(self) -> bool:
        """Waits until the broker closes the connection; False when it answers instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive_exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise ConnectionError(f"closed after {len(parts)} of {count} bytes")
            parts += part
        return bytes(parts)


def _reply_kind(request: type[Message]) -> type[Message]:
    module = importlib.import_module(request.__module__)
    kind: type[Message] = getattr(module, re.sub("Request$", "Response", request.__name__))
    return kind
