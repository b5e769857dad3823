"""Transactions as the log and its readers see them: raw frames write and end them.

Nobody asks a coordinator here (`transaction.partition.verification.enable=false`): what a partition
makes of batches and markers is the matter, whoever sends them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from raw_client import RawClient
from records_kit import NOW_MS, batch, fetch, fetch_request, produce_request, values_in

PATIENCE_S = 60.0
SETTINGS = {"transaction.partition.verification.enable": "false"}
COMMITTED = 1


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return make_topic(broker, request.node.name[:100].replace("[", "-").replace("]", ""))


def make_topic(broker: Broker, name: str, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = NewTopic(name, 1, 1, config=config)
    admin.create_topics([wanted])[name].result(PATIENCE_S)
    return name


def write(
    client: RawClient, topic: str, producer_id: int, sequence: int, *values: bytes, **options: Any
) -> Any:
    """One transactional batch; unless told otherwise, of epoch 0 and of now, as a marker is."""
    options.setdefault("producer_epoch", 0)
    options.setdefault("timestamp", int(time.time() * 1000))
    data = batch(
        *values,
        producer_id=producer_id,
        base_sequence=sequence,
        is_transactional=True,
        **options,
    )
    request = produce_request(topic, {0: data})
    request.transactional_id = "t"
    # Version 12 would have the broker add the partition to the coordinator's transaction.
    return client.ask(request, 11).responses[0].partition_responses[0]


def plain(client: RawClient, topic: str, *values: bytes) -> None:
    answer = client.ask(produce_request(topic, {0: batch(*values)}), 12)
    assert answer.responses[0].partition_responses[0].error_code == 0


def end(
    client: RawClient,
    topic: str,
    producer_id: int,
    is_commit: bool,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    transactions: int = 0,
    index: int = 0,
) -> int:
    marker = WritableTxnMarker(
        producer_id,
        epoch,
        is_commit,
        [WritableTxnMarkerTopic(topic, [index])],
        coordinator_epoch,
        transactions,
    )
    reply = client.ask(WriteTxnMarkersRequest([marker]), 2)
    assert reply.markers[0].producer_id == producer_id
    error: int = reply.markers[0].topics[0].partitions[0].error_code
    return error


def offset_of(client: RawClient, topic: str, timestamp: int, isolation: int = COMMITTED) -> int:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=timestamp)])],
    )
    offset: int = client.ask(request, 7).topics[0].partitions[0].offset
    return offset


def read(bootstrap: str, topic: str, isolation: str, end_offset: int) -> list[bytes | None]:
    """What librdkafka hands out up to this position."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "fetch.wait.max.ms": 100,
        }
    )
    values: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value())
            (position,) = consumer.position([TopicPartition(topic, 0)])
            if position.offset >= end_offset:
                return values
    finally:
        consumer.close()
    raise AssertionError(f"read {values}, at {position.offset} and not at {end_offset}")


def test_librdkafka_reads_what_was_committed_and_nothing_else(
    broker: Broker, client: RawClient, topic: str
) -> None:
    write(client, topic, 1, 0, b"kept 1", b"kept 2")  # 0, 1
    write(client, topic, 2, 0, b"given up")  # 2
    plain(client, topic, b"plain")  # 3
    assert fetch(client, topic, 0, isolation_level=COMMITTED).last_stable_offset == 0
    assert values_in(fetch(client, topic, 0, isolation_level=COMMITTED).records) == []
    assert len(values_in(fetch(client, topic, 0).records)) == 4
    assert end(client, topic, 2, False) == 0  # 4
    assert end(client, topic, 1, True) == 0  # 5
    write(client, topic, 1, 2, b"kept 3")  # 6
    assert end(client, topic, 1, True) == 0  # 7
    write(client, topic, 2, 1, b"open")  # 8
    plain(client, topic, b"behind it")  # 9
    assert offset_of(client, topic, -1) == 8
    assert offset_of(client, topic, -1, 0) == 10
    assert read(broker.bootstrap, topic, "read_committed", 7) == [
        b"kept 1",
        b"kept 2",
        b"plain",
        b"kept 3",
    ]
    assert len(read(broker.bootstrap, topic, "read_uncommitted", 10)) == 7
    assert end(client, topic, 2, False) == 0
    assert read(broker.bootstrap, topic, "read_committed", 10)[-1] == b"behind it"


def test_a_fetch_is_told_of_what_was_aborted_in_it_and_of_no_more(
    client: RawClient, topic: str
) -> None:
    for sequence in range(3):
        write(client, topic, 1, sequence, b"x" * 1000)
        assert end(client, topic, 1, False) == 0
    answer = fetch(client, topic, 0, isolation_level=COMMITTED)
    assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions] == [
        (1, 0),
        (1, 2),
        (1, 4),
    ]
    assert answer.last_stable_offset == answer.high_watermark == 6
    first = fetch(client, topic, 0, isolation_level=COMMITTED, partition_max_bytes=1000)
    assert [each.first_offset for each in first.aborted_transactions] == [0]
    later = fetch(client, topic, 3, isolation_level=COMMITTED)
    assert [each.first_offset for each in later.aborted_transactions] == [2, 4]
    assert not fetch(client, topic, 0).aborted_transactions


@pytest.mark.parametrize("has_session", [False, True])
def test_a_parked_fetch_wakes_when_the_transaction_ends_and_not_before(
    broker: Broker, client: RawClient, topic: str, has_session: bool
) -> None:
    plain(client, topic, b"before")
    session = {"session_id": 0, "session_epoch": 0 if has_session else -1}
    waiting = fetch_request(
        topic, {0: 1}, isolation_level=COMMITTED, max_wait_ms=600_000, min_bytes=500, **session
    )
    with RawClient(broker.bootstrap) as reader:
        if has_session:
            quick = fetch_request(topic, {0: 1}, isolation_level=COMMITTED, **session)
            opened = reader.ask(quick, 12)
            waiting.session_id, waiting.session_epoch, waiting.topics = opened.session_id, 1, []
        reader.send(waiting, 12)
        for sequence in range(5):
            write(client, topic, 1, sequence, b"x" * 300)
        reader.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            reader.socket.recv(1)
        reader.socket.settimeout(PATIENCE_S)
        assert end(client, topic, 1, True) == 0
        reply = reader.receive()
    (answer,) = reply.responses[0].partitions
    assert len([value for value in values_in(answer.records) if value]) >= 5
    assert answer.last_stable_offset == 7


def test_a_look_up_by_time_finds_nothing_that_is_not_stable(client: RawClient, topic: str) -> None:
    write(client, topic, 1, 0, b"early", timestamp=NOW_MS)
    assert offset_of(client, topic, NOW_MS, 0) == 0
    assert offset_of(client, topic, NOW_MS) == -1
    assert offset_of(client, topic, -3) == -1
    assert end(client, topic, 1, True) == 0
    assert offset_of(client, topic, NOW_MS) == 0


def test_whoever_comes_too_late_is_refused(client: RawClient, topic: str) -> None:
    write(client, topic, 1, 0, b"a")
    assert write(client, topic, 1, 5, b"gap").error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    data = batch(b"outside", producer_id=1, producer_epoch=0, base_sequence=1)
    outside = client.ask(produce_request(topic, {0: data}), 12)
    answer = outside.responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE
    assert end(client, topic, 1, False, epoch=1, coordinator_epoch=4, transactions=2) == 0
    assert write(client, topic, 1, 1, b"b").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(client, topic, 1, True) == ErrorCode.INVALID_PRODUCER_EPOCH
    write(client, topic, 1, 0, b"c", producer_epoch=1)
    late = end(client, topic, 1, True, epoch=1, coordinator_epoch=4, transactions=2)
    assert late == ErrorCode.INVALID_PRODUCER_EPOCH
    fenced = end(client, topic, 1, True, epoch=2, coordinator_epoch=3, transactions=2)
    assert fenced == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    end_before = offset_of(client, topic, -1, 0)
    assert end(client, topic, 1, True, epoch=2, coordinator_epoch=4, transactions=2) == 0
    assert end(client, topic, 1, True, epoch=2, coordinator_epoch=4, transactions=2) == 0
    assert offset_of(client, topic, -1, 0) == end_before + 1
    assert end(client, topic, 1, True, index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert end(client, "nowhere", 1, True) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert end(client, topic, -1, True) == ErrorCode.INVALID_REQUEST


def test_a_partition_tells_its_producers_and_their_open_transactions(
    client: RawClient, topic: str
) -> None:
    plain(client, topic, b"a")
    write(client, topic, 1, 0, b"b", b"c")
    write(client, topic, 2, 0, b"d")
    assert end(client, topic, 2, True, coordinator_epoch=9) == 0
    reply = client.ask(DescribeProducersRequest([TopicRequest(topic, [0, 5])]), 0)
    known, unknown = reply.topics[0].partitions
    told = [
        (
            each.producer_id,
            each.last_sequence,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in known.active_producers
    ]
    assert told == [(1, 1, -1, 1), (2, 0, 9, -1)]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_records_of_an_open_transaction_can_be_deleted(client: RawClient, topic: str) -> None:
    write(client, topic, 1, 0, b"a")
    plain(client, topic, b"b", b"c")
    deleted = DeleteRecordsRequest(
        [DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, 2)])], 10_000
    )
    assert client.ask(deleted, 2).topics[0].partitions[0].low_watermark == 2
    answer = fetch(client, topic, 2, isolation_level=COMMITTED)
    assert (answer.error_code, answer.last_stable_offset, answer.high_watermark) == (0, 2, 3)
    assert values_in(answer.records) == []
    assert end(client, topic, 1, False) == 0
    answer = fetch(client, topic, 2, isolation_level=COMMITTED)
    assert answer.last_stable_offset == answer.high_watermark == 4
    assert values_in(answer.records)[:2] == [b"b", b"c"], "a batch is given as a whole"


def test_open_and_aborted_transactions_outlive_a_crash_and_a_stop() -> None:
    with Broker(SETTINGS) as broker:
        topic = make_topic(broker, "t", **{"segment.bytes": "2000"})
        expected: list[bytes | None] = []
        with RawClient(broker.bootstrap) as client:
            for sequence in range(30):
                is_commit = sequence % 3 == 0
                value = b"%d" % sequence + b" " * 200
                write(client, topic, 1, sequence, value)
                assert end(client, topic, 1, is_commit) == 0
                expected += [value] if is_commit else []
            write(client, topic, 2, 0, b"open")
            plain(client, topic, b"behind it")
        for stop in (broker.kill, broker.stop):
            stop()
            broker.start()
            assert read(broker.bootstrap, topic, "read_committed", 59) == expected
            with RawClient(broker.bootstrap) as client:
                assert offset_of(client, topic, -1) == 60
        with RawClient(broker.bootstrap) as client:
            assert end(client, topic, 2, True) == 0
        last = [*expected, b"open", b"behind it"]
        assert read(broker.bootstrap, topic, "read_committed", 62) == last
