"""A small HTTP/1.1 server for a handful of GET routes, inside the broker's event loop.

It answers probes and scrapers, so it reads no bodies, keeps every buffer bounded and drops whoever
is slow. Anything larger than that belongs into a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, cast

PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one client may cost."""

    connections_max: int = 128
    head_bytes_max: int = 8192
    request_timeout_s: float = 5.0
    idle_timeout_s: float = 60.0
    unread_timeout_s: float = 10.0


class HttpReply(NamedTuple):
    """What a route answers."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route: TypeAlias = Callable[[], HttpReply]


def json_reply(status: int, content: Mapping[str, Any]) -> HttpReply:
    return HttpReply(status, json.dumps(content).encode() + b"\n", "application/json")


class BadRequest(Exception):
    """Bytes that are no request this server reads."""


class Request(NamedTuple):
    """The head of a request; bodies are not read."""

    method: str
    path: str
    keep_alive: bool


def parse_head(head: bytes) -> Request:
    """Reads a request's head, which ends before its empty line; raises BadRequest."""
    try:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
    except ValueError:
        raise BadRequest("the request line does not have three parts") from None
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest("only HTTP/1.1 and HTTP/1.0 are spoken here")
    if not (method.isascii() and method.isalpha()) or not target.startswith("/"):
        raise BadRequest("no method and path")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest("a header line without a name")
        headers[name.lower()] = value.strip()
    if version == "HTTP/1.1" and "host" not in headers:
        raise BadRequest("no Host header")
    wish = headers.get("connection", "").lower()
    keeps = "close" not in wish if version == "HTTP/1.1" else "keep-alive" in wish
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return Request(method, target.partition("?")[0], keeps and not has_body)


class HttpServer:
    """The routes and the open connections; a listener calls `protocol_factory` for each new one."""

    def __init__(self, routes: Mapping[str, Route], limits: HttpLimits | None = None) -> None:
        self.routes = routes
        self.limits = limits or HttpLimits()
        self.connections: set[HttpConnection] = set()

    def protocol_factory(self) -> HttpConnection:
        return HttpConnection(self)

    def close(self) -> None:
        """Closes every open connection; the listener itself is the caller's."""
        for connection in tuple(self.connections):
            connection.abort()

    def answer(self, request: Request) -> HttpReply:
        route = self.routes.get(request.path)
        if route is None:
            return HttpReply(404, f"not here; try {' '.join(self.routes)}\n".encode())
        if request.method not in ("GET", "HEAD"):
            return HttpReply(405, b"only GET and HEAD\n")
        try:
            return route()
        except Exception:
            _log.exception("the HTTP route %s failed", request.path)
            return HttpReply(500, b"this route failed; the log says why\n")


class HttpConnection(asyncio.Protocol):
    """One client: requests in, replies out in their order, a deadline on whatever it is doing."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._limits = server.limits
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_unread = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._server.connections) >= self._limits.connections_max:
            self._send(HttpReply(503, b"too many connections\n"), keep_alive=False, with_body=True)
            return
        self._server.connections.add(self)
        self._allow(self._limits.request_timeout_s)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._transport = None
        self._received.clear()
        if self._deadline is not None:
            self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._received and not self._is_unread:
            self._allow(self._limits.request_timeout_s)
        self._received += data
        self._answer_all()

    def pause_writing(self) -> None:
        """The client does not read: no more requests of it are answered until it does."""
        self._is_unread = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._allow(self._limits.unread_timeout_s)

    def resume_writing(self) -> None:
        self._is_unread = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._allow(self._limits.request_timeout_s)
            self._answer_all()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _allow(self, seconds: float) -> None:
        """Starts the clock of the present step anew."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _answer_all(self) -> None:
        while self._received and not self._is_unread and self._is_open():
            end = self._received.find(b"\r\n\r\n", 0, self._limits.head_bytes_max)
            if not self._received[:1].isalpha():
                self._answer_last(400, b"this port speaks HTTP\n")
                return
            if end < 0:
                if len(self._received) >= self._limits.head_bytes_max:
                    self._answer_last(431, b"the request's head is too long\n")
                return
            head = bytes(self._received[:end])
            del self._received[: end + 4]
            try:
                request = parse_head(head)
            except BadRequest as error:
                self._answer_last(400, f"{error}\n".encode())
                return
            reply = self._server.answer(request)
            self._send(reply, request.keep_alive, with_body=request.method != "HEAD")
            if request.keep_alive and not self._is_unread:
                self._allow(
                    self._limits.request_timeout_s
                    if self._received
                    else self._limits.idle_timeout_s
                )

    def _answer_last(self, status: int, why: bytes) -> None:
        self._received.clear()
        self._send(HttpReply(status, why), keep_alive=False, with_body=True)

    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _send(self, reply: HttpReply, keep_alive: bool, *, with_body: bool) -> None:
        if self._transport is None:
            return
        allow = "Allow: GET, HEAD\r\n" if reply.status == 405 else ""
        head = (
            f"HTTP/1.1 {reply.status} {PHRASES[reply.status]}\r\n"
            f"Content-Type: {reply.content_type}\r\n"
            f"Content-Length: {len(reply.body)}\r\n"
            f"{allow}Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
        )
        self._transport.write(head.encode() + (reply.body if with_body else b""))
        if not keep_alive:
            self._transport.close()
            self._allow(self._limits.unread_timeout_s)
