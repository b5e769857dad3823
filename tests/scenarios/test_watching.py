"""What an operator sees of a cluster in which a node is away: metrics, /readyz, status, alerts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.cli.figures import Figures
from ottla.testing import Broker, Cluster
from ottla.testing.ports import free_ports
from ottla.testing.topics import create_topic
from scenarios.polling import until
from scenarios.shell import Shell

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 60.0
PARTITIONS = 6


def get(broker: Broker, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(broker.http + path, timeout=PATIENCE_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def figures(broker: Broker) -> Figures:
    return Figures.parse(get(broker, "/metrics")[1])


def status(cluster: Cluster, address: str, code: int = 0) -> dict[str, Any]:
    shell = Shell(address)
    done = shell.run("cluster", "status", "--bootstrap", address, "--json", code=code)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def node(seen: dict[str, Any], node_id: int) -> dict[str, Any]:
    (found,) = (each for each in seen["nodes"] if each["node_id"] == node_id)
    return dict(found)


def send(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for number in range(count):
        producer.produce("t", str(number), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def test_a_node_that_goes_is_seen_everywhere_and_so_is_its_return() -> None:
    with Cluster({"min.insync.replicas": 2, "default.replication.factor": 3}) as cluster:
        cluster.create_topic("t", PARTITIONS, replication_factor=3)
        strict = {"min.insync.replicas": "3"}
        create_topic(cluster.bootstrap, "strict", 2, strict, replication_factor=3)
        send(cluster.bootstrap, 60)
        address = cluster[1].bootstrap
        seen = status(cluster, address)
        assert [each["state"] for each in seen["nodes"]] == ["serving"] * 3
        assert seen["partitions"] >= PARTITIONS
        assert (seen["offline"], seen["under_replicated"], seen["under_min_isr"]) == (0, 0, 0)
        roles = {each["node_id"]: each["role"] for each in seen["nodes"]}
        assert sorted(roles.values()) == ["controller", "voter", "voter"]
        assert roles[seen["controller"]] == "controller"
        assert all(get(broker, "/readyz")[0] == 200 for broker in cluster.nodes.values())
        is_controller = {
            node_id: figures(broker).total("is_controller")
            for node_id, broker in cluster.nodes.items()
        }
        assert is_controller == {each: float(each == seen["controller"]) for each in (1, 2, 3)}

        gone = next(each for each in (1, 2, 3) if each != seen["controller"])
        others = [broker for node_id, broker in cluster.nodes.items() if node_id != gone]
        elected = [figures(broker).total("leader_elections_total") or 0 for broker in others]
        cluster[gone].kill()
        address = others[0].bootstrap
        until(
            lambda: node(status(cluster, address), gone)["state"] == "fenced",
            "it is not seen as fenced",
            PATIENCE_S,
        )
        send(address, 60)
        until(
            lambda: node(status(cluster, address), gone)["out_of_sync"] >= PARTITIONS,
            "its replicas are not out of sync",
            PATIENCE_S,
        )
        assert status(cluster, address)["under_min_isr"] == 2
        for broker, before in zip(others, elected, strict=True):
            now = figures(broker)
            assert now.total("brokers_fenced") == 1
            assert (now.total("leader_elections_total") or 0) > before
            assert {each.labels["kind"] for each in now.all("leader_elections_total")} == {
                "clean",
                "unclean",
            }
        lags = [each for broker in others for each in figures(broker).all("follower_lag_seconds")]
        assert any(each.labels["node"] == str(gone) and each.value > 0 for each in lags)

        cluster[gone].start()
        until(lambda: get(cluster[gone], "/readyz")[0] == 200, "it is not ready", PATIENCE_S)
        seen = status(cluster, address)
        assert node(seen, gone)["state"] == "serving"
        assert node(seen, gone)["out_of_sync"] == 0


def test_a_node_without_a_majority_says_why_it_is_not_ready() -> None:
    settings = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}
    with Cluster(settings) as cluster:
        left = cluster[1]
        cluster[2].kill()
        cluster[3].kill()
        until(lambda: get(left, "/readyz")[0] == 503, "it calls itself ready", PATIENCE_S)
        told = json.loads(get(left, "/readyz")[1])
        assert told["status"] == "fenced"
        assert "the controller does not answer" in told["reasons"][0]
        assert figures(left).total("fenced") == 1
        cluster[2].start()
        until(lambda: get(left, "/readyz")[0] == 200, "it is not ready again", PATIENCE_S)


def test_a_cluster_that_nobody_answers_for_is_told() -> None:
    said = Shell("x:1").run("cluster", "status", "--bootstrap", "127.0.0.1:1", code=1).stderr
    assert "The cluster cannot be asked: 127.0.0.1:1" in said
    said = Shell("x:1").run("cluster", "status", "--watch", code=2).stderr
    assert "--watch is for a cluster that --bootstrap names" in said


def test_prometheus_itself_understands_the_rules() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (package prometheus)")
    command = ["promtool", "check", "rules", str(ROOT / "docs" / "alerts.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_watch_goes_on_while_nobody_answers() -> None:
    """It outlives the death of the only node, sees it again, and ends with Ctrl-C."""
    (port,) = free_ports(1)
    with Broker(port=port) as broker:
        words = ("cluster", "status", "--bootstrap", broker.bootstrap, "--watch", "--json")
        with Shell(broker.bootstrap).start(*words) as watch:
            assert watch.stdout is not None
            assert watch.stderr is not None
            assert json.loads(watch.stdout.readline())["partitions"] == 0
            broker.kill()
            assert b"The cluster cannot be asked" in watch.stderr.readline()
            broker.start()
            broker.create_topic("t", PARTITIONS)
            lines = iter(watch.stdout.readline, b"")
            assert any(json.loads(line)["partitions"] == PARTITIONS for line in lines)
            watch.send_signal(signal.SIGINT)
            assert watch.wait(PATIENCE_S) == 130
