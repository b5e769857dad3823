"""The HTTP server against real sockets, with good clients and bad ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from ottla.gateway.http import HttpLimits, HttpReply, HttpServer, json_reply

DEADLINE_S = 20
BIG_BODY = b"x" * 30_000_000

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Client]]


def broken_route() -> HttpReply:
    raise RuntimeError("on purpose")


ROUTES = {
    "/healthz": lambda: HttpReply(200, b"ok\n"),
    "/readyz": lambda: json_reply(503, {"status": "storage failed"}),
    "/broken": broken_route,
    "/big": lambda: HttpReply(200, BIG_BODY),
}


def with_server(
    scenario: Callable[[Connect, HttpServer], Awaitable[None]], limits: HttpLimits | None = None
) -> None:
    """Runs the scenario against a listening server, and checks that nothing stays behind."""

    async def run() -> None:
        server = HttpServer(ROUTES, limits)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(server.protocol_factory, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        clients: list[Client] = []

        async def connect() -> Client:
            client = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
            clients.append(client)
            return client

        async with asyncio.timeout(DEADLINE_S):
            await scenario(connect, server)
            listener.close()
            server.close()
            for _, writer in clients:
                writer.close()
            await until(lambda: not server.connections)

    for loop_factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def ask(path: str, method: str = "GET", extra: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: here\r\n{extra}\r\n".encode()


async def read_reply(reader: asyncio.StreamReader, *, with_body: bool = True) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 ")
    length = next(
        int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("Content-Length")
    )
    return int(head.split(" ")[1]), await reader.readexactly(length) if with_body else b""


def test_routes_answer_on_one_connection_that_stays_open() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        for _ in range(3):
            writer.write(ask("/healthz?verbose=1"))
            assert await read_reply(reader) == (200, b"ok\n")
        writer.write(ask("/readyz"))
        status, body = await read_reply(reader)
        assert (status, json.loads(body)) == (503, {"status": "storage failed"})

    with_server(scenario)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        writer.write(ask("/healthz") + ask("/nowhere") + ask("/readyz"))
        assert [(await read_reply(reader))[0] for _ in range(3)] == [200, 404, 503]

    with_server(scenario)


def test_a_request_may_come_byte_by_byte() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        for byte in ask("/healthz"):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await read_reply(reader) == (200, b"ok\n")

    with_server(scenario)


def test_head_has_the_length_and_no_body() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        writer.write(ask("/healthz", "HEAD") + ask("/healthz", "HEAD"))
        assert await read_reply(reader, with_body=False) == (200, b"")
        assert await read_reply(reader, with_body=False) == (200, b"")

    with_server(scenario)


def test_other_methods_are_told_what_is_allowed() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        writer.write(ask("/healthz", "POST", "Content-Length: 4\r\n") + b"body")
        text = (await reader.read()).decode()
        assert text.startswith("HTTP/1.1 405 ")
        assert "Allow: GET, HEAD\r\n" in text

    with_server(scenario)


def test_a_failing_route_is_a_500_and_the_connection_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        writer.write(ask("/broken") + ask("/healthz"))
        assert [(await read_reply(reader))[0] for _ in range(2)] == [500, 200]

    with_server(scenario)
    assert "/broken" in caplog.text


@pytest.mark.parametrize(
    "request_bytes",
    [
        ask("/healthz", extra="Connection: close\r\n"),
        b"GET /healthz HTTP/1.0\r\n\r\n",
    ],
)
def test_the_connection_closes_when_the_client_wishes(request_bytes: bytes) -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        writer.write(request_bytes)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")

    with_server(scenario)


@pytest.mark.parametrize(
    ("garbage", "status"),
    [
        (b"\x00\x00\x00\x12\x00\x12\x00\x00", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/2\r\nHost: a\r\n\r\n", 400),
        (b"GET healthz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"G" * 9000, 431),
    ],
)
def test_garbage_is_refused_and_the_connection_closed(garbage: bytes, status: int) -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        writer.write(garbage)
        assert (await reader.read()).startswith(f"HTTP/1.1 {status} ".encode())

    with_server(scenario)


def test_a_client_that_never_finishes_its_request_is_dropped() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        writer.write(b"GET /healthz HT")
        assert await dropped(reader)

    with_server(scenario, HttpLimits(request_timeout_s=0.05))


def test_a_client_that_says_nothing_is_dropped() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        assert await dropped(reader)
        reader, writer = await connect()
        writer.write(ask("/healthz"))
        assert await read_reply(reader) == (200, b"ok\n")
        assert await dropped(reader)

    with_server(scenario, HttpLimits(request_timeout_s=0.2, idle_timeout_s=0.05))


def test_a_client_that_never_reads_is_dropped() -> None:
    async def scenario(connect: Connect, server: HttpServer) -> None:
        _, writer = await connect()
        writer.transport.pause_reading()
        writer.write(ask("/big"))
        await until(lambda: bool(server.connections))
        await until(lambda: not server.connections)

    with_server(scenario, HttpLimits(request_timeout_s=60, unread_timeout_s=0.05))


def test_a_client_that_never_reads_cannot_fill_the_memory_with_requests() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        _, writer = await connect()
        writer.transport.pause_reading()
        writer.write(ask("/big"))
        writer.write(bytes(64_000_000))
        with pytest.raises(ConnectionError):
            await writer.drain()

    with_server(scenario, HttpLimits(unread_timeout_s=0.5))


def test_a_large_reply_arrives_whole_and_the_next_request_is_answered() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        writer.write(ask("/big") + ask("/healthz"))
        assert await read_reply(reader) == (200, BIG_BODY)
        assert await read_reply(reader) == (200, b"ok\n")

    with_server(scenario)


def test_connections_above_the_limit_are_told_so() -> None:
    async def scenario(connect: Connect, _: HttpServer) -> None:
        reader, writer = await connect()
        writer.write(ask("/healthz"))
        await read_reply(reader)
        refused, _ = await connect()
        assert (await refused.read()).startswith(b"HTTP/1.1 503 ")

    with_server(scenario, HttpLimits(connections_max=1))


async def dropped(reader: asyncio.StreamReader) -> bool:
    """True when the other side ends the connection without another word."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True
