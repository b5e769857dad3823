"""Old data goes as the topic's settings say, with real clients looking on."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from ottla.errors import ErrorCode
from ottla.testing import Broker
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from raw_client import RawClient
from records_kit import batch, fetch, fetch_request, list_offset, produce, values_in
from scenarios.in_process import BrokerInside

HOUR_MS = 3_600_000
SMALL = {"segment.bytes": "2000", "file.delete.delay.ms": "0"}
EARLIEST = -2


def _send(broker: Broker, topic: str, count: int, *, first: int = 0, age_ms: int = 0) -> None:
    """Each value is its own offset; linger.ms=0 and a flush each make many small batches."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    now_ms = time.time_ns() // 1_000_000
    for number in range(first, first + count):
        value = f"{number}:".ljust(400, "v")
        producer.produce(topic, value=value, partition=0, timestamp=now_ms - age_ms)
        if number % 4 == 3:
            producer.flush(20)
    assert producer.flush(20) == 0


def _consumer(broker: Broker, group: str = "g") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def _low(consumer: Consumer, topic: str) -> int:
    return _range(consumer, topic)[0]


def _range(consumer: Consumer, topic: str) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    return int(low), int(high)


def _alter(broker: Broker, topic: str, **settings: object) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(20)


def _log_files(broker: Broker, topic: str) -> list[str]:
    return sorted(p.name for p in (broker.data_dir / f"{topic}-0").glob("*.log*"))


def test_old_messages_go_and_the_start_outlives_every_stop(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory(log_retention_check_interval_ms=20)
    broker.create_topic("t", configs={**SMALL, "retention.ms": -1})
    _send(broker, "t", 40, age_ms=2 * HOUR_MS)
    consumer = _consumer(broker)
    assert _low(consumer, "t") == 0
    assert len(_log_files(broker, "t")) > 5

    _alter(broker, "t", retention_ms=HOUR_MS)
    while _low(consumer, "t") < 40:
        assert broker.is_running
    # All of it was old, the segment being written to as well; the log goes on where it was.
    while _log_files(broker, "t") != [f"{40:020d}.log"]:
        assert broker.is_running
    _send(broker, "t", 8, first=40)
    for end in (broker.stop, broker.kill):
        consumer.close()
        end()
        broker.start()
        consumer = _consumer(broker)
        assert _range(consumer, "t") == (40, 48)
    consumer.assign([TopicPartition("t", 0, 0)])
    message = consumer.poll(20)
    assert message is not None
    assert message.error() is None
    assert (message.offset(), message.value()[:3]) == (40, b"40:")
    consumer.close()


def test_a_consumer_that_is_overtaken_by_deletion_goes_on_with_what_is_left(
    ottla_broker_factory,  # type: ignore[no-untyped-def]
) -> None:
    broker = ottla_broker_factory(log_retention_check_interval_ms=10)
    broker.create_topic("t", configs={**SMALL, "retention.bytes": 6000})
    consumer = _consumer(broker)
    consumer.assign([TopicPartition("t", 0, 0)])
    offsets: list[int] = []
    sent = 0
    while sent < 600 or not offsets or offsets[-1] < sent - 1:
        if sent < 600:
            _send(broker, "t", 60, first=sent)
            sent += 60
        for message in consumer.consume(50, timeout=1.0):
            assert message.error() is None
            assert message.value().startswith(f"{message.offset()}:".encode())
            offsets.append(message.offset())
    assert offsets == sorted(set(offsets))
    while _low(consumer, "t") == 0:
        assert broker.is_running
    consumer.close()
    assert "Traceback" not in broker.log_text()


def test_deleted_records_stay_deleted(ottla_broker_factory) -> None:  # type: ignore[no-untyped-def]
    broker = ottla_broker_factory()
    broker.create_topic("t", configs={**SMALL, "file.delete.delay.ms": 600_000})
    _send(broker, "t", 40)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = TopicPartition("t", 0, 30)
    (done,) = admin.delete_records([wanted]).values()
    assert done.result(20).low_watermark == 30
    kept = [name for name in _log_files(broker, "t") if name.endswith(".deleted")]
    assert kept, "the files stay for file.delete.delay.ms"
    broker.kill()
    broker.start()
    consumer = _consumer(broker)
    assert _range(consumer, "t") == (30, 40)
    consumer.close()
    assert not [name for name in _log_files(broker, "t") if name.endswith(".deleted")]


def test_committed_offsets_are_not_subject_to_the_retention_of_messages(
    ottla_broker_factory,  # type: ignore[no-untyped-def]
) -> None:
    broker = ottla_broker_factory(
        log_retention_check_interval_ms=10, log_retention_ms=1, offsets_topic_num_partitions=1
    )
    broker.create_topic("t", configs=SMALL)
    _send(broker, "t", 8)
    consumer = _consumer(broker)
    consumer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
    while _low(consumer, "t") < 8:
        assert broker.is_running
    consumer.close()
    broker.kill()
    broker.start()
    consumer = _consumer(broker)
    (committed,) = consumer.committed([TopicPartition("t", 0)], timeout=20)
    assert committed.offset == 5
    consumer.close()


def test_what_is_young_or_not_committed_stays(tmp_path: Path) -> None:
    with BrokerInside(tmp_path / "data", log_retention_check_interval_ms=10**9) as broker:
        chore = broker.node.housekeeping.retention
        broker.create_topic("t", configs={"segment.bytes": "300", "retention.ms": str(HOUR_MS)})
        with RawClient(broker.bootstrap) as client:
            for _ in range(3):
                produce(client, "t", batch(b"v" * 200, timestamp=time.time_ns() // 1_000_000))
            old = batch(b"v" * 200, timestamp=1)
            assert produce(client, "t", old).error_code == 0
            broker.call(chore.run())
            assert list_offset(client, "t", EARLIEST).offset == 0, "the first ones are young"
            broker.create_topic("old", configs={"segment.bytes": "300", "retention.ms": "1000"})
            for _ in range(3):
                produce(client, "old", batch(b"v" * 200, timestamp=1))
            broker.disk.hold("sync", under=str(tmp_path / "data" / "old-0"))
            with RawClient(broker.bootstrap) as producer:
                for _ in range(2):
                    late = batch(b"v" * 200, timestamp=1)
                    assert produce(producer, "old", late, acks=1).error_code == 0
                broker.call(chore.run())
                start = list_offset(client, "old", EARLIEST).offset
                assert start == 3, "what is not synced stays"
                assert fetch(client, "old", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
                broker.disk.heal()
            while list_offset(client, "old", -1).offset < 5:
                assert start == 3
            broker.call(chore.run())
            assert list_offset(client, "old", EARLIEST).offset == 5
            assert chore.last_run_ms > 0
            assert chore.segments_deleted == 5
            assert chore.bytes_deleted == 5 * len(old)


def test_who_reads_a_segment_while_it_is_deleted_gets_its_bytes(tmp_path: Path) -> None:
    with BrokerInside(tmp_path / "data") as broker:
        broker.create_topic("t", configs={"segment.bytes": "300", "file.delete.delay.ms": "0"})
        with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as reader:
            for number in range(6):
                produce(client, "t", batch(f"{number}".encode() * 200))
            broker.disk.cool(under=str(tmp_path / "data" / "t-0"))
            broker.disk.hold("read", under=str(tmp_path / "data" / "t-0"))
            reader.send(fetch_request("t", {0: 0}), 12)
            broker.disk.wait_until_held()
            asked = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 5)])
            reply = client.ask(DeleteRecordsRequest([asked], timeout_ms=10_000), 2)
            assert reply.topics[0].partitions[0].low_watermark == 5
            while (tmp_path / "data" / "t-0" / f"{0:020d}.log.deleted").exists():
                assert list_offset(client, "t", EARLIEST).offset == 5
            broker.disk.heal()
            answer = reader.receive().responses[0].partitions[0]
            assert answer.error_code == 0
            assert values_in(answer.records) == [b"0" * 200]
            late = fetch(client, "t", 0)
            assert (late.error_code, late.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 5)
