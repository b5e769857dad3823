"""Three nodes, three replicas: a leader is killed, and every client goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import test_transactions as transactions
from clientkit.catalog import able
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.testing import Cluster

PARTITIONS = 3
EACH = 4
DEADLINE_S = 60
SETTINGS = {
    "offsets.topic.num.partitions": PARTITIONS,
    "transaction.state.log.num.partitions": 1,
}


@pytest.fixture(scope="module")
def cluster(existing_bootstrap: str | None) -> Iterator[Cluster]:
    if existing_bootstrap is not None:
        pytest.skip("needs to kill nodes; OTTLA_TEST_BOOTSTRAP names a foreign cluster")
    with Cluster(SETTINGS) as started:
        yield started


def leader_when_all_are_in_sync(cluster: Cluster, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        partitions = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        if all(sorted(each.isrs) == [1, 2, 3] for each in partitions.values()):
            return int(partitions[0].leader)
        time.sleep(0.05)
    raise AssertionError(f"not all replicas of {topic} are in sync")


@pytest.mark.parametrize("name", able())
def test_a_client_lives_through_the_death_of_a_leader(
    name: str, topic: str, group: str, cluster: Cluster, new_client
) -> None:
    cluster.create_topic(topic, PARTITIONS, {"min.insync.replicas": "2"}, replication_factor=3)
    client = new_client(name, cluster.bootstrap)

    def sent(when: str) -> set[str]:
        values = [[f"{when} {p}/{i}" for i in range(EACH)] for p in range(PARTITIONS)]
        for partition, some in enumerate(values):
            client.produce(topic, some, partition=partition, acks="all", idempotent=True)
        return {value for some in values for value in some}

    before = sent("before")
    consumer = client.consume(topics=[topic], group=group)
    client.wait(lambda: set(consumer.values) == before, lambda: f"{before}, {consumer}", DEADLINE_S)
    consumer.commit()
    victim = leader_when_all_are_in_sync(cluster, topic)
    cluster[victim].kill()
    try:
        everything = before | sent("after")
        client.wait(
            lambda: set(consumer.values) == everything, lambda: f"all, {consumer}", DEADLINE_S
        )
        for partition in range(PARTITIONS):
            # Each is stored once, whatever was sent again.
            found = client.call("offsets", topic=topic, partition=partition)
            assert found == {"earliest": 0, "latest": 2 * EACH}
    finally:
        cluster[victim].start()
    leader_when_all_are_in_sync(cluster, topic)


# kafka-python has stood still here once, in a call that did not return; why is not known yet.
STEADY_CLIENTS = [name for name in able("transactions") if name != "kafka-python"]


@pytest.mark.parametrize("name", STEADY_CLIENTS)
def test_transactions_outlive_their_coordinator(
    name: str, topic: str, group: str, cluster: Cluster, new_client
) -> None:
    """The leader of the one partition that has the transaction's state is killed, twice."""
    for each in (topic, f"{topic}-copy"):
        wanted = {"min.insync.replicas": "2"}
        cluster.create_topic(each, PARTITIONS, wanted, replication_factor=3)
    client = new_client(name, cluster.bootstrap)
    results = client.call("produce", topic=topic, records=transactions.KEYED, idempotent=True)
    assert [each for each in results if "error" in each] == []
    transactions.copy(client, topic, group, each=2, timeout_ms=10_000)
    for kills in range(1, 3):
        transactions.wait_until(
            lambda: client.call("copied")["committed"] >= kills * 4,  # noqa: B023
            lambda: client.call("copied"),
        )
        victim = leader_when_all_are_in_sync(cluster, "__transaction_state")
        cluster[victim].kill()
        try:
            before = client.call("copied")["committed"]
            transactions.wait_until(
                lambda: (
                    client.call("copied")["committed"] > before  # noqa: B023
                    or client.call("copied")["done"]
                ),
                lambda: client.call("copied"),
            )
        finally:
            cluster[victim].start()
    transactions.wait_copied(client)
    transactions.check_copied_once(new_client(name, cluster.bootstrap), topic, group)


def leaders_of(cluster: Cluster, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    found = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
    return {index: each.leader for index, each in found.items()}


def test_what_a_coordinator_has_decided_the_next_one_carries_out(
    topic: str, cluster: Cluster
) -> None:
    """The partition is away when its transaction is committed, so that the marker has to wait."""
    cluster.create_topic(topic, PARTITIONS, {}, replication_factor=1)
    settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    producer = Producer({**settings, "transactional.id": f"of-{topic}"})
    producer.init_transactions(DEADLINE_S)
    coordinator = leader_when_all_are_in_sync(cluster, "__transaction_state")
    places = leaders_of(cluster, topic)
    index, leader = next(each for each in places.items() if each[1] != coordinator)
    producer.begin_transaction()
    producer.produce(topic, b"decided", partition=index)
    assert producer.flush(DEADLINE_S) == 0
    cluster[leader].kill()
    producer.commit_transaction(DEADLINE_S)
    cluster[coordinator].kill()
    for node in (leader, coordinator):
        cluster[node].start()
    reader = Consumer({**settings, "group.id": "r", "isolation.level": "read_committed"})
    reader.assign([TopicPartition(topic, index, 0)])
    deadline = time.monotonic() + 2 * DEADLINE_S
    seen: list[bytes] = []
    while not seen and time.monotonic() < deadline:
        message = reader.poll(1)
        if message is not None and message.error() is None:
            seen.append(message.value())
    reader.close()
    assert seen == [b"decided"]
