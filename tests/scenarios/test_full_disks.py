"""A broker that is stopped on a full disk starts again, serves, and can be given room."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.storage.disk import RealDisk
from ottla.errors import CannotStart, ErrorCode
from ottla.log.reserve import FILE_NAME as RESERVE
from ottla.ports import File
from ottla.testing.disks import FaultyDisk, FaultyFile
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.wire.schema import Buffer
from raw_client import RawClient
from records_kit import batch, fetch_request, list_offset, produce, values_in
from scenarios.in_process import BrokerInside

MIB = 1024 * 1024
BLOCK = 4096
OFTEN = {"log_flush_offset_checkpoint_interval_ms": 100}


class SizedFile(FaultyFile):
    def __init__(self, disk: SizedDisk, file: File) -> None:
        super().__init__(disk, file)
        self._sized = disk

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        end = position + sum(map(len, buffers))
        self._sized.check_room(self.path, _blocks(end) - _blocks(self.size()))
        super().write(buffers, position)


class SizedDisk(FaultyDisk):
    """Each of these directories is a disk with room for so many bytes, in whole blocks."""

    def __init__(self, byte_count: int, *directories: Path) -> None:
        super().__init__(RealDisk())
        self._byte_count = byte_count
        self._roots = [str(directory) for directory in directories]

    def _used(self, root: str) -> int:
        found = 0
        for directory, _, names in os.walk(root):
            for name in names:
                try:
                    found += _blocks(os.stat(f"{directory}/{name}").st_size)
                except FileNotFoundError:
                    continue
        return found

    def check_room(self, path: str, growth: int) -> None:
        for root in self._roots:
            is_here = path.startswith(root) and growth > 0
            if is_here and self._used(root) + growth > self._byte_count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        assert isinstance(file, FaultyFile)
        return SizedFile(self, file.file)

    def write_file(self, path: str, data: bytes) -> None:
        self.check_room(path, _blocks(len(data)))
        super().write_file(path, data)

    def room_bytes(self, directory: str) -> tuple[int, int]:
        for root in self._roots:
            if directory.startswith(root):
                return self._byte_count, max(0, self._byte_count - self._used(root))
        return super().room_bytes(directory)


def _blocks(byte_count: int) -> int:
    return -(-byte_count // BLOCK) * BLOCK


def _fill(client: RawClient, topic: str, partitions: int) -> list[int]:
    """Until not even a small batch is taken; how many were, of each partition."""
    counts = [0] * partitions
    for size in (100_000, 10_000, 1000, 100):
        for index in range(partitions):
            code = 0
            while not code:
                code = produce(client, topic, batch(b"x" * size), partition=index).error_code
                counts[index] += not code
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
    return counts


def _count(client: RawClient, topic: str, index: int) -> int:
    """How many messages can be read."""
    found = offset = 0
    while True:
        request = fetch_request(topic, {index: offset}, partition_max_bytes=1 << 24)
        (answer,) = client.ask(request, 12).responses[0].partitions
        assert answer.error_code == 0
        some = len(values_in(answer.records))
        if not some:
            return found
        found, offset = found + some, offset + some


def _delete_records(client: RawClient, topic: str, index: int, offset: int) -> Any:
    asked = DeleteRecordsTopic(topic, [DeleteRecordsPartition(index, offset)])
    reply = client.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=10_000), 2)
    return reply.topics[0].partitions[0]


@pytest.mark.seconds(120)
@pytest.mark.parametrize("count", [1, 2])
def test_a_broker_that_was_stopped_on_a_full_disk_starts_and_can_be_given_room(
    tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    directories = [tmp_path / f"full-{number}" for number in range(count)]
    for directory in directories:
        directory.mkdir()
    disk = SizedDisk(8 * MIB, *directories)
    with (
        BrokerInside(*directories, disk=disk) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        broker.create_topic("t", count, {"segment.bytes": str(MIB)})
        taken = _fill(client, "t", count)
    assert min(taken) > 50
    assert not list(tmp_path.rglob("*.tmp"))

    # As often as one likes: each start finds what it needs.
    for _ in range(3):
        caplog.clear()
        with (
            caplog.at_level(logging.ERROR),
            BrokerInside(*directories, disk=disk) as broker,
            RawClient(broker.bootstrap) as client,
        ):
            status, told = broker.readiness()
            assert status == 503
            for directory in directories:
                assert f"{directory} is full" in told["reasons"]
                assert any(f"{directory} is full" in line for line in caplog.messages)
            assert [_count(client, "t", index) for index in range(count)] == taken
            refused = produce(client, "t", batch(b"x" * 100_000))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    with (
        BrokerInside(*directories, disk=disk, **OFTEN) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        for index in range(count):
            deleted = _delete_records(client, "t", index, taken[index] // 2)
            assert (deleted.error_code, deleted.low_watermark) == (0, taken[index] // 2)
        while broker.readiness()[0] != 200:
            assert list_offset(client, "t", -2).offset == taken[0] // 2
        for index in range(count):
            assert produce(client, "t", batch(b"new"), partition=index).base_offset == taken[index]
    # What was deleted stays so, and the reserve is whole again.
    with BrokerInside(*directories, disk=disk) as broker, RawClient(broker.bootstrap) as client:
        assert broker.info.was_clean
        assert list_offset(client, "t", -2).offset == taken[0] // 2
        assert broker.readiness()[0] == 200
        assert {(each / RESERVE).stat().st_size for each in directories} == {MIB}


@pytest.mark.seconds(60)
def test_records_can_be_deleted_while_the_disk_is_full(tmp_path: Path) -> None:
    data = tmp_path / "full"
    data.mkdir()
    disk = SizedDisk(8 * MIB, data)
    with BrokerInside(data, disk=disk) as broker, RawClient(broker.bootstrap) as client:
        broker.create_topic("t", 1, {"segment.bytes": str(MIB)})
        (taken,) = _fill(client, "t", 1)
        (data / "filler").write_bytes(bytes(disk.room_bytes(str(data))[1] // BLOCK * BLOCK))
        deleted = _delete_records(client, "t", 0, taken // 2)
        assert (deleted.error_code, deleted.low_watermark) == (0, taken // 2)
        while produce(client, "t", batch(b"new")).error_code:
            assert list_offset(client, "t", -2).offset == taken // 2


def test_a_start_that_finds_no_room_at_all_says_where_and_what_to_do(tmp_path: Path) -> None:
    data = tmp_path / "full"
    data.mkdir()
    disk = SizedDisk(8 * MIB, data)
    with BrokerInside(data, disk=disk):
        pass
    for name in (RESERVE, ".kafka_cleanshutdown"):
        (data / name).unlink()
    (data / "filler").write_bytes(bytes(disk.room_bytes(str(data))[1] // BLOCK * BLOCK))
    broker = BrokerInside(data, disk=disk)
    with pytest.raises(CannotStart, match="disk is full") as refused:
        broker.__enter__()
    assert str(data) in str(refused.value)
    assert "Make room there" in str(refused.value)
