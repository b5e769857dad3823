"""`ottla nodes`: nodes are emptied, forgotten, taken back, replaced and restarted under load."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from ottla.cli.main import main
from ottla.testing import Broker, Cluster
from scenarios.moving import create, replicas_of
from scenarios.polling import until
from scenarios.test_cluster import Load, check

PARTITIONS = 12
MOVE_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, controllers=1) as started:
        yield started


class Command:
    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._where = ["--bootstrap", bootstrap]
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What it says."""
        ended = main(["nodes", *arguments, *self._where])
        out, said = self._capsys.readouterr()
        assert ended == code, said
        return said if code or "--json" not in arguments else out

    def row(self, node: int) -> dict[str, Any]:
        rows = map(json.loads, self("list", "--json").splitlines())
        return next((row for row in rows if row["node"] == node), {})


@pytest.fixture
def command(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(cluster.bootstrap, capsys)


def nodes_of(cluster: Cluster, topic: str) -> set[int]:
    return {node for replicas, _ in replicas_of(cluster, topic).values() for node in replicas}


def test_a_node_is_drained_forgotten_and_taken_back_under_load(
    cluster: Cluster, command: Command
) -> None:
    everywhere = [[1, 2, 3], [2, 3, 4], [3, 4, 1], [4, 1, 2]] * (PARTITIONS // 4)
    create(cluster, "orders", everywhere, min_insync_replicas="2")
    load = Load(cluster, "orders", PARTITIONS)
    load.send(600)
    assert f"{3 * PARTITIONS // 4} partition(s) move" in command("drain", "4", "--dry-run")
    assert 4 in nodes_of(cluster, "orders"), "a dry run moves nothing"
    said = command("remove", "4", "--yes", code=1)
    assert "`ottla nodes drain 4` first" in said
    said = command("drain", "4", "--yes", "--at-once", "3")
    assert "Node 4 holds nothing and leads nothing." in said
    load.send(600)
    row = command.row(4)
    assert (row["state"], row["leaders"], row["replicas"]) == ("drained", 0, 0)
    cluster.create_topic("later", 8, replication_factor=3)
    assert nodes_of(cluster, "later") == {1, 2, 3}, "a drained node gets nothing new"
    said = command("remove", "4", "--yes", "--with", f"kill {cluster[4].pid}")
    assert "no part of the cluster any more" in said
    assert command.row(4) == {}
    assert "ottla start --node-id 4" in command("add", "4", "--yes", code=1)
    start_when_gone(cluster[4])
    load.send(600)
    command("add", "4", "--yes", "--sample", "0")
    load.finish()
    held = [command.row(node)["replicas"] for node in (1, 2, 3, 4)]
    assert max(held) - min(held) <= max(1, 0.1 * sum(held) / 4), held
    check(cluster, "orders", load.reports, PARTITIONS)


def test_a_drain_that_cannot_be_done_says_what_has_nowhere_to_go(
    cluster: Cluster, command: Command
) -> None:
    create(cluster, "wide", [[1, 2, 3, 4]])
    said = command("drain", "2", "--yes", code=1)
    assert "have nowhere to go: wide-0" in said
    assert "Nothing was changed." in said
    assert command.row(2)["state"] == "serving"
    assert nodes_of(cluster, "wide") == {1, 2, 3, 4}
    assert main(["topics", "delete", "wide", "--yes", "--bootstrap", cluster.bootstrap]) == 0


def test_a_dead_node_is_drained_and_another_takes_its_place(
    cluster: Cluster, command: Command
) -> None:
    create(cluster, "parcels", [[1, 2], [2, 3], [3, 1]], min_insync_replicas="1")
    load = Load(cluster, "parcels", 3)
    load.send(300)
    load.finish()
    cluster[1].kill()
    try:
        until(lambda: command.row(1).get("state") == "fenced", "nobody misses node 1")
        said = command("drain", "1", "--yes")
        assert "Node 1 holds nothing" in said
        assert 1 not in nodes_of(cluster, "parcels")
        check(cluster, "parcels", load.reports, 3)
    finally:
        cluster[1].start()
    command("drain", "1", "--undo")
    assert command.row(1)["state"] == "serving"
    said = command("replace", "3", "--by", "3")
    assert "in sync" in said


def test_nodes_are_restarted_one_by_one_and_no_send_fails(
    cluster: Cluster, command: Command
) -> None:
    create(cluster, "steady", [[1, 2, 3], [2, 3, 4], [3, 4, 1]], min_insync_replicas="2")
    load = Load(cluster, "steady", 3)
    load.send(100)
    pids = {node: cluster[node].pid for node in (1, 2, 3, 4)}
    helpers = [threading.Thread(target=start_when_gone, args=(cluster[node],)) for node in pids]
    for helper in helpers:
        helper.start()
    chosen = " || ".join(
        f"( test {{node}} = {node} && kill -{signal.SIGTERM} {pid} )" for node, pid in pids.items()
    )
    said = command("restart", "1", "2", "3", "4", "--yes", "--with", chosen)
    for helper in helpers:
        helper.join()
    load.send(100)
    load.finish()
    for node in pids:
        assert f"Node {node} is back, in sync and leading" in said
        assert command.row(node)["leaders"] > 0
    assert all(cluster[node].pid != pid for node, pid in pids.items())
    check(cluster, "steady", load.reports, 3)


def start_when_gone(broker: Broker) -> None:
    """As a service manager would."""
    until(lambda: not broker.is_running, "it does not end", MOVE_S)
    broker.stop()
    broker.start()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("drain", "9", "--yes"), 1, "There is no node 9"),
        (("remove", "9", "--yes"), 1, "There is no node 9"),
        (("replace", "1", "--by", "9", "--yes"), 1, "Node 9 does not serve"),
        (("restart", "--rolling"), 2, "Say how"),
        (("restart", "--with", "true"), 2, "Name the nodes"),
        (("restart", "9", "--with", "true", "--yes"), 1, "There is no node 9"),
        (("restart", "1", "--with", "echo {nobody}", "--yes"), 1, "may name {node}"),
        (("add", "1", "--voter", "nowhere", "--yes"), 2, "is no address"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    command: Command, arguments: tuple[str, ...], code: int, words: str
) -> None:
    said = command(*arguments, code=code)
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_a_voter_is_removed_with_its_node_and_the_last_one_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Cluster(nodes=2) as cluster:
        where = ["--bootstrap", cluster.bootstrap]
        assert main(["features", "upgrade", "kraft.version=1", *where]) == 0
        cluster.create_topic("orders", 2, replication_factor=1)
        command = Command(cluster.bootstrap, capsys)
        assert command.row(2)["votes"]
        assert "holds nothing" in command("drain", "2", "--yes")
        said = command("remove", "2", "--yes", "--with", f"kill {cluster[2].pid}")
        assert "Node 2 votes no more; 1 are left." in said
        alone = Command(cluster[1].bootstrap, capsys)
        assert alone.row(2) == {}
        assert nodes_of_alone(cluster[1]) == {1}
        said = alone("drain", "1", "--yes", code=1)
        assert "have nowhere to go" in said
        assert main(["topics", "delete", "orders", "--yes", *where[:1], cluster[1].bootstrap]) == 0
        said = alone("remove", "1", "--yes", code=1)
        assert "Node 1 is the last voter" in said
        cluster[2].stop()


def nodes_of_alone(broker: Broker) -> set[int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    partitions = admin.list_topics("orders", timeout=30).topics["orders"].partitions
    return {node for partition in partitions.values() for node in partition.replicas}
