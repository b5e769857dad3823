"""Idempotent producers whose first batch is refused lose nothing that was in flight after it."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.testing.topics import TopicNotCreated
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.produce import ProduceRequest
from raw_client import RawClient
from records_kit import batch, fetch_request, list_offset, produce_request, values_in
from scenarios.in_process import BrokerInside
from scenarios.polling import until
from scenarios.slow_replies import SlowReplies

Produce = Callable[[RawClient, bytearray], Any]


def _alone(client: RawClient, data: bytearray) -> Any:
    return client.ask(produce_request("t", {0: data}), 12).responses[0].partition_responses[0]


def _in_company(client: RawClient, data: bytearray) -> Any:
    """Two partitions in one request: these are decoded and answered another way."""
    request = produce_request("t", {1: batch(b"beside"), 0: data})
    return client.ask(request, 12).responses[0].partition_responses[1]


@pytest.fixture(params=[_alone, _in_company], ids=["alone", "in-company"])
def produce(request: pytest.FixtureRequest) -> Produce:
    way: Produce = request.param
    return way


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerInside]:
    with BrokerInside(tmp_path / "a", log_flush_offset_checkpoint_interval_ms=100) as broker:
        yield broker


def _sequenced(sequence: int, *values: bytes, **options: Any) -> bytearray:
    sequences = {"producer_id": 4_000, "producer_epoch": 0, "base_sequence": sequence}
    return batch(*(values or (b"%d" % sequence,)), **sequences, **options)


def _check_that_it_is_awaited(client: RawClient, produce: Produce) -> None:
    for late in (1, 2):
        answer = produce(client, _sequenced(late))
        assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    answers = [produce(client, _sequenced(sequence)) for sequence in range(3)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]


def test_by_a_full_disk(broker: BrokerInside, tmp_path: Path, produce: Produce) -> None:
    broker.create_topic("t", 2)
    broker.disk.fail("write", errno.ENOSPC, under=str(tmp_path / "a" / "t-0"), times=1)
    with RawClient(broker.bootstrap) as client:
        refused = produce(client, _sequenced(0))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        until(lambda: broker.readiness()[0] == 200, "the disk still takes no writes")
        _check_that_it_is_awaited(client, produce)


@pytest.mark.parametrize("known", [0, 1], ids=["a new producer", "a known one"])
def test_what_follows_is_refused_for_the_same_reason_while_the_disk_is_full(
    broker: BrokerInside, tmp_path: Path, produce: Produce, known: int
) -> None:
    """Told that these are out of order, librdkafka would begin a new epoch, for all partitions."""
    broker.create_topic("t", 2)
    with RawClient(broker.bootstrap) as client:
        for sequence in range(known):
            assert produce(client, _sequenced(sequence)).error_code == 0
        broker.disk.fail("write", errno.ENOSPC, under=str(tmp_path / "a" / "t-0"), times=10**6)
        for sequence in range(known, known + 3):
            refused = produce(client, _sequenced(sequence))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        for sequence in range(known):
            repeated = produce(client, _sequenced(sequence))
            assert (repeated.error_code, repeated.base_offset) == (0, sequence)
        broker.disk.heal()
        until(lambda: broker.readiness()[0] == 200, "the disk still takes no writes")
        late = produce(client, _sequenced(known + 1))
        assert late.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for sequence in range(known, known + 3):
            taken = produce(client, _sequenced(sequence))
            assert (taken.error_code, taken.base_offset) == (0, sequence)


def test_by_a_failed_sync_after_which_the_log_is_cut(
    broker: BrokerInside, tmp_path: Path, produce: Produce
) -> None:
    broker.create_topic("t", 2)
    broker.disk.fail("sync", errno.ENOSPC, under=str(tmp_path / "a" / "t-0"), times=1)
    with RawClient(broker.bootstrap) as client:
        refused = produce(client, _sequenced(0))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        until(lambda: broker.readiness()[0] == 200, "the log is not opened again")
        _check_that_it_is_awaited(client, produce)


def test_by_a_disk_that_does_not_answer_in_time(tmp_path: Path, produce: Produce) -> None:
    with BrokerInside(tmp_path / "a") as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", 2)
        assert produce(client, batch(b"before")).error_code == 0
    with BrokerInside(tmp_path / "a") as broker, RawClient(broker.bootstrap) as client:
        broker.disk.cool(under=str(tmp_path / "a" / "t-0"))
        broker.disk.hold("read", under=str(tmp_path / "a" / "t-0"))
        request: ProduceRequest = produce_request("t", {0: _sequenced(0)})
        request.timeout_ms = 50
        answer = client.ask(request, 12).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        broker.disk.heal()
        assert produce(client, _sequenced(1)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce(client, _sequenced(0)).base_offset == 1
        assert produce(client, _sequenced(1)).base_offset == 2


def _flipped(data: bytearray) -> bytearray:
    data[-1] ^= 1
    return data


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (_flipped(_sequenced(0)), ErrorCode.CORRUPT_MESSAGE),
        (_sequenced(0, b"x" * 2000), ErrorCode.MESSAGE_TOO_LARGE),
        (_sequenced(0, timestamp=10**15), ErrorCode.INVALID_TIMESTAMP),
        (_sequenced(0, key=None), ErrorCode.INVALID_RECORD),
        (_sequenced(0, is_transactional=True), ErrorCode.INVALID_TXN_STATE),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else "",
)
def test_by_its_own_fault(
    broker: BrokerInside, produce: Produce, data: bytearray, code: ErrorCode
) -> None:
    broker.create_topic("t", 2, {"max.message.bytes": "1000", "cleanup.policy": "compact"})
    with RawClient(broker.bootstrap) as client:
        assert produce(client, bytearray(data)).error_code == code
        _check_that_it_is_awaited(client, produce)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_real_producers_with_five_batches_in_flight_lose_nothing(
    tmp_path: Path, operation: str
) -> None:
    """One refusal on each of several partitions, each before the eyes of a producer of its own."""
    from confluent_kafka import Producer

    partitions, values = range(4), [b"%d" % number for number in range(20)]
    errors: list[Any] = []
    with SlowReplies(in_flight=5) as way:
        settings = {
            "advertised_listeners": f"PLAINTEXT://127.0.0.1:{way.port}",
            "log_flush_offset_checkpoint_interval_ms": 100,
        }
        with BrokerInside(tmp_path / "a", **settings) as broker:
            way.broker_port = int(broker.bootstrap.rpartition(":")[2])
            broker.create_topic("t", len(partitions))
            producers = []
            for partition in partitions:
                directory = str(tmp_path / "a" / f"t-{partition}")
                broker.disk.fail(operation, errno.ENOSPC, under=directory, times=1)
                producers.append(Producer(_one_message_per_batch(broker.bootstrap)))
                for value in values:
                    producers[-1].produce(
                        "t", value, partition=partition, on_delivery=lambda e, _: errors.append(e)
                    )
            assert [producer.flush(60) for producer in producers] == [0] * len(partitions)
            assert errors == [None] * len(partitions) * len(values)
            with RawClient(broker.bootstrap) as client:
                request = fetch_request("t", dict.fromkeys(partitions, 0))
                answers = client.ask(request, 12).responses[0].partitions
    assert [values_in(answer.records) for answer in answers] == [values] * len(partitions)


def _one_message_per_batch(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "batch.num.messages": 1,
        "linger.ms": 0,
        "retry.backoff.ms": 5,
    }


def test_a_log_that_was_cut_goes_on_under_a_new_epoch(broker: BrokerInside, tmp_path: Path) -> None:
    """A follower, or a client that remembers the epoch, can tell what was cut."""
    broker.create_topic("t", 2)
    with RawClient(broker.bootstrap) as client:
        assert _alone(client, batch(b"kept")).error_code == 0
        epoch = list_offset(client, "t", -1).leader_epoch
        broker.disk.fail("sync", errno.ENOSPC, under=str(tmp_path / "a" / "t-0"), times=1)
        assert _alone(client, batch(b"cut", b"cut")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        until(lambda: broker.readiness()[0] == 200, "the log is not opened again")
        assert list_offset(client, "t", -1).leader_epoch > epoch
        assert _alone(client, batch(b"anew")).base_offset == 1
        assert _end_of_epoch(client, epoch) == (epoch, 1)


def test_the_metadata_log_that_was_cut_goes_on_under_a_new_epoch(
    broker: BrokerInside, tmp_path: Path
) -> None:
    home = tmp_path / "a" / "__cluster_metadata-0"

    def epoch() -> int:
        state: dict[str, int] = json.loads((home / "quorum-state").read_text())
        return state["leaderEpoch"]

    broker.create_topic("before")
    first = epoch()
    broker.disk.fail("sync", errno.ENOSPC, under=str(home), times=1)
    with pytest.raises(TopicNotCreated, match="No space"):
        broker.create_topic("refused")
    until(lambda: _can_create(broker, "after"), "the metadata log is not opened again")
    assert epoch() == first + 1
    with RawClient(broker.bootstrap) as client:
        reply = client.ask(MetadataRequest(topics=None), 12)
        assert {topic.name for topic in reply.topics} == {"before", "after"}


def _can_create(broker: BrokerInside, name: str) -> bool:
    try:
        broker.create_topic(name)
    except TopicNotCreated:
        return False
    return True


def _end_of_epoch(client: RawClient, epoch: int) -> tuple[int, int]:
    from ottla.wire.messages.offset_for_leader_epoch import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
        OffsetForLeaderTopic,
    )

    partition = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    topics = [OffsetForLeaderTopic(topic="t", partitions=[partition])]
    answer = client.ask(OffsetForLeaderEpochRequest(topics=topics), 4).topics[0].partitions[0]
    return answer.leader_epoch, answer.end_offset
