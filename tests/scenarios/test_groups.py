"""Groups on a running broker: librdkafka's consumers as they come and go, and across restarts."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from ottla.testing.ports import free_ports

WAIT_S = 30.0


def wait_until(is_so: Callable[[], Any], *consumers: Reader) -> None:
    """Polls the consumers until it is so; fails when it takes far too long."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, [sorted(reader.partitions) for reader in consumers]
        for consumer in consumers:
            consumer.poll()


class Reader:
    """A consumer that remembers what it was given, what was taken away, and what it read."""

    def __init__(self, broker: Broker, topic: str, group: str, **settings: Any) -> None:
        self.partitions: set[int] = set()
        self.given: list[set[int]] = []
        self.taken: list[set[int]] = []
        self.values: list[bytes] = []
        self.cooperates = settings.get("partition.assignment.strategy") == "cooperative-sticky"
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 6_000,
                "log_level": 0,
                **settings,
            }
        )
        self.consumer.subscribe([topic], on_assign=self._given, on_revoke=self._taken)

    def _given(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        indexes = {partition.partition for partition in partitions}
        self.given.append(indexes)
        self.partitions = self.partitions | indexes if self.cooperates else indexes

    def _taken(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        indexes = {partition.partition for partition in partitions}
        self.taken.append(indexes)
        self.partitions -= indexes

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.values.append(message.value())

    def read(self, count: int) -> list[bytes]:
        wait_until(lambda: len(self.values) >= count, self)
        return sorted(self.values)

    def close(self) -> None:
        self.consumer.close()


@pytest.fixture
def reader() -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def make(*arguments: Any, **settings: Any) -> Reader:
        readers.append(Reader(*arguments, **settings))
        return readers[-1]

    yield make
    for one in readers:
        one.close()


def produce(broker: Broker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(WAIT_S) == 0


def have_all(count: int, *readers: Reader) -> bool:
    """Whether the readers share the partitions, each of them owned once and nobody idle."""
    owned = [index for reader in readers for index in reader.partitions]
    return sorted(owned) == list(range(count)) and all(one.partitions for one in readers)


@pytest.mark.ottla_topic(partitions=4)
def test_two_members_share_the_partitions_and_one_inherits(
    ottla_broker: Broker, ottla_topic: str, reader: Callable[..., Reader]
) -> None:
    first = reader(ottla_broker, ottla_topic, ottla_topic)
    wait_until(lambda: have_all(4, first), first)
    second = reader(ottla_broker, ottla_topic, ottla_topic)
    wait_until(lambda: have_all(4, first, second), first, second)
    second.close()
    wait_until(lambda: have_all(4, first), first)


def test_a_member_that_dies_is_noticed_by_its_missing_heartbeats(
    ottla_broker_factory: BrokerFactory, reader: Callable[..., Reader]
) -> None:
    broker = ottla_broker_factory(group_min_session_timeout_ms=100)
    broker.create_topic("t", partitions=2)
    living = reader(broker, "t", "g")
    # Nobody polls this one any more, so it neither rejoins nor, soon, counts as alive.
    dying = reader(broker, "t", "g", **{"session.timeout.ms": 500, "max.poll.interval.ms": 1_000})
    wait_until(lambda: have_all(2, living, dying), living, dying)
    wait_until(lambda: have_all(2, living), living)


@pytest.mark.ottla_topic(partitions=4)
def test_cooperative_members_keep_what_they_need_not_give(
    ottla_broker: Broker, ottla_topic: str, reader: Callable[..., Reader]
) -> None:
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    first = reader(ottla_broker, ottla_topic, ottla_topic, **strategy)
    wait_until(lambda: have_all(4, first), first)
    second = reader(ottla_broker, ottla_topic, ottla_topic, **strategy)
    wait_until(lambda: have_all(4, first, second), first, second)
    assert [len(indexes) for indexes in first.taken] == [2]
    assert second.taken == []


@pytest.mark.ottla_topic(partitions=2)
def test_a_static_member_restarts_without_a_rebalance(
    ottla_broker: Broker, ottla_topic: str, reader: Callable[..., Reader]
) -> None:
    one = reader(ottla_broker, ottla_topic, ottla_topic, **{"group.instance.id": "one"})
    two = reader(ottla_broker, ottla_topic, ottla_topic, **{"group.instance.id": "two"})
    wait_until(lambda: have_all(2, one, two), one, two)
    before, disturbances = set(two.partitions), len(one.given) + len(one.taken)
    two.close()
    again = reader(ottla_broker, ottla_topic, ottla_topic, **{"group.instance.id": "two"})
    wait_until(lambda: again.partitions, one, again)
    assert again.partitions == before
    assert len(one.given) + len(one.taken) == disturbances


@pytest.mark.parametrize("stop", [Broker.stop, Broker.kill])
def test_committed_offsets_survive_the_broker(
    ottla_broker_factory: BrokerFactory,
    reader: Callable[..., Reader],
    stop: Callable[[Broker], object],
) -> None:
    broker = ottla_broker_factory()
    broker.create_topic("t")
    produce(broker, "t", b"1", b"2", b"3")
    first = reader(broker, "t", "g")
    assert first.read(3) == [b"1", b"2", b"3"]
    first.consumer.commit(asynchronous=False)
    first.close()
    stop(broker)
    broker.start()
    produce(broker, "t", b"4")
    assert reader(broker, "t", "g").read(1) == [b"4"]


def test_a_consumer_goes_on_after_a_restart_of_the_broker(
    reader: Callable[..., Reader], free_port: int
) -> None:
    broker = Broker(port=free_port)
    with broker:
        broker.create_topic("t")
        produce(broker, "t", b"1")
        consumer = reader(broker, "t", "g", **{"session.timeout.ms": 30_000})
        consumer.read(1)
        consumer.consumer.commit(asynchronous=False)
        broker.restart()
        produce(broker, "t", b"2")
        assert consumer.read(2) == [b"1", b"2"]
        consumer.consumer.commit(asynchronous=False)
        assert len(consumer.given) == 1, "its place in the group was kept"
        consumer.close()


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


def test_offsets_go_with_their_topic(ottla_broker: Broker, ottla_topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": ottla_broker.bootstrap, "group.id": ottla_topic})
    position = TopicPartition(ottla_topic, 0, 0)
    consumer.commit(offsets=[position], asynchronous=False)
    (found,) = consumer.committed([TopicPartition(ottla_topic, 0)], timeout=WAIT_S)
    assert found.offset == 0
    admin = AdminClient({"bootstrap.servers": ottla_broker.bootstrap})
    for deletion in admin.delete_topics([ottla_topic]).values():
        deletion.result(WAIT_S)
    ottla_broker.create_topic(ottla_topic)

    def is_gone() -> bool:
        (found,) = consumer.committed([TopicPartition(ottla_topic, 0)], timeout=WAIT_S)
        return bool(found.offset < 0)

    wait_until(is_gone)
    consumer.close()


def test_lag_is_among_the_metrics(
    ottla_broker: Broker, ottla_topic: str, reader: Callable[..., Reader]
) -> None:
    produce(ottla_broker, ottla_topic, b"1", b"2", b"3")
    consumer = reader(ottla_broker, ottla_topic, ottla_topic)
    consumer.read(3)
    position = TopicPartition(ottla_topic, 0, 1)
    consumer.consumer.commit(offsets=[position], asynchronous=False)
    with urllib.request.urlopen(f"{ottla_broker.http}/metrics", timeout=WAIT_S) as page:
        lines = page.read().decode().splitlines()
    start = f'ottla_group_lag{{group="{ottla_topic}"'
    (line,) = [line for line in lines if line.startswith(start)]
    assert float(line.split()[-1]) == 2
