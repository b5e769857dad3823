"""Compacted topics as clients see them: while they are compacted, after that, after a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from ottla.broker.storage.compaction_helper import CompactionHelper
from ottla.testing import Broker
from scenarios.in_process import BrokerInside
from scenarios.polling import DEADLINE_S, until

KEYS = 40
SETTINGS = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0.01}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 20_000, "file.delete.delay.ms": 0}


def write(bootstrap: str, topic: str, numbers: range, **options: Any) -> None:
    """Number n goes to key n modulo KEYS."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, **options})
    for number in numbers:
        value = None if number % 17 == 0 else b"%d" % number * 20
        producer.produce(topic, value, b"key-%d" % (number % KEYS), partition=0)
        if number % 50 == 0:
            producer.flush()
    assert producer.flush(DEADLINE_S) == 0


def read(bootstrap: str, topic: str, end: int) -> dict[int, tuple[bytes, bytes | None]]:
    """All there is from the beginning to `end`, by offset."""
    settings = {"group.id": "r", "check.crcs": True, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: dict[int, tuple[bytes, bytes | None]] = {}
        deadline = time.monotonic() + DEADLINE_S
        while not found or max(found) < end - 1:
            assert time.monotonic() < deadline
            for message in consumer.consume(500, 0.2):
                assert message.error() is None, message.error()
                offset = message.offset() or 0
                assert not found or offset > max(found), "out of order"
                found[offset] = (message.key(), message.value())
        return found
    finally:
        consumer.close()


def expected(number: int) -> tuple[bytes, bytes | None]:
    value = None if number % 17 == 0 else b"%d" % number * 20
    return b"key-%d" % (number % KEYS), value


def last_of_each(found: dict[int, tuple[bytes, bytes | None]]) -> dict[bytes, bytes | None]:
    return dict(found[offset] for offset in sorted(found))


def bytes_of(broker: Broker, partition: str) -> int:
    sizes = []
    for path in (broker.data_dir / partition).glob("*.log"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            return 1 << 60
    return sum(sizes)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        yield broker


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_readers_get_right_bytes_while_their_topic_is_compacted(broker: Broker, codec: str) -> None:
    count = 6000
    broker.create_topic("kept", configs=COMPACTED)
    write(broker.bootstrap, "kept", range(1000), **{"compression.type": codec})
    stopping = threading.Event()
    failures: list[BaseException] = []

    def keep_reading() -> None:
        try:
            while not stopping.is_set():
                for offset, pair in read(broker.bootstrap, "kept", 1000).items():
                    assert pair == expected(offset)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=keep_reading) for _ in range(2)]
    for reader in readers:
        reader.start()
    write(broker.bootstrap, "kept", range(1000, count), **{"compression.type": codec})
    until(lambda: len(read(broker.bootstrap, "kept", count)) < count / 3, "not compacted")
    stopping.set()
    for reader in readers:
        reader.join(DEADLINE_S)
    assert not failures
    want = dict(map(expected, range(count)))
    for _ in range(2):
        assert last_of_each(read(broker.bootstrap, "kept", count)) == want
        broker.kill()
        broker.start()
    checkpoint = (broker.data_dir / "cleaner-offset-checkpoint").read_text()
    assert "kept 0 " in checkpoint


def test_librdkafka_reads_past_many_segments_without_a_record_left(broker: Broker) -> None:
    """It gives up on a topic after ten replies with nothing but emptied batches."""
    broker.create_topic("kept", configs={**COMPACTED, "segment.bytes": 1500})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(30):
        producer.produce("kept", b"%d" % number * 500, b"key", partition=0)
        assert producer.flush(DEADLINE_S) == 0
    until(lambda: bytes_of(broker, "kept-0") < 30 * 100 + 2000, "not compacted")
    assert read(broker.bootstrap, "kept", 30)[29] == (b"key", b"29" * 500)


def test_kill_9_while_a_log_is_compacted_loses_nothing() -> None:
    with Broker({**SETTINGS, "log.cleaner.backoff.ms": 1}) as broker:
        broker.create_topic("kept", configs={**COMPACTED, "segment.bytes": 5000})
        for end in range(500, 2000, 500):
            write(broker.bootstrap, "kept", range(end - 500, end))
            broker.kill()
            broker.start()
            found = read(broker.bootstrap, "kept", end)
            assert last_of_each(found) == dict(map(expected, range(end)))
            assert all(expected(offset) == pair for offset, pair in found.items())
        assert "error" not in broker.log_text()


def test_committed_offsets_survive_the_compaction_of_their_topic(
    ottla_broker_factory: Callable[..., Broker],
) -> None:
    broker = ottla_broker_factory(
        offsets_topic_segment_bytes=4096, offsets_topic_num_partitions=1,
        log_cleaner_backoff_ms=50, log_cleaner_min_cleanable_ratio=0.01,
        log_segment_delete_delay_ms=0,
    )  # fmt: skip
    broker.create_topic("read", partitions=3)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def commit(group: str, offset: int) -> None:
        places = [TopicPartition("read", index, offset + index) for index in range(3)]
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[
            group
        ].result(DEADLINE_S)

    def committed(group: str) -> list[int]:
        asked = [ConsumerGroupTopicPartitions(group)]
        places = admin.list_consumer_group_offsets(asked)[group].result(DEADLINE_S)
        return sorted(place.offset for place in places.topic_partitions)

    for round_number in range(120):
        commit("often", round_number)
        if round_number % 40 == 0:
            commit(f"once-{round_number}", 7)
    before = {group: committed(group) for group in ("often", "once-0", "once-40", "once-80")}
    assert before["often"] == [119, 120, 121]
    written = 3 * 120 * 70
    until(lambda: bytes_of(broker, "__consumer_offsets-0") < written / 3, "not compacted")
    for stop in (broker.kill, broker.stop):
        stop()
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        assert {group: committed(group) for group in before} == before


def test_the_death_of_the_compaction_process_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, victims = CompactionHelper.start, []

    async def start_and_kill_the_first() -> CompactionHelper:
        helper = await start()
        if not victims:
            victims.append(helper.process_id)
            os.kill(helper.process_id, signal.SIGKILL)
        return helper

    monkeypatch.setattr(CompactionHelper, "start", start_and_kill_the_first)
    settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    with BrokerInside(tmp_path, **settings) as inside:
        inside.create_topic("kept", configs={name: str(value) for name, value in COMPACTED.items()})
        write(inside.bootstrap, "kept", range(2000))
        chore = inside.node.housekeeping.compaction
        until(lambda: chore.logs_cleaned > 0 and chore.bytes_freed > 0, "never compacted")
        assert victims
        until(lambda: chore.helper_process_id is None, "the process stays when there is no work")
        assert len(read(inside.bootstrap, "kept", 2000)) < 1500
        assert 0 <= chore.ratios[next(iter(chore.ratios))] <= 1


def test_a_topic_with_both_policies_is_compacted_and_shortened(tmp_path: Path) -> None:
    settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    with BrokerInside(tmp_path, log_retention_check_interval_ms=50, **settings) as inside:
        both = {**COMPACTED, "cleanup.policy": "compact,delete", "retention.bytes": 1_000_000}
        inside.create_topic("both", configs={name: str(value) for name, value in both.items()})
        write(inside.bootstrap, "both", range(2000))
        chore = inside.node.housekeeping.compaction
        until(lambda: chore.bytes_freed > 0, "never compacted")
        partition = next(iter(inside.node._partitions.in_topic("both").values()))
        assert partition.start_offset == 0
        admin = AdminClient({"bootstrap.servers": inside.bootstrap})
        alter(admin, "both", {**both, "retention.bytes": 1})
        until(lambda: partition.start_offset > 0, "never shortened")
        found = read(inside.bootstrap, "both", 2000)
        assert all(expected(offset) == pair for offset, pair in found.items())


def alter(admin: AdminClient, topic: str, configs: dict[str, Any]) -> None:
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)


def test_a_stop_that_comes_as_the_compaction_process_ends_leaves_none(tmp_path: Path) -> None:
    with BrokerInside(tmp_path) as inside:
        chore = inside.node.housekeeping.compaction

        async def stopped_meanwhile() -> int | None:
            helper = chore._helper = await CompactionHelper.start()
            ending = asyncio.create_task(chore._end_helper())
            await asyncio.sleep(0)
            ending.cancel()
            await asyncio.wait([ending])
            return helper._process.returncode

        assert inside.call(stopped_meanwhile()) == -signal.SIGKILL
