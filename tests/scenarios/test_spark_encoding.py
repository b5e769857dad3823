"""A real broker takes what the encoder makes, and librdkafka sees the rows and the partitions."""

from __future__ import annotations

import random
from types import ModuleType

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from ottla.spark.encoding import rows_numba, rows_numpy
from ottla.spark.encoding.encoder import ArrowEncoder
from ottla.spark.encoding.partitioner import partition_of
from ottla.testing import Broker
from ottla.wire.compression import Compression
from ottla.wire.records import BATCH_HEADER_BYTES, read_header, seal_batch
from raw_client import RawClient
from records_kit import NOW_MS, produce

PARTITIONS = 12
READ_TIMEOUT_S = 30.0


def read_all(bootstrap: str, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
    found: list[Message] = []
    try:
        while len(found) < count:
            more = consumer.consume(count - len(found), READ_TIMEOUT_S)
            assert more, f"only {len(found)} of {count} messages came"
            found += more
    finally:
        consumer.close()
    assert [message.error() for message in found] == [None] * count
    return found


@pytest.mark.parametrize("kernels", [rows_numba, rows_numpy], ids=["numba", "numpy"])
@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)
def test_rows_pass_through_a_broker_unchanged(
    ottla_broker: Broker, kernels: ModuleType, codec: Compression
) -> None:
    topic = f"{codec.name}-{kernels.__name__[-5:]}"
    ottla_broker.create_topic(topic, PARTITIONS)
    rng = random.Random(7)
    rows = [
        {
            "value": rng.choice([None, b"", rng.randbytes(rng.randrange(3_000))]),
            "key": rng.choice([None, b"", b"%d" % number]),
            "headers": rng.choice(
                [None, [], [{"key": "h", "value": None}, {"key": "h", "value": b"2"}]]
            ),
        }
        for number in range(2_000)
    ]
    schema = pa.schema(
        [
            ("value", pa.binary()),
            ("key", pa.binary()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )
    encoder = ArrowEncoder(
        schema,
        topic=topic,
        compression=codec,
        partitions_of=lambda _: PARTITIONS,
        batch_bytes=50_000,
        now_ms=lambda: NOW_MS,
        kernels=kernels,
    )
    with RawClient(ottla_broker.bootstrap) as client:
        for one in encoder.encode(pa.RecordBatch.from_pylist(rows, schema)):
            batch = seal_batch(read_header(one.batch), one.batch[BATCH_HEADER_BYTES:])
            answer = produce(client, topic, batch, partition=one.partition.partition)
            assert answer.error_code == 0
    expected: dict[int, list[object]] = {}
    for row in rows:
        partition = 0 if row["key"] is None else partition_of(row["key"], PARTITIONS)
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        expected.setdefault(partition, []).append((row["key"], row["value"], headers or None))
    found: dict[int, list[object]] = {}
    for message in read_all(ottla_broker.bootstrap, topic, len(rows)):
        assert message.timestamp()[1] == NOW_MS
        content = (message.key(), message.value(), message.headers())
        found.setdefault(message.partition(), []).append(content)
    assert found == expected


def test_librdkafka_sends_keys_to_the_same_partitions(ottla_broker: Broker) -> None:
    ottla_broker.create_topic("same", PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": ottla_broker.bootstrap, "partitioner": "murmur2_random"}
    )
    keys = [bytes(range(n, 255)) for n in range(200)]
    found = {}

    def delivered(error: object, message: Message) -> None:
        assert error is None
        found[message.key()] = message.partition()

    for key in keys:
        producer.produce("same", b"v", key, on_delivery=delivered)
    assert producer.flush(READ_TIMEOUT_S) == 0
    assert found == {key: partition_of(key, PARTITIONS) for key in keys}
