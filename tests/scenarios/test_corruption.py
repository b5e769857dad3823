"""Files that are not what they were: the damaged partition says so, all the others go on."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.control.shards import java_hash
from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.testing.broker import BrokerFailed
from raw_client import RawClient
from records_kit import batch, fetch, list_offset, produce, values_in

COUNT = 300
QUICK_CHECKPOINTS = {"log_flush_offset_checkpoint_interval_ms": 100}
QUICK_SCRUB = {"log_scrub_bytes_per_second": 1 << 30, "log_scrub_interval_ms": 1}
SMALL_SEGMENTS = {"segment.bytes": 20_000}


def _readiness(broker: Broker) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{broker.http}/readyz", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.dumps(json.load(error))


def _fill(broker: Broker, topic: str) -> None:
    """Values are their own offsets, 100 bytes each, one batch per message."""
    with RawClient(broker.bootstrap) as client:
        for offset in range(COUNT):
            assert produce(client, topic, batch(b"%0100d" % offset)).base_offset == offset


def _segments(broker: Broker, partition: str) -> list[Path]:
    return sorted((broker.data_dir / partition).glob("*.log"))


def _change(path: Path, change: Callable[[bytes], bytes]) -> None:
    """In place, as a disk would; whoever has the file open sees it."""
    data = path.read_bytes()
    changed = change(data)
    with path.open("r+b") as file:
        file.write(changed)
        file.truncate(len(changed))


def _flip(position: int) -> Callable[[bytes], bytes]:
    """A negative position counts from the end."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position] ^= 4
        return bytes(changed)

    return change


def _read(client: RawClient, topic: str, offset: int) -> tuple[int, list[bytes | None]]:
    answer = fetch(client, topic, offset)
    return answer.error_code, values_in(answer.records)


def _consumed(broker: Broker, topic: str, offset: int, count: int) -> list[int]:
    """What a real consumer gets from there on."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "a"})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        found: list[int] = []
        while len(found) < count:
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            value = message.value()
            assert value is not None
            found.append(int(value))
        return found
    finally:
        consumer.close()


def _check_fenced(broker: Broker, topic: str, offset: int, path: Path) -> None:
    status, text = _readiness(broker)
    assert status == 503
    assert str(path) in text
    assert f"offset {offset}" in text
    assert f"offset {offset}:" in broker.log_text()
    with RawClient(broker.bootstrap) as client:
        refused = produce(client, topic, batch(b"more"))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert _read(client, topic, offset) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
        error, values = _read(client, topic, max(0, offset - 2))
        assert error == 0
        assert [int(value or b"") for value in values] == list(range(max(0, offset - 2), offset))
    assert _consumed(broker, topic, 0, offset) == list(range(offset))


def _check_healthy(broker: Broker, topic: str) -> None:
    with RawClient(broker.bootstrap) as client:
        end = list_offset(client, topic, -1).offset
        assert produce(client, topic, batch(b"%d" % end)).base_offset == end
    assert _consumed(broker, topic, 0, end + 1) == list(range(end + 1))


def _broker(factory: Any, **settings: Any) -> Broker:
    broker: Broker = factory(**{**QUICK_CHECKPOINTS, "log_scrub_bytes_per_second": 0, **settings})
    for topic in ("hurt", "well"):
        broker.create_topic(topic, configs=SMALL_SEGMENTS)
        _fill(broker, topic)
    return broker


def _await_recovery_points(broker: Broker) -> None:
    path = broker.data_dir / "recovery-point-offset-checkpoint"
    while f"hurt 0 {COUNT}\n" not in (path.read_text() if path.exists() else ""):
        assert broker.is_running


def test_a_flipped_bit_in_what_was_synced_is_found_after_a_kill(ottla_broker_factory: Any) -> None:
    broker = _broker(ottla_broker_factory)
    _await_recovery_points(broker)
    broker.kill()
    path = _segments(broker, "hurt-0")[-1]
    size = len(path.read_bytes()) // (COUNT - int(path.stem))
    sizes = {file: file.stat().st_size for file in _segments(broker, "hurt-0")}
    _change(path, _flip(-size + 16))
    broker.start()
    _check_fenced(broker, "hurt", COUNT - 1, path)
    _check_healthy(broker, "well")
    assert {file: file.stat().st_size for file in _segments(broker, "hurt-0")} == sizes
    broker.stop()
    _change(path, _flip(-size + 16))
    broker.start()
    assert _readiness(broker)[0] == 200, "who puts the bit back has his partition back"
    _check_healthy(broker, "hurt")


def test_a_file_cut_short_while_the_broker_was_down(ottla_broker_factory: Any) -> None:
    broker = _broker(ottla_broker_factory)
    broker.stop()
    path = _segments(broker, "hurt-0")[1]
    first = int(path.stem)
    _change(path, lambda data: data[:-1])
    broker.start()
    last = int(_segments(broker, "hurt-0")[2].stem) - 1
    assert last > first
    _check_fenced(broker, "hurt", last, path)
    assert _consumed(broker, "hurt", last + 1, COUNT - last - 1) == list(range(last + 1, COUNT))
    _check_healthy(broker, "well")
    broker.kill()
    broker.start()
    _check_fenced(broker, "hurt", last, path)


def test_a_missing_segment_while_the_broker_was_down(ottla_broker_factory: Any) -> None:
    broker = _broker(ottla_broker_factory)
    broker.stop()
    before, gone = _segments(broker, "hurt-0")[:2]
    gone.unlink()
    broker.start()
    _check_fenced(broker, "hurt", int(gone.stem), before)
    _check_healthy(broker, "well")


def test_indexes_that_are_gone_or_wrong_are_built_again(ottla_broker_factory: Any) -> None:
    broker = _broker(ottla_broker_factory)
    broker.stop()
    files = sorted((broker.data_dir / "hurt-0").glob("*index"))
    assert len(files) > 4
    for number, path in enumerate(files):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(b"\xff" * (len(path.read_bytes()) + number % 3))
    broker.start()
    assert _readiness(broker)[0] == 200
    with RawClient(broker.bootstrap) as client:
        for offset in range(0, COUNT, 7):
            error, values = _read(client, "hurt", offset)
            assert error == 0
            assert int(values[0] or b"") == offset
    _check_healthy(broker, "hurt")


@pytest.mark.parametrize("is_running", [True, False])
def test_the_scrub_finds_what_nobody_reads(ottla_broker_factory: Any, is_running: bool) -> None:
    broker = _broker(ottla_broker_factory, **QUICK_SCRUB)
    if not is_running:
        broker.kill()
    path = _segments(broker, "hurt-0")[1]
    first = int(path.stem)
    size = len(path.read_bytes()) // (int(_segments(broker, "hurt-0")[2].stem) - first)
    _change(path, _flip(5 * size + size // 2))
    if not is_running:
        broker.start()
    while _readiness(broker)[0] == 200:
        assert broker.is_running
    _check_fenced(broker, "hurt", first + 5, path)
    rest = list(range(first + 6, COUNT))
    assert _consumed(broker, "hurt", first + 6, len(rest)) == rest, "what comes after can be read"
    _check_healthy(broker, "well")
    broker.kill()
    broker.start()
    _check_fenced(broker, "hurt", first + 5, path)


def test_a_reader_meets_a_file_cut_short_under_the_broker(ottla_broker_factory: Any) -> None:
    """Without the scrub: the read itself says no, and has somebody look closer."""
    broker = _broker(ottla_broker_factory)
    path = _segments(broker, "hurt-0")[-1]
    first = int(path.stem)
    size = len(path.read_bytes()) // (COUNT - first)
    _change(path, lambda data: data[: 4 * size + 9])
    with RawClient(broker.bootstrap) as client:
        assert _read(client, "hurt", first + 4) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    while _readiness(broker)[0] == 200:
        assert broker.is_running
    _check_fenced(broker, "hurt", first + 4, path)
    _check_healthy(broker, "well")


def test_groups_on_a_damaged_offsets_partition_leave_the_others_alone(
    ottla_broker_factory: Any,
) -> None:
    broker = ottla_broker_factory(offsets_topic_num_partitions=2)
    broker.create_topic("read")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("read", b"0")
    assert producer.flush(10) == 0
    groups = {java_hash(name) % 2: name for name in ("a", "b")}
    for group in groups.values():
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition("read", 0, 1)], asynchronous=False)
        consumer.close()
    broker.stop()
    path = _segments(broker, "__consumer_offsets-0")[0]
    _change(path, lambda data: data[:-1])
    broker.start()
    assert "__consumer_offsets-0" in _readiness(broker)[1]
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": groups[1]})
    (committed,) = consumer.committed([TopicPartition("read", 0)], timeout=10)
    assert committed.offset == 1
    consumer.close()
    _check_healthy(broker, "read")
    assert broker.is_running


def test_a_damaged_metadata_log_stops_the_start_with_one_line(ottla_broker_factory: Any) -> None:
    broker = ottla_broker_factory()
    broker.create_topic("lost")
    broker.stop()
    path = _segments(broker, "__cluster_metadata-0")[0]
    size = path.stat().st_size
    _change(path, lambda data: data[:-1])
    for _ in range(2):
        with pytest.raises(BrokerFailed, match=r"ottla: The metadata log is damaged: .*offset"):
            broker.start()
        assert "Traceback" not in broker.log_text()
    assert path.stat().st_size == size - 1, "and is left as it is"
