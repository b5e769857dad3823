"""What Fetch and ListOffsets promise, seen in raw frames."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from raw_client import RawClient
from records_kit import NOW_MS, batch, fetch, fetch_request, list_offset, produce, values_in


@pytest.fixture
def client(ottla_broker: Broker) -> Iterator[RawClient]:
    with RawClient(ottla_broker.bootstrap) as client:
        yield client


def _topic_id(client: RawClient, topic: str) -> bytes:
    reply = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
    topic_id: bytes = reply.topics[0].topic_id
    return topic_id


def _leader_epoch(client: RawClient, topic: str) -> int:
    reply = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
    epoch: int = reply.topics[0].partitions[0].leader_epoch
    return epoch


def _by_id(topic_id: bytes, offset: int) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1_000_000)
    return FetchRequest(min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=[partition])])


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_by_name(client: RawClient, ottla_topic: str, version: int) -> None:
    produce(client, ottla_topic, batch(b"a"))
    answer = fetch(client, ottla_topic, 0, version=version)
    assert values_in(answer.records) == [b"a"]
    assert (answer.high_watermark, answer.last_stable_offset) == (1, 1)


@pytest.mark.parametrize("version", range(13, 18))
def test_every_version_by_topic_id(client: RawClient, ottla_topic: str, version: int) -> None:
    produce(client, ottla_topic, batch(b"a"))
    reply = client.ask(_by_id(_topic_id(client, ottla_topic), 0), version)
    assert values_in(reply.responses[0].partitions[0].records) == [b"a"]


def test_an_unknown_topic_id_is_named_so(client: RawClient) -> None:
    reply = client.ask(_by_id(b"\x07" * 16, 0), 13)
    assert reply.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_the_first_batch_comes_whole_above_all_limits(client: RawClient, ottla_topic: str) -> None:
    produce(client, ottla_topic, batch(b"x" * 5000))
    produce(client, ottla_topic, batch(b"second"))
    answer = fetch(client, ottla_topic, 0, partition_max_bytes=10, max_bytes=10)
    assert values_in(answer.records)[0] == b"x" * 5000


@pytest.mark.ottla_topic(partitions=2)
def test_only_the_first_partition_may_exceed_max_bytes(client: RawClient, ottla_topic: str) -> None:
    for index in (0, 1):
        produce(client, ottla_topic, batch(b"x" * 5000), partition=index)
    request = fetch_request(ottla_topic, {0: 0, 1: 0}, max_bytes=100)
    first, second = client.ask(request, 12).responses[0].partitions
    assert values_in(first.records)
    assert not second.records


@pytest.mark.parametrize("offset", [-1, 2, 10**12])
def test_offsets_outside_the_log_are_out_of_range(
    client: RawClient, ottla_topic: str, offset: int
) -> None:
    produce(client, ottla_topic, batch(b"a"))
    answer = fetch(client, ottla_topic, offset)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_waits_for_data_and_is_woken_by_it(
    ottla_broker: Broker, client: RawClient, ottla_topic: str
) -> None:
    client.send(fetch_request(ottla_topic, {0: 0}, max_wait_ms=20_000), 12)
    with RawClient(ottla_broker.bootstrap) as producer:
        produce(producer, ottla_topic, batch(b"wake"))
    assert values_in(client.receive().responses[0].partitions[0].records) == [b"wake"]


def test_min_bytes_waits_for_enough(
    ottla_broker: Broker, client: RawClient, ottla_topic: str
) -> None:
    client.send(fetch_request(ottla_topic, {0: 0}, max_wait_ms=20_000, min_bytes=5000), 12)
    with RawClient(ottla_broker.bootstrap) as producer:
        for _ in range(3):
            produce(producer, ottla_topic, batch(b"y" * 2000))
    assert values_in(client.receive().responses[0].partitions[0].records) == [b"y" * 2000] * 3


def test_an_empty_fetch_returns_when_its_time_is_over(client: RawClient, ottla_topic: str) -> None:
    answer = fetch(client, ottla_topic, 0, max_wait_ms=50)
    assert (answer.error_code, answer.records) == (0, b"")


def test_stale_and_future_leader_epochs_are_told_apart(client: RawClient, ottla_topic: str) -> None:
    epoch = _leader_epoch(client, ottla_topic)
    ahead = fetch(client, ottla_topic, 0, current_leader_epoch=epoch + 1)
    assert ahead.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetch(client, ottla_topic, 0, current_leader_epoch=epoch).error_code == 0


def test_a_restart_fences_the_old_epoch(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory()
    broker.create_topic("epochs")
    with RawClient(broker.bootstrap) as client:
        before = _leader_epoch(client, "epochs")
        produce(client, "epochs", batch(b"old"))
    broker.restart()
    with RawClient(broker.bootstrap) as client:
        after = _leader_epoch(client, "epochs")
        assert after > before
        stale = fetch(client, "epochs", 0, current_leader_epoch=before)
        assert stale.error_code == ErrorCode.FENCED_LEADER_EPOCH
        latest = ListOffsetsPartition(0, current_leader_epoch=before, timestamp=-1)
        listing = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic("epochs", [latest])])
        listed = client.ask(listing, 7).topics[0].partitions[0]
        assert listed.error_code == ErrorCode.FENCED_LEADER_EPOCH
        past = OffsetForLeaderPartition(0, leader_epoch=before, current_leader_epoch=before)
        ending = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic("epochs", [past])]
        )
        ended = client.ask(ending, 4).topics[0].partitions[0]
        assert ended.error_code == ErrorCode.FENCED_LEADER_EPOCH
        produce(client, "epochs", batch(b"new"))
        asked = OffsetForLeaderPartition(0, leader_epoch=before, current_leader_epoch=after)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic("epochs", [asked])]
        )
        answer = client.ask(request, 4).topics[0].partitions[0]
        assert (answer.leader_epoch, answer.end_offset) == (before, 1)
        # Who has fetched more in the old epoch than there is now is told where to cut.
        strayed = fetch_request("epochs", {0: 2})
        strayed.topics[0].partitions[0].last_fetched_epoch = before
        diverging = client.ask(strayed, 12).responses[0].partitions[0].diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (before, 1)


def test_a_session_answers_only_what_changed(
    ottla_broker: Broker, client: RawClient, ottla_topic: str
) -> None:
    produce(client, ottla_topic, batch(b"a"))
    opened = client.ask(fetch_request(ottla_topic, {0: 0}, session_epoch=0), 12)
    assert opened.session_id != 0
    assert values_in(opened.responses[0].partitions[0].records) == [b"a"]
    moved = fetch_request(ottla_topic, {0: 1}, session_id=opened.session_id, session_epoch=1)
    assert client.ask(moved, 12).responses == []
    with RawClient(ottla_broker.bootstrap) as producer:
        produce(producer, ottla_topic, batch(b"b"))
    nothing_new = FetchRequest(min_bytes=1, session_id=opened.session_id, session_epoch=2)
    reply = client.ask(nothing_new, 12)
    assert values_in(reply.responses[0].partitions[0].records) == [b"b"]


def test_a_session_forgets_what_it_is_told_to(client: RawClient, ottla_topic: str) -> None:
    opened = client.ask(fetch_request(ottla_topic, {0: 0}, session_epoch=0), 12)
    produce(client, ottla_topic, batch(b"a"))
    request = FetchRequest(
        min_bytes=1,
        session_id=opened.session_id,
        session_epoch=1,
        forgotten_topics_data=[ForgottenTopic(ottla_topic, partitions=[0])],
    )
    assert client.ask(request, 12).responses == []


def test_unknown_sessions_and_wrong_epochs_have_errors_of_their_own(
    client: RawClient, ottla_topic: str
) -> None:
    unknown = client.ask(fetch_request(ottla_topic, {0: 0}, session_id=77, session_epoch=5), 12)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    opened = client.ask(fetch_request(ottla_topic, {0: 0}, session_epoch=0), 12)
    skipped = fetch_request(ottla_topic, {0: 0}, session_id=opened.session_id, session_epoch=9)
    assert client.ask(skipped, 12).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_cannot_change_to_topic_ids(client: RawClient, ottla_topic: str) -> None:
    opened = client.ask(fetch_request(ottla_topic, {0: 0}, session_epoch=0), 12)
    request = _by_id(_topic_id(client, ottla_topic), 0)
    request.session_id, request.session_epoch = opened.session_id, 1
    assert client.ask(request, 13).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_offsets_by_time_and_at_the_ends(client: RawClient, ottla_topic: str) -> None:
    for step in range(3):
        produce(client, ottla_topic, batch(b"v", timestamp=NOW_MS + 1000 * step))
    assert list_offset(client, ottla_topic, -1).offset == 3
    assert list_offset(client, ottla_topic, -2).offset == 0
    newest = list_offset(client, ottla_topic, -3)
    assert (newest.offset, newest.timestamp) == (2, NOW_MS + 2000)
    assert list_offset(client, ottla_topic, -4, version=8).offset == 0
    assert list_offset(client, ottla_topic, -5, version=9).offset == -1
    found = list_offset(client, ottla_topic, NOW_MS + 500)
    assert (found.offset, found.timestamp) == (1, NOW_MS + 1000)
    assert list_offset(client, ottla_topic, NOW_MS + 10_000).offset == -1
    assert list_offset(client, "no-such-topic", -1).error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_deleted_records_are_gone_with_their_files_also_after_kill_9(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory(log_segment_bytes=2000)
    broker.create_topic("cut")

    def delete_before(client: RawClient, offset: int) -> DeleteRecordsPartitionResult:
        asked = DeleteRecordsTopic("cut", [DeleteRecordsPartition(0, offset)])
        reply = client.ask(DeleteRecordsRequest([asked], timeout_ms=1000), 2)
        result: DeleteRecordsPartitionResult = reply.topics[0].partitions[0]
        return result

    with RawClient(broker.bootstrap) as client:
        for _ in range(20):
            produce(client, "cut", batch(b"x" * 500))
        assert delete_before(client, 21).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert delete_before(client, 12).low_watermark == 12
        assert fetch(client, "cut", 11).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        kept = sorted(path.stem for path in (broker.data_dir / "cut-0").glob("*.log"))
        assert kept[0] == f"{12:020d}"
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap) as client:
        assert list_offset(client, "cut", -2).offset == 12
        assert delete_before(client, -1).low_watermark == 20
