"""The broker stops, or is killed, and comes back; clients go on where they were."""

from __future__ import annotations

import time

import pytest
from clientkit.catalog import able
from confluent_kafka import Producer

DEADLINE_S = 60


@pytest.mark.parametrize("name", able())
def test_a_consumer_lives_through_a_restart_of_the_broker(
    name: str, topic: str, group: str, own_broker, new_client
) -> None:
    client = new_client(name, own_broker.bootstrap)
    client.create_topic(topic, partitions=2)
    client.produce(topic, ["a", "b"], partition=0, idempotent=True)
    consumer = client.consume(topics=[topic], group=group)
    consumer.wait_values(["a", "b"])
    consumer.commit()
    own_broker.restart()
    client.produce(topic, ["c", "d"], partition=1, idempotent=True)
    consumer.wait_values(["a", "b", "c", "d"])
    consumer.commit()
    consumer.close()
    client.stop()
    again = new_client(name, own_broker.bootstrap)
    again.produce(topic, ["e"], partition=0)
    again.consume(topics=[topic], group=group).wait_values(["e"])
    assert again.call("offsets", topic=topic, partition=0) == {"earliest": 0, "latest": 3}


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_an_idempotent_producer_delivers_once_across_restarts(
    is_killed: bool, topic: str, own_broker, new_client
) -> None:
    """One producer object goes on sending while its broker goes away twice."""
    client = new_client("confluent", own_broker.bootstrap)
    client.create_topic(topic, partitions=1)
    producer = Producer(
        {
            "bootstrap.servers": own_broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    failures: list[str] = []

    def delivered(error, message) -> None:
        if error is not None:
            failures.append(str(error))

    values = [str(i) for i in range(3000)]
    for i, value in enumerate(values):
        producer.produce(topic, value, on_delivery=delivered)
        producer.poll(0)
        if i in (1000, 2000):
            if is_killed:
                own_broker.kill()
            own_broker.restart()
    deadline = time.monotonic() + DEADLINE_S
    while producer.flush(1) and time.monotonic() < deadline:
        pass
    assert len(producer) == 0
    assert failures == []
    records = client.consume(partitions=[[topic, 0, 0]]).wait_records(len(values))
    assert [record["value"] for record in records] == values


def test_everything_is_still_there_after_a_kill(
    topic: str, group: str, own_broker, new_client
) -> None:
    client = new_client("confluent", own_broker.bootstrap)
    client.create_topic(topic, partitions=3, configs={"retention.ms": "7200000"})
    for partition in range(3):
        client.produce(topic, [f"{partition}/{i}" for i in range(10)], partition=partition)
    consumer = client.consume(topics=[topic], group=group)
    consumer.wait_records(30)
    consumer.commit()
    consumer.close()
    cluster = client.call("describe_cluster")
    own_broker.kill()
    own_broker.restart()
    again = new_client("confluent", own_broker.bootstrap)
    assert again.call("describe_cluster") == cluster
    assert again.call("describe_configs", topic=topic)["retention.ms"] == "7200000"
    assert again.call("group_offsets", group=group) == [[topic, p, 10] for p in range(3)]
    for partition in range(3):
        offsets = again.call("offsets", topic=topic, partition=partition)
        assert offsets == {"earliest": 0, "latest": 10}
