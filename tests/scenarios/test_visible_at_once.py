"""What acks=1 has acknowledged is seen by who asks for it next, though the sync follows later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.network import waiting
from ottla.errors import ErrorCode
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from raw_client import RawClient
from records_kit import (
    NOW_MS,
    batch,
    fetch,
    fetch_request,
    list_offset,
    produce,
    produce_request,
    values_in,
)
from scenarios.held_syncs import HeldSyncs
from scenarios.in_process import BrokerInside
from scenarios.polling import until

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
REPETITIONS = 60


class Stage(HeldSyncs):
    """A broker on a disk whose syncs a test holds, and a topic `t` with two partitions."""

    def __init__(self, broker: BrokerInside, directory: Path, client: RawClient) -> None:
        super().__init__(broker, directory)
        self.broker = broker
        self.client = client
        broker.create_topic("t", 2)

    def write(self, *values: bytes, index: int = 0, **options: Any) -> None:
        """What acks=1 acknowledges, which does not wait for the sync."""
        answer = produce(self.client, "t", batch(*values, **options), partition=index, acks=1)
        assert answer.error_code == 0


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Its look-ups have all the time they need, so that no test depends on the machine."""
    monkeypatch.setattr(waiting, "END_WAIT_S_MAX", 30.0)
    settings = {"log_flush_offset_checkpoint_interval_ms": 100}
    with (
        BrokerInside(tmp_path / "a", **settings) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        yield Stage(broker, tmp_path / "a", client)


@pytest.fixture
def reader(stage: Stage) -> Iterator[RawClient]:
    with RawClient(stage.broker.bootstrap) as reader:
        yield reader


def _list_request(*asked: tuple[int, int]) -> ListOffsetsRequest:
    """(partition, timestamp) each."""
    parts = [ListOffsetsPartition(index, timestamp=timestamp) for index, timestamp in asked]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic("t", parts)])


def _delete_request(offset: int) -> DeleteRecordsRequest:
    asked = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, offset)])
    return DeleteRecordsRequest([asked], timeout_ms=1000)


def _only(reply: Any) -> Any:
    (topic,) = reply.topics
    (partition,) = topic.partitions
    return partition


# -------------------------------------------------------------------------- look-ups of the end


@pytest.mark.parametrize("timestamp", [LATEST, MAX_TIMESTAMP, NOW_MS])
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_look_up_waits_for_what_was_written_before_it(
    stage: Stage, reader: RawClient, timestamp: int, isolation_level: int
) -> None:
    stage.write(b"before", timestamp=NOW_MS - 1000)
    stage.hold("t")
    stage.write(b"a")
    request = _list_request((0, timestamp))
    request.isolation_level = isolation_level
    reader.send(request, 7)
    stage.until_looked_up("t")
    stage.heal()
    assert _only(reader.receive()).offset == (2 if timestamp == LATEST else 1)


@pytest.mark.parametrize("offset", [-1, 1])
def test_deleting_records_waits_for_what_was_written_before_it(
    stage: Stage, reader: RawClient, offset: int
) -> None:
    stage.hold("t")
    stage.write(b"a")
    reader.send(_delete_request(offset), 2)
    stage.until_looked_up("t")
    stage.heal()
    answer = _only(reader.receive())
    assert (answer.error_code, answer.low_watermark) == (0, 1)


def test_sixty_times_the_end_is_what_was_just_acknowledged(stage: Stage, reader: RawClient) -> None:
    for number in range(REPETITIONS):
        stage.hold("t")
        stage.write(b"%d" % number)
        reader.send(_list_request((0, LATEST)), 7)
        stage.until_looked_up("t")
        stage.heal()
        assert _only(reader.receive()).offset == number + 1


def test_a_look_up_of_many_partitions_waits_for_all_at_once(
    stage: Stage, reader: RawClient
) -> None:
    for index in (0, 1):
        stage.write(b"there", index=index)
        stage.until_synced("t", 1, index)
    for index in (0, 1):
        stage.hold("t", index)
        stage.write(b"later", index=index)
    reader.send(_list_request((0, LATEST), (1, LATEST), (0, EARLIEST), (7, LATEST)), 7)
    stage.until_looked_up("t", 0)
    stage.until_looked_up("t", 1)
    stage.heal()
    answers = reader.receive().topics[0].partitions
    assert [(answer.partition_index, answer.offset) for answer in answers] == [
        (0, 2),
        (1, 2),
        (0, 0),
        (7, -1),
    ]
    assert answers[-1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_nobody_waits_for_what_is_written_after_they_came(stage: Stage, reader: RawClient) -> None:
    stage.hold("t")
    stage.write(b"before")
    stage.broker.disk.wait_until_held()
    reader.send(_list_request((0, LATEST)), 7)
    stage.until_looked_up("t")
    # The sync under way does not hold what comes now: that has to wait for the next.
    stage.write(b"after", b"after")
    (entry,) = (entry for entry in stage.partition("t").waiters.commits)
    assert entry[0] == 1
    stage.heal()
    assert _only(reader.receive()).offset in (1, 3)


def test_the_beginning_and_quiet_partitions_are_told_at_once(
    stage: Stage, reader: RawClient
) -> None:
    stage.write(b"quiet", index=1)
    stage.until_synced("t", 1, 1)
    stage.hold("t")
    stage.write(b"a")
    # The sync is held, and every one of these is answered.
    assert list_offset(reader, "t", EARLIEST).offset == 0
    assert list_offset(reader, "t", -4, version=8).offset == 0
    assert list_offset(reader, "t", -5, version=9).offset == -1
    assert _only(reader.ask(_list_request((1, LATEST)), 7)).offset == 1
    assert _only(reader.ask(_delete_request(0), 2)).low_watermark == 0
    assert _only(reader.ask(_delete_request(2), 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_many_look_ups_of_one_end_are_one_entry(stage: Stage) -> None:
    stage.hold("t")
    stage.write(b"a")
    readers = [RawClient(stage.broker.bootstrap) for _ in range(5)]
    for reader in readers:
        reader.send(_list_request((0, LATEST)), 7)
    until(lambda: stage.look_ups("t") == [5], "five look-ups in one entry")
    stage.heal()
    for reader in readers:
        assert _only(reader.receive()).offset == 1
        reader.socket.close()


@pytest.mark.parametrize("request_of", [_list_request, _delete_request])
def test_a_disk_that_stands_still_does_not_hold_a_look_up(
    stage: Stage,
    reader: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    request_of: Callable[..., Any],
) -> None:
    monkeypatch.undo()  # The wait is as long as for everybody.
    stage.write(b"there")
    stage.until_synced("t", 1)
    stage.hold("t")
    stage.write(b"later")
    if request_of is _list_request:
        assert _only(reader.ask(_list_request((0, LATEST)), 7)).offset == 1
        assert _only(reader.ask(_list_request((0, MAX_TIMESTAMP)), 7)).offset == 0
    else:
        assert _only(reader.ask(_delete_request(-1), 2)).low_watermark == 1
        assert _only(reader.ask(_delete_request(2), 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert not any(stage.look_ups("t")), "who has been answered is forgotten"


def test_a_sync_that_fails_ends_the_wait_with_what_is_committed(
    stage: Stage, reader: RawClient
) -> None:
    stage.write(b"kept")
    stage.until_synced("t", 1)
    stage.hold("t")
    stage.write(b"lost")
    reader.send(_list_request((0, LATEST)), 7)
    stage.until_looked_up("t")
    stage.fail("sync", "t")
    assert _only(reader.receive()).offset == 1


def test_a_topic_that_goes_meanwhile_is_unknown(stage: Stage, reader: RawClient) -> None:
    stage.hold("t")
    stage.write(b"a")
    reader.send(_list_request((0, LATEST)), 7)
    stage.until_looked_up("t")
    stage.client.send(DeleteTopicsRequest([DeleteTopicState("t")], timeout_ms=5000), 6)
    assert _only(reader.receive()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stage.heal()
    stage.client.receive()


def test_where_an_epoch_ends_is_the_end_of_the_log(stage: Stage, reader: RawClient) -> None:
    """Who reads from after the high watermark has not lost anything."""
    stage.hold("t")
    stage.write(b"a")
    epoch = stage.partition("t").leader_epoch
    asked = OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, leader_epoch=epoch)])
    reply = reader.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=[asked]), 4)
    assert (_only(reply).leader_epoch, _only(reply).end_offset) == (epoch, 1)


# --------------------------------------------------------------- fetches from what is not synced


def _answers(reply: Any) -> list[Any]:
    return [partition for topic in reply.responses for partition in topic.partitions]


def test_between_the_high_watermark_and_the_end_a_fetch_is_empty(
    stage: Stage, reader: RawClient
) -> None:
    stage.hold("t")
    stage.write(b"a", b"b")
    for offset in (0, 1, 2):
        answer = fetch(reader, "t", offset)
        assert (answer.error_code, answer.records, answer.high_watermark) == (0, b"", 0)
    for offset in (-1, 3):
        assert fetch(reader, "t", offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_such_a_fetch_waits_and_is_woken_by_the_sync(stage: Stage, reader: RawClient) -> None:
    stage.hold("t")
    stage.write(b"before")
    stage.write(b"wanted")
    reader.send(fetch_request("t", {0: 1}, max_wait_ms=20_000), 12)
    stage.until_fetched("t")
    stage.heal()
    (answer,) = _answers(reader.receive())
    assert values_in(answer.records) == [b"wanted"]


def test_a_fetch_from_the_end_waits_beyond_the_sync_of_what_is_before_it(
    stage: Stage, reader: RawClient
) -> None:
    stage.hold("t")
    stage.write(b"before" * 1000)
    reader.send(fetch_request("t", {0: 1}, max_wait_ms=20_000), 12)
    stage.until_fetched("t")
    stage.heal()
    stage.until_synced("t", 1)
    assert stage.partition("t").waiters.fetches, "what is before its offset is nothing to it"
    stage.write(b"wanted")
    (answer,) = _answers(reader.receive())
    assert values_in(answer.records) == [b"wanted"]


def test_bytes_before_the_offset_do_not_count_as_min_bytes(stage: Stage, reader: RawClient) -> None:
    stage.hold("t")
    stage.write(b"before" * 1000)
    stage.write(b"wanted")
    request = fetch_request("t", {0: 1}, max_wait_ms=20_000, min_bytes=2000)
    reader.send(request, 12)
    stage.until_fetched("t")
    stage.heal()
    stage.until_synced("t", 2)
    assert stage.partition("t").waiters.fetches, "not enough yet"
    stage.write(b"x" * 1000)
    stage.until_synced("t", 3)
    assert stage.partition("t").waiters.fetches, "not enough yet"
    stage.write(b"y" * 1000)
    (answer,) = _answers(reader.receive())
    assert values_in(answer.records) == [b"wanted", b"x" * 1000, b"y" * 1000]


def test_such_a_fetch_is_over_with_its_time(stage: Stage, reader: RawClient) -> None:
    stage.hold("t")
    stage.write(b"a", b"b")
    answer = fetch(reader, "t", 1, max_wait_ms=50)
    assert (answer.error_code, answer.records) == (0, b"")


def test_one_partition_waits_and_another_has_data(stage: Stage, reader: RawClient) -> None:
    stage.write(b"there", index=1)
    stage.until_synced("t", 1, 1)
    stage.hold("t")
    stage.write(b"a")
    request = fetch_request("t", {0: 1, 1: 0}, max_wait_ms=20_000)
    ahead, other = _answers(reader.ask(request, 12))
    assert (ahead.error_code, ahead.records) == (0, b"")
    assert values_in(other.records) == [b"there"]


def test_data_of_another_partition_wakes_a_fetch_that_waits(
    stage: Stage, reader: RawClient
) -> None:
    stage.broker.create_topic("unsynced", configs={"write.caching": "true"})
    stage.hold("t")
    stage.write(b"a")
    request = fetch_request("t", {0: 1}, max_wait_ms=20_000)
    request.topics += fetch_request("unsynced", {0: 0}).topics
    reader.send(request, 12)
    stage.until_fetched("t")
    assert produce(stage.client, "unsynced", batch(b"there"), acks=1).error_code == 0
    ahead, other = _answers(reader.receive())
    assert (ahead.error_code, ahead.records, ahead.high_watermark) == (0, b"", 0)
    assert values_in(other.records) == [b"there"]


def test_a_session_waits_too_and_tells_only_what_is_new(stage: Stage, reader: RawClient) -> None:
    opened = reader.ask(fetch_request("t", {0: 0, 1: 0}, session_epoch=0), 12)
    stage.hold("t")
    stage.write(b"before")
    stage.write(b"wanted")
    session = opened.session_id
    moved = fetch_request("t", {0: 1}, session_id=session, session_epoch=1)
    assert _answers(reader.ask(moved, 12)) == []
    request = FetchRequest(max_wait_ms=20_000, min_bytes=1, session_id=session, session_epoch=2)
    reader.send(request, 12)
    stage.until_fetched("t")
    stage.heal()
    (answer,) = _answers(reader.receive())
    assert (answer.partition_index, values_in(answer.records)) == (0, [b"wanted"])


def test_a_failed_sync_takes_the_end_back_under_a_fetch_that_waits(
    stage: Stage, reader: RawClient
) -> None:
    stage.write(b"kept")
    stage.until_synced("t", 1)
    stage.hold("t")
    stage.write(b"lost", b"lost")
    reader.send(fetch_request("t", {0: 3}, max_wait_ms=20_000), 12)
    stage.until_fetched("t")
    stage.fail("sync", "t")
    (answer,) = _answers(reader.receive())
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert stage.partition("t").end_offset == 1


def test_a_refused_write_takes_the_end_back_under_a_fetch_that_waits(
    stage: Stage, reader: RawClient
) -> None:
    stage.write(b"kept")
    stage.until_synced("t", 1)
    stage.hold("t")
    stage.write(b"written")
    until(lambda: stage.partition("t").flusher.is_slow, "writes that go through a thread")
    stage.broker.disk.hold("write", under=stage.path("t"))
    stage.client.send(produce_request("t", {0: batch(b"lost")}, acks=1), 12)
    until(lambda: stage.partition("t").end_offset == 3, "a batch on its way")
    reader.send(fetch_request("t", {0: 3}, max_wait_ms=20_000), 12)
    stage.until_fetched("t")
    stage.fail("write", "t")
    (answer,) = _answers(reader.receive())
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(reader, "t", 2).error_code == 0
    refused = stage.client.receive().responses[0].partition_responses[0]
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
