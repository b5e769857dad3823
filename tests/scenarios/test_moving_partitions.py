"""Partitions move between real nodes under load, and nothing is lost on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from ottla.errors import ErrorCode
from ottla.testing import Cluster
from scenarios.moving import create, move, moving, replicas_of
from scenarios.polling import until
from scenarios.test_cluster import Load, check, controller_of

PARTITIONS = 50
MOVE_S = 120.0
MIN_ISR = 2


def directories_of(cluster: Cluster, node_id: int, topic: str) -> list[str]:
    data = Path(cluster[node_id].data_dir)
    return sorted(path.name for path in data.glob(f"{topic}-*"))


@pytest.fixture(scope="module")
def four_nodes() -> Iterator[Cluster]:
    with Cluster(nodes=4) as cluster:
        yield cluster


@contextmanager
def watched(cluster: Cluster, topic: str) -> Iterator[list[str]]:
    """Looks at the in-sync replicas all the time; returns where there were too few."""
    found: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.05):
            for index, (_, isr) in replicas_of(cluster, topic).items():
                if len(isr) < MIN_ISR:
                    found.append(f"{topic}-{index} has {isr} in sync")

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        is_over.set()
        watcher.join()


def test_fifty_partitions_move_under_load_while_the_target_and_the_controller_die(
    four_nodes: Cluster,
) -> None:
    cluster = four_nodes
    before = [[1 + index % 3, 1 + (index + 1) % 3, 1 + (index + 2) % 3] for index in range(50)]
    after = {index: [2 + (node + 1) % 3 for node in nodes] for index, nodes in enumerate(before)}
    assert all(sorted(nodes) == [2, 3, 4] for nodes in after.values())
    create(cluster, "orders", before, min_insync_replicas=str(MIN_ISR))
    load = Load(cluster, "orders", PARTITIONS)
    load.send(2_000)
    load.finish()
    with watched(cluster, "orders") as too_few:
        load.send(500)
        # Nobody has arrived before it is back: two of three are always in sync.
        cluster[4].kill()
        assert move(cluster, "orders", after) == [ErrorCode.NONE] * PARTITIONS
        assert len(moving(cluster, "orders")) == PARTITIONS
        load.send(500)
        cluster[4].start()
        until(lambda: len(moving(cluster, "orders")) < PARTITIONS, "nothing arrives", MOVE_S)
        controller = controller_of(cluster)
        cluster[controller].kill()
        load.send(500)
        until(lambda: load.is_acknowledged(2_500), "nothing is acknowledged", MOVE_S)
        cluster[controller].start()
        until(lambda: not moving(cluster, "orders"), "some never arrive", MOVE_S)
        load.send(500)
        load.finish()
    assert not too_few
    until(
        lambda: (
            replicas_of(cluster, "orders")
            == {index: (nodes, [2, 3, 4]) for index, nodes in after.items()}
        ),
        "not everybody is in sync where the partitions are now",
        MOVE_S,
    )
    assert len(load.reports.acknowledged) == 4_000
    check(cluster, "orders", load.reports, PARTITIONS)
    until(lambda: not directories_of(cluster, 1, "orders"), "files remain where nobody needs them")


def configure(cluster: Cluster, kind: ResourceType, name: str, **settings: str | None) -> None:
    """Sets these; None takes a setting away."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    entries = [
        ConfigEntry(
            setting.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for setting, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(MOVE_S)


@pytest.mark.parametrize(("side", "node_id"), [("leader", "1"), ("follower", "4")])
def test_a_throttled_move_waits_and_who_is_in_sync_does_not(
    four_nodes: Cluster, side: str, node_id: str
) -> None:
    cluster, topic = four_nodes, f"cargo-{side}"
    create(cluster, topic, [[1, 2]], min_insync_replicas="2")
    load = Load(cluster, topic, 1)
    load.send(20_000)
    load.finish()
    rate, replicas = f"{side}_replication_throttled_rate", f"{side}_replication_throttled_replicas"
    configure(cluster, ResourceType.TOPIC, topic, **{replicas: f"0:{node_id}"})
    configure(cluster, ResourceType.BROKER, node_id, **{rate: "1"})
    assert move(cluster, topic, {0: [4, 2]}) == [ErrorCode.NONE]
    # All of this needs the follower that is in sync, of the same throttled partition.
    load.send(500)
    load.finish()
    assert moving(cluster, topic) == [0], "at a byte per second it cannot have arrived"
    configure(cluster, ResourceType.BROKER, node_id, **{rate: None})
    until(lambda: not moving(cluster, topic), "it is still throttled", MOVE_S)
    # Another node may hear of it a moment later.
    until(lambda: replicas_of(cluster, topic) == {0: ([4, 2], [2, 4])}, "others do not hear of it")
    check(cluster, topic, load.reports, 1)


def test_a_move_that_is_cancelled_leaves_nothing_at_its_target(four_nodes: Cluster) -> None:
    cluster = four_nodes
    create(cluster, "parcels", [[1, 2, 3]] * 4)
    load = Load(cluster, "parcels", 4)
    load.send(400)
    load.finish()
    assert move(cluster, "parcels", {0: None}) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    cluster[4].kill()
    assert move(cluster, "parcels", {index: [4] for index in range(4)}) == [ErrorCode.NONE] * 4
    assert move(cluster, "parcels", dict.fromkeys(range(3))) == [ErrorCode.NONE] * 3
    assert moving(cluster, "parcels") == [3]
    cluster[4].start()
    until(lambda: not moving(cluster, "parcels"), "the one that goes on never arrives", MOVE_S)
    here = ([1, 2, 3], [1, 2, 3])
    there = {0: here, 1: here, 2: here, 3: ([4], [4])}
    until(lambda: replicas_of(cluster, "parcels") == there, "others do not hear of it")
    load.send(400)
    load.finish()
    check(cluster, "parcels", load.reports, 4)
    until(lambda: directories_of(cluster, 4, "parcels") == ["parcels-3"], "files remain")
    for node_id in (1, 2, 3):
        until(
            lambda node_id=node_id: (
                directories_of(cluster, node_id, "parcels")
                == ["parcels-0", "parcels-1", "parcels-2"]
            ),
            f"node {node_id} has not let go of what has moved",
        )
