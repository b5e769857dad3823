"""Voters that are records: added, removed and moved while real processes run (KIP-853)."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from ottla.log.directory import encode_uuid
from ottla.testing import Broker, BrokerFailed
from ottla.testing.ports import free_ports
from scenarios.polling import until

OLD_NODE = Path(__file__).parent / "directories" / "one-node-5ac6ac9.tar.gz"
COMMAND_S = 60
# Elections are over soon, also on a busy machine.
QUICK = {
    "controller.quorum.election.timeout.ms": 1000,
    "controller.quorum.fetch.timeout.ms": 2000,
}


def ottla(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ottla", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a command that was refused."""
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("ottla: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


class Fleet:
    """Nodes by their numbers, each on a port that stays its own."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = path
        self.ports = dict(enumerate(free_ports(count), start=1))
        self.nodes: dict[int, Broker] = {}
        self.cluster_id = encode_uuid(b"\x01" + secrets.token_bytes(15))

    def directory(self, node_id: int) -> Path:
        return self.path / f"node-{node_id}"

    def format(self, node_id: int, *options: object) -> subprocess.CompletedProcess[str]:
        identity = ("--cluster-id", self.cluster_id, "--node-id", node_id)
        return ottla(
            "storage", "format", *identity, "--data-dir", self.directory(node_id), *options
        )

    def start(self, node_id: int, **settings: object) -> Broker:
        """A known one goes on with the settings that it had."""
        if node_id not in self.nodes:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            self.nodes[node_id] = Broker(
                {"node.id": node_id, **QUICK, **named},  # type: ignore[dict-item]
                data_dir=self.directory(node_id),
                port=self.ports[node_id],
                ready_timeout_s=COMMAND_S,
            )
        self.nodes[node_id].start()
        return self.nodes[node_id]

    def join(self, node_id: int, known: int = 1, **settings: object) -> Broker:
        """Begins to follow, without a vote."""
        assert self.format(node_id, "--no-initial-controllers").returncode == 0
        where = f"127.0.0.1:{self.ports[known]}"
        return self.start(node_id, controller_quorum_bootstrap_servers=where, **settings)

    def address(self, node_id: int) -> str:
        return f"{node_id}@127.0.0.1:{self.ports[node_id]}"

    def ask(self, *arguments: object, by: int = 1) -> subprocess.CompletedProcess[str]:
        return ottla(*arguments, "--bootstrap", self.nodes[by].bootstrap, "--timeout", 30)

    def add(self, node_id: int, by: int = 1) -> None:
        done = self.ask("quorum", "add-voter", self.address(node_id), by=by)
        assert done.returncode == 0, done.stderr

    def status(self, by: int = 1) -> dict[str, Any]:
        done = self.ask("quorum", "status", "--json", by=by)
        return json.loads(done.stdout) if done.returncode == 0 else {"leader": -1, "replicas": []}

    def voters(self, by: int = 1) -> list[int]:
        replicas = self.status(by)["replicas"]
        return [each["node"] for each in replicas if each["role"] != "observer"]

    def await_voters(self, *expected: int, by: int = 1) -> None:
        until(lambda: self.voters(by) == list(expected), f"voters {expected}", COMMAND_S)

    def leader(self, by: int) -> int:
        found: list[int] = []
        until(lambda: found.append(self.status(by)["leader"]) or found[-1] > 0, "a leader")
        return found[-1]

    def forget(self, node_id: int) -> None:
        """The next start may have other settings."""
        self.nodes.pop(node_id).close()

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
            node.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    nodes = Fleet(tmp_path, 4)
    yield nodes
    nodes.close()


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    failures: list[Any] = []
    for number in range(count):
        producer.produce(topic, f"more {number}", on_delivery=lambda e, _: failures.append(e))
    assert producer.flush(COMMAND_S) == 0
    assert failures == [None] * count


def consumed(bootstrap: str, topic: str, count: int) -> set[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"group-{secrets.token_hex(4)}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    values: set[bytes] = set()

    def has_all() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.add(message.value())
        return len(values) == count

    until(has_all, f"{count} messages", COMMAND_S)
    consumer.close()
    return values


def test_a_node_alone_becomes_the_first_of_three_without_a_stop(fleet: Fleet) -> None:
    first = fleet.start(1)
    identity = (fleet.directory(1) / "meta.properties").read_text()
    fleet.cluster_id = re.search(r"cluster\.id=(\S+)", identity)[1]  # type: ignore[index]
    first.create_topic("kept")
    produce(first.bootstrap, "kept", 3)
    assert fleet.status()["kraft_version"] == 1
    for node_id in (2, 3):
        fleet.join(node_id)
        assert fleet.voters() == list(range(1, node_id))
        fleet.add(node_id)
    assert fleet.voters() == [1, 2, 3]
    first.kill()
    until(lambda: fleet.status(by=2)["leader"] in (2, 3), "one of the others leads", COMMAND_S)
    first.start()
    assert consumed(first.bootstrap, "kept", 3) == {b"more 0", b"more 1", b"more 2"}
    fleet.await_voters(1, 2, 3)


def test_voters_come_and_go_while_controllers_die(fleet: Fleet) -> None:
    """Three by --initial-controllers; one goes, a fourth comes; then all are started anew."""
    disks = {node_id: encode_uuid(b"\x01" + secrets.token_bytes(15)) for node_id in (1, 2, 3)}
    first = ",".join(f"{fleet.address(node_id)}:{disks[node_id]}" for node_id in disks)
    servers = ",".join(f"127.0.0.1:{port}" for port in fleet.ports.values())
    for node_id in disks:
        assert fleet.format(node_id, "--initial-controllers", first).returncode == 0
        node = Broker(
            {"node.id": node_id, **QUICK, "controller.quorum.bootstrap.servers": servers},
            data_dir=fleet.directory(node_id),
            port=fleet.ports[node_id],
            ready_timeout_s=COMMAND_S,
        )
        fleet.nodes[node_id] = node
    _start_together(fleet, 1, 2, 3)
    seen = fleet.status()
    assert {each["node"]: each["directory_id"] for each in seen["replicas"]} == disks

    gone = next(node_id for node_id in disks if node_id != seen["leader"])
    left = [node_id for node_id in disks if node_id != gone]
    done = fleet.ask("quorum", "remove-voter", gone, "--yes", by=left[0])
    assert done.returncode == 0, done.stderr
    fleet.join(4, known=left[0])
    fleet.add(4, by=left[0])
    fleet.await_voters(*left, 4, by=left[0])

    fleet.nodes[seen["leader"]].kill()
    survivor = next(node_id for node_id in left if node_id != seen["leader"])
    until(
        lambda: fleet.status(survivor)["leader"] in (survivor, 4),
        "the voters of now elect one of themselves",
        COMMAND_S,
    )
    for node in fleet.nodes.values():
        node.kill()
    _start_together(fleet, 1, 2, 3, 4)
    fleet.await_voters(*left, 4, by=survivor)
    observers = [each["node"] for each in fleet.status()["replicas"] if each["role"] == "observer"]
    assert observers == [gone]


def _start_together(fleet: Fleet, *node_ids: int) -> None:
    """Each waits for a majority."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(node_ids)) as threads:
        for outcome in [threads.submit(fleet.nodes[node_id].start) for node_id in node_ids]:
            outcome.result()


def test_a_directory_of_before_keeps_its_voter_until_kraft_version_is_raised(fleet: Fleet) -> None:
    """Made by the release before there were records of voters (commit 5ac6ac9)."""
    with tarfile.open(OLD_NODE) as archive:
        archive.extractall(fleet.directory(1), filter="data")
    first = fleet.start(1)
    identity = (fleet.directory(1) / "meta.properties").read_text()
    fleet.cluster_id = re.search(r"cluster\.id=(\S+)", identity)[1]  # type: ignore[index]
    kept = {f"message {number}".encode() for number in range(6)}
    assert consumed(first.bootstrap, "kept", 6) == kept
    seen = fleet.status()
    assert (seen["kraft_version"], seen["replicas"][0]["directory_id"]) == (0, None)

    fleet.join(2)
    refused = fleet.ask("quorum", "add-voter", fleet.address(2))
    assert "kraft.version is 0: the voters are a setting" in said(refused)
    assert fleet.ask("features", "upgrade", "kraft.version=1", "--dry-run").returncode == 0
    assert fleet.status()["kraft_version"] == 0
    assert fleet.ask("features", "upgrade", "kraft.version=1").returncode == 0
    assert fleet.status()["kraft_version"] == 1
    refused = fleet.ask("features", "downgrade", "kraft.version=0")
    assert "kraft.version is at 1 and cannot be lowered" in said(refused)
    fleet.add(2)
    assert fleet.voters() == [1, 2]
    first.restart()
    fleet.await_voters(1, 2)
    assert consumed(first.bootstrap, "kept", 6) == kept


def test_a_voter_with_an_emptied_disk_is_another_replica(fleet: Fleet) -> None:
    fleet.format(1, "--standalone")
    fleet.start(1)
    for node_id in (2, 3):
        fleet.join(node_id)
        fleet.add(node_id)
    fleet.nodes[3].kill()
    shutil.rmtree(fleet.directory(3))
    fleet.format(3, "--no-initial-controllers")
    fleet.nodes[3].start()
    of_three = [each for each in fleet.status()["replicas"] if each["node"] == 3]
    assert {each["role"] for each in of_three} == {"voter", "observer"}
    # Its vote is with the disk that is gone, so a majority takes the other two.
    refused = fleet.ask("quorum", "add-voter", fleet.address(3))
    assert "has several disks" in said(refused)
    new = next(each["directory_id"] for each in of_three if each["role"] == "observer")
    refused = fleet.ask("quorum", "add-voter", f"{fleet.address(3)}:{new}")
    assert "3 is a voter already" in said(refused)
    refused = fleet.ask("quorum", "remove-voter", f"3:{new}", "--yes")
    assert "3 with this directory is no voter" in said(refused)
    assert fleet.ask("quorum", "remove-voter", "3", "--yes").returncode == 0
    done = fleet.ask("quorum", "add-voter", f"{fleet.address(3)}:{new}")
    assert done.returncode == 0, done.stderr
    assert fleet.voters() == [1, 2, 3]


def test_a_voter_that_moves_is_found_where_it_is(fleet: Fleet) -> None:
    fleet.format(1, "--standalone")
    fleet.start(1)
    for node_id in (2, 3):
        fleet.join(node_id)
        fleet.add(node_id)
    fleet.nodes[3].kill()
    settings = fleet.nodes[3].settings
    fleet.forget(3)
    (elsewhere,) = free_ports(1)
    fleet.ports[3] = elsewhere
    fleet.start(3, **settings)

    def is_known() -> bool:
        addresses = {each["node"]: each["address"] for each in fleet.status()["replicas"]}
        return bool(addresses.get(3) == f"127.0.0.1:{elsewhere}")

    until(is_known, "the record of a voter that has moved", COMMAND_S)


def test_bad_input_is_refused_with_one_line(fleet: Fleet) -> None:
    fleet.start(1)
    alone = ("--cluster-id", fleet.cluster_id, "--node-id", "2", "--data-dir", fleet.directory(2))
    disk = encode_uuid(b"\x02" * 16)
    for options, words in (
        (("--standalone", "--no-initial-controllers"), "Give one of --standalone"),
        (("--initial-controllers", "2@h:9093"), "write ID@HOST:PORT:DIRECTORY_ID"),
        (("--initial-controllers", f"2@h:0:{disk}"), "write ID@HOST:PORT:DIRECTORY_ID"),
        (("--initial-controllers", f"2@h:1:{disk},2@h:2:{disk}"), "the node id 2 twice"),
        (("--initial-controllers", f"2@h:1:{disk},3@h:2:{disk}"), "directory id"),
    ):
        assert words in said(ottla("storage", "format", *alone, *options))
        assert not fleet.directory(2).exists()
    for arguments, words in (
        (("remove-voter", "1", "--yes"), "1 is the only voter"),
        (("remove-voter", "7", "--yes"), "No node 7 votes, by what the leader knows: 1"),
        (("remove-voter", "x", "--yes"), "write its node.id"),
        (("remove-voter", "1"), "add --yes to go on"),
        (("add-voter", "7@127.0.0.1:1"), "No node 7 follows the metadata"),
        (("add-voter", "7"), "write ID@HOST:PORT"),
        (("add-voter", f"1@127.0.0.1:1:{disk}"), "1 is a voter already"),
    ):
        assert words in said(fleet.ask("quorum", *arguments))
    assert fleet.voters() == [1]


def test_settings_that_do_not_go_with_the_records_are_refused(fleet: Fleet) -> None:
    fleet.start(1)
    fleet.forget(1)
    named = f"{fleet.address(1)},{fleet.address(2)}"
    with pytest.raises(BrokerFailed, match="node 1 is the only voter; take the setting out"):
        fleet.start(1, controller_quorum_voters=named)
    fleet.forget(1)
    fleet.format(2, "--no-initial-controllers")
    with pytest.raises(BrokerFailed, match="nothing says where the controllers are"):
        fleet.start(2)


def test_voters_outlive_the_log_that_told_them(fleet: Fleet) -> None:
    """The log is cut before a snapshot, which tells them to a start and to a new node."""
    eager = {"metadata_log_max_record_bytes_between_snapshots": 200}
    fleet.format(1, "--standalone")
    fleet.start(1, **eager)
    fleet.join(2)
    fleet.add(2)
    first_file = fleet.directory(1) / "__cluster_metadata-0" / "00000000000000000000.log"
    topics = iter(range(100))

    def is_cut() -> bool:
        fleet.nodes[1].create_topic(f"topic-{next(topics)}")
        return not first_file.exists()

    until(is_cut, "the metadata log is cut", COMMAND_S)
    fleet.join(3)
    assert fleet.voters(by=3) == [1, 2]
    for node in fleet.nodes.values():
        node.kill()
    _start_together(fleet, 1, 2, 3)
    fleet.await_voters(1, 2)
    fleet.add(3)
    assert fleet.voters() == [1, 2, 3]


def test_a_controller_takes_its_vote_by_itself_where_that_is_allowed(fleet: Fleet) -> None:
    fleet.format(1, "--standalone")
    fleet.start(1)
    for node_id in (2, 3):
        fleet.join(node_id, controller_quorum_auto_join_enable=True)
    fleet.await_voters(1, 2, 3)
    fleet.nodes[3].kill()
    shutil.rmtree(fleet.directory(3))
    fleet.format(3, "--no-initial-controllers")
    fleet.nodes[3].start()

    new = (fleet.directory(3) / "meta.properties").read_text()

    def is_whole() -> bool:
        """The vote of the disk that is gone went to the new one."""
        voters = [each for each in fleet.status()["replicas"] if each["role"] != "observer"]
        is_moved = any(f"directory.id={each['directory_id']}\n" in new for each in voters)
        return is_moved and [(each["node"], each["lag"]) for each in voters] == [
            (1, 0),
            (2, 0),
            (3, 0),
        ]

    until(is_whole, "the new disk of node 3 votes", COMMAND_S)
