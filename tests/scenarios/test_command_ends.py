"""How commands end: the exit codes of commands.md, and a log that is JSON throughout."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import Broker
from ottla.testing.ports import free_ports
from scenarios.shell import TIMEOUT_S, Shell

JSON_LOG = ("--log-format", "json")
ON_FREE_PORTS = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


@pytest.fixture
def alone() -> Shell:
    """Without a broker."""
    shell = Shell("")
    del shell.environment["OTTLA_BOOTSTRAP"]
    return shell


def said_in_json(text: bytes) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.decode().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    return lines


# ------------------------------------------------------------------------------------ exit codes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_start_ends_with_130_after_ctrl_c_and_0_after_sigterm(
    alone: Shell, tmp_path: Path, number: int, code: int
) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    with alone.start("start", *data, *ON_FREE_PORTS) as started:
        assert started.stderr is not None
        assert b"Ottla listens on" in started.stderr.readline()
        started.send_signal(number)
        assert started.wait(TIMEOUT_S) == code
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_produce_ends_with_130_after_ctrl_c_and_sends_what_it_has_read(
    ottla_broker: Broker, ottla_topic: str
) -> None:
    shell = Shell(ottla_broker.bootstrap)
    with shell.start("produce", ottla_topic, "--json", stdin=subprocess.PIPE) as producing:
        assert producing.stdin is not None
        assert producing.stdout is not None
        assert producing.stderr is not None
        producing.stdin.write(b"1\n")
        producing.stdin.flush()
        with shell.start("consume", ottla_topic, "--from-beginning", "--max", "1") as consuming:
            assert consuming.stdout is not None
            assert consuming.stdout.readline() == b"1\n"
        producing.send_signal(signal.SIGINT)
        assert producing.wait(TIMEOUT_S) == 130
        assert producing.stderr.read() == b"Interrupted after 1 messages.\n"
        assert json.loads(producing.stdout.read())["offset"] == 0


@pytest.fixture
def silent() -> Iterator[tuple[str, threading.Event]]:
    """A port that takes connections and questions, and never answers; and when it was asked."""
    asked = threading.Event()
    held: list[socket.socket] = []

    def listen(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            held.append(connection)
            connection.settimeout(TIMEOUT_S)
            threading.Thread(target=hear, args=(connection,), daemon=True).start()

    def hear(connection: socket.socket) -> None:
        try:
            if connection.recv(1):
                asked.set()
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=listen, args=(server,), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "list"),
        ("topics", "create", "t"),
        ("topics", "describe", "t"),
        ("topics", "delete", "t", "--yes"),
        ("consume", "t"),
        ("groups", "list"),
        ("groups", "describe", "g"),
        ("configs", "describe", "--topic", "t"),
        ("configs", "alter", "--broker", "1", "log.level=info"),
        ("records", "delete", "t", "--before", "1", "--yes"),
        ("node", "status"),
    ],
    ids=" ".join,
)
def test_ctrl_c_ends_a_command_that_waits_for_an_answer(
    silent: tuple[str, threading.Event], command: tuple[str, ...]
) -> None:
    """The hour that it was ready to wait is not over before the test's patience is."""
    address, asked = silent
    with Shell(address).start(*command, "--timeout", "3600") as waiting:
        assert asked.wait(TIMEOUT_S)
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(TIMEOUT_S) == 130
        assert waiting.stderr is not None
        assert waiting.stderr.read() == b""


# ------------------------------------------------------------------------------------------ JSON


def test_a_json_log_is_json_from_the_first_line_to_the_last(alone: Shell, tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    with alone.start("start", *data, *ON_FREE_PORTS, *JSON_LOG) as started:
        assert started.stderr is not None
        text = b""
        while b"ready on " not in text:
            line = started.stderr.readline()
            assert line
            text += line
        started.send_signal(signal.SIGTERM)
        _, rest = started.communicate(timeout=TIMEOUT_S)
    lines = said_in_json(text + rest)
    (ready,) = [line["message"] for line in lines if line["message"].startswith("ready on ")]
    assert ready.startswith("ready on 127.0.0.1:")
    assert ready.endswith(f"data in {tmp_path / 'data'}")
    assert lines[-1]["message"] == "stopped"


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (("--data-dir", "FILE"), 1, "cannot hold data"),
        (("--listen", "192.0.2.1:1", "--data-dir", "DATA"), 1, "no address of this machine"),
        (("--set", "num.partition=3"), 2, "Did you mean num.partitions?"),
        (("--listen", "nowhere"), 2, "listeners is 'nowhere'"),
    ],
)
@pytest.mark.parametrize("how", ["flag", "set", "environment", "file"])
def test_what_ends_the_start_is_said_in_json(
    alone: Shell, tmp_path: Path, given: tuple[str, ...], code: int, words: str, how: str
) -> None:
    file = tmp_path / "own.properties"
    file.write_text("log.format=json\n")
    ways = {"flag": JSON_LOG, "set": ("--set", "log.format=json"), "file": (str(file),)}
    if how == "environment":
        alone.environment["OTTLA_LOG_FORMAT"] = "json"
    places = {"FILE": str(file), "DATA": str(tmp_path / "data")}
    arguments = [places.get(word, word) for word in given]
    with alone.start("start", *ways.get(how, ()), *arguments) as started:
        _, text = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == code
    last = said_in_json(text)[-1]
    assert last["level"] == "error"
    assert words in last["message"]


# ---------------------------------------------------------------------------------- Kafka's files


def test_a_broker_starts_from_a_file_of_kafka(alone: Shell, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    (controller_port,) = free_ports(1)
    file.write_text(f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:{controller_port}
listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
log.dirs={tmp_path / "data"}
transaction.state.log.min.isr=1
""")
    with alone.start("start", str(file), "--http", "127.0.0.1:0", *JSON_LOG) as started:
        assert started.stderr is not None
        first = json.loads(started.stderr.readline())
        assert (first["level"], first["message"]) == (
            "warning",
            "without effect on this broker: inter.broker.listener.name, num.network.threads",
        )
        line = ""
        while not line.startswith("ready on "):
            line = json.loads(started.stderr.readline())["message"]
        address = line.removeprefix("ready on ").partition(",")[0]
        shell = Shell(address)
        shell.run("produce", "orders", stdin="1\n")
        (facts,) = shell.rows("node", "status")
        assert facts["brokers"] == [f"1@{address}"]
    shown = alone.run("settings", "show", str(file), "--changed", "--json")
    assert shown.stderr.startswith("Without effect on this broker: inter.broker.listener.name, ")
    values = {row["name"]: row["value"] for row in map(json.loads, shown.stdout.splitlines())}
    assert values["listeners"] == (
        f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller_port}"
    )
