"""Health, readiness and metrics of a running broker, as probes and scrapers see them."""

from __future__ import annotations

import json
import resource
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from ottla.testing import Broker

TIMEOUT_S = 30
MESSAGES = 20


def get(broker: Broker, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(broker.http + path, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(broker: Broker) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    status, text = get(broker, "/metrics")
    assert status == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def member(broker: Broker, topic: str, group: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def test_a_running_broker_is_alive_and_ready(ottla_broker: Broker) -> None:
    assert get(ottla_broker, "/healthz")[0] == 200
    status, text = get(ottla_broker, "/readyz")
    assert status == 200
    assert json.loads(text)["status"] == "ready"


def test_other_paths_are_not_found_and_name_the_right_ones(ottla_broker: Broker) -> None:
    status, text = get(ottla_broker, "/")
    assert status == 404
    assert "/metrics" in text


def test_metrics_tell_the_traffic_of_a_topic_and_its_group(
    ottla_broker: Broker, ottla_topic: str
) -> None:
    producer = Producer({"bootstrap.servers": ottla_broker.bootstrap})
    for number in range(MESSAGES):
        producer.produce(ottla_topic, b"x" * 100, b"%d" % number)
    assert producer.flush(TIMEOUT_S) == 0
    with member(ottla_broker, ottla_topic, "accounting") as consumer:
        assert len(consumer.consume(MESSAGES - 5, TIMEOUT_S)) == MESSAGES - 5
        consumer.commit(asynchronous=False)
        page = scrape(ottla_broker)
        # Messages out are counted when the client asks for what comes after them.
        while not page["ottla_topic_messages_out_total", frozenset({("topic", ottla_topic)})]:
            page = scrape(ottla_broker)

    def value(name: str, **labels: str) -> float:
        return page[name, frozenset(labels.items())]

    assert value("ottla_topic_messages_in_total", topic=ottla_topic) == MESSAGES
    assert value("ottla_topic_bytes_in_total", topic=ottla_topic) > MESSAGES * 100
    assert value("ottla_topic_bytes_out_total", topic=ottla_topic) > (MESSAGES - 5) * 100
    assert value("ottla_topic_messages_out_total", topic=ottla_topic) == MESSAGES
    assert value("ottla_log_size_bytes", topic=ottla_topic) > MESSAGES * 100
    assert value("ottla_log_segments", topic=ottla_topic) == 1
    assert value("ottla_requests_total", api="Produce") >= 1
    assert value("ottla_request_seconds_count", api="Fetch") >= 1
    assert value("ottla_connections") >= 1
    directory = str(ottla_broker.data_dir)
    assert value("ottla_log_sync_seconds_count", directory=directory) >= 1
    assert value("process_resident_memory_bytes") > 1_000_000
    assert ("ottla_event_loop_delay_seconds_count", frozenset()) in page
    lags = {
        dict(labels).get("partition"): lag
        for (name, labels), lag in page.items()
        if name == "ottla_group_lag" and dict(labels)["group"] == "accounting"
    }
    assert sum(lags.values()) == 5


def test_a_broker_whose_disk_refuses_is_alive_but_not_ready_until_it_has_room() -> None:
    """A limit on file sizes stands for the full disk: it needs no rights and can be lifted."""
    with Broker() as broker:
        assert send(broker, b"fits") is None
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1000, hard))
        refusal = send(broker, b"x" * 2000)
        assert refusal is not None
        assert refusal.code() == KafkaError.KAFKA_STORAGE_ERROR
        assert get(broker, "/healthz")[0] == 200
        status, text = get(broker, "/readyz")
        assert status == 503
        assert "orders-0" in text
        with member(broker, "orders", "reader") as consumer:
            consumer.unsubscribe()
            consumer.assign([TopicPartition("orders", 0, 0)])
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.value() == b"fits"

        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (soft, hard))
        assert send(broker, b"fits again") is None
        assert get(broker, "/readyz")[0] == 200


def send(broker: Broker, value: bytes) -> KafkaError | None:
    """The broker's answer to one message, without the client's own second tries."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.send.max.retries": 0})
    answers: list[KafkaError | None] = []
    producer.produce("orders", value, partition=0, on_delivery=lambda e, _: answers.append(e))
    assert producer.flush(TIMEOUT_S) == 0
    (answer,) = answers
    return answer
