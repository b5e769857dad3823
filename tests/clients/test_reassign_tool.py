"""Kafka's own kafka-reassign-partitions, kafka-leader-election and kafka-log-dirs work on Ottla."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from test_features_tool import TIMEOUT_S, jars

from ottla.testing import Broker, Cluster

__all__ = ["jars"]

Tool = Callable[..., str]


class HasBootstrap(Protocol):
    @property
    def bootstrap(self) -> str: ...


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4) as started:
        yield started


@pytest.fixture
def tool(jars: Path, cluster: Cluster) -> Tool:
    return tool_for(jars, cluster.bootstrap)


def tool_for(jars: Path, bootstrap: str) -> Tool:
    def run(name: str, *arguments: str) -> str:
        command = ["java", "-cp", f"{jars}/*", f"org.apache.kafka.tools.{name}"]
        command += ["--bootstrap-server", bootstrap, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def create(cluster: HasBootstrap, topic: str, replicas: list[list[int]], messages: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, len(replicas), replica_assignment=replicas)
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(messages):
        producer.produce(topic, b"x" * 1000, partition=number % len(replicas))
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def partitions_of(cluster: Cluster, topic: str) -> dict[int, Any]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found: dict[int, Any] = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return found


def verified(tool: Tool, plan: Path) -> str:
    """What --verify says once nothing moves any more."""
    for _ in range(20):
        said = tool("reassign.ReassignPartitionsCommand", "--verify", *read(plan))
        if "still in progress" not in said:
            return said
    raise AssertionError(said)


def read(plan: Path) -> tuple[str, str]:
    return "--reassignment-json-file", str(plan)


def test_partitions_are_moved_throttled_cancelled_and_verified(
    cluster: Cluster, tool: Tool, tmp_path: Path
) -> None:
    create(cluster, "orders", [[1, 2], [2, 3]], messages=3_000)
    topics = tmp_path / "topics.json"
    topics.write_text('{"version": 1, "topics": [{"topic": "orders"}]}')
    command = "reassign.ReassignPartitionsCommand"
    proposed = tool(
        command, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "3,4"
    )
    plan = tmp_path / "plan.json"
    plan.write_text(proposed.strip().splitlines()[-1])
    assert {
        node for each in json.loads(plan.read_text())["partitions"] for node in each["replicas"]
    } == {3, 4}
    said = tool(command, "--execute", *read(plan), "--throttle", "1")
    assert "Successfully started partition reassignments for orders-0,orders-1" in said
    assert "still in progress" in tool(command, "--verify", *read(plan), "--preserve-throttles")
    listed = tool(command, "--list")
    assert "orders-0: " in listed
    assert "adding: 3,4" in listed
    assert "Successfully cancelled" in tool(command, "--cancel", *read(plan))
    assert tool(command, "--list").strip() == "No partition reassignments found."
    assert [sorted(each.replicas) for each in partitions_of(cluster, "orders").values()] == [
        [1, 2],
        [2, 3],
    ]
    tool(command, "--execute", *read(plan), "--throttle", "100000000")
    said = verified(tool, plan)
    assert said.count("is completed.") == 2
    assert "Clearing broker-level throttles" in said
    assert "Clearing topic-level throttles" in said
    assert all(
        sorted(each.replicas) == sorted(each.isrs) == [3, 4]
        for each in partitions_of(cluster, "orders").values()
    )


def test_leaders_are_elected_and_directories_described(cluster: Cluster, tool: Tool) -> None:
    create(cluster, "led", [[1, 2], [2, 1]], messages=10)
    cluster[1].stop()
    assert {each.leader for each in partitions_of(cluster, "led").values()} == {2}
    cluster[1].start()
    said = ""
    for _ in range(20):
        said = tool(
            "LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions"
        )
        if partitions_of(cluster, "led")[0].leader == 1:
            break
    assert partitions_of(cluster, "led")[0].leader == 1, said
    described = tool("LogDirsCommand", "--describe", "--topic-list", "led")
    found = json.loads(described.strip().splitlines()[-1])
    held = {
        broker["broker"]: sorted(
            each["partition"] for place in broker["logDirs"] for each in place["partitions"]
        )
        for broker in found["brokers"]
    }
    assert held == {1: ["led-0", "led-1"], 2: ["led-0", "led-1"], 3: [], 4: []}


def directories(tool: Tool, topic: str) -> dict[str, str]:
    """Where the only replica lies, and where it is to lie."""
    described = tool("LogDirsCommand", "--describe", "--topic-list", topic)
    (broker,) = json.loads(described.strip().splitlines()[-1])["brokers"]
    return {
        "future" if each["isFuture"] else "now": place["logDir"]
        for place in broker["logDirs"]
        for each in place["partitions"]
    }


def moved_between_directories(server: HasBootstrap, tool: Tool, both: set[str], plan: Path) -> None:
    """Tried on Kafka 4 as well, by hand: the same words."""
    create(server, "boxes", [[1]], messages=3_000)
    here = directories(tool, "boxes")["now"]
    (there,) = both - {here}
    wanted = {"topic": "boxes", "partition": 0, "replicas": [1], "log_dirs": [there]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    command, throttle = "reassign.ReassignPartitionsCommand", "--replica-alter-log-dirs-throttle"
    said = tool(command, "--execute", *read(plan), throttle, "1")
    assert "Successfully started partition reassignment for boxes-0" in said
    assert f"Successfully started moving log directory to {there} for replica boxes-0" in said
    assert directories(tool, "boxes") == {"now": here, "future": there}
    said = tool(command, "--verify", *read(plan), "--preserve-throttles")
    assert "Reassignment of replica boxes-0-1 is still in progress." in said
    said = tool(command, "--execute", *read(plan), throttle, "100000000", "--additional")
    for _ in range(20):
        said = tool(command, "--verify", *read(plan))
        if "Reassignment of replica boxes-0-1 completed successfully." in said:
            break
    assert "Reassignment of replica boxes-0-1 completed successfully." in said
    assert "Clearing broker-level throttles" in said
    assert directories(tool, "boxes") == {"now": there}


def test_replicas_move_between_the_directories_of_a_node(jars: Path, tmp_path: Path) -> None:
    both = {str(tmp_path / name) for name in "ab"}
    with Broker({"log.dirs": ",".join(sorted(both))}) as broker:
        tool = tool_for(jars, broker.bootstrap)
        moved_between_directories(broker, tool, both, tmp_path / "plan.json")
