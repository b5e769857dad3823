"""The broker stops, or is killed, and comes back; clients go on where they were."""

from __future__ import annotations

import threading
import time

import pytest
from clientkit.catalog import able
from confluent_kafka import KafkaException, Producer

DEADLINE_S = 60
RESTARTS = 5


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


class SteadyProducer(threading.Thread):
    """One idempotent producer object that sends numbers until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.sent = 0
        self.delivered = 0
        self.failures: list[str] = []
        self.is_stopping = False
        self.progress = threading.Condition()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 20,
                "queue.buffering.max.messages": 1000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not self.is_stopping and time.monotonic() < deadline:
            try:
                self._producer.produce(self.topic, str(self.sent), on_delivery=self._told)
                self.sent += 1
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.01)
            except KafkaException as error:  # the producer is beyond help
                self.failures.append(str(error))
                return
        while self._producer.flush(1) and time.monotonic() < deadline:
            pass

    def wait_delivered(self, more: int) -> None:
        goal = self.delivered + more
        with self.progress:
            assert self.progress.wait_for(
                lambda: self.delivered >= goal or self.failures, DEADLINE_S
            )

    def stop(self) -> None:
        self.is_stopping = True
        self.join(DEADLINE_S)

    def _told(self, error, message) -> None:
        with self.progress:
            if error is None:
                self.delivered += 1
            else:
                self.failures.append(f"{message.value()}: {error}")
            self.progress.notify_all()


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_an_idempotent_producer_delivers_once_across_restarts(
    is_killed: bool, topic: str, own_broker, new_client
) -> None:
    """The broker goes away again and again with requests in flight; some are sent a second time."""
    client = new_client("confluent", own_broker.bootstrap)
    client.create_topic(topic, partitions=1)
    producer = SteadyProducer(own_broker.bootstrap, topic)
    producer.start()
    for _ in range(RESTARTS):
        producer.wait_delivered(more=500)
        if is_killed:
            own_broker.kill()
        own_broker.restart()
    producer.stop()
    assert producer.failures == []
    assert producer.delivered == producer.sent
    records = client.consume(partitions=[[topic, 0, 0]]).wait_records(producer.sent)
    assert [record["value"] for record in records] == [str(i) for i in range(producer.sent)]


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
