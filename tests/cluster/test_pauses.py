"""Nodes of three real processes that stand still under load (SIGSTOP), and wake again.

A process that is stopped keeps its connections and believes, when it wakes, that no time has
passed: what it then says must not count any more.
"""

from __future__ import annotations

import os
import signal

import pytest

from ottla.testing import Cluster
from scenarios.polling import until
from scenarios.test_cluster import (
    PARTITIONS,
    SENT_BEFORE_AND_AFTER,
    Load,
    all_in_sync,
    check,
    controller_of,
    leaders_of,
)

PATIENCE_S = 90.0


@pytest.mark.parametrize("who", ["leader", "controller"])
def test_a_node_that_stands_still_loses_nothing_that_was_acknowledged(
    who: str, ottla_cluster: Cluster
) -> None:
    cluster = ottla_cluster
    cluster.create_topic("orders", PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    load = Load(cluster, "orders")
    load.send(SENT_BEFORE_AND_AFTER)
    until(lambda: load.is_acknowledged(SENT_BEFORE_AND_AFTER // 2), "nothing is acknowledged")
    controller = controller_of(cluster)
    others = [node for node in leaders_of(cluster, "orders").values() if node != controller]
    victim = controller if who == "controller" else others[0]
    pid = cluster[victim].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        load.send(SENT_BEFORE_AND_AFTER)
        until(
            lambda: victim not in leaders_of(cluster, "orders").values(),
            "nobody has taken over",
            PATIENCE_S,
        )
        load.send(SENT_BEFORE_AND_AFTER)
    finally:
        os.kill(pid, signal.SIGCONT)
    load.finish()
    until(lambda: all_in_sync(cluster, "orders"), "it is not in sync again", PATIENCE_S)
    assert len(load.reports.acknowledged) == 3 * SENT_BEFORE_AND_AFTER
    check(cluster, "orders", load.reports)
