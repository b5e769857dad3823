"""`ottla log` reads what Apache Kafka itself has written, and agrees with Kafka's own reader."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clientkit.toolchains import JAVA, ROOT, require
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 60
MESSAGES = 1000
BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) "
    r"lastSequence: (-?\d+) producerId: (-?\d+) producerEpoch: (-?\d+) "
    r"partitionLeaderEpoch: (-?\d+) .*? position: (\d+) CreateTime: (\d+) size: (\d+) "
    r".*? crc: (\d+) isvalid: true"
)
FIELDS = (
    *("base_offset", "last_offset", "count", "base_sequence", "last_sequence", "producer_id"),
    *("producer_epoch", "leader_epoch", "position", "max_timestamp", "size"),
)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Kafka in a process of its own, as the benchmarks start it; Maven brings its jars."""
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


def ottla(*arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "ottla", "log", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def fill(bootstrap: str) -> None:
    """A topic of several segments, a compacted one, and transactions of both ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    small = {"segment.bytes": "40000", "index.interval.bytes": "500"}
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    topics = [
        NewTopic("orders", 1, 1, config=small),
        NewTopic("kept", 1, 1, config={**small, **compacted}),
    ]
    for created in admin.create_topics(topics).values():
        created.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 20, "linger.ms": 20})
    for number in range(MESSAGES):
        producer.produce("orders", b"v" * 100, b"%d" % number)
        producer.produce("kept", b"v" * 100, b"%d" % (number % 10))
    assert producer.flush(TIMEOUT_S) == 0
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    transactional.init_transactions(TIMEOUT_S)
    for end in (transactional.abort_transaction, transactional.commit_transaction):
        transactional.begin_transaction()
        transactional.produce("orders", b"in a transaction")
        assert transactional.flush(TIMEOUT_S) == 0
        end(TIMEOUT_S)


def java_dump(node: Any, *files: Path) -> str:
    command = [*node._java(), "kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return done.stdout


def test_kafkas_own_files_are_verified_and_dumped_as_kafka_does(kafka: Any) -> None:
    fill(f"127.0.0.1:{kafka.port}")
    data = kafka._home / "data"
    code, rows = ottla("verify", data, "--deep")
    assert code == 0, rows
    kafka.stop()
    code, rows = ottla("verify", data, "--deep")
    assert code == 0, rows
    (orders,) = (row for row in rows if row.get("name") == "orders-0")
    # Two messages in transactions, and the two markers that end them.
    assert orders["records"] == MESSAGES + 4
    assert orders["segments"] > 2

    first, *_, last = sorted((data / "orders-0").glob("*.log"))
    for log in (first, last):
        theirs = java_dump(kafka, log, log.with_suffix(".index"), log.with_suffix(".timeindex"))
        _, ours = ottla("dump", log)
        assert [(*(row[f] for f in FIELDS), int(row["crc"], 16)) for row in ours] == [
            tuple(map(int, match)) for match in BATCH.findall(theirs)
        ]
        for suffix, pattern, fields in (
            (".index", r"^offset: (\d+) position: (\d+)$", ("offset", "position")),
            (".timeindex", r"^timestamp: (\d+) offset: (\d+)$", ("timestamp", "offset")),
        ):
            _, ours = ottla("dump", log.with_suffix(suffix))
            assert [tuple(row[field] for field in fields) for row in ours] == [
                tuple(map(int, match)) for match in re.findall(pattern, theirs, re.MULTILINE)
            ]
    _, rows = ottla("dump", last, "--records", "--from-offset", str(MESSAGES))
    markers = [row["opened"]["is"] for row in rows if "opened" in row]
    assert markers == ["ABORT", "COMMIT"]
    _, rows = ottla("dump", data / "__cluster_metadata-0", "--records")
    kinds = {row["opened"]["is"] for row in rows if row["type"] == "record"}
    assert kinds >= {"LEADER_CHANGE", "TopicRecord", "PartitionRecord", "RegisterControllerRecord"}
    assert not any("unreadable" in row.get("opened", {}) for row in rows)

    damaged = bytearray(first.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    first.write_bytes(damaged)
    code, rows = ottla("verify", data / "orders-0")
    assert code == 1
    assert [row["path"] for row in rows if row["type"] == "problem"] == [str(first)]
