"""Where a broker listens: what is taken or does not exist is named, with what to do about it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ottla.broker.network.doors import Door
from ottla.broker.network.sockets import SocketNetwork
from ottla.config import BrokerConfig
from ottla.config.listeners import Address
from ottla.errors import CannotStart
from scenarios.in_process import BrokerInside

TIMEOUT_S = 40.0


def refusal(tmp_path: Path, *arguments: str) -> str:
    """What `ottla start` says before it ends."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OTTLA_")}
    done = subprocess.run(
        [sys.executable, "-m", "ottla", "start", "--data-dir", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "recover" not in line]
    return line


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


def test_a_taken_port_is_named_with_its_listener(tmp_path: Path, taken: str) -> None:
    said = refusal(tmp_path, "--listen", taken, "--http", "127.0.0.1:0")
    assert f"PLAINTEXT://{taken}" in said
    assert "taken by another process" in said
    assert "--listen" in said


def test_a_host_that_does_not_exist_is_named_with_its_listener(tmp_path: Path) -> None:
    said = refusal(tmp_path, "--listen", "nohost.invalid:0", "--http", "127.0.0.1:0")
    assert "PLAINTEXT://nohost.invalid:0" in said
    assert "not known" in said
    assert "--listen" in said


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b", "x" * 70], ids=len)
def test_an_address_that_is_not_ours_is_named(tmp_path: Path, host: str) -> None:
    said = refusal(tmp_path, "--listen", f"{host}:0", "--http", "127.0.0.1:0")
    assert f"PLAINTEXT://{host}:0" in said
    assert "Errno" not in said


def test_a_health_port_that_was_asked_for_must_be_free(tmp_path: Path, taken: str) -> None:
    said = refusal(tmp_path, "--listen", "127.0.0.1:0", "--http", taken)
    assert f"http.listener={taken}" in said
    assert "taken by another process" in said
    assert "--http" in said


def test_a_port_that_is_not_for_this_user_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who may take any."""

    async def refused() -> None:
        loop = asyncio.get_running_loop()

        async def create_server(*_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(loop, "create_server", create_server)
        await door(Address("127.0.0.1", 80), or_any_port=True).bind()

    with pytest.raises(CannotStart, match="this user may not take that port; do that"):
        asyncio.run(refused())


@contextlib.contextmanager
def occupied(address: str) -> Iterator[None]:
    """Somebody listens there: we, unless another has been quicker."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server((host, int(port))))
        yield


def test_a_health_port_that_nobody_asked_for_may_be_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    default = str(BrokerConfig().http_address())
    with occupied(default), BrokerInside(tmp_path, http_listener=None) as inside:
        assert inside.info.http not in (None, default)
        assert inside.readiness()[0] == 200
    told = [record.getMessage() for record in caplog.records if "http.listener" in record.message]
    assert len(told) == 1
    assert default in told[0]
    assert str(inside.info.http) in told[0]


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def door(address: Address, *, or_any_port: bool) -> Door:
    network = SocketNetwork()
    return Door(network, asyncio.Protocol, address, "this", "do that", or_any_port=or_any_port)


@LOOPS
def test_of_two_that_have_bound_a_port_the_second_to_open_is_told(new_loop: Any) -> None:
    """Linux lets several bind a port until one listens, and brokers bind long before they serve."""

    async def race() -> None:
        first = door(Address("127.0.0.1", 0), or_any_port=False)
        await first.bind()
        second = door(first.address, or_any_port=False)
        await second.bind()
        await first.open()
        try:
            with pytest.raises(CannotStart, match="this cannot be served: the port is taken"):
                await second.open()
        finally:
            first.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(race())


@LOOPS
def test_the_second_to_open_takes_a_free_port_where_any_will_do(new_loop: Any) -> None:
    async def race() -> None:
        first = door(Address("127.0.0.1", 0), or_any_port=True)
        await first.bind()
        second = door(first.address, or_any_port=True)
        await second.bind()
        await first.open()
        await second.open()
        try:
            assert first.address.port != second.address.port
            for opened in (first, second):
                _, writer = await asyncio.open_connection(*opened.address)
                writer.close()
                await writer.wait_closed()
        finally:
            first.close()
            second.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(race())
