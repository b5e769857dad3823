"""A disk that is full, slow, or stands still: the node says so, goes on, and recovers."""

from __future__ import annotations

import asyncio
import errno
import json
import resource
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.storage import checkpoints
from ottla.errors import ErrorCode
from ottla.log.producer_state import Producer
from ottla.testing import Broker
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from raw_client import RawClient
from records_kit import (
    batch,
    fetch,
    fetch_request,
    list_offset,
    produce,
    produce_request,
    values_in,
)
from scenarios.in_process import BrokerInside

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def _limit_file_bytes(broker: Broker, byte_count: int) -> None:
    """From here on no file of the broker may grow beyond this: the disk is full."""
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (byte_count, resource.RLIM_INFINITY))


def _readiness(broker: Broker) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"{broker.http}/readyz", timeout=10) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_full_disk_refuses_writes_and_recovers_when_there_is_room(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory()
    broker.create_topic("full")
    broker.create_topic("other")
    value = b"x" * 40_000
    with RawClient(broker.bootstrap) as client:
        assert produce(client, "full", batch(value)).base_offset == 0
        _limit_file_bytes(broker, 60_000)
        for acks in (-1, 1):
            refused = produce(client, "full", batch(value), acks=acks)
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert _readiness(broker)[0] == 503
        assert values_in(fetch(client, "full", 0).records) == [value]
        assert produce(client, "other", batch(b"small")).error_code == 0
        _limit_file_bytes(broker, resource.RLIM_INFINITY)
        while _readiness(broker)[0] != 200:
            assert broker.is_running
        assert produce(client, "full", batch(b"again")).base_offset == 1
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap) as client:
        assert values_in(fetch(client, "full", 0).records) == [value, b"again"]


def test_a_refused_batch_leaves_no_trace_in_the_producers_sequence(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory()
    broker.create_topic("exact")

    def sequenced(first: int, value: bytes) -> bytearray:
        return batch(value, producer_id=7, producer_epoch=0, base_sequence=first)

    with RawClient(broker.bootstrap) as client:
        assert produce(client, "exact", sequenced(0, b"a" * 30_000)).error_code == 0
        _limit_file_bytes(broker, 40_000)
        refused = produce(client, "exact", sequenced(1, b"b" * 30_000))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        _limit_file_bytes(broker, resource.RLIM_INFINITY)
        answer = produce(client, "exact", sequenced(1, b"b" * 30_000))
        assert (answer.error_code, answer.base_offset) == (0, 1)
        assert list_offset(client, "exact", -1).offset == 2


def test_metadata_that_cannot_be_written_is_refused_and_not_believed(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    broker = ottla_broker_factory()
    broker.create_topic("before")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    _limit_file_bytes(broker, 10)
    refused = admin.create_topics([NewTopic("never", 1, 1)], request_timeout=10)["never"]
    with pytest.raises(KafkaException):
        refused.result(20)
    assert set(admin.list_topics(timeout=10).topics) == {"before"}
    _limit_file_bytes(broker, resource.RLIM_INFINITY)
    created = False
    while not created:
        try:
            admin.create_topics([NewTopic("after", 1, 1)], request_timeout=10)["after"].result(20)
            created = True
        except KafkaException:
            # The controller reads its log again first.
            continue
    broker.restart()
    assert set(admin.list_topics(timeout=10).topics) == {"before", "after"}


# ------------------------------------------------------------------------- a disk that stands still


def _timed(
    topic: str, partition: int, data: bytes | bytearray, *, acks: int = -1, timeout_ms: int = 300
) -> ProduceRequest:
    request = produce_request(topic, {partition: data}, acks=acks)
    request.timeout_ms = timeout_ms
    return request


def _answer(reply: Any) -> Any:
    return reply.responses[0].partition_responses[0]


def _sequenced(first: int, value: bytes) -> bytearray:
    return batch(value, producer_id=7, producer_epoch=0, base_sequence=first)


def _fetch_one(client: RawClient, topic: str, partition: int) -> list[bytes | None]:
    reply = client.ask(fetch_request(topic, {partition: 0}, partition_max_bytes=1 << 24), 12)
    (answer,) = reply.responses[0].partitions
    assert answer.error_code == 0
    return values_in(answer.records)


def _one_on_each(broker: BrokerInside, client: RawClient, *directories: Path) -> list[int]:
    """Of the topic `t`, a partition in each of the directories."""
    broker.create_topic("t", 2)
    described = client.ask(DescribeLogDirsRequest(topics=None), 4).results
    at = {r.log_dir: t.partitions[0].partition_index for r in described for t in r.topics}
    return [at[str(directory)] for directory in directories]


class _Member:
    """One member of a group, in raw frames."""

    def __init__(self, client: RawClient, group: str) -> None:
        self._client = client
        self._group = group
        found = client.ask(FindCoordinatorRequest(key=group), 3)
        assert found.error_code == 0
        joining = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"")],
        )
        joined = client.ask(joining, 3)
        assert joined.error_code == 0
        self._generation, self._id = joined.generation_id, joined.member_id
        share = SyncGroupRequestAssignment(self._id, b"all")
        syncing = SyncGroupRequest(
            group_id=group,
            generation_id=self._generation,
            member_id=self._id,
            assignments=[share],
        )
        assert client.ask(syncing, 3).error_code == 0

    def commit(self, offset: int) -> int:
        position = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._id,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[position])],
        )
        reply = self._client.ask(request, 8)
        code: int = reply.topics[0].partitions[0].error_code
        return code

    def heartbeat(self) -> int:
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self._generation, member_id=self._id
        )
        code: int = self._client.ask(request, 3).error_code
        return code


@pytest.mark.parametrize("also_held", ["write", "nothing else"])
def test_while_a_disk_stands_still_all_else_goes_on(tmp_path: Path, also_held: str) -> None:
    good, stuck = tmp_path / "good", tmp_path / "stuck"
    with (
        BrokerInside(good, stuck) as broker,
        RawClient(broker.bootstrap) as client,
        RawClient(broker.bootstrap) as other,
    ):
        on_good, on_stuck = _one_on_each(broker, client, good, stuck)
        member = _Member(client, "g")
        for partition in (on_good, on_stuck):
            assert produce(client, "t", _sequenced(0, b"0"), partition=partition).error_code == 0
        broker.disk.hold("sync", under=str(stuck))
        late = _answer(other.ask(_timed("t", on_stuck, _sequenced(1, b"1")), 9))
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
        # By now the sync has been under way for long: what comes must not stop the loop.
        broker.disk.hold(also_held, under=str(stuck))
        for acks in (-1, 1):
            other.send(_timed("t", on_stuck, batch(b"later"), acks=acks, timeout_ms=1500), 9)
        for _ in range(3):
            assert member.heartbeat() == 0
            assert _fetch_one(client, "t", on_stuck) == [b"0"]
            assert client.ask(MetadataRequest(topics=None), 9).topics
            assert client.ask(DescribeLogDirsRequest(topics=None), 4).results[1].error_code == 0
            assert produce(client, "t", batch(b"x"), partition=on_good).error_code == 0
        assert _answer(other.receive()).error_code == ErrorCode.REQUEST_TIMED_OUT
        is_written = also_held != "write"
        expected = 0 if is_written else ErrorCode.REQUEST_TIMED_OUT
        assert _answer(other.receive()).error_code == expected
        assert _fetch_one(client, "t", on_stuck) == [b"0"], "nobody sees what is not on disk"
        broker.disk.heal()
        again = produce(client, "t", _sequenced(1, b"1"), partition=on_stuck)
        assert (again.error_code, again.base_offset) == (0, 1), "it is there, once"
        assert produce(client, "t", _sequenced(2, b"2"), partition=on_stuck).base_offset == 4
        assert _fetch_one(client, "t", on_stuck) == [b"0", b"1", b"later", b"later", b"2"]
        assert broker.readiness()[0] == 200


def test_a_commit_does_not_wait_for_ever_for_a_disk_that_stands_still(tmp_path: Path) -> None:
    with (
        BrokerInside(tmp_path / "a", offsets_commit_timeout_ms=300) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        broker.create_topic("t")
        member = _Member(client, "g")
        assert member.commit(1) == 0
        broker.disk.hold("sync", under=str(tmp_path / "a"))
        for offset in (2, 3):
            assert member.commit(offset) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        # It rests on what is not on disk yet.
        assert member.heartbeat() == ErrorCode.COORDINATOR_NOT_AVAILABLE
        broker.disk.heal()
        assert member.commit(4) == 0
        assert member.heartbeat() == 0


def test_a_real_producer_delivers_once_through_a_disk_that_stands_still(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    with BrokerInside(tmp_path / "a") as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t")
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "request.timeout.ms": 200,
                "retry.backoff.ms": 50,
                "linger.ms": 1,
            }
        )
        outcomes: list[Any] = []
        values = [b"%d" % number for number in range(300)]
        for value in values[:100]:
            producer.produce("t", value, on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(20) == 0
        broker.disk.hold("sync", under=str(tmp_path / "a" / "t-0"))
        for value in values[100:]:
            producer.produce("t", value, on_delivery=lambda error, _: outcomes.append(error))
            producer.poll(0)
        broker.disk.wait_until_held()
        # This one waits as long as several of the producer's requests, one after the other.
        late = _answer(client.ask(_timed("t", 0, batch(b"late"), timeout_ms=1200), 9))
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
        broker.disk.heal()
        assert producer.flush(20) == 0
        assert outcomes == [None] * len(values)
        found = _fetch_one(client, "t", 0)
        assert [value for value in found if value != b"late"] == values


def test_a_partitions_first_files_are_not_made_on_the_loop(tmp_path: Path) -> None:
    good, stuck = tmp_path / "good", tmp_path / "stuck"
    with (
        BrokerInside(good, stuck) as broker,
        RawClient(broker.bootstrap) as client,
        RawClient(broker.bootstrap) as other,
    ):
        on_good, on_stuck = _one_on_each(broker, client, good, stuck)
        broker.disk.hold("open", under=str(stuck))
        other.send(_timed("t", on_stuck, batch(b"first"), timeout_ms=200), 9)
        broker.disk.wait_until_held()
        assert produce(client, "t", batch(b"x"), partition=on_good).error_code == 0
        assert _answer(other.receive()).error_code == ErrorCode.REQUEST_TIMED_OUT
        broker.disk.heal()
        assert produce(client, "t", batch(b"second"), partition=on_stuck).base_offset == 1
        assert _fetch_one(client, "t", on_stuck) == [b"first", b"second"]


@pytest.mark.parametrize("held", ["open", "write"])
def test_a_checkpoint_that_waits_for_the_disk_holds_up_nobody_else(
    tmp_path: Path, held: str
) -> None:
    settings = {"log_flush_offset_checkpoint_interval_ms": 50}
    with BrokerInside(tmp_path / "data", **settings) as broker:
        for topic in ("t", "other"):
            broker.create_topic(topic)
        with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as other:
            assert produce(client, "other", batch(b"0")).error_code == 0
            assert produce(client, "t", _sequenced(0, b"0")).error_code == 0
            # Only files that no batch goes to: what is held is a checkpoint's.
            for path in (f"{n:020d}.snapshot" for n in range(1, 20)):
                broker.disk.hold(held, under=str(tmp_path / "data" / "t-0" / path))
            broker.disk.hold(held, under=str(tmp_path / "data/t-0/leader-epoch-checkpoint"))
            sequence = 0
            while not broker.disk.is_holding:
                sequence = min(sequence + 1, 18)
                other.ask(_timed("t", 0, _sequenced(sequence, b"%d" % sequence)), 9)
            for number in range(1, 20):
                assert produce(client, "other", batch(b"x")).base_offset == number
                assert _fetch_one(client, "t", 0)[0] == b"0"
            broker.disk.heal()
            assert list_offset(client, "t", -1).offset > 1


def test_idle_producers_are_forgotten_some_at_a_time(tmp_path: Path) -> None:
    settings = {"producer_id_expiration_ms": 1}
    with BrokerInside(tmp_path / "data", **settings) as broker:
        broker.create_topic("t")
        partition = broker.node._partitions.get("t", 0)
        log, count = partition._log, 4 * checkpoints.PRODUCERS_AT_ONCE
        idle = Producer(epoch=0, spans=(), last_seen_ms=0)

        async def expire() -> int:
            log._producers._producers = dict.fromkeys(range(count), idle)
            expiring = asyncio.ensure_future(broker.node._checkpoints._expire_producers())
            turns = 0
            while not expiring.done():
                await asyncio.sleep(0)
                turns += 1
            return turns

        assert broker.call(expire()) >= 4
        assert partition.producer_ids() == []


def test_the_first_append_after_a_start_reads_its_indexes_in_a_thread(tmp_path: Path) -> None:
    good, stuck = tmp_path / "good", tmp_path / "stuck"
    with BrokerInside(good, stuck) as broker, RawClient(broker.bootstrap) as client:
        on_good, on_stuck = _one_on_each(broker, client, good, stuck)
        for partition in (on_good, on_stuck):
            assert produce(client, "t", _sequenced(0, b"0"), partition=partition).error_code == 0
    with (
        BrokerInside(good, stuck) as broker,
        RawClient(broker.bootstrap) as client,
        RawClient(broker.bootstrap) as other,
    ):
        broker.disk.hold("read", under=str(stuck))
        for sequence in (1, 2):
            other.send(_timed("t", on_stuck, _sequenced(sequence, b"x")), 9)
        broker.disk.wait_until_held()
        assert produce(client, "t", _sequenced(1, b"1"), partition=on_good).base_offset == 1
        for _ in range(2):
            assert _answer(other.receive()).error_code == ErrorCode.REQUEST_TIMED_OUT
        broker.disk.heal()
        assert produce(client, "t", _sequenced(1, b"1"), partition=on_stuck).base_offset == 1
        assert _fetch_one(client, "t", on_stuck) == [b"0", b"1"]


def test_a_disk_that_stands_still_does_not_hold_all_the_brokers_memory(tmp_path: Path) -> None:
    good, stuck = tmp_path / "good", tmp_path / "stuck"
    in_flight = 8 * 1024 * 1024
    with (
        BrokerInside(good, stuck, queued_max_request_bytes=in_flight) as broker,
        RawClient(broker.bootstrap) as client,
        RawClient(broker.bootstrap) as other,
    ):
        on_good, on_stuck = _one_on_each(broker, client, good, stuck)
        assert produce(client, "t", batch(b"0"), partition=on_stuck).error_code == 0
        broker.disk.hold("sync", under=str(stuck))
        value = b"x" * 300_000
        code = _answer(other.ask(_timed("t", on_stuck, batch(value)), 9)).error_code
        broker.disk.hold("write", under=str(stuck))
        sent = 0
        while code == ErrorCode.REQUEST_TIMED_OUT:
            code = _answer(
                other.ask(_timed("t", on_stuck, batch(value), timeout_ms=100), 9)
            ).error_code
            sent += len(value)
            assert sent < in_flight, "bytes wait without end"
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(client, "t", batch(b"x"), partition=on_good).error_code == 0
        broker.disk.heal()
        while produce(client, "t", batch(b"end"), partition=on_stuck).error_code:
            continue
        values = _fetch_one(client, "t", on_stuck)
        assert values[0] == b"0"
        assert values.count(value) == len(values) - 2


def test_a_sync_that_fails_without_a_broken_disk_fences_and_heals(tmp_path: Path) -> None:
    """Delayed allocation: a disk may say only at the sync that it is full."""
    settings = {"log_flush_offset_checkpoint_interval_ms": 100}
    with BrokerInside(tmp_path / "a", **settings) as broker:
        broker.create_topic("t")
        with RawClient(broker.bootstrap) as client:
            assert produce(client, "t", _sequenced(0, b"kept")).error_code == 0
            broker.disk.fail("sync", errno.ENOSPC, under=str(tmp_path / "a" / "t-0"), times=1)
            refused = produce(client, "t", _sequenced(1, b"lost"))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            while (again := produce(client, "t", _sequenced(1, b"anew"))).error_code:
                assert again.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert again.base_offset == 1, "not a repetition of what is not on disk"
            assert values_in(fetch(client, "t", 0).records) == [b"kept", b"anew"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for 4 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine does not let us mount: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_real_full_file_system_refuses_and_heals_while_the_other_goes_on(
    tmp_path: Path, small: Path
) -> None:
    roomy, full = tmp_path / "roomy", small / "data"
    value = b"x" * 200_000
    with BrokerInside(roomy, full) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", 2)
        described = client.ask(DescribeLogDirsRequest(topics=None), 4).results
        assert described[0].usable_bytes > described[1].usable_bytes
        places = [(r.log_dir, len(t.partitions)) for r in described for t in r.topics]
        assert places == [(str(roomy), 2)], "new partitions go to the least full"
    with (
        BrokerInside(full, metadata_log_dir=roomy) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        broker.create_topic("u", 1)
        (small / "filler").write_bytes(bytes(2 * 1024 * 1024))
        acknowledged = 0
        while not (answer := produce(client, "u", batch(value))).error_code:
            acknowledged += 1
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert acknowledged > 0
        assert set(_fetch_one(client, "u", 0)) == {value}
        assert broker.readiness()[0] == 503
        (small / "filler").unlink()
        while broker.readiness()[0] != 200:
            continue
        assert produce(client, "u", batch(b"again")).base_offset == acknowledged
    with (
        BrokerInside(full, metadata_log_dir=roomy) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        assert list_offset(client, "u", -1).offset == acknowledged + 1
