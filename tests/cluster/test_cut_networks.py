"""Nodes of three that others do not reach, or not always, while clients send."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.namespaces import CLIENTS, REJECT, WiredCluster, Wires, inside
from cluster.steady_load import all_flow, finish_all
from cluster.stories import await_in_sync, await_replaced, move_controller, under_load
from ottla.testing import Cluster
from scenarios.test_cluster import controller_of

NODES = (1, 2, 3)
FLAPS = 8
FLAP_S = 0.7
LOST_PERCENT = 8
LOSSY_S = 15.0


@pytest.fixture
def wires() -> Iterator[Wires]:
    with Wires(nodes=len(NODES)) as made, inside(made.namespace(CLIENTS)):
        yield made


@pytest.fixture
def cluster(wires: Wires, tmp_path: Path) -> Iterator[Cluster]:
    with WiredCluster(wires, tmp_path) as started:
        try:
            yield started
        finally:
            wires.heal()


def others_than(node: int) -> tuple[int, ...]:
    return tuple(each for each in NODES if each != node)


def cut_off(wires: Wires, node: int) -> None:
    wires.cut(node, *others_than(node), CLIENTS)


def cut_from_nodes(wires: Wires, node: int) -> None:
    wires.cut(node, *others_than(node))


def hears_nobody(wires: Wires, node: int) -> None:
    wires.deafen(node, *others_than(node))


def is_heard_by_nobody(wires: Wires, node: int) -> None:
    for other in others_than(node):
        wires.deafen(other, node)


def is_rejected(wires: Wires, node: int) -> None:
    wires.deafen(node, *others_than(node), verdict=REJECT)


CUTS = [cut_off, cut_from_nodes, hears_nobody, is_heard_by_nobody, is_rejected]


@pytest.mark.parametrize("is_controller", [False, True], ids=["a broker", "the controller"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_leader_that_is_cut_off_is_replaced_and_comes_back(
    cut: Callable[[Wires, int], None], is_controller: bool, wires: Wires, cluster: Cluster
) -> None:
    controller = controller_of(cluster)
    victim = controller if is_controller else others_than(controller)[0]
    with under_load(cluster) as loads:
        cut(wires, victim)
        await_replaced(cluster, loads, victim)
        all_flow(loads)
        wires.heal()
        await_in_sync(cluster, loads)
        all_flow(loads)
        finish_all(loads)


def test_a_link_that_comes_and_goes(wires: Wires, cluster: Cluster) -> None:
    victim = others_than(controller_of(cluster))[0]
    with under_load(cluster) as loads:
        for _ in range(FLAPS):
            wires.unplug(victim)
            time.sleep(FLAP_S)
            wires.plug_in(victim)
            time.sleep(FLAP_S)
        await_in_sync(cluster, loads)
        all_flow(loads)
        finish_all(loads)


def test_a_slow_link_that_loses_packets(wires: Wires, cluster: Cluster) -> None:
    victim = move_controller(cluster, lambda node: True)
    with under_load(cluster) as loads:
        wires.lose(victim, LOST_PERCENT)
        wires.slow(victim)
        time.sleep(LOSSY_S)
        all_flow(loads)
        wires.heal()
        await_in_sync(cluster, loads)
        all_flow(loads)
        finish_all(loads)
