"""Nodes of three real processes that stand still under load (SIGSTOP), and wake again.

A process that is stopped keeps its connections and believes, when it wakes, that no time has
passed: what it then says must not count any more.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

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


PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x4000_0000


@contextmanager
def standing_still(thread_id: int) -> Iterator[None]:
    """One thread of another process goes no further in here; the others of it do."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    if ptrace(PTRACE_SEIZE, thread_id, None, None) != 0:
        pytest.skip(f"threads cannot be held here: {os.strerror(ctypes.get_errno())}")
    try:
        assert ptrace(PTRACE_INTERRUPT, thread_id, None, None) == 0
        os.waitpid(thread_id, WALL)
        yield
    finally:
        ptrace(PTRACE_DETACH, thread_id, None, None)


def test_a_loop_that_stands_still_does_not_keep_its_clients() -> None:
    """As when the kernel has its write wait for a disk: the client would wait for five minutes."""
    settings = {"broker.session.timeout.ms": 3_000, "log.dir.stall.timeout.ms": 3_000}
    with Cluster(settings) as cluster:
        cluster.create_topic("orders", 1, {"min.insync.replicas": "2"}, replication_factor=3)
        patient = {"socket.timeout.ms": 300_000, "enable.idempotence": True, "log_level": 0}
        producer = Producer({"bootstrap.servers": cluster.bootstrap, **patient})
        told: list[object] = []

        def acknowledged(wanted: int) -> bool:
            producer.poll(0.1)
            return len(told) >= wanted

        producer.produce("orders", b"before", on_delivery=lambda error, _: told.append(error))
        until(lambda: acknowledged(1), "nothing is acknowledged", PATIENCE_S)
        (leader,) = leaders_of(cluster, "orders").values()
        with standing_still(cluster[leader].pid):
            producer.produce("orders", b"during", on_delivery=lambda error, _: told.append(error))
            until(lambda: acknowledged(2), "the client waits for a loop that stands", PATIENCE_S)
        assert told == [None, None]
        until(lambda: all_in_sync(cluster, "orders"), "it is not in sync again", PATIENCE_S)
