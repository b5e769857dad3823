"""`ottla cluster`: three processes under one supervisor, and the commands that ask it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from ottla.testing.ports import free_ports
from scenarios.polling import until
from scenarios.shell import OTTLA, TIMEOUT_S, Shell

NODES = 3


def free_base_port() -> int:
    """That of as many ports in a row as there are nodes."""
    while True:
        (first,) = free_ports(1)
        try:
            with closing(socket.create_server(("127.0.0.1", first + 1))):
                socket.create_server(("127.0.0.1", first + 2)).close()
        except OSError:
            continue
        return first


class Supervised:
    """`ottla cluster up` in a process of its own, and commands about its directory."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.base_port = free_base_port()
        self.bootstrap = ",".join(f"127.0.0.1:{self.base_port + n}" for n in range(NODES))
        self._shell = Shell(self.bootstrap)
        self._log = data_dir.parent / f"{data_dir.name}.log"
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None

    def up(self) -> subprocess.Popen[bytes]:
        command = [*OTTLA, "cluster", "up", "--data-dir", str(self.data_dir), *self._options]
        command += ["--base-port", str(self.base_port)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=self._shell.environment, stdin=subprocess.DEVNULL, stderr=log
            )
        until(lambda: "ready (" in self.text() or self.has_ended(), "it is not ready", TIMEOUT_S)
        assert not self.has_ended(), self.text()
        return self.process

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def text(self) -> str:
        return self._log.read_text()

    def run(self, *arguments: str, code: int = 0) -> str:
        done = self._shell.run("cluster", *arguments, "--data-dir", str(self.data_dir), code=code)
        return done.stdout + done.stderr

    def rows(self) -> dict[int, dict[str, Any]]:
        return {row["node_id"]: row for row in json.loads(self.run("status", "--json"))}

    def states(self) -> list[str]:
        return [row["state"] for row in self.rows().values()]

    def pids(self) -> list[int]:
        return [row["pid"] for row in self.rows().values()]

    def shell(self, *arguments: str) -> str:
        return self._shell.run(*arguments).stdout

    def close(self) -> None:
        if self.process is not None and not self.has_ended():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(TIMEOUT_S)
            finally:
                self.process.kill()
                self.process.wait()


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    cluster = Supervised(tmp_path / "cluster", "--nodes", str(NODES))
    try:
        yield cluster
    finally:
        cluster.close()


def produced(bootstrap: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    failures: list[str] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    for value in values:
        producer.produce("orders", value, callback=told)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failures


def consumed(bootstrap: str, count: int) -> set[str]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "readers", "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    found: set[str] = set()

    def has_all() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.add(message.value().decode())
        return len(found) >= count

    until(has_all, f"of {count} messages these came: {found}", TIMEOUT_S)
    consumer.close()
    return found


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_cluster_lives_through_the_death_of_a_node_and_goes_on_after_down(
    supervised: Supervised,
) -> None:
    up = supervised.up()
    assert "3 nodes are ready" in supervised.text()
    assert f"bootstrap {supervised.bootstrap}" in supervised.text()
    rows = supervised.rows()
    assert [row["address"] for row in rows.values()] == supervised.bootstrap.split(",")
    assert {row["state"] for row in rows.values()} == {"running"}
    assert sorted(row["role"] for row in rows.values()) == ["broker", "broker", "controller"]
    supervised.shell("topics", "create", "orders", "--partitions", "6")
    before = [f"before {n}" for n in range(50)]
    produced(supervised.bootstrap, before)
    assert sum(row["leaders"] for row in supervised.rows().values()) >= 6

    assert "Node 2 is killed." in supervised.run("kill", "2")
    killed = supervised.rows()[2]
    assert (killed["state"], killed["pid"], killed["role"]) == ("killed", None, None)
    assert is_gone(rows[2]["pid"])
    assert "Node 2 does not run: it is killed." in supervised.run("kill", "2", code=1)
    assert "There is no node 7" in supervised.run("stop", "7", code=1)
    without = [f"without {n}" for n in range(50)]
    produced(supervised.bootstrap, without)
    alive = [supervised.rows()[number] for number in (1, 3)]
    assert sum(row["under_replicated"] for row in alive) >= 6
    assert supervised.rows()[2]["lag"] > 0

    assert "Node 2 is ready" in supervised.run("start", "2")
    assert "Node 2 is running already." in supervised.run("start", "2", code=1)
    until(lambda: is_whole(supervised), "not all is in sync", TIMEOUT_S)
    assert consumed(supervised.bootstrap, 100) == {*before, *without}

    assert "is stopped" in supervised.run("down")
    assert up.wait(TIMEOUT_S) == 0
    assert supervised.states() == ["stopped"] * NODES
    assert "does not run" in supervised.run("kill", "1", code=1)
    assert "The cluster in" in supervised.run("down", code=1)
    again = supervised.up()
    produced(supervised.bootstrap, ["after"])
    assert set(supervised.shell("topics", "list").split()) >= {"orders"}
    again.send_signal(signal.SIGINT)
    assert again.wait(TIMEOUT_S) == 130
    for number in range(1, NODES + 1):
        marker = supervised.data_dir / f"node-{number}" / ".kafka_cleanshutdown"
        assert marker.exists(), supervised.text()


def is_whole(supervised: Supervised) -> bool:
    rows = supervised.rows().values()
    return all(row["under_replicated"] == row["lag"] == 0 for row in rows)


def test_a_node_that_ends_is_started_again_and_all_end_with_their_supervisor(
    supervised: Supervised,
) -> None:
    killed = supervised.up()
    pid = supervised.pids()[2]
    os.kill(pid, signal.SIGKILL)
    until(lambda: "node 3 is back" in supervised.text(), "it is not back", TIMEOUT_S)
    assert "node 3 ended by SIGKILL; it is started again in 1 s" in supervised.text()
    assert supervised.states() == ["running"] * NODES
    pids = supervised.pids()
    assert pids[2] != pid
    refused = supervised.run("up", code=1)
    assert f"runs already (process {killed.pid})" in refused
    assert supervised.pids() == pids
    killed.kill()
    killed.wait()
    supervised.up()
    # They are done when their directories are free, and gone when somebody has buried them.
    until(lambda: all(map(is_gone, pids)), "the nodes outlive their supervisor", TIMEOUT_S)
    assert supervised.states() == ["running"] * NODES


def test_a_taken_port_is_told_and_nothing_is_begun(supervised: Supervised) -> None:
    port = supervised.base_port + 1
    with closing(socket.create_server(("127.0.0.1", port))):
        said = supervised.run("up", "--base-port", str(supervised.base_port), code=1)
    assert said == (
        f"ottla: Node 2 cannot have port {port}: Address already in use; choose other ports with "
        "--base-port N.\n"
    )
    assert not supervised.data_dir.exists()
