"""A way to a broker on which produce requests overtake the replies to those before them."""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType
from typing import Self

PRODUCE = struct.pack(">h", 0)
TIMEOUT_S = 60.0


class SlowReplies:
    """Of each connection that produces: so many requests are answered before one reply is passed.

    Each of them is passed when the one before it is answered, so that none of the later ones can
    have been sent, or taken, in the knowledge of what became of the first.
    """

    def __init__(self, in_flight: int) -> None:
        self._in_flight = in_flight
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._server]
        self.port: int = self._server.getsockname()[1]
        self.broker_port = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self.broker_port))
            self._sockets += [client, broker]
            way = _Way(client, broker, self._in_flight)
            for work in (way.pass_requests, way.pass_replies):
                threading.Thread(target=work, daemon=True).start()


class _Way:
    def __init__(self, client: socket.socket, broker: socket.socket, in_flight: int) -> None:
        self._client = client
        self._broker = broker
        self._in_flight = in_flight
        self._produces: set[bytes] = set()
        self._answered = 0
        self._change = threading.Condition()

    def pass_requests(self) -> None:
        while (frame := _receive(self._client)) is not None:
            if frame[4:6] == PRODUCE:
                with self._change:
                    assert self._change.wait_for(self._may_pass, TIMEOUT_S)
                    self._produces.add(frame[8:12])
            if not _send(self._broker, frame):
                break
        self._client.close()

    def _may_pass(self) -> bool:
        return self._answered >= min(len(self._produces), self._in_flight)

    def pass_replies(self) -> None:
        kept: list[bytes] = []
        while (frame := _receive(self._broker)) is not None:
            with self._change:
                if frame[4:8] in self._produces:
                    self._answered += 1
                    self._change.notify_all()
                if 0 < self._answered < self._in_flight:
                    kept.append(frame)
                    continue
            if not _send(self._client, b"".join([*kept, frame])):
                break
            kept = []
        self._broker.close()


def _receive(source: socket.socket) -> bytes | None:
    try:
        size = source.recv(4, socket.MSG_WAITALL)
        if len(size) < 4:
            return None
        return size + source.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL)
    except OSError:
        return None


def _send(target: socket.socket, data: bytes) -> bool:
    try:
        target.sendall(data)
    except OSError:
        return False
    return True
