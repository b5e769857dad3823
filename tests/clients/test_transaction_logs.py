"""Partitions that Apache Kafka has written, with transactions of all ends, served by Ottla.

Readers get the same from both, and the transaction index that Ottla builds from the batches is
Kafka's, byte for byte.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clientkit.toolchains import JAVA, ROOT, require
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import Broker

TIMEOUT_S = 60
TOPIC = "orders"
ROUNDS = 40
CONFIG = {"segment.bytes": "20000", "index.interval.bytes": "500"}


@pytest.fixture(scope="module")
def kafka() -> Iterator[Any]:
    require(JAVA)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        patch.chdir(ROOT)
        node = importlib.import_module("bench.peers").KafkaNode()
        try:
            node.start()
            yield node
        finally:
            node.close()


def fill(bootstrap: str) -> Producer:
    """Two producers whose transactions overlap; the last one stays open, with more after it."""
    plain = Producer({"bootstrap.servers": bootstrap})
    one, other = (
        Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) for name in "ab"
    )
    for producer in (one, other):
        producer.init_transactions(TIMEOUT_S)
    for number in range(ROUNDS):
        for producer, name in ((one, "one"), (other, "other")):
            producer.begin_transaction()
            for part in range(3):
                producer.produce(TOPIC, f"{name} {number}.{part} {'x' * 150}", partition=0)
            assert producer.flush(TIMEOUT_S) == 0
        plain.produce(TOPIC, f"plain {number}", partition=0)
        assert plain.flush(TIMEOUT_S) == 0
        for at, producer in ((0, one), (1, other)):
            is_commit = (number >> at) % 2 == 0
            (producer.commit_transaction if is_commit else producer.abort_transaction)(TIMEOUT_S)
    one.begin_transaction()
    one.produce(TOPIC, "open", partition=0)
    assert one.flush(TIMEOUT_S) == 0
    plain.produce(TOPIC, "after it", partition=0)
    assert plain.flush(TIMEOUT_S) == 0
    return one


def librdkafka_reads(bootstrap: str, isolation: str) -> list[tuple[int, bytes]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": isolation}
        | {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:
                return found
            found.append((message.offset(), message.value()))
    finally:
        consumer.close()
    raise AssertionError(f"no end after {len(found)} messages")


def java_reads(node: Any, bootstrap: str, isolation: str, count: int) -> list[bytes]:
    command = [*node._java(), "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    command += ["--bootstrap-server", bootstrap, "--topic", TOPIC, "--partition", "0"]
    command += ["--offset", "earliest", "--isolation-level", isolation, "--timeout-ms", "3000"]
    # One more than there are: it has to run into its time-out, and not to stop before the end.
    command += ["--max-messages", str(count + 1)]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S * 2, check=False)
    return done.stdout.splitlines()


def ends(bootstrap: str) -> list[int]:
    """As consumers of both isolation levels are told them."""
    told = []
    for isolation in ("read_uncommitted", "read_committed"):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": isolation}
        )
        told.append(consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), TIMEOUT_S)[1])
        consumer.close()
    return told


def indexes_in(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in directory.glob("*.txnindex") if path.stat().st_size
    }


def test_what_kafka_wrote_is_read_alike_from_both(kafka: Any, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIG)])[TOPIC].result(TIMEOUT_S)
    open_one = fill(kafka.bootstrap)
    theirs = {
        isolation: librdkafka_reads(kafka.bootstrap, isolation)
        for isolation in ("read_committed", "read_uncommitted")
    }
    java = java_reads(kafka, kafka.bootstrap, "read_committed", len(theirs["read_committed"]))
    told = ends(kafka.bootstrap)
    kafka.stop()
    del open_one
    written = kafka._home / "data" / f"{TOPIC}-0"
    indexes = indexes_in(written)
    assert len(indexes) > 1
    assert len(theirs["read_committed"]) < len(theirs["read_uncommitted"])
    assert java == [value for _, value in theirs["read_committed"]]

    with Broker(data_dir=tmp_path / "data") as broker:
        broker.create_topic(TOPIC, configs=CONFIG)
        first = Producer({"bootstrap.servers": broker.bootstrap})
        first.produce(TOPIC, "makes the directory")
        assert first.flush(TIMEOUT_S) == 0
        broker.kill()
        # All after the first message is read at the start, and its indexes are built anew.
        target = tmp_path / "data" / f"{TOPIC}-0"
        for path in target.glob("0*"):
            path.unlink()
        for path in written.iterdir():
            if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
                shutil.copy(path, target)
        broker.start()
        assert indexes_in(target) == indexes
        for isolation, expected in theirs.items():
            assert librdkafka_reads(broker.bootstrap, isolation) == expected
        count = len(theirs["read_committed"])
        assert java_reads(kafka, broker.bootstrap, "read_committed", count) == java
        assert ends(broker.bootstrap) == told
        broker.restart()
        assert librdkafka_reads(broker.bootstrap, "read_committed") == theirs["read_committed"]
