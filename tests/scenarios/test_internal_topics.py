"""Internal topics belong to the broker: who may write to them, and what if somebody did."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.types import ADMIN_CLIENT_ID, METADATA_TOPIC, OFFSETS_TOPIC
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.records import Record, encode_batch
from raw_client import RawClient
from records_kit import NOW_MS, batch, produce, produce_request

INTERNAL = [OFFSETS_TOPIC, "__transaction_state", METADATA_TOPIC]


@pytest.fixture
def client(ottla_broker: Broker) -> Iterator[RawClient]:
    with RawClient(ottla_broker.bootstrap) as client:
        yield client


@pytest.mark.parametrize("version", [3, 7, 12])
@pytest.mark.parametrize("name", INTERNAL)
def test_clients_do_not_write_to_internal_topics(
    client: RawClient, name: str, version: int
) -> None:
    client.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    for data in (batch(b"a"), batch(*[b"a"] * 2_000)):
        answer = produce(client, name, data, version=version)
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert answer.base_offset == -1
    assert client.ask(MetadataRequest(topics=[]), 12).brokers


def test_an_internal_topic_in_a_request_does_not_fail_its_siblings(
    client: RawClient, ottla_topic: str
) -> None:
    topics = [
        TopicProduceData(name, [PartitionProduceData(0, batch(b"a"))])
        for name in (OFFSETS_TOPIC, ottla_topic)
    ]
    reply = client.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 12)
    codes = [topic.partition_responses[0].error_code for topic in reply.responses]
    assert codes == [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]


def test_without_acks_the_connection_ends(client: RawClient) -> None:
    request = produce_request(OFFSETS_TOPIC, {0: batch(b"a")}, acks=0)
    client.expect_no_reply(client.send(request, 12))
    assert client.is_closed_by_peer()


@pytest.mark.parametrize("client_id", ["raw", ADMIN_CLIENT_ID])
def test_no_internal_topic_is_made_by_being_written_to(
    ottla_broker_factory: Any, client_id: str
) -> None:
    broker = ottla_broker_factory(auto_create_topics_enable=False)
    with RawClient(broker.bootstrap, client_id) as client:
        for name in INTERNAL:
            assert produce(client, name, batch(b"a")).error_code != ErrorCode.NONE
        assert client.ask(MetadataRequest(topics=None), 12).topics == []


def _consumer(broker: Broker, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})


def _commit(broker: Broker, group: str, offset: int) -> None:
    consumer = _consumer(broker, group)
    consumer.commit(offsets=[TopicPartition("read", 0, offset)], asynchronous=False)
    consumer.close()


def _committed(broker: Broker, group: str) -> int:
    consumer = _consumer(broker, group)
    (found,) = consumer.committed([TopicPartition("read", 0)], timeout=15)
    consumer.close()
    assert found.error is None
    return int(found.offset)


GROUP_KEY = b"\0\2\0\1g"
OFFSET_KEY = b"\0\1\0\1g\0\4read\0\0\0\0"
FORGERIES = [
    (GROUP_KEY, b"\0\x63anything"),
    (OFFSET_KEY, b"\0\x63anything"),
    (GROUP_KEY, b"\0\3\xff"),
    (GROUP_KEY, b""),
    (b"\0\1\xff", b"anything"),
    (b"\0", b"anything"),
]


def test_forged_records_keep_no_group_from_being_read(ottla_broker_factory: Any) -> None:
    broker = ottla_broker_factory(offsets_topic_num_partitions=1)
    broker.create_topic("read")
    _commit(broker, "g", 41)
    records = [Record(at, NOW_MS, key, value) for at, (key, value) in enumerate(FORGERIES)]
    with RawClient(broker.bootstrap, ADMIN_CLIENT_ID) as admin:
        answer = produce(admin, OFFSETS_TOPIC, encode_batch(records))
        assert answer.error_code == 0, "the admin tool may, as in Kafka"
    first = answer.base_offset
    _commit(broker, "other", 42)
    broker.stop()
    broker.start()
    assert _committed(broker, "g") == 41
    assert _committed(broker, "other") == 42
    _commit(broker, "g", 43)
    assert _committed(broker, "g") == 43
    lines = [line for line in broker.log_text().splitlines() if "passed over" in line]
    assert len(lines) == len(FORGERIES)
    for at, line in enumerate(lines):
        assert f"{OFFSETS_TOPIC}-0: what is at offset {first + at} cannot be read" in line
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=10) as page:
        metrics = page.read().decode()
    assert f'ottla_unreadable_records{{topic="{OFFSETS_TOPIC}"}} {len(FORGERIES)}' in metrics
    assert f'ottla_unreadable_records{{topic="{METADATA_TOPIC}"}} 0' in metrics
