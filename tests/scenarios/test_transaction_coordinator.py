"""The coordinator of transactions over a socket: who is refused, and when."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from ottla.wire.messages.describe_transactions import DescribeTransactionsRequest
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from raw_client import RawClient
from records_kit import batch

PATIENCE_S = 60.0
TRANSACTION = 1


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


class Client:
    """A transactional producer of raw frames, as old or new as the versions it speaks."""

    def __init__(self, raw: RawClient, topic: str) -> None:
        self.raw, self.topic = raw, topic
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        raw.ask(FindCoordinatorRequest(coordinator_keys=[self.name], key_type=TRANSACTION), 6)
        raw.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 6)
        reply = raw.ask(InitProducerIdRequest(self.name, 60_000), 5)
        assert reply.error_code == 0
        self.id, self.epoch, self.sequence = reply.producer_id, reply.producer_epoch, 0

    def add(self) -> ErrorCode:
        topics = [AddPartitionsToTxnTopic(self.topic, [0])]
        request = AddPartitionsToTxnRequest([], self.name, self.id, self.epoch, topics)
        reply = self.raw.ask(request, 3).results_by_topic_v3_and_below[0]
        return ErrorCode(reply.results_by_partition[0].partition_error_code)

    def produce(self, value: bytes, version: int = 11) -> ErrorCode:
        data = batch(
            value,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            is_transactional=True,
            timestamp=int(time.time() * 1000),
        )
        topics = [TopicProduceData(self.topic, [PartitionProduceData(0, data)])]
        reply = self.raw.ask(ProduceRequest(self.name, -1, 30_000, topics), version)
        code = ErrorCode(reply.responses[0].partition_responses[0].error_code)
        self.sequence += code is ErrorCode.NONE
        return code

    def commit_offset(self, offset: int, version: int = 4) -> ErrorCode:
        partitions = [TxnOffsetCommitRequestPartition(0, offset, -1, None)]
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id="g",
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(self.topic, partitions)],
        )
        return ErrorCode(self.raw.ask(request, version).topics[0].partitions[0].error_code)

    def end(self, *, commit: bool = True, version: int = 4) -> ErrorCode:
        request = EndTxnRequest(self.name, self.id, self.epoch, commit)
        reply = self.raw.ask(request, version)
        if version >= 5 and not reply.error_code:
            self.id, self.epoch, self.sequence = reply.producer_id, reply.producer_epoch, 0
        return ErrorCode(reply.error_code)

    def state(self) -> str:
        reply = self.raw.ask(DescribeTransactionsRequest([self.name]), 0)
        return str(reply.transaction_states[0].transaction_state)


@pytest.fixture
def client(ottla_broker: Broker, ottla_topic: str) -> Iterator[Client]:
    with RawClient(ottla_broker.bootstrap) as raw:
        yield Client(raw, ottla_topic)


@pytest.mark.parametrize(
    ("version", "code"), [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_what_was_not_added_to_the_transaction_is_not_appended(client, version, code):
    assert client.produce(b"early", version) is code
    assert client.add() is ErrorCode.NONE
    assert client.produce(b"in time", version) is ErrorCode.NONE
    assert client.end() is ErrorCode.NONE
    wait_until(lambda: client.state() == "CompleteCommit")
    assert client.produce(b"late", version) is code


def test_the_produce_itself_adds_its_partition_and_a_late_end_is_refused(client):
    first = client.epoch
    assert client.produce(b"one", version=12) is ErrorCode.NONE
    assert client.end(version=5) is ErrorCode.NONE
    assert client.epoch == first + 1
    assert client.produce(b"two", version=12) is ErrorCode.NONE
    second, client.epoch = client.epoch, first
    assert client.end(version=5) is ErrorCode.PRODUCER_FENCED
    assert client.end(commit=False, version=5) is ErrorCode.PRODUCER_FENCED
    client.epoch = second
    assert client.state() == "Ongoing"
    assert client.end(version=5) is ErrorCode.NONE


def test_a_position_outside_of_its_transaction_is_refused(client):
    assert client.commit_offset(5) is ErrorCode.TRANSACTION_ABORTABLE
    assert client.commit_offset(5, version=3) is ErrorCode.INVALID_TXN_STATE
    assert client.commit_offset(5, version=5) is ErrorCode.NONE
    assert client.end() is ErrorCode.NONE


def test_a_fenced_producer_appends_nothing(client):
    assert client.add() is ErrorCode.NONE
    reply = client.raw.ask(InitProducerIdRequest(client.name, 60_000), 5)
    assert reply.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert client.produce(b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end() is ErrorCode.PRODUCER_FENCED
