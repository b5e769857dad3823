"""Where our client turns to, and how it goes on when an answer is none: with made-up brokers.

The last tests put a real broker behind one that claims to be old.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from ottla.client.blocking import Blocking
from ottla.client.cluster import Cluster
from ottla.client.failures import (
    BadReply,
    GaveUp,
    NothingCame,
    OffsetOutOfRange,
    PartitionsFailed,
    Refused,
)
from ottla.client.range_reader import read_range
from ottla.client.settings import ClientSettings, split_address
from ottla.client.values import LATEST, Fetched
from ottla.errors import CorruptBatch, ErrorCode, UnknownTopicOrPartition
from ottla.testing import Broker
from ottla.types import TopicPartition
from ottla.wire.codec import decode
from ottla.wire.framing import RequestHead, read_reply_head
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.records import Record, encode_batch, headers_in
from scenarios.scripted_broker import ScriptedBroker, greeting, reply

T = TypeVar("T")
REQUESTS = (
    *(ProduceRequest, FetchRequest, ListOffsetsRequest, MetadataRequest, OffsetCommitRequest),
    *(OffsetFetchRequest, FindCoordinatorRequest, ApiVersionsRequest, InitProducerIdRequest),
)
KINDS = {kind.API_KEY: kind for kind in REQUESTS}
RANGES = [(kind.API_KEY, 0, kind.VERSIONS.last) for kind in REQUESTS]
TOPIC_ID = b"t" * 16
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
RUN_S = 30.0

Answer = Callable[["Node", Any], Any]


def is_flexible(api_key: int, version: int) -> bool:
    return version in KINDS[api_key].FLEXIBLE


class Node(ScriptedBroker):
    """A broker of a made-up cluster: `answers` has a function per request."""

    def __init__(self, node_id: int, answers: dict[type, Answer]) -> None:
        super().__init__(self._answer, is_flexible)
        self.node_id = node_id
        self.answers = answers
        self.asked: list[Any] = []

    def _answer(self, head: RequestHead, frame: memoryview) -> bytes | None:
        if head.api_key == ApiVersionsRequest.API_KEY:
            return greeting(RANGES)(head, frame)
        kind = KINDS[head.api_key]
        request = decode(kind, frame, head.version, head.body_at)
        self.asked.append(request)
        answer = self.answers[kind](self, request)
        return answer if isinstance(answer, bytes) else reply(head, answer)

    def count(self, kind: type) -> int:
        return sum(type(request) is kind for request in self.asked)


def metadata(nodes: list[Node], *leaders: int) -> MetadataResponse:
    """Who leads the partitions of topic `t`."""
    brokers = [MetadataResponseBroker(one.node_id, *split_address(one.address)) for one in nodes]
    partitions = [
        MetadataResponsePartition(partition_index=at, leader_id=leader, leader_epoch=3)
        for at, leader in enumerate(leaders)
    ]
    topic = MetadataResponseTopic(name="t", topic_id=TOPIC_ID, partitions=partitions)
    return MetadataResponse(brokers=brokers, topics=[topic])


def fetched(
    records: bytes | bytearray = b"", high_watermark: int = 0, error: int = 0, stable: int = -1
) -> FetchResponse:
    data = PartitionData(
        partition_index=0,
        error_code=error,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark if stable < 0 else stable,
        log_start_offset=0,
        aborted_transactions=None,
        records=records,
    )
    return FetchResponse(
        responses=[FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=[data])]
    )


def offsets(errors: dict[int, int], request: ListOffsetsRequest) -> ListOffsetsResponse:
    parts = [
        ListOffsetsPartitionResponse(
            partition_index=part.partition_index,
            error_code=errors.get(part.partition_index, 0),
            offset=100 + part.partition_index,
        )
        for part in request.topics[0].partitions
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=parts)])


def in_cluster(node: Node, use: Callable[[Cluster], Awaitable[T]], **settings: float) -> T:
    async def main() -> T:
        async with Cluster(ClientSettings((node.address,), **settings)) as cluster:
            return await use(cluster)

    return asyncio.run(main())


def batch(base_offset: int, count: int = 1) -> bytearray:
    records = [Record(base_offset + at, 1000, None, b"v") for at in range(count)]
    return encode_batch(records, base_offset=base_offset)


# ------------------------------------------------------------------------------------ leaders


def test_a_leader_that_has_moved_is_found_again():
    moved: list[bool] = []

    def refuse(node: Node, _: FetchRequest) -> FetchResponse:
        moved.append(True)
        return fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    old = Node(1, {FetchRequest: refuse})
    new = Node(2, {FetchRequest: lambda *_: fetched(batch(0), 1)})
    old.answers[MetadataRequest] = lambda *_: metadata([old, new], 2 if moved else 1)
    with old, new:
        found = in_cluster(old, lambda cluster: cluster.fetch(ZERO, 0, max_bytes=1000))
        assert found.high_watermark == 1
        assert (old.count(FetchRequest), new.count(FetchRequest)) == (1, 1)


def test_a_leader_that_hangs_up_is_asked_again_after_a_look_at_the_metadata():
    hung_up: list[bool] = []

    def answer(*_: object) -> Any:
        if not hung_up:
            hung_up.append(True)
            return b""
        return fetched(batch(0), 1)

    node = Node(1, {FetchRequest: answer, MetadataRequest: lambda one, _: metadata([one], 1)})
    with node:
        in_cluster(node, lambda cluster: cluster.fetch(ZERO, 0, max_bytes=1000))
        assert (node.count(FetchRequest), node.count(MetadataRequest)) == (2, 2)


def test_all_leaders_are_asked_for_offsets_and_only_what_failed_is_asked_again():
    moved: list[bool] = []

    def refuse(_: Node, request: ListOffsetsRequest) -> ListOffsetsResponse:
        moved.append(True)
        return offsets({1: int(ErrorCode.NOT_LEADER_OR_FOLLOWER)}, request)

    one = Node(1, {ListOffsetsRequest: lambda _, request: offsets({}, request)})
    two = Node(2, {ListOffsetsRequest: refuse})
    for node in (one, two):
        node.answers[MetadataRequest] = lambda *_: metadata([one, two], 1, 1 if moved else 2)
    with one, two:
        wanted = {ZERO: LATEST, ONE: LATEST}
        found = in_cluster(one, lambda cluster: cluster.list_offsets(wanted))
        assert [found[partition].offset for partition in wanted] == [100, 101]
        asked = [
            [part.partition_index for part in request.topics[0].partitions]
            for request in one.asked
            if isinstance(request, ListOffsetsRequest)
        ]
        assert (asked, two.count(ListOffsetsRequest)) == ([[0], [1]], 1)


def test_every_partition_that_failed_is_named():
    forbidden = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    node = Node(1, {MetadataRequest: lambda one, _: metadata([one], 1, 1)})
    node.answers[ListOffsetsRequest] = lambda _, request: offsets(
        {0: forbidden, 1: forbidden}, request
    )
    with node, pytest.raises(PartitionsFailed) as caught:
        in_cluster(node, lambda cluster: cluster.list_offsets({ZERO: LATEST, ONE: LATEST}))
    assert "t-0: TOPIC_AUTHORIZATION_FAILED; t-1: TOPIC_AUTHORIZATION_FAILED" in str(caught.value)


def test_every_partition_without_a_leader_is_named():
    node = Node(1, {MetadataRequest: lambda one, _: metadata([one], -1, -1)})
    with node, pytest.raises(GaveUp, match="t-0 has no leader; t-1 has no leader"):
        in_cluster(
            node,
            lambda cluster: cluster.list_offsets({ZERO: LATEST, ONE: LATEST}),
            retry_timeout_s=0.3,
        )


def test_a_refusal_that_does_not_pass_is_not_tried_again():
    forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    node = Node(1, {MetadataRequest: lambda one, _: metadata([one], 1)})
    node.answers[FetchRequest] = lambda *_: fetched(error=forbidden)
    with node:
        with pytest.raises(Refused, match="t-0: TOPIC_AUTHORIZATION_FAILED"):
            in_cluster(node, lambda cluster: cluster.fetch(ZERO, 0, max_bytes=1000))
        assert node.count(FetchRequest) == 1


def test_a_partition_without_a_leader_is_waited_for_and_then_told():
    node = Node(1, {MetadataRequest: lambda one, _: metadata([one], -1)})
    with node, pytest.raises(GaveUp, match="t-0 has no leader"):
        in_cluster(
            node,
            lambda cluster: cluster.fetch(ZERO, 0, max_bytes=1000),
            retry_timeout_s=0.3,
        )


def test_a_topic_that_was_made_a_moment_ago_is_waited_for():
    seen: list[bool] = []

    def answer(node: Node, _: object) -> MetadataResponse:
        seen.append(True)
        found = metadata([node], 1)
        if len(seen) < 3:
            found.topics[0].error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return found

    node = Node(1, {MetadataRequest: answer, FetchRequest: lambda *_: fetched(batch(0), 1)})
    with node:
        in_cluster(node, lambda cluster: cluster.fetch(ZERO, 0, max_bytes=1000))
    never = Node(1, {MetadataRequest: answer})
    seen.clear()
    with never, pytest.raises(UnknownTopicOrPartition):
        in_cluster(never, lambda cluster: cluster.fetch(ONE, 0, max_bytes=1000))


def test_a_topic_whose_id_nobody_told_is_fetched_by_its_name():
    """As in a cluster of which only some brokers are new."""
    nameless = fetched(batch(0), 1)
    nameless.responses[0].topic_id = bytes(16)
    node = Node(1, {FetchRequest: lambda *_: nameless})

    def answer(*_: object) -> MetadataResponse:
        told = metadata([node], 1)
        told.topics[0].topic_id = bytes(16)
        return told

    node.answers[MetadataRequest] = answer
    with node:
        in_cluster(node, lambda cluster: cluster.fetch(ZERO, 0, max_bytes=1000))
        versions = [head.version for head in node.heads if head.api_key == FetchRequest.API_KEY]
        assert versions == [12]


def test_an_answer_for_another_partition_is_not_taken():
    other = fetched(batch(0), 1)
    other.responses[0].partitions[0].partition_index = 1
    node = Node(1, {MetadataRequest: lambda one, _: metadata([one], 1)})
    node.answers[FetchRequest] = lambda *_: other
    with node, pytest.raises(BadReply, match="a fetch of t-0 with another's"):
        in_cluster(node, lambda cluster: cluster.fetch(ZERO, 0, max_bytes=1000))


# --------------------------------------------------------------------------------------- groups


def coordinators(old: Node, new: Node) -> Answer:
    """FindCoordinator names the old one until that has been asked for something."""

    def answer(_: Node, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        has_moved = old.count(OffsetFetchRequest) + old.count(OffsetCommitRequest)
        host, port = split_address((new if has_moved else old).address)
        found = Coordinator(key=request.coordinator_keys[0], host=host, port=port)
        return FindCoordinatorResponse(coordinators=[found])

    return answer


def test_a_coordinator_that_has_moved_is_asked_for_offsets_where_it_is_now():
    def group(code: int, offset: int) -> OffsetFetchResponse:
        part = OffsetFetchResponsePartitions(partition_index=0, committed_offset=offset)
        topics = [OffsetFetchResponseTopics(name="t", partitions=[part])]
        answer = OffsetFetchResponseGroup(group_id="g", topics=topics, error_code=code)
        return OffsetFetchResponse(groups=[answer])

    old = Node(1, {OffsetFetchRequest: lambda *_: group(ErrorCode.NOT_COORDINATOR, -1)})
    new = Node(2, {OffsetFetchRequest: lambda *_: group(0, 42)})
    old.answers[FindCoordinatorRequest] = new.answers[FindCoordinatorRequest] = coordinators(
        old, new
    )
    with old, new:
        found = in_cluster(old, lambda cluster: cluster.committed("g", [ZERO]))
        assert found == {ZERO: 42}
        assert old.count(OffsetFetchRequest) == 1


def test_a_coordinator_that_has_moved_is_told_offsets_where_it_is_now():
    def answer(code: int) -> OffsetCommitResponse:
        part = OffsetCommitResponsePartition(partition_index=0, error_code=code)
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic("t", [part])])

    old = Node(1, {OffsetCommitRequest: lambda *_: answer(ErrorCode.NOT_COORDINATOR)})
    new = Node(2, {OffsetCommitRequest: lambda *_: answer(0)})
    old.answers[FindCoordinatorRequest] = new.answers[FindCoordinatorRequest] = coordinators(
        old, new
    )
    with old, new:
        in_cluster(old, lambda cluster: cluster.commit("g", {ZERO: 42}))
        assert (old.count(OffsetCommitRequest), new.count(OffsetCommitRequest)) == (1, 1)


def test_a_commit_that_a_group_with_members_refuses_is_told_by_partition():
    part = OffsetCommitResponsePartition(
        partition_index=0, error_code=int(ErrorCode.UNKNOWN_MEMBER_ID)
    )
    node = Node(1, {})
    node.answers[FindCoordinatorRequest] = coordinators(node, node)
    node.answers[OffsetCommitRequest] = lambda *_: OffsetCommitResponse(
        topics=[OffsetCommitResponseTopic("t", [part])]
    )
    with node, pytest.raises(Refused, match="t-0: UNKNOWN_MEMBER_ID"):
        in_cluster(node, lambda cluster: cluster.commit("g", {ZERO: 42}))


# ------------------------------------------------------------------------------------- ranges


def read(
    answers: list[Any], end: int, *, read_committed: bool = False, patience_s: float = RUN_S
) -> Any:
    """What a range from 0 to `end` yields when fetches are answered so, the last one for ever."""
    pending = list(answers)
    node = Node(1, {MetadataRequest: lambda one, _: metadata([one], 1)})
    node.answers[FetchRequest] = lambda *_: pending.pop(0) if len(pending) > 1 else pending[0]
    with node, Blocking(ClientSettings((node.address,))) as client:
        found: list[Fetched] = list(
            read_range(
                client,
                ZERO,
                0,
                end,
                read_committed=read_committed,
                fetch_bytes=100,
                patience_s=patience_s,
            )
        )
    wishes = [
        (request.topics[0].partitions[0].fetch_offset, request.max_bytes)
        for request in node.asked
        if isinstance(request, FetchRequest)
    ]
    positions = [header.base_offset for one in found for _, header in headers_in(one.records)]
    return positions, wishes


def test_empty_answers_are_never_taken_for_the_end():
    empty = [fetched(b"", 10)] * 4
    answers = [fetched(batch(0), 10), *empty, fetched(batch(7), 10), *empty, fetched(batch(9), 10)]
    positions, wishes = read(answers, 10)
    assert positions == [0, 7, 9]
    assert [offset for offset, _ in wishes] == [0, *[1] * 5, *[8] * 5]


def test_a_range_whose_last_offsets_are_compacted_away_ends_with_the_batch_behind_them():
    assert read([fetched(batch(0), 30), fetched(batch(25), 30)], 10)[0] == [0, 25]


@pytest.mark.parametrize("read_committed", [False, True])
def test_records_that_do_not_come_are_given_up_at_the_deadline(read_committed):
    answers = [fetched(batch(0), 10), fetched(b"", 12)]
    with pytest.raises(NothingCame) as caught:
        read(answers, 10, read_committed=read_committed, patience_s=0.3)
    assert str(caught.value) == (
        "t-0: no record came for offset 1 in 0.3 s (kafkaConsumer.pollTimeoutMs), although the "
        "log goes on to 12: look at the broker's log"
    )


def test_records_whose_transaction_stays_open_are_told_with_the_end_that_is_stable():
    answers = [fetched(batch(0), 10), fetched(b"", 10, stable=1)]
    with pytest.raises(OffsetOutOfRange, match="offset 1 is wanted, available are 0 to 1"):
        read(answers, 10, read_committed=True, patience_s=0.3)


def test_what_is_not_committed_yet_is_waited_for():
    waiting = [fetched(b"", 10, stable=0)] * 3
    answers = [*waiting, fetched(batch(0, 10), 10)]
    assert read(answers, 10, read_committed=True)[0] == [0]


def test_a_range_ends_with_a_batch_that_ends_behind_it():
    positions, wishes = read([fetched(batch(0, 20), 20)], 10)
    assert positions == [0]
    assert [offset for offset, _ in wishes] == [0]


def test_a_broker_that_holds_us_back_is_asked_again():
    held_back = FetchResponse(throttle_time_ms=5)
    assert read([held_back, held_back, held_back, fetched(batch(0), 1)], 1)[0] == [0]


def test_a_batch_that_was_cut_off_is_asked_for_with_more_room():
    whole = batch(0, 30)
    positions, wishes = read(
        [fetched(whole[:100], 30), fetched(whole[:200], 30), fetched(whole, 30)], 30
    )
    assert positions == [0]
    assert wishes == [(0, 100), (0, 200), (0, 400)]


def test_a_batch_before_the_wanted_offset_again_and_again_is_no_progress():
    answers = [fetched(batch(0), 10), fetched(batch(0), 10)]
    with pytest.raises(CorruptBatch, match="t-0"):
        read(answers, 10)


# --------------------------------------------------------------------------------- old brokers

KAFKA_2_8 = {0: 9, 1: 12, 2: 6, 3: 11, 8: 8, 9: 7, 10: 3, 18: 3, 22: 4}
KAFKA_1_0 = {0: 5, 1: 6, 2: 2, 3: 5, 8: 3, 9: 3, 10: 1, 18: 1, 22: 0}


class OldBroker(ScriptedBroker):
    """Passes everything on to a real broker, but knows only old versions."""

    def __init__(self, real: str, versions: dict[int, int]) -> None:
        super().__init__(self._pass_on, is_flexible)
        self._real = real
        self._versions = versions

    def _pass_on(self, head: RequestHead, frame: memoryview) -> bytes:
        if head.api_key == ApiVersionsRequest.API_KEY:
            ranges = [(key, 0, last) for key, last in self._versions.items()]
            answer = greeting(ranges, self._versions[head.api_key])(head, frame)
            assert answer is not None
            return answer
        assert head.version <= self._versions[head.api_key]
        answer = self._ask(frame)
        if head.api_key == MetadataRequest.API_KEY:
            told = self._read(MetadataResponse, answer, head)
            told.brokers[0].host, told.brokers[0].port = split_address(self.address)
            return reply(head, told)
        if head.api_key == FindCoordinatorRequest.API_KEY:
            found = self._read(FindCoordinatorResponse, answer, head)
            found.host, found.port = split_address(self.address)
            return reply(head, found)
        return struct.pack(">i", len(answer)) + answer

    def _ask(self, frame: memoryview) -> bytes:
        with (
            socket.create_connection(split_address(self._real), RUN_S) as upstream,
            upstream.makefile("rb") as stream,
        ):
            upstream.sendall(struct.pack(">i", len(frame)) + bytes(frame))
            return stream.read(struct.unpack(">i", stream.read(4))[0])

    @staticmethod
    def _read(kind: Any, answer: bytes, head: RequestHead) -> Any:
        _, pos = read_reply_head(memoryview(answer), kind, head.version)
        return decode(kind, answer, head.version, pos)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.mark.parametrize("versions", [KAFKA_2_8, KAFKA_1_0], ids=["2.8", "1.0"])
def test_everything_works_with_the_versions_of_an_old_broker(broker, versions):
    topic = f"old-{versions[0]}"
    broker.create_topic(topic, 1)
    partition = TopicPartition(topic, 0)
    with OldBroker(broker.bootstrap, versions) as old:
        with Blocking(ClientSettings((old.address,))) as client:
            assert client.run(lambda cluster: cluster.topics([topic, "no"]), RUN_S).keys() == {
                topic
            }
            assert client.run(lambda cluster: cluster.init_producer(), RUN_S)[0] >= 0
            for at in range(3):
                made = client.run(
                    lambda cluster: cluster.produce(
                        {partition: batch(0, 5)}, acks=-1, timeout_ms=9000
                    ),
                    RUN_S,
                )
                assert made[partition][:2] == (0, 5 * at)
            found = client.run(lambda cluster: cluster.list_offsets({partition: LATEST}), RUN_S)
            assert found[partition].offset == 15
            fetches = read_range(client, partition, 0, 15, fetch_bytes=1)
            bases = [header.base_offset for one in fetches for _, header in headers_in(one.records)]
            assert bases == [0, 5, 10]
            client.run(lambda cluster: cluster.commit(topic, {partition: 4}), RUN_S)
            committed = client.run(lambda cluster: cluster.committed(topic, [partition]), RUN_S)
            assert committed == {partition: 4}
        used = {head.api_key: head.version for head in old.heads}
    assert used == versions


def test_api_versions_of_an_old_broker_are_read_in_its_own_form(broker):
    with OldBroker(broker.bootstrap, KAFKA_1_0) as old:

        async def main() -> None:
            async with Cluster(ClientSettings((old.address,))) as cluster:
                connection = await cluster.to_address(old.address)
                assert connection.version_of(MetadataRequest) == 5

        asyncio.run(main())
        assert [head.version for head in old.heads] == [4, 1]
    assert ApiVersionsResponse.VERSIONS.last == 4
