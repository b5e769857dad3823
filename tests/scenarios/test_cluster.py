"""Three real processes are one queue: what was acknowledged outlives the death of any of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.testing import BrokerFailed, Cluster
from ottla.testing.ports import free_ports
from scenarios.polling import until

PARTITIONS = 6
SENT_BEFORE_AND_AFTER = 400
FLUSH_S = 60.0


class Reports:
    """What a producer was told of each message."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.failed: list[str] = []

    def take(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged[message.value()] = (message.partition(), message.offset())


class Load:
    """An idempotent producer with acks=all, as unmodified clients are."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int = PARTITIONS) -> None:
        self.reports = Reports()
        self._topic = topic
        self._partitions = partitions
        self._sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "log_level": 0,
            }
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(
                self._topic,
                f"message {self._sent}".encode(),
                partition=self._sent % self._partitions,
                callback=self.reports.take,
            )
            self._sent += 1
            self._producer.poll(0)

    def is_acknowledged(self, count: int) -> bool:
        self._producer.poll(0.01)
        return len(self.reports.acknowledged) >= count

    def finish(self) -> None:
        assert self._producer.flush(FLUSH_S) == 0, "not all was answered"
        assert not self.reports.failed


def everything_in(
    cluster: Cluster, topic: str, partitions: int = PARTITIONS
) -> dict[tuple[int, int], bytes]:
    """By partition and offset, up to the high watermarks."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "log_level": 0}
    )
    found: dict[tuple[int, int], bytes] = {}
    for index in range(partitions):
        place = TopicPartition(topic, index, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        offsets: set[int] = set()
        while len(offsets) < end:
            message = consumer.poll(30)
            assert message is not None, f"{topic}-{index} has {end} messages and does not give them"
            assert message.error() is None
            offsets.add(message.offset())
            found[index, message.offset()] = message.value()
    consumer.close()
    return found


def leaders_of(cluster: Cluster, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return {index: partition.leader for index, partition in partitions.items()}


def all_in_sync(cluster: Cluster, topic: str) -> bool:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
    return all(sorted(partition.isrs) == [1, 2, 3] for partition in partitions)


def controller_of(cluster: Cluster) -> int:
    """The node whose log says last that it leads the metadata log."""
    said = {
        node_id: max(
            (line for line in broker.log_text().splitlines() if "this node leads" in line),
            default="",
        )
        for node_id, broker in cluster.nodes.items()
    }
    return max(said, key=lambda node_id: said[node_id][:23])


def check(cluster: Cluster, topic: str, reports: Reports, partitions: int = PARTITIONS) -> None:
    found = everything_in(cluster, topic, partitions)
    for value, place in reports.acknowledged.items():
        assert found.get(place) == value, f"{value!r} was acknowledged at {place}"
    values = list(found.values())
    assert len(values) == len(set(values)), "an idempotent producer's message is there twice"
    for index in range(partitions):
        numbers = [int(found[at].split()[1]) for at in sorted(found) if at[0] == index]
        assert numbers == sorted(numbers), f"{topic}-{index} is out of order"


def killed_under_load(cluster: Cluster, choose: Callable[[], int]) -> None:
    cluster.create_topic("orders", PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    load = Load(cluster, "orders")
    load.send(SENT_BEFORE_AND_AFTER)
    until(lambda: load.is_acknowledged(SENT_BEFORE_AND_AFTER // 2), "nothing is acknowledged")
    victim = choose()
    cluster[victim].kill()
    load.send(SENT_BEFORE_AND_AFTER)
    load.finish()
    assert victim not in leaders_of(cluster, "orders").values()
    cluster[victim].start()
    until(lambda: all_in_sync(cluster, "orders"), "the node that is back is not in sync")
    load.send(SENT_BEFORE_AND_AFTER)
    load.finish()
    assert len(load.reports.acknowledged) == 3 * SENT_BEFORE_AND_AFTER
    check(cluster, "orders", load.reports)


def test_a_killed_leader_loses_nothing_that_was_acknowledged(ottla_cluster: Cluster) -> None:
    def a_leader_that_is_no_controller() -> int:
        controller = controller_of(ottla_cluster)
        leaders = leaders_of(ottla_cluster, "orders").values()
        return next(node_id for node_id in leaders if node_id != controller)

    killed_under_load(ottla_cluster, a_leader_that_is_no_controller)


def test_a_killed_controller_loses_nothing_that_was_acknowledged(ottla_cluster: Cluster) -> None:
    killed_under_load(ottla_cluster, lambda: controller_of(ottla_cluster))


def test_a_node_that_stops_hands_over_what_it_leads(ottla_cluster: Cluster) -> None:
    ottla_cluster.create_topic("orders", PARTITIONS, replication_factor=3)
    load = Load(ottla_cluster, "orders")
    load.send(SENT_BEFORE_AND_AFTER)
    ottla_cluster[2].stop()
    load.send(SENT_BEFORE_AND_AFTER)
    load.finish()
    assert 2 not in leaders_of(ottla_cluster, "orders").values()
    check(ottla_cluster, "orders", load.reports)


def test_nodes_of_several_need_the_id_of_one_cluster(ottla_broker_factory: Any) -> None:
    """Each would make up another cluster, and refuse the others for ever."""
    voters = "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3"
    with pytest.raises(BrokerFailed, match="ottla storage format --cluster-id ID --node-id 1"):
        ottla_broker_factory(node_id=1, controller_quorum_voters=voters)


def test_a_node_without_a_majority_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    ottla = [sys.executable, "-m", "ottla"]
    made = subprocess.run([*ottla, "storage", "random-id"], check=True, capture_output=True)
    formatting = ["storage", "format", "--cluster-id", made.stdout.decode().strip()]
    formatting += ["--node-id", "1", "--data-dir", str(tmp_path / "data")]
    subprocess.run([*ottla, *formatting], check=True, capture_output=True)
    own, second, third = free_ports(3)
    voters = f"1@127.0.0.1:{own},2@127.0.0.1:{second},3@127.0.0.1:{third}"
    starting = ["start", "--node-id", "1", "--data-dir", str(tmp_path / "data")]
    starting += ["--listen", f"127.0.0.1:{own}", "--set", f"controller.quorum.voters={voters}"]
    with subprocess.Popen([*ottla, *starting], stderr=subprocess.PIPE) as node:
        assert node.stderr is not None
        try:
            line = node.stderr.readline().decode()
            assert "waiting for a majority of the voters 1, 2, 3" in line
            node.send_signal(signal.SIGTERM)
            assert node.wait(FLUSH_S) == 0
        finally:
            node.kill()
