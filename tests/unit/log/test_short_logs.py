"""Short logs that are closed without files of their own: one file tells of all."""

from __future__ import annotations

import pytest

from ottla.log.log import Log, LogConfig
from ottla.log.opening.short_logs import (
    ENTRIES_MAX,
    FILE_NAME,
    PRODUCERS_MAX,
    ShortLog,
    read_short_logs,
    write_short_logs,
)
from ottla.testing.disks import MemoryDisk
from ottla.types import TopicPartition
from unit.log.house import DIRECTORY, NOW_MS, append, make_batch, read_all, save_progress, send

NAME = TopicPartition("t", 0)


def _open(disk: MemoryDisk, *, clean: bool = True, short: ShortLog | None = None) -> Log:
    return Log.open(disk, DIRECTORY, LogConfig(), now_ms=NOW_MS, clean=clean, short=short)


def _close(log: Log, disk: MemoryDisk) -> ShortLog | None:
    """As the broker does it; through the file."""
    taken: list[ShortLog] = []
    ticket = log.begin_close(taken.append)
    if ticket is not None:
        disk.sync_many(ticket.files, ticket.directories)
    log.finish_close(ticket)
    write_short_logs(disk, "/data", [(NAME, short) for short in taken])
    return read_short_logs(disk, "/data").get(NAME)


def _written(disk: MemoryDisk) -> Log:
    log = _open(disk)
    for epoch, timestamp in ((0, NOW_MS + 5), (0, NOW_MS + 9), (3, NOW_MS + 7)):
        append(log, make_batch(2, timestamps=(timestamp,)), epoch=epoch)
        log.write()
    return log


def _facts(log: Log) -> tuple[object, ...]:
    return (
        log.start_offset,
        log.end_offset,
        log.size_bytes,
        log.synced,
        log.max_timestamp(log.written),
        [log.epoch_at(offset) for offset in range(log.end_offset)],
        read_all(log),
    )


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("/data")
    return disk


def test_a_short_log_gets_no_files_and_is_opened_as_it_was(disk: MemoryDisk) -> None:
    log = _written(disk)
    log.write()
    short = _close(log, disk)
    assert short is not None
    assert disk.list(DIRECTORY) == [f"{0:020d}.log"]
    assert not disk.closed_unsynced
    reads = disk.reads
    again = _open(disk, short=short)
    assert disk.reads == reads, "no batch was looked at"
    assert not again.is_cold
    with_files = _open(disk)
    assert _facts(again) == _facts(with_files)
    assert append(again).base_offset == 6
    again.write()
    assert _close(again, disk) != short


def test_without_its_line_or_with_another_size_the_batches_are_asked(disk: MemoryDisk) -> None:
    log = _written(disk)
    short = _close(log, disk)
    assert short is not None
    for wrong in (None, short._replace(size=short.size - 1, end_offset=4)):
        found = _open(disk, short=wrong)
        assert found.end_offset == 6
        found.abandon()


def test_after_a_crash_the_line_is_not_asked_and_nothing_is_missing(disk: MemoryDisk) -> None:
    log = _written(disk)
    assert _close(log, disk) is not None
    recovered = _open(disk, clean=False)
    assert recovered.end_offset == 6
    assert [recovered.epoch_at(offset) for offset in range(6)] == [0, 0, 0, 0, 3, 3]


def test_hints_of_a_log_in_use_do_not_outlive_its_close(disk: MemoryDisk) -> None:
    """The newest snapshot tells where a log ends that was closed with files of its own."""
    log = _written(disk)
    assert save_progress(log)
    append(log)
    log.write()
    short = _close(log, disk)
    assert short is not None
    assert not [name for name in disk.list(DIRECTORY) if name.endswith(".snapshot")]
    for line in (short, None):
        again = _open(disk, short=line)
        assert again.end_offset == 7
        assert again.max_timestamp(again.written) is not None
        again.abandon()


def test_a_few_producers_and_index_entries_are_told_as_well(disk: MemoryDisk) -> None:
    log = _open(disk)
    for producer_id in range(PRODUCERS_MAX):
        fields = {"value": b"x" * 5000, "timestamps": (NOW_MS + producer_id,)}
        send(log, 0, producer_id=producer_id, **fields)
    log.write()
    short = _close(log, disk)
    assert short is not None
    assert disk.list(DIRECTORY) == [f"{0:020d}.log"]
    assert short.offset_entries
    assert short.time_entries
    again, anew = _open(disk, short=short), _open(disk)
    assert _facts(again) == _facts(anew)
    assert again.last_data_of_producers() == anew.last_data_of_producers()
    assert len(again.last_data_of_producers()) == PRODUCERS_MAX
    assert send(again, 0, producer_id=3, value=b"x" * 5000).is_duplicate
    moment = again.first_at_or_after(NOW_MS + 5, again.written)
    assert moment == anew.first_at_or_after(NOW_MS + 5, anew.written)


def test_many_producers_or_index_entries_need_files(disk: MemoryDisk) -> None:
    log = _open(disk)
    for producer_id in range(PRODUCERS_MAX + 1):
        send(log, 0, producer_id=producer_id)
    log.write()
    assert _close(log, disk) is None
    assert f"{PRODUCERS_MAX + 1:020d}.snapshot" in disk.list(DIRECTORY)
    disk.remove_tree(DIRECTORY)
    log = _open(disk)
    for _ in range(ENTRIES_MAX + 3):
        append(log, make_batch(value=b"x" * 5000))
    log.write()
    assert _close(log, disk) is None
    assert f"{ENTRIES_MAX + 3:020d}.snapshot" in disk.list(DIRECTORY)
    assert _open(disk).end_offset == ENTRIES_MAX + 3


def test_a_file_that_cannot_be_read_tells_nothing(disk: MemoryDisk) -> None:
    log = _written(disk)
    assert _close(log, disk) is not None
    for data in (b"", b"0\n1\nt - 0 1 2\n", b"\xff\xfe", b"0\n1\nt x - - - 0 1 2 3 4 5 6 7\n"):
        disk.write_file(f"/data/{FILE_NAME}", data)
        assert read_short_logs(disk, "/data") == {}
