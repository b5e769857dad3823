"""What Produce promises, seen in raw frames."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer

from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.wire.compression import Compression
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.records import headers_in
from raw_client import RawClient
from records_kit import (
    NOW_MS,
    batch,
    fetch,
    forged,
    list_offset,
    produce,
    produce_request,
    values_in,
)


@pytest.fixture
def client(ottla_broker: Broker) -> Iterator[RawClient]:
    with RawClient(ottla_broker.bootstrap) as client:
        yield client


def test_batches_get_consecutive_offsets(client: RawClient, ottla_topic: str) -> None:
    assert produce(client, ottla_topic, batch(b"a", b"b")).base_offset == 0
    assert produce(client, ottla_topic, batch(b"c")).base_offset == 2
    assert values_in(fetch(client, ottla_topic, 0).records) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_is_served(client: RawClient, ottla_topic: str, version: int) -> None:
    answer = produce(client, ottla_topic, batch(b"a"), version=version)
    assert (answer.error_code, answer.base_offset) == (0, 0)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_before_3_are_advertised_but_refused(
    client: RawClient, ottla_topic: str, version: int
) -> None:
    answer = produce(client, ottla_topic, batch(b"a"), acks=1, version=version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_acks_0_sends_no_reply(client: RawClient, ottla_topic: str) -> None:
    quiet = produce_request(ottla_topic, {0: batch(b"quiet")}, acks=0)
    client.expect_no_reply(client.send(quiet, 12))
    assert produce(client, ottla_topic, batch(b"loud")).base_offset == 1


def test_replies_come_in_request_order(client: RawClient, ottla_topic: str) -> None:
    for value in (b"a", b"b", b"c"):
        client.send(produce_request(ottla_topic, {0: batch(value)}), 12)
    client.send(MetadataRequest(topics=[]), 12)
    offsets = [client.receive().responses[0].partition_responses[0].base_offset for _ in range(3)]
    assert offsets == [0, 1, 2]
    assert client.receive().brokers


@pytest.mark.ottla_topic(partitions=2)
def test_one_bad_partition_does_not_fail_its_sibling(client: RawClient, ottla_topic: str) -> None:
    bad = batch(b"x")
    bad[-1] ^= 1
    request = produce_request(ottla_topic, {0: bad, 1: batch(b"fine"), 7: batch(b"nowhere")})
    answers = client.ask(request, 12).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def _with_magic(data: bytearray, magic: int) -> bytearray:
    data[16] = magic
    return data


def _with_count(data: bytearray, count: int) -> bytearray:
    struct.pack_into(">i", data, 57, count)
    return _with_right_crc(data)


def _with_right_crc(data: bytearray) -> bytearray:
    from crc32c import crc32c

    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def _with_length(data: bytearray, length: int) -> bytearray:
    struct.pack_into(">i", data, 8, length)
    return data


def _with_crc32(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, zlib.crc32(data[21:]))
    return data


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (_with_crc32(batch(b"a")), ErrorCode.CORRUPT_MESSAGE),
        (_with_magic(batch(b"a"), 1), ErrorCode.INVALID_RECORD),
        (_with_magic(batch(b"a"), 3), ErrorCode.INVALID_RECORD),
        (_with_length(batch(b"a"), 10), ErrorCode.CORRUPT_MESSAGE),
        (_with_length(batch(b"a"), -5), ErrorCode.CORRUPT_MESSAGE),
        (_with_length(batch(b"a"), 2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
        (_with_count(batch(b"a", b"b"), 3), ErrorCode.INVALID_RECORD),
        (_with_count(batch(b"a", b"b"), 0), ErrorCode.INVALID_RECORD),
        (batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
        (batch(b"a")[:40], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (None, ErrorCode.INVALID_RECORD),
        (batch(b"a", is_control=True), ErrorCode.INVALID_RECORD),
        (
            batch(b"a", is_transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
            ErrorCode.INVALID_TXN_STATE,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else None,
)
def test_what_is_no_honest_batch_is_refused_and_the_connection_lives(
    client: RawClient, ottla_topic: str, data: bytearray | None, code: ErrorCode
) -> None:
    assert produce(client, ottla_topic, data).error_code == code
    assert produce(client, ottla_topic, batch(b"good")).base_offset == 0


def test_zstd_needs_version_7(client: RawClient, ottla_topic: str) -> None:
    data = batch(b"a" * 100, compression=Compression.ZSTD)
    refused = produce(client, ottla_topic, data, version=6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(client, ottla_topic, data, version=7).error_code == 0


@pytest.mark.parametrize("codec", list(Compression))
def test_compressed_batches_come_back_byte_for_byte(
    client: RawClient, ottla_topic: str, codec: Compression
) -> None:
    sent = batch(b"value" * 50, None, compression=codec)
    produce(client, ottla_topic, bytes(sent))
    received = bytes(fetch(client, ottla_topic, 0).records)
    assert received[16:] == bytes(sent)[16:]


@pytest.mark.ottla_topic(configs={"compression.type": "gzip"})
def test_a_topic_with_a_codec_of_its_own_recompresses(client: RawClient, ottla_topic: str) -> None:
    produce(client, ottla_topic, batch(b"v" * 500, compression=Compression.LZ4))
    data = fetch(client, ottla_topic, 0).records
    assert [header.compression for _, header in headers_in(data)] == [Compression.GZIP]
    assert values_in(data) == [b"v" * 500]


def test_timestamps_too_far_ahead_are_refused(client: RawClient, ottla_topic: str) -> None:
    ahead = int(time.time() * 1000) + 2 * 3_600_000
    answer = produce(client, ottla_topic, batch(b"a", timestamp=ahead))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.ottla_topic(configs={"message.timestamp.before.max.ms": 1000})
def test_timestamps_too_far_back_are_refused(client: RawClient, ottla_topic: str) -> None:
    answer = produce(client, ottla_topic, batch(b"a", timestamp=1_000_000))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.ottla_topic(configs={"message.timestamp.type": "LogAppendTime"})
def test_append_time_is_stamped_and_told(client: RawClient, ottla_topic: str) -> None:
    before = int(time.time() * 1000)
    answer = produce(client, ottla_topic, batch(b"a", timestamp=5))
    assert answer.log_append_time_ms >= before
    data = fetch(client, ottla_topic, 0).records
    ((_, header),) = headers_in(data)
    assert header.is_log_append_time
    assert header.max_timestamp == answer.log_append_time_ms
    assert values_in(data) == [b"a"]


@pytest.mark.ottla_topic(configs={"cleanup.policy": "compact"})
def test_compacted_topics_want_keys(client: RawClient, ottla_topic: str) -> None:
    keyless = produce(client, ottla_topic, batch(b"a", key=None))
    assert keyless.error_code == ErrorCode.INVALID_RECORD
    assert produce(client, ottla_topic, batch(b"a", key=b"k")).error_code == 0


@pytest.mark.ottla_topic(configs={"cleanup.policy": "compact"})
@pytest.mark.parametrize(
    "settings",
    [{}, {"enable.idempotence": True}, {"compression.type": "lz4"}],
    ids=["plain", "idempotent", "compressed"],
)
def test_librdkafka_tells_which_messages_had_no_key(
    ottla_broker: Broker, ottla_topic: str, settings: dict[str, object]
) -> None:
    """As its own test 0011 has it: ten of a hundred fail, the others for being beside them."""
    codes: dict[int, int] = {}
    producer = Producer(
        {"bootstrap.servers": ottla_broker.bootstrap, "linger.ms": 60_000, **settings}
    )
    # What is produced before the leader is known is sent as it is found, not as one batch.
    producer.produce(ottla_topic, value=b"first", key=b"k", partition=0)
    assert producer.flush(60) == 0
    for number in range(100):
        producer.produce(
            ottla_topic,
            value=b"v",
            key=None if number % 10 == 0 else b"k",
            partition=0,
            on_delivery=lambda error, _, number=number: codes.update({number: error.code()}),
        )
    assert producer.flush(60) == 0
    keyless = [number for number in range(100) if number % 10 == 0]
    assert [n for n in codes if codes[n] == KafkaError.INVALID_RECORD] == keyless
    others = {codes[number] for number in range(100) if number % 10}
    assert others == {KafkaError._INVALID_DIFFERENT_RECORD}


def _tiny(count: int, codec: Compression) -> bytearray:
    """So many records of eight bytes each, with a key."""
    return forged(b"\x0e\0\0\0\x02k\x01\0" * count, count, codec)


@pytest.mark.ottla_topic(configs={"cleanup.policy": "compact"})
def test_a_batch_that_grows_to_millions_of_records_is_not_opened(
    client: RawClient, ottla_topic: str
) -> None:
    bomb = _tiny(5_000_000, Compression.ZSTD)
    assert len(bomb) < 5000
    answer = produce(client, ottla_topic, bomb)
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "5000000 records" in answer.error_message
    assert produce(client, ottla_topic, batch(b"a")).base_offset == 0


@pytest.mark.ottla_topic(configs={"cleanup.policy": "compact"})
@pytest.mark.parametrize("codec", list(Compression))
def test_large_batches_for_compacted_topics_keep_their_place(
    client: RawClient, ottla_topic: str, codec: Compression
) -> None:
    large = _tiny(30_000, codec)
    for data in (large, batch(b"a"), large, batch(b"b", compression=codec), batch(b"c")):
        client.send(produce_request(ottla_topic, {0: data}), 12)
    answers = [client.receive().responses[0].partition_responses[0] for _ in range(5)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [
        (0, 0),
        (0, 30_000),
        (0, 30_001),
        (0, 60_001),
        (0, 60_002),
    ]


@pytest.mark.ottla_topic(configs={"cleanup.policy": "compact"})
@pytest.mark.parametrize("acks", [0, -1])
def test_a_large_batch_without_keys_is_refused_whole(
    client: RawClient, ottla_topic: str, acks: int
) -> None:
    keyless = batch(*[b""] * 5_000, key=None)
    request = produce_request(ottla_topic, {0: keyless}, acks=acks)
    if acks == 0:
        client.expect_no_reply(client.send(request, 12))
        assert client.is_closed_by_peer()
        return
    answer = client.ask(request, 12).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert len(answer.record_errors) == 1_000
    assert list_offset(client, ottla_topic, -1).offset == 0


@pytest.mark.ottla_topic(configs={"compression.type": "gzip"})
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (forged(b"not zstd", 1, is_packed=Compression.ZSTD), ErrorCode.INVALID_RECORD),
        (forged(bytes(130 * 1024 * 1024), 1, Compression.ZSTD), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["a lie", "too large"],
)
def test_what_cannot_be_compressed_anew_is_refused(
    client: RawClient, ottla_topic: str, data: bytearray, code: ErrorCode
) -> None:
    assert produce(client, ottla_topic, data).error_code == code
    assert produce(client, ottla_topic, batch(b"a")).base_offset == 0


@pytest.mark.ottla_topic(configs={"compression.type": "uncompressed"})
def test_a_batch_may_not_grow_past_the_limit_by_being_opened(
    client: RawClient, ottla_topic: str
) -> None:
    answer = produce(client, ottla_topic, forged(bytes(20 * 1024 * 1024), 1, Compression.ZSTD))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(client, ottla_topic, batch(b"a")).base_offset == 0


def test_a_look_up_by_time_is_bounded(client: RawClient, ottla_topic: str) -> None:
    """Nobody has opened that batch when it was produced."""
    assert produce(client, ottla_topic, batch(b"a", timestamp=NOW_MS - 1)).error_code == 0
    assert produce(client, ottla_topic, _tiny(5_000_000, Compression.ZSTD)).base_offset == 1
    for timestamp in (NOW_MS, -3):
        found = list_offset(client, ottla_topic, timestamp)
        assert (found.error_code, found.offset, found.timestamp) == (0, 1, NOW_MS)


def test_ten_megabytes_pass_and_more_is_too_large(client: RawClient, ottla_topic: str) -> None:
    ten = batch(b"x" * 10 * 1024 * 1024)
    assert produce(client, ottla_topic, ten).error_code == 0
    answer = produce(client, ottla_topic, batch(b"x" * 11 * 1024 * 1024))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    data = fetch(client, ottla_topic, 0, partition_max_bytes=1000, max_bytes=1000).records
    assert bytes(data)[16:] == bytes(ten)[16:]


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_unknown_acks_are_refused(client: RawClient, ottla_topic: str, acks: int) -> None:
    answer = produce(client, ottla_topic, batch(b"a"), acks=acks)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_produce_creates_the_topic(client: RawClient, ottla_topic: str) -> None:
    name = ottla_topic + "-new"
    assert produce(client, name, batch(b"first")).error_code == 0
    reply = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12)
    assert reply.topics[0].error_code == 0


def test_produce_creates_no_topic_where_that_is_switched_off(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory(auto_create_topics_enable=False)
    with RawClient(broker.bootstrap) as client:
        answer = produce(client, "unwanted", batch(b"first"))
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.ask(MetadataRequest(topics=None), 12).topics == []


def _sequenced(first: int, *values: bytes, epoch: int = 0, producer: int = 9_000) -> bytearray:
    return batch(*values, producer_id=producer, producer_epoch=epoch, base_sequence=first)


def test_a_duplicate_gets_the_first_offsets(client: RawClient, ottla_topic: str) -> None:
    assert produce(client, ottla_topic, _sequenced(0, b"a", b"b")).base_offset == 0
    assert produce(client, ottla_topic, _sequenced(2, b"c")).base_offset == 2
    again = produce(client, ottla_topic, _sequenced(0, b"a", b"b"))
    assert (again.error_code, again.base_offset) == (0, 0)
    assert list_offset(client, ottla_topic, -1).offset == 3


def test_a_duplicate_in_flight_waits_for_the_same_sync(client: RawClient, ottla_topic: str) -> None:
    for _ in range(2):
        client.send(produce_request(ottla_topic, {0: _sequenced(0, b"a")}), 12)
    answers = [client.receive().responses[0].partition_responses[0] for _ in range(2)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 0)]
    assert list_offset(client, ottla_topic, -1).offset == 1


def test_a_gap_in_the_sequence_is_refused(client: RawClient, ottla_topic: str) -> None:
    produce(client, ottla_topic, _sequenced(0, b"a"))
    answer = produce(client, ottla_topic, _sequenced(5, b"b"))
    assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_anywhere(client: RawClient, ottla_topic: str) -> None:
    assert produce(client, ottla_topic, _sequenced(77, b"a")).error_code == 0


def test_sequences_wrap(client: RawClient, ottla_topic: str) -> None:
    assert produce(client, ottla_topic, _sequenced(2**31 - 2, b"a", b"b")).error_code == 0
    assert produce(client, ottla_topic, _sequenced(0, b"c")).error_code == 0


def test_a_fenced_producer_cannot_append(client: RawClient, ottla_topic: str) -> None:
    produce(client, ottla_topic, _sequenced(0, b"new", epoch=1))
    answer = produce(client, ottla_topic, _sequenced(0, b"old", epoch=0))
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
