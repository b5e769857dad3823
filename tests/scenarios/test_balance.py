"""`ottla balance` on real nodes: even afterwards, nothing lost, and nothing moves in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from ottla.cli.main import main
from ottla.testing import Cluster
from scenarios.moving import create, replicas_of
from scenarios.polling import until
from scenarios.test_cluster import Load, check

PARTITIONS = 12
RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, racks=list(RACKS.values())) as started:
        yield started


def balance(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> tuple[str, str]:
    ended = main(["balance", "--sample", "0", *arguments, "--bootstrap", cluster.bootstrap])
    out, said = capsys.readouterr()
    assert ended == code, said
    return out, said


def leaders(cluster: Cluster, topic: str) -> Counter[int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
    return Counter(partition.leader for partition in partitions)


def test_nodes_carry_alike_after_a_balance_and_racks_are_kept(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    create(cluster, "orders", [[1, 3]] * PARTITIONS, min_insync_replicas="1")
    load = Load(cluster, "orders", PARTITIONS)
    load.send(600)
    load.finish()
    out, said = balance(cluster, capsys, "--dry-run")
    assert "partition(s) move" in said
    assert "12 → 6" in out, "what each node has, and would have"
    assert all(replicas == [1, 3] for replicas, _ in replicas_of(cluster, "orders").values())
    _, said = balance(cluster, capsys, code=2)
    assert "add --yes" in said
    load.send(600)
    _, said = balance(cluster, capsys, "--yes", "--throttle", "50M", "--at-once", "3")
    assert "is lifted" in said
    assert "No partition is being moved." in said
    load.send(600)
    load.finish()
    replicas = [replicas for replicas, _ in replicas_of(cluster, "orders").values()]
    assert Counter(node for each in replicas for node in each) == dict.fromkeys(RACKS, 6)
    assert all({RACKS[node] for node in each} == {"a", "b"} for each in replicas)
    three_each = dict.fromkeys(RACKS, 3)
    until(lambda: leaders(cluster, "orders") == three_each, "leaders are not spread")
    _, said = balance(cluster, capsys, "--yes")
    assert "All nodes carry alike" in said
    check(cluster, "orders", load.reports, PARTITIONS)


def test_no_balance_while_a_node_with_partitions_is_away(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    create(cluster, "away", [[4, 2]])
    cluster[4].kill()
    try:
        until(lambda: 4 not in leaders(cluster, "away"), "nobody takes over")
        _, said = balance(cluster, capsys, "--yes", code=1)
        assert "Node 4 does not serve" in said
        assert "ottla nodes drain 4" in said
    finally:
        cluster[4].start()


def test_a_cluster_balances_itself_and_leaves_no_throttle_behind(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--bootstrap", cluster.bootstrap]
    create(cluster, "alone", [[1, 3]] * PARTITIONS, min_insync_replicas="1")
    load = Load(cluster, "alone", PARTITIONS)
    load.send(300)

    def switch(value: str) -> None:
        for node in RACKS:
            setting = f"auto.balance.enable={value}"
            assert main(["configs", "alter", "--broker", str(node), setting, *where]) == 0

    _, said = balance(cluster, capsys, "--dry-run")
    assert "partition(s) move" in said
    switch("true")

    def is_even() -> bool:
        _, said = balance(cluster, capsys, "--dry-run")
        return "All nodes carry alike" in said

    until(is_even, "it does not become even", 120)
    switch("false")
    load.send(300)
    load.finish()

    def has_throttle() -> bool:
        assert main(["partitions", "list", "alone", *where]) == 0
        return "still have a throttle" in capsys.readouterr().err

    until(lambda: not has_throttle(), "a throttle stays", 120)
    check(cluster, "alone", load.reports, PARTITIONS)
