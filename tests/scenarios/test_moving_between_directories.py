"""Replicas move from one disk of a node to another while clients write and read."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from raw_client import RawClient
from records_kit import batch, fetch_request, list_offset, produce, values_in
from scenarios.in_process import BrokerInside
from scenarios.polling import until

PATIENCE_S = 90.0
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"


def ask_move(client: RawClient, topic: str, index: int, path: object, version: int = 2) -> int:
    wanted = AlterReplicaLogDir(str(path), [AlterReplicaLogDirTopic(topic, [index])])
    reply = client.ask(AlterReplicaLogDirsRequest(dirs=[wanted]), version)
    (result,) = reply.results
    assert (result.topic_name, result.partitions[0].partition_index) == (topic, index)
    code: int = result.partitions[0].error_code
    return code


def places(client: RawClient, topic: str, index: int = 0) -> dict[str, Any]:
    """In which directories it lies, under "now" and "future"."""
    reply = client.ask(DescribeLogDirsRequest(topics=None), 4)
    return {
        "future" if one.is_future_key else "now": (result.log_dir, one)
        for result in reply.results
        for each in result.topics
        if each.name == topic
        for one in each.partitions
        if one.partition_index == index
    }


def lies_in(client: RawClient, topic: str, path: object, index: int = 0) -> bool:
    found = places(client, topic, index)
    return found.keys() == {"now"} and found["now"][0] == str(path)


def throttle(client: RawClient, rate: str | None) -> None:
    change = AlterableConfig(THROTTLE, 1 if rate is None else 0, rate)
    request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(4, "1", [change])])
    assert client.ask(request, 1).responses[0].error_code == 0


def everything(client: RawClient, topic: str, start: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        request = fetch_request(topic, {0: start + len(found)})
        answer = client.ask(request, 12).responses[0].partitions[0]
        assert answer.error_code == 0
        values = values_in(answer.records)
        if not values:
            return found
        found += values


def here_and_there(client: RawClient, topic: str, a: Path, b: Path) -> tuple[Path, Path]:
    return (a, b) if places(client, topic)["now"][0] == str(a) else (b, a)


def broker_on(*directories: Path, **settings: object) -> Broker:
    named = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return Broker({"log.dirs": ",".join(map(str, directories)), **named}, data_dir=directories[0])


def delete_before(client: RawClient, topic: str, offset: int) -> None:
    asked = DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, offset)])
    answer = client.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=10_000), 2)
    assert answer.topics[0].partitions[0].low_watermark == offset


def fill(client: RawClient, topic: str, count: int, size: int) -> list[bytes | None]:
    values: list[bytes | None] = [b"%d" % at + b"." * size for at in range(count)]
    for value in values:
        assert produce(client, topic, batch(value)).error_code == 0
    return values


@contextmanager
def producing(bootstrap: str, topic: str) -> Iterator[list[int]]:
    """An idempotent librdkafka all the time; the offsets that were acknowledged, in order."""
    offsets: list[int] = []
    failed: list[str] = []
    is_over = threading.Event()

    def take(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            assert message.value() == b"%d" % message.offset(), "lost, doubled or out of order"
            offsets.append(message.offset())

    def run() -> None:
        settings = {"enable.idempotence": True, "log_level": 0, "linger.ms": 1}
        producer = Producer({"bootstrap.servers": bootstrap, **settings})
        sent = 0
        while not is_over.wait(0.001):
            for number in range(sent, sent + 10):
                producer.produce(topic, b"%d" % number, partition=0, callback=take)
            sent += 10
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0

    load = threading.Thread(target=run)
    load.start()
    try:
        yield offsets
    finally:
        is_over.set()
        load.join()
    assert not failed


def test_a_log_moves_there_and_back_under_load_and_nobody_notices(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with broker_on(a, b, log_segment_bytes=20_000) as broker:
        broker.create_topic("t")
        with RawClient(broker.bootstrap) as client:
            here, there = here_and_there(client, "t", a, b)
            with producing(broker.bootstrap, "t") as offsets:
                for source, target in ((here, there), (there, here), (here, there)):
                    before = len(offsets)
                    until(lambda b=before: len(offsets) > b + 1000, "nothing is sent", PATIENCE_S)
                    assert ask_move(client, "t", 0, target) == 0
                    arrived = lambda to=target: lies_in(client, "t", to)  # noqa: E731
                    until(arrived, "it never arrives", PATIENCE_S)
                    gone = lambda at=source: not list(at.glob("t-0*"))  # noqa: E731
                    until(gone, "the old files remain", PATIENCE_S)
            count = len(offsets)
            assert offsets == list(range(count))
            assert len(list(there.glob("t-0/*.log"))) > 1
            until(lambda: not (there / "t-0" / "ottla-moved").exists(), "the mark stays")
            assert everything(client, "t") == [b"%d" % number for number in range(count)]
            # By time as well: its indexes came along.
            assert list_offset(client, "t", 0).offset == 0
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert lies_in(client, "t", there)
            assert everything(client, "t") == [b"%d" % number for number in range(count)]
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": 0}
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        assert len(consumer.consume(count, timeout=PATIENCE_S)) == count
        consumer.close()


def test_a_throttled_move_is_seen_goes_on_after_kill_9_and_ends_when_the_throttle_is_lifted(
    tmp_path: Path,
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with broker_on(a, b) as broker:
        broker.create_topic("t")
        with RawClient(broker.bootstrap) as client:
            here, there = here_and_there(client, "t", a, b)
            values = fill(client, "t", 12, 100_000)
            delete_before(client, "t", 3)
            throttle(client, "1")
            assert ask_move(client, "t", 0, there) == 0
            found = places(client, "t")
            assert (found["now"][0], found["future"][0]) == (str(here), str(there))
            assert found["future"][1].offset_lag == 9, "it has copied next to nothing"
            assert found["now"][1].offset_lag == 0
        assert len(list(there.glob("t-0.*-future"))) == 1
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert places(client, "t")["future"][0] == str(there), "nobody knows of the move"
            assert everything(client, "t", 3) == values[3:]
            throttle(client, None)
            until(lambda: lies_in(client, "t", there), "it never arrives", PATIENCE_S)
            until(lambda: not list(here.glob("t-0*")), "the old files remain", PATIENCE_S)
            assert list_offset(client, "t", -2).offset == 3, "what was deleted is back"
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            assert lies_in(client, "t", there)
            assert list_offset(client, "t", -2).offset == 3, "what was deleted is back"
            assert everything(client, "t", 3) == values[3:]


def test_who_names_the_directory_it_lies_in_stops_the_move_and_another_replaces_it(
    tmp_path: Path,
) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    with broker_on(a, b, c) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t")
        values = fill(client, "t", 8, 100_000)
        here = Path(places(client, "t")["now"][0])
        first, second = (each for each in (a, b, c) if each != here)
        throttle(client, "1")
        assert ask_move(client, "t", 0, first) == 0
        assert ask_move(client, "t", 0, first) == 0, "it is on its way already"
        assert len(list(first.glob("t-0.*-future"))) == 1
        assert ask_move(client, "t", 0, second) == 0
        assert places(client, "t")["future"][0] == str(second)
        assert not list(first.glob("t-0.*-future")), "a start would go on with it"
        assert ask_move(client, "t", 0, here) == 0
        assert lies_in(client, "t", here)
        assert not list(second.glob("t-0.*-future")), "a start would go on with it"
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as again:
            assert lies_in(again, "t", here)
            assert everything(again, "t") == values


def test_what_cannot_be_moved_is_refused_with_kafkas_codes(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    long_name = "n" * 240
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", 2)
        broker.create_topic(long_name)
        fill(client, "t", 1, 10)
        here, there = here_and_there(client, "t", a, b)
        for version in (1, 2):
            assert ask_move(client, "t", 0, "/nowhere", version) == ErrorCode.LOG_DIR_NOT_FOUND
        assert ask_move(client, "t", 9, there) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert ask_move(client, "none", 0, there) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert ask_move(client, "__cluster_metadata", 0, there) == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        too_long = ask_move(client, long_name, 0, there)
        assert too_long == ErrorCode.INVALID_TOPIC_EXCEPTION
        # The one that cannot be does not stop its neighbour.
        several = [
            AlterReplicaLogDir("/nowhere", [AlterReplicaLogDirTopic("t", [1])]),
            AlterReplicaLogDir(f"{there}/", [AlterReplicaLogDirTopic("t", [0])]),
        ]
        reply = client.ask(AlterReplicaLogDirsRequest(dirs=several), 2)
        codes = {one.partition_index: one.error_code for one in reply.results[0].partitions}
        assert codes == {0: 0, 1: ErrorCode.LOG_DIR_NOT_FOUND}
        until(lambda: lies_in(client, "t", there), "it never arrives", PATIENCE_S)
        if here != a:
            return  # The metadata lies in the first: without that one there is no broker.
        broker.disk.fail("sync", errno.EIO, under=str(there))
        assert produce(client, "t", batch(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert ask_move(client, "t", 0, here) == ErrorCode.KAFKA_STORAGE_ERROR
        assert ask_move(client, "t", 1, there) == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_a_target_that_refuses_leaves_the_partition_where_it_is(
    tmp_path: Path, operation: str
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t")
        values = fill(client, "t", 4, 200_000)
        here, there = here_and_there(client, "t", a, b)
        throttle(client, "1")
        assert ask_move(client, "t", 0, there) == 0
        broker.disk.fail(operation, errno.ENOSPC, under=str(there))
        throttle(client, None)
        # So many are refused that it has been tried.
        for number in range(30):
            more = produce(client, "t", batch(b"%d" % number))
            assert more.error_code == 0, "who writes notices the move"
            values.append(b"%d" % number)
        assert places(client, "t")["now"][0] == str(here)
        assert everything(client, "t") == values
        broker.disk.heal()
        until(lambda: lies_in(client, "t", there), "it never arrives", PATIENCE_S)
        assert everything(client, "t") == values


def test_the_controller_is_told_where_a_replica_lies_until_it_knows(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with BrokerInside(a, b) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t")
        fill(client, "t", 1, 10)
        node = broker.node
        for _ in range(2):
            _, there = here_and_there(client, "t", a, b)
            (target,) = (store for store in node._stores if store.path == str(there))
            assert ask_move(client, "t", 0, there) == 0
            until(lambda to=there: lies_in(client, "t", to), "it never arrives", PATIENCE_S)

            def is_known(directory_id: bytes = target.directory_id) -> bool:
                topic = node._metadata.image.topics_by_name["t"]
                return topic.partitions[0].directories == (directory_id,)

            until(is_known, "the metadata has it elsewhere", PATIENCE_S)


def log_bytes(directory: Path) -> int:
    """What its segments hold; compaction takes files away meanwhile."""
    total = 0
    for path in directory.glob("*.log"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_a_compacted_log_moves_while_it_is_compacted(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    settings = {"log_cleaner_backoff_ms": 20, "log_segment_bytes": 5_000}
    with broker_on(a, b, **settings) as broker:
        broker.create_topic(
            "t", configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        )
        latest: dict[bytes, bytes] = {}
        with RawClient(broker.bootstrap) as client:
            for lap in range(6):
                for number in range(100):
                    key, value = b"%d" % (number % 7), b"%d.%d" % (lap, number)
                    assert produce(client, "t", batch(value, key=key)).error_code == 0
                    latest[key] = value
                here, there = here_and_there(client, "t", a, b)
                if lap % 2:
                    # Every other time it is compacted before it moves, else as it happens.
                    until(
                        lambda at=here: log_bytes(at / "t-0") < 10_000, "not compacted", PATIENCE_S
                    )
                assert ask_move(client, "t", 0, there) == 0
                until(lambda to=there: lies_in(client, "t", to), "it never arrives", PATIENCE_S)
                until(lambda at=here: not list(at.glob("t-0*")), "old files remain", PATIENCE_S)
        broker.kill()
        broker.start()
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "g",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        found: dict[bytes, bytes] = {}
        count = 0
        while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
            found[message.key()] = message.value()
            count += 1
        consumer.close()
        assert found == latest
        assert count < 600, "nothing was compacted"
