"""The client's producer against real brokers: each batch once and in order, come what may."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assignment
from confluent_kafka.admin import AdminClient

from ottla.client.cluster import Cluster
from ottla.client.producer import (
    DeliveryFailed,
    Producer,
    ProducerSettings,
    borrow,
    give_back,
    partitions_to_write,
)
from ottla.client.settings import ClientSettings
from ottla.testing import Broker
from ottla.types import TopicPartition
from ottla.wire.compression import Compression
from ottla.wire.records import Record, encode_batch, headers_in, read_header
from raw_client import RawClient
from records_kit import batch, fetch, produce
from scenarios.polling import until

BrokerFactory = Callable[..., Broker]
KILLS = 6
WRITERS = 3


class Outgoing(NamedTuple):
    partition: TopicPartition
    batch: bytearray
    count: int  # type: ignore[assignment]


def outgoing(topic: str, partition: int, *values: bytes, **options: Any) -> Outgoing:
    records = [Record(at, 1_790_000_000_000, None, value) for at, value in enumerate(values)]
    data = encode_batch(records, **options)
    data[17:21] = bytes(4)  # who encodes leaves the CRC to the producer
    return Outgoing(TopicPartition(topic, partition), data, len(values))


@asynccontextmanager
async def producing(broker: Broker, **options: Any) -> AsyncIterator[Producer]:
    settings = ClientSettings((broker.bootstrap,), request_timeout_s=5.0)
    async with Cluster(settings) as cluster, Producer(cluster, **options) as producer:
        yield producer


def values_in(broker: Broker, topic: str, partition: int = 0) -> list[bytes | None]:
    """Everything in a partition, as librdkafka reads it."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
        "check.crcs": True,
    }
    consumer = Consumer(settings)
    try:
        place = Assignment(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        values: list[bytes | None] = []
        while len(values) < end:
            messages = consumer.consume(min(end - len(values), 10_000), timeout=30)
            assert messages, f"{len(values)} of {end} messages came"
            for message in messages:
                assert message.error() is None, message.error()
                values.append(message.value())
        return values
    finally:
        consumer.close()


@pytest.fixture
def broker(ottla_broker: Broker) -> Broker:
    return ottla_broker


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(150):
            await work

    asyncio.run(bounded())


@pytest.mark.parametrize("compression", list(Compression))
def test_batches_arrive_as_they_are_and_their_offsets_are_told(
    broker: Broker, compression: Compression
) -> None:
    topic = f"produced-{compression.name}"
    broker.create_topic(topic, 2)

    async def story() -> None:
        async with producing(broker) as producer:
            for at in range(20):
                values = [b"%d-%d" % (at, number) for number in range(5)]
                await producer.send(outgoing(topic, at % 2, *values, compression=compression))
            await producer.flush()
            written = producer.take_written()
            assert [(one.first_offset, one.last_offset, one.count) for one in written.values()] == [
                (0, 49, 50),
                (0, 49, 50),
            ]
            assert producer.written == {}

    run(story())
    for partition in range(2):
        assert values_in(broker, topic, partition) == [
            b"%d-%d" % (at, number) for at in range(partition, 20, 2) for number in range(5)
        ]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_order_is_kept_without_idempotence(broker: Broker, acks: int) -> None:
    topic = f"acks{acks}"
    broker.create_topic(topic)
    values = [b"%d" % at for at in range(300)]

    async def story() -> None:
        async with producing(broker, acks=acks, idempotent=False) as producer:
            for value in values:
                await producer.send(outgoing(topic, 0, value))
            await producer.flush()
            written = producer.written[TopicPartition(topic, 0)]
            assert written.count == 300
            assert written.last_offset == (-1 if acks == 0 else 299)

    def is_all_there() -> bool:
        return len(values_in(broker, topic)) == len(values)

    run(story())
    until(is_all_there, "not everything arrived")
    assert values_in(broker, topic) == values


def test_idempotence_needs_the_acknowledgement_of_all(broker: Broker) -> None:
    async def story() -> None:
        async with producing(broker, acks=1):
            pass

    with pytest.raises(ValueError, match="acks=all"):
        run(story())


def test_no_more_bytes_are_taken_than_there_is_room_for(broker: Broker) -> None:
    broker.create_topic("room")
    size = 100_000

    async def story() -> None:
        async with producing(broker, in_flight_bytes_max=3 * size) as producer:
            for at in range(40):
                await producer.send(outgoing("room", 0, b"x" * size))
                acknowledged = producer.written.get(TopicPartition("room", 0))
                unanswered = at + 1 - (acknowledged.count if acknowledged else 0)
                assert unanswered <= 3
            await producer.send(outgoing("room", 0, b"x" * 5 * size))
            await producer.flush()

    run(story())
    assert len(values_in(broker, "room")) == 41


def test_record_that_is_too_large_is_named_with_what_to_change(broker: Broker) -> None:
    broker.create_topic("tight", 3, {"max.message.bytes": 20_000})

    async def story(*values: bytes) -> None:
        async with producing(broker) as producer:
            await producer.send(outgoing("tight", 2, *values))
            await producer.flush()

    for others in ([], [b"small"] * 4):
        with pytest.raises(DeliveryFailed) as failure:
            run(story(*others, b"x" * 30_000))
        text = str(failure.value)
        assert "partition 2 of topic tight" in text
        assert "1 record" in text
        assert "30072 bytes" in text
        assert "raise the topic's max.message.bytes" in text


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("compression", list(Compression))
def test_batches_that_are_too_large_are_sent_in_pieces_once_and_in_order(
    broker: Broker, idempotent: bool, compression: Compression
) -> None:
    """Small ones and large ones are under way together; what follows a refused one is too early."""
    topic = f"pieces-{idempotent}-{compression.name}"
    broker.create_topic(topic, 2, {"max.message.bytes": 20_000})
    random = Random(11)
    sent: list[list[bytes]] = [[], []]

    async def story() -> None:
        async with producing(broker, idempotent=idempotent) as producer:
            for at in range(60):
                count = random.choice([1, 2, 5, 50, 200])
                # What no codec makes small.
                values = [b"%d-%d " % (at, n) + random.randbytes(900) for n in range(count)]
                sent[at % 2] += values
                await producer.send(outgoing(topic, at % 2, *values, compression=compression))
            await producer.flush()
            for partition, values in enumerate(sent):
                written = producer.written[TopicPartition(topic, partition)]
                assert (written.first_offset, written.count) == (0, len(values))
                assert written.last_offset == len(values) - 1

    run(story())
    for partition in range(2):
        assert values_in(broker, topic, partition) == sent[partition]
    with RawClient(broker.bootstrap) as client:
        stored = fetch(client, topic, 0, partition_max_bytes=1 << 26).records
        headers = [header for _, header in headers_in(stored)]
    assert {header.compression for header in headers} == {compression}
    if idempotent:
        assert len({header.producer_id for header in headers}) == 1
        assert [header.base_sequence for header in headers] == [
            header.base_offset for header in headers
        ]


def test_nothing_is_sent_behind_a_failure(broker: Broker) -> None:
    broker.create_topic("ends", 1, {"max.message.bytes": 20_000})

    async def story() -> None:
        async with producing(broker) as producer:
            await producer.send(outgoing("ends", 0, b"first"))
            await producer.flush()
            await producer.send(outgoing("ends", 0, b"x" * 30_000))
            with pytest.raises(DeliveryFailed):
                await producer.flush()
            with pytest.raises(DeliveryFailed):
                await producer.send(outgoing("ends", 0, b"late"))

    run(story())
    assert values_in(broker, "ends") == [b"first"]


def test_deleted_topic_is_an_error_after_the_delivery_timeout(
    ottla_broker_factory: BrokerFactory,
) -> None:
    broker = ottla_broker_factory(auto_create_topics_enable=False)
    broker.create_topic("doomed")

    async def story() -> None:
        async with producing(broker, delivery_timeout_s=2.0) as producer:
            await producer.send(outgoing("doomed", 0, b"there"))
            await producer.flush()
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            await asyncio.to_thread(admin.delete_topics(["doomed"])["doomed"].result, 30)
            await producer.send(outgoing("doomed", 0, b"lost"))
            await producer.flush()

    with pytest.raises(DeliveryFailed) as failure:
        run(story())
    text = str(failure.value)
    assert "partition 0 of topic doomed was not acknowledged within 2 s" in text
    assert "no such partition" in text
    assert "delivery.timeout.ms" in text


def test_dead_broker_is_an_error_after_the_delivery_timeout(
    ottla_broker_factory: BrokerFactory,
) -> None:
    broker = ottla_broker_factory()
    broker.create_topic("dark")

    async def story() -> None:
        async with producing(broker, delivery_timeout_s=2.0) as producer:
            await producer.send(outgoing("dark", 0, b"there"))
            await producer.flush()
            broker.kill()
            await producer.send(outgoing("dark", 0, b"lost"))
            await producer.flush()

    address = re.escape(broker.bootstrap)
    with pytest.raises(DeliveryFailed, match=rf"topic dark .* within 2 s .*: {address}: "):
        run(story())


def test_topic_is_created_where_brokers_create_topics(ottla_broker_factory: BrokerFactory) -> None:
    async def count(broker: Broker, topic: str) -> None:
        async with Cluster(ClientSettings((broker.bootstrap,))) as cluster:
            found.append(await partitions_to_write(cluster, topic))

    found: list[int] = []
    willing = ottla_broker_factory(auto_create_topics_enable=True, num_partitions=4)
    run(count(willing, "on-demand"))
    unwilling = ottla_broker_factory(auto_create_topics_enable=False)
    run(count(unwilling, "on-demand"))
    assert found == [4, 0]


def test_producer_is_handed_on_with_its_identity(broker: Broker) -> None:
    broker.create_topic("handed")
    settings = ProducerSettings()

    async def story() -> None:
        async with Cluster(ClientSettings((broker.bootstrap,))) as cluster:
            first = borrow(cluster, settings)
            other = borrow(cluster, settings)
            assert other is not first
            for producer in (first, other):
                await producer.send(outgoing("handed", 0, b"v"))
                await producer.flush()
            await give_back(cluster, first)
            assert borrow(cluster, settings._replace(acks=1, is_idempotent=False)) is not first
            assert borrow(cluster, settings) is first
            await first.send(outgoing("handed", 0, b"w"))
            await first.flush()
            assert first.take_written()[TopicPartition("handed", 0)].last_offset == 2
            await first.close()
            await other.close()

    run(story())


def test_leader_that_refuses_our_producer_gets_a_new_one(broker: Broker) -> None:
    """Somebody used our id with a later epoch, so that ours is fenced off."""
    broker.create_topic("fenced")

    async def story() -> None:
        async with producing(broker) as producer:
            await producer.send(outgoing("fenced", 0, b"a", b"b"))
            await producer.flush()
            with RawClient(broker.bootstrap) as client:
                first = read_header(fetch(client, "fenced", 0).records)
                theirs = batch(
                    b"theirs", producer_id=first.producer_id, producer_epoch=9, base_sequence=0
                )
                assert produce(client, "fenced", theirs).error_code == 0
            for value in (b"c", b"d", b"e"):
                await producer.send(outgoing("fenced", 0, value))
            await producer.flush()

    run(story())
    assert values_in(broker, "fenced") == [b"a", b"b", b"theirs", b"c", b"d", b"e"]
    with RawClient(broker.bootstrap) as client:
        headers = [header for _, header in headers_in(fetch(client, "fenced", 0).records)]
    ids = [header.producer_id for header in headers]
    assert ids[0] == ids[1] != ids[2] == ids[3] == ids[4]
    assert [header.base_sequence for header in headers] == [0, 0, 0, 1, 2]


def test_few_requests_are_under_way_even_to_a_leader_of_many_partitions(broker: Broker) -> None:
    broker.create_topic("wide", 30)
    value = b"x" * 1_000_000

    async def story() -> None:
        async with producing(broker, in_flight_bytes_max=200_000_000) as producer:
            for _ in range(3):
                await producer.send(*(outgoing("wide", at, value) for at in range(30)))
            highest = 0
            flushing = asyncio.create_task(producer.flush())
            while not flushing.done():
                highest = max(highest, producer.requests_under_way)
                await asyncio.sleep(0)
            await flushing
            assert 1 < highest <= 5
            assert sum(one.count for one in producer.written.values()) == 90

    run(story())


class Killer(threading.Thread):
    """Kills a broker and starts it again, whenever enough more was written."""

    def __init__(self, broker: Broker, random: Random) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.random = random
        self.sent = threading.Semaphore(0)
        self.is_done = threading.Event()

    def run(self) -> None:
        for _ in range(KILLS):
            for _ in range(self.random.randint(20, 120)):
                self.sent.acquire()
            self.broker.kill()
            self.broker.start()
        self.is_done.set()


@pytest.mark.seconds(170)
def test_every_batch_is_there_once_and_in_order_over_kill_9(
    ottla_broker_factory: BrokerFactory,
) -> None:
    """Two topics, several partitions, several producers; the broker is killed at random moments."""
    broker = ottla_broker_factory(log_segment_bytes=200_000)
    topics = {"kills-a": 1, "kills-b": 3}
    for topic, partitions in topics.items():
        broker.create_topic(topic, partitions)
    places = [(topic, number) for topic, count in topics.items() for number in range(count)]
    seed = Random().randrange(1 << 32)
    killer = Killer(broker, Random(seed))
    expected: dict[tuple[int, str, int], list[bytes]] = {}

    async def write(writer: int) -> None:
        random = Random(seed + writer)
        number = 0
        async with producing(broker, delivery_timeout_s=100.0) as producer:
            while not killer.is_done.is_set():
                topic, partition = random.choice(places)
                values = [b"%d:%d" % (writer, number + at) for at in range(random.randint(1, 40))]
                number += len(values)
                expected.setdefault((writer, topic, partition), []).extend(values)
                await producer.send(outgoing(topic, partition, *values))
                killer.sent.release()
                if random.random() < 0.02:
                    await producer.flush()
                await asyncio.sleep(random.choice((0, 0, 0.001)))
            await producer.flush()

    async def story() -> None:
        killer.start()
        await asyncio.gather(*(write(writer) for writer in range(WRITERS)))

    run(story())
    killer.join(30)
    for topic, partition in places:
        found = values_in(broker, topic, partition)
        for writer in range(WRITERS):
            mine = [value for value in found if value and value.startswith(b"%d:" % writer)]
            assert mine == expected.get((writer, topic, partition), []), f"seed {seed}"


def test_restart_of_the_broker_is_no_failure_for_an_idle_producer(
    ottla_broker_factory: BrokerFactory,
) -> None:
    broker = ottla_broker_factory()
    broker.create_topic("quiet")

    async def story() -> None:
        async with producing(broker) as producer:
            for number in range(3):
                await producer.send(outgoing("quiet", 0, b"%d" % number))
                await producer.flush()
                await asyncio.to_thread(broker.restart)
            await producer.send(outgoing("quiet", 0, b"3"))
            await producer.flush()

    run(story())
    assert values_in(broker, "quiet") == [b"0", b"1", b"2", b"3"]
