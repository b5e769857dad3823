"""Moves between nodes and between their disks, while the ends of a move and the controller die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import ResourceType

from ottla.errors import ErrorCode
from ottla.testing import Cluster
from raw_client import RawClient
from scenarios.moving import create, move, moving, replicas_of
from scenarios.polling import until
from scenarios.test_cluster import Load, check, controller_of
from scenarios.test_moving_between_directories import THROTTLE, ask_move, lies_in, places
from scenarios.test_moving_partitions import configure, watched

MOVE_S = 120.0
# More than is copied beside a throttle: what is left when a move between disks swaps, and a burst.
MESSAGES = 20_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, disks=2) as started:
        yield started


def throttle(cluster: Cluster, topic: str, nodes: range, rate: str | None) -> None:
    for side in ("leader", "follower"):
        replicas = None if rate is None else "*"
        name = f"{side}_replication_throttled_replicas"
        configure(cluster, ResourceType.TOPIC, topic, **{name: replicas})
        for node_id in nodes:
            name = f"{side}_replication_throttled_rate"
            configure(cluster, ResourceType.BROKER, str(node_id), **{name: rate})


def loaded(cluster: Cluster, topic: str, replicas: list[int], count: int = MESSAGES) -> Load:
    create(cluster, topic, [replicas], min_insync_replicas="2")
    load = Load(cluster, topic, 1)
    load.send(count)
    load.finish()
    return load


@pytest.mark.parametrize("victim", ["source", "target", "controller"])
def test_a_throttled_move_outlives_a_death_and_ends_when_the_throttle_is_lifted(
    cluster: Cluster, victim: str
) -> None:
    topic = f"of-the-{victim}"
    load = loaded(cluster, topic, [1, 2, 3])
    with watched(cluster, topic) as too_few:
        throttle(cluster, topic, range(1, 5), "1")
        assert move(cluster, topic, {0: [4, 2, 3]}) == [ErrorCode.NONE]
        node_id = {"source": 1, "target": 4, "controller": controller_of(cluster)}[victim]
        cluster[node_id].kill()
        load.send(300)
        load.finish()
        assert moving(cluster, topic) == [0], "at a byte per second it cannot have arrived"
        cluster[node_id].start()
        throttle(cluster, topic, range(1, 5), "50000000")
        until(lambda: not moving(cluster, topic), "it never arrives", MOVE_S)
        load.send(300)
        load.finish()
    assert not too_few
    there = {0: ([4, 2, 3], [2, 3, 4])}
    until(lambda: replicas_of(cluster, topic) == there, "it is not where it was to be", MOVE_S)
    throttle(cluster, topic, range(1, 5), None)
    check(cluster, topic, load.reports, 1)


def test_a_cancelled_move_is_led_by_those_from_before_with_everything(cluster: Cluster) -> None:
    load = loaded(cluster, "back", [1, 2])
    throttle(cluster, "back", range(1, 5), "1")
    assert move(cluster, "back", {0: [3, 4]}) == [ErrorCode.NONE]
    assert replicas_of(cluster, "back")[0][1] == [1, 2]
    load.send(300)
    assert move(cluster, "back", {0: None}) == [ErrorCode.NONE]
    assert moving(cluster, "back") == []
    load.finish()
    here = {0: ([1, 2], [1, 2])}
    until(lambda: replicas_of(cluster, "back") == here, "it is not where it was", MOVE_S)
    throttle(cluster, "back", range(1, 5), None)
    check(cluster, "back", load.reports, 1)


def other_disk(cluster: Cluster, node_id: int, topic: str) -> Path:
    with RawClient(cluster[node_id].bootstrap) as client:
        here = places(client, topic)["now"][0]
    first = Path(cluster[node_id].data_dir)
    second = Path(f"{first}-disk-2")
    return second if here == str(first) else first


def ask(cluster: Cluster, node_id: int, topic: str, path: Path) -> int:
    with RawClient(cluster[node_id].bootstrap) as client:
        return ask_move(client, topic, 0, path)


def has_arrived(cluster: Cluster, node_id: int, topic: str, path: Path) -> bool:
    with RawClient(cluster[node_id].bootstrap) as client:
        return lies_in(client, topic, path)


def test_leader_and_follower_change_disks_under_load_and_outlive_kill_9(cluster: Cluster) -> None:
    topic = "disks"
    load = loaded(cluster, topic, [1, 2, 3])
    targets = {node_id: other_disk(cluster, node_id, topic) for node_id in (1, 2)}
    with watched(cluster, topic) as too_few:
        for node_id in targets:
            rate = {THROTTLE.replace(".", "_"): "1"}
            configure(cluster, ResourceType.BROKER, str(node_id), **rate)
        for node_id, target in targets.items():
            assert ask(cluster, node_id, topic, target) == 0
        load.send(300)
        for node_id in targets:
            cluster[node_id].kill()
            load.send(300)
            load.finish()
            cluster[node_id].start()
            until(
                lambda: replicas_of(cluster, topic)[0][1] == [1, 2, 3],
                "it is not in sync again",
                MOVE_S,
            )
        for node_id in targets:
            configure(
                cluster, ResourceType.BROKER, str(node_id), **{THROTTLE.replace(".", "_"): None}
            )
        for node_id, target in targets.items():
            load.send(300)
            until(
                lambda n=node_id, t=target: has_arrived(cluster, n, topic, t),
                f"node {node_id} never gets it to {target}",
                MOVE_S,
            )
        load.finish()
    assert not too_few
    # From the copies alone: the one that is elected has everything.
    cluster[3].kill()
    load.send(300)
    load.finish()
    check(cluster, topic, load.reports, 1)
    cluster[3].start()


def test_a_replica_that_comes_lies_in_the_directory_that_was_asked_for(cluster: Cluster) -> None:
    load = loaded(cluster, "guest", [1, 2], 100)
    first = Path(cluster[4].data_dir)
    for target, replicas in ((Path(f"{first}-disk-2"), [4, 2]), (first, [4, 1])):
        if replicas == [4, 1]:
            assert move(cluster, "guest", {0: [1, 2]}) == [ErrorCode.NONE]
            until(lambda: not moving(cluster, "guest"), "it never arrives", MOVE_S)
        assert ask(cluster, 4, "guest", target) == ErrorCode.REPLICA_NOT_AVAILABLE
        assert move(cluster, "guest", {0: replicas}) == [ErrorCode.NONE]
        until(lambda: not moving(cluster, "guest"), "it never arrives", MOVE_S)
        assert has_arrived(cluster, 4, "guest", target)
    check(cluster, "guest", load.reports, 1)
