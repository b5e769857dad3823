"""`ottla log` on the directory of a real broker: while it runs, after a stop, and damaged."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import Consumer, Producer

from ottla.cli.main import main
from ottla.testing import Broker
from ottla.wire.records import headers_in

TIMEOUT_S = 30
MESSAGES = 400


class Told:
    """What a command said; its rows are the lines of --json."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


def ottla(*arguments: str | Path) -> Told:
    stdout, stderr = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
    with patch.object(sys, "stdout", stdout), redirect_stderr(stderr):
        code = main([str(argument) for argument in arguments])
        stdout.flush()
    stdout.seek(0)
    told = Told(code, stdout.read(), stderr.getvalue())
    assert "This is a bug" not in told.stderr
    return told


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory with a topic of several segments, a group and its offsets."""
    home = tmp_path_factory.mktemp("inspected")
    data = home / "data"
    with Broker({"offsets.topic.num.partitions": 1}, data_dir=data) as broker:
        broker.create_topic("orders", 1, {"segment.bytes": 16_384, "index.interval.bytes": 500})
        produce(broker, "orders", MESSAGES)
        read_some(broker, "orders", "readers")
        told = ottla("log", "verify", data)
        assert (told.code, told.stderr) == (0, ""), told.stdout
    yield data
    shutil.rmtree(home)


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def produce(broker: Broker, topic: str, count: int, *, keys: int = MESSAGES) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "batch.num.messages": 5,
            "linger.ms": 20,
        }
    )
    for number in range(count):
        key, headers = b"%d" % (number % keys), {"n": b"\xff%d" % number}
        producer.produce(topic, b"v" * 150, key, headers=headers)
    assert producer.flush(TIMEOUT_S) == 0


def read_some(broker: Broker, topic: str, group: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    assert len(consumer.consume(10, TIMEOUT_S)) == 10
    consumer.commit(asynchronous=False)
    consumer.close()


def test_a_data_directory_in_order_passes_and_is_left_as_it_was(data: Path) -> None:
    before = contents(data)
    with patch("os.open", wraps=os.open) as opened:
        told = ottla("log", "verify", data, "--deep", "--json")
    assert told.code == 0
    assert opened.call_args_list
    assert all(call.args[1] & os.O_ACCMODE == os.O_RDONLY for call in opened.call_args_list)
    partitions = {row["name"]: row for row in told.rows if row["type"] == "partition"}
    assert partitions.keys() >= {"orders-0", "__cluster_metadata-0", "__consumer_offsets-0"}
    assert partitions["orders-0"]["records"] == MESSAGES
    assert partitions["orders-0"]["segments"] > 2
    assert told.rows[-1]["type"] == "total"
    assert told.rows[-1]["problems"] == 0
    assert contents(data) == before


def test_files_that_may_not_be_written_are_read_all_the_same(data: Path) -> None:
    for path in [*data.rglob("*"), data]:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    try:
        assert ottla("log", "verify", data, "-q").code == 0
    finally:
        for path in [data, *data.rglob("*")]:
            path.chmod(stat.S_IRWXU)


def test_verify_beside_a_running_and_after_a_killed_broker(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        broker.create_topic("busy", 1, {"segment.bytes": 16_384, "index.interval.bytes": 500})
        for _ in range(3):
            produce(broker, "busy", 100)
            told = ottla("log", "verify", broker.data_dir, "--json")
            assert told.code == 0, told.stdout
            assert {row["type"] for row in told.rows} <= {"partition", "note", "total"}
        broker.kill()
        log = sorted((broker.data_dir / "busy-0").glob("*.log"))[-1]
        with log.open("ab") as file:
            file.write(log.read_bytes()[:100])
        told = ottla("log", "verify", broker.data_dir)
        assert told.code == 0, told.stdout
        (note,) = (line for line in told.stdout.splitlines() if line.startswith("note: "))
        assert "a torn tail of 100 bytes after the recovery point" in note
        assert str(log) in note
        broker.start()
        assert ottla("log", "verify", broker.data_dir, "--json").code == 0


def test_segments_that_come_and_go_meanwhile_are_no_damage(tmp_path: Path) -> None:
    settings = {"log.retention.check.interval.ms": 50, "log.cleaner.backoff.ms": 50}
    small = {"segment.bytes": 8192, "index.interval.bytes": 500, "file.delete.delay.ms": 0}
    with Broker(settings, data_dir=tmp_path / "data") as broker:
        broker.create_topic("old", 1, {**small, "retention.bytes": 16_384})
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
        broker.create_topic("kept", 1, {**small, **compacted})
        for topic in ("old", "kept"):
            produce(broker, topic, 200, keys=7)
        deadline = time.monotonic() + TIMEOUT_S
        held = look(broker)
        while held["old-0"]["start_offset"] == 0 or held["kept-0"]["records"] == 200:
            assert time.monotonic() < deadline, held
            held = look(broker)
        assert broker.stop() == 0
        look(broker)


def look(broker: Broker) -> dict[str, dict[str, Any]]:
    """The partitions, in which nothing may be wrong."""
    told = ottla("log", "verify", broker.data_dir, "--deep", "--json")
    assert told.code == 0, told.stdout
    return {row["name"]: row for row in told.rows if row["type"] == "partition"}


def test_a_flipped_bit_is_one_line_and_exit_code_1(data: Path) -> None:
    log = sorted((data / "orders-0").glob("*.log"))[1]
    damaged = bytearray(log.read_bytes())
    (_, _), (at, header), *_ = headers_in(bytes(damaged))
    damaged[at + 80] ^= 1
    log.write_bytes(damaged)
    told = ottla("log", "verify", data, "-q")
    assert told.code == 1
    first, second, total = told.stdout.splitlines()
    assert first.startswith(f"problem: {log} at {at}, offset {header.base_offset}: the CRC")
    assert f"offsets {header.base_offset} to {header.last_offset} cannot be read" in first
    assert second.startswith("orders-0: 1 problem; offsets 0 to ")
    assert ": 1 problem in 1 of them; " in total
    assert ottla("log", "verify", log.parent).code == 1
    assert ottla("log", "verify", log).code == 1
    assert ottla("log", "verify", sorted(log.parent.glob("*.log"))[0]).code == 0
    dumped = ottla("log", "dump", log, "--json").rows
    assert [row["position"] for row in dumped if row["type"] == "damage"] == [at]


def test_dump_shows_batches_and_on_demand_their_records(data: Path) -> None:
    partition = data / "orders-0"
    batches = ottla("log", "dump", partition, "--json").rows
    assert {row["type"] for row in batches} == {"batch"}
    assert sum(row["count"] for row in batches) == MESSAGES
    assert [row["base_offset"] for row in batches[1:]] == [
        row["last_offset"] + 1 for row in batches[:-1]
    ]
    rows = ottla("log", "dump", partition, "--records", "--from-offset", "207", "--json").rows
    records = [row for row in rows if row["type"] == "record"]
    assert [record["offset"] for record in records] == list(range(207, MESSAGES))
    assert records[0]["key"] == "207"
    assert records[0]["value"] == "v" * 150
    assert records[0]["headers"] == [{"name": "n", "value": {"hex": b"\xff207".hex()}}]
    text = ottla("log", "dump", partition, "-r", "--from-offset", "207", "--max", "2").stdout
    batch, record = text.splitlines()
    assert batch.startswith("batch file=0000")
    assert record.startswith("  record offset=207 ")
    assert "key=207" in record
    assert "0xff323037" not in batch


def test_dump_opens_metadata_groups_and_offsets(data: Path) -> None:
    def opened(partition: str) -> list[dict[str, Any]]:
        rows = ottla("log", "dump", data / partition, "--records", "--json").rows
        return [row["opened"] for row in rows if row["type"] == "record"]

    metadata = opened("__cluster_metadata-0")
    assert [each["name"] for each in metadata if each["is"] == "TopicRecord"] == [
        "orders",
        "__consumer_offsets",
    ]
    groups = opened("__consumer_offsets-0")
    (committed,) = (each for each in groups if each["is"] == "offset")
    assert {"group": "readers", "topic": "orders", "partition": 0, "offset": 10}.items() <= (
        committed.items()
    )
    assert any(each["is"] == "group" and each["group"] == "readers" for each in groups)


def test_dump_shows_indexes_and_snapshots(data: Path) -> None:
    def rows(suffix: str) -> list[dict[str, Any]]:
        path = sorted((data / "orders-0").glob(f"*{suffix}"))[-1]
        return ottla("log", "dump", path, "--json").rows

    assert {row["type"] for row in rows(".index")} == {"index"}
    assert {row["type"] for row in rows(".timeindex")} == {"time-index"}
    producers = rows(".snapshot")
    assert {row["type"] for row in producers} == {"producer"}
    assert producers[-1]["last_offset"] == producers[-1]["last_sequence"] == MESSAGES - 1


def test_what_is_no_log_is_one_line_and_exit_code_2(tmp_path: Path, data: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    for path in (tmp_path / "nowhere", tmp_path / "notes.txt", tmp_path):
        told = ottla("log", "verify", path)
        assert told.code == 2
        assert told.stderr.count("\n") == 1
    assert "name one of its partitions" in ottla("log", "dump", data).stderr


def test_a_file_without_rights_is_a_finding(data: Path) -> None:
    log = sorted((data / "orders-0").glob("*.log"))[0]
    log.chmod(0)
    command = [sys.executable, "-m", "ottla", "log", "verify", str(data), "--json"]
    if os.geteuid() == 0:
        # Root may read everything, unless it gives that up.
        rights = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--inh-caps={rights}", f"--bounding-set={rights}", *command]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1
    rows = map(json.loads, told.stdout.splitlines())
    assert [row["path"] for row in rows if row.get("trouble") == "unreadable"] == [str(log)]
