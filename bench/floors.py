"""What this machine can do at best, measured in the same run as the broker."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, cast

from bench import procfs
from bench.nodes import data_root, free_port
from bench.spread import percentile

# So many that a p99 is the thirtieth worst.
SYNC_COUNT: Final = 3000
SYNC_BYTES: Final = 4096
BESIDE_BYTES: Final = 100_000
BESIDE_COUNT: Final = 400
CREATE_COUNT: Final = 200
LOOPBACK_S: Final = 1.5
LOOPBACK_CHUNK_BYTES: Final = 1 << 20
CRC_BYTES: Final = 1 << 20
CRC_COUNT: Final = 2000
ECHO_S: Final = 1.5
ECHO_BYTES: Final = 100
CONNECT_TIMEOUT_S: Final = 10.0


def fdatasync() -> dict[str, float]:
    """A small append made durable, again and again."""
    return _percentiles("fdatasync", _timed_syncs(os.fdatasync))


def syncfs() -> dict[str, float]:
    """The same with the call that syncs the whole file system."""
    call = ctypes.CDLL(None, use_errno=True).syncfs
    return _percentiles("syncfs", _timed_syncs(call))


def write_beside_sync() -> dict[str, float]:
    """A 100 KB write while another thread syncs the same file."""
    times, stop = [], threading.Event()
    with tempfile.TemporaryFile(dir=data_root()) as file:
        descriptor, chunk = file.fileno(), os.urandom(BESIDE_BYTES)

        def keep_syncing() -> None:
            while not stop.is_set():
                os.fdatasync(descriptor)

        thread = threading.Thread(target=keep_syncing)
        thread.start()
        try:
            for _ in range(BESIDE_COUNT):
                started = time.perf_counter()
                os.write(descriptor, chunk)
                times.append(time.perf_counter() - started)
        finally:
            stop.set()
            thread.join()
    return _percentiles("write_beside_sync", times)


def file_creation() -> dict[str, float]:
    """An empty file in a directory of its own, as a new partition makes them."""
    with tempfile.TemporaryDirectory(dir=data_root()) as home:
        started = time.perf_counter()
        for number in range(CREATE_COUNT):
            os.mkdir(f"{home}/{number}")
            os.close(os.open(f"{home}/{number}/file", os.O_RDWR | os.O_CREAT))
        elapsed = time.perf_counter() - started
    return {"file_creation_ms": elapsed / CREATE_COUNT / 2 * 1000}


def loopback() -> dict[str, float]:
    """Bytes through one TCP connection on 127.0.0.1, the receiver in a process of its own."""
    with (
        _helper(SINK) as (_, port),
        socket.create_connection(("127.0.0.1", port)) as sender,
    ):
        chunk, sent = bytes(LOOPBACK_CHUNK_BYTES), 0
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < LOOPBACK_S:
            sender.sendall(chunk)
            sent += len(chunk)
    return {"loopback_mb_per_s": sent / elapsed / 1e6}


def crc() -> dict[str, float]:
    """CRC-32C of a megabyte that lies in the cache."""
    from crc32c import crc32c

    chunk = os.urandom(CRC_BYTES)
    started = time.perf_counter()
    for _ in range(CRC_COUNT):
        crc32c(chunk)
    return {"crc_mb_per_s": CRC_BYTES * CRC_COUNT / (time.perf_counter() - started) / 1e6}


def echo() -> dict[str, float]:
    """Round trips of 100 bytes with a bare server on each event loop, and its CPU for one."""
    return {**_echo("asyncio"), **_echo("uvloop")}


FLOORS: Final[tuple[Callable[[], dict[str, float]], ...]] = (
    fdatasync,
    syncfs,
    write_beside_sync,
    file_creation,
    loopback,
    crc,
    echo,
)


def _timed_syncs(sync: Callable[[int], object]) -> list[float]:
    times = []
    with tempfile.TemporaryFile(dir=data_root()) as file:
        for _ in range(SYNC_COUNT):
            os.write(file.fileno(), bytes(SYNC_BYTES))
            started = time.perf_counter()
            sync(file.fileno())
            times.append(time.perf_counter() - started)
    return times


def _percentiles(name: str, times_s: list[float]) -> dict[str, float]:
    return {
        f"{name}_p50_ms": percentile(times_s, 50) * 1000,
        f"{name}_p99_ms": percentile(times_s, 99) * 1000,
    }


def _echo(loop: str) -> dict[str, float]:
    with (
        _helper(loop) as (pid, port),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message, count = bytes(ECHO_BYTES), 0
        cpu_s = -procfs.cpu_seconds(pid)
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < ECHO_S:
            client.sendall(message)
            client.recv(ECHO_BYTES)
            count += 1
        cpu_s += procfs.cpu_seconds(pid)
    return {f"echo_{loop}_per_s": count / elapsed, f"echo_{loop}_cpu_us": cpu_s / count * 1e6}


SINK: Final = "sink"


@contextmanager
def _helper(kind: str) -> Iterator[tuple[int, int]]:
    """The other end of the connection: this module as a program; its process id and port."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.floors", kind, str(port)])
    try:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if time.monotonic() > deadline:
                raise TimeoutError(f"the helper {kind!r} does not listen")
            time.sleep(0.02)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait()


class _Echo(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def _serve_echo(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", port)
    await server.serve_forever()


def _serve_sink(port: int) -> None:
    buffer = bytearray(LOOPBACK_CHUNK_BYTES)
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                while connection.recv_into(buffer):
                    pass


def _main(kind: str, port: int) -> None:
    if kind == SINK:
        with suppress(ConnectionError):
            _serve_sink(port)
    elif kind == "uvloop":
        import uvloop

        uvloop.run(_serve_echo(port))
    else:
        asyncio.run(_serve_echo(port))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
