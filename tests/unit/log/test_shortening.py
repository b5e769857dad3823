"""A log loses its beginning (deletion) or its end (truncation)."""

from __future__ import annotations

import pytest

from ottla.errors import OffsetOutOfRange
from ottla.log.log import LogConfig
from ottla.testing.disks import MemoryDisk
from unit.log.house import (
    DIRECTORY,
    NOW_MS,
    append,
    append_many,
    base_offsets,
    make_batch,
    open_log,
    read_all,
    send,
    shorten,
    sync,
)

SIZE = len(make_batch())


def files_of(disk: MemoryDisk, suffix: str) -> list[int]:
    length = len(suffix)
    return [int(p[-20 - length : -length]) for p in disk.paths() if p.endswith(suffix)]


def test_deletion_moves_the_start_and_takes_whole_segments(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=10 * SIZE))
    append_many(log, 35)
    sync(log, disk)
    shorten(log, disk, 25)
    assert log.start_offset == 25
    assert log.segment_count == 2
    assert files_of(disk, ".log") == [20, 30]
    assert log.size_bytes == 15 * SIZE
    assert base_offsets(read_all(log)) == list(range(25, 35))


def test_deleted_files_are_set_aside_and_then_removed(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=10 * SIZE))
    append_many(log, 35)
    sync(log, disk)
    paths = log.set_aside(log.delete_before(20))
    assert files_of(disk, ".log.deleted") == [0, 10]
    assert files_of(disk, ".index.deleted") == [0, 10]
    assert files_of(disk, ".timeindex.deleted") == [0, 10]
    assert files_of(disk, ".snapshot.deleted") == [10]
    assert files_of(disk, ".snapshot") == [20, 30]
    assert sorted(paths) == [path for path in disk.paths() if path.endswith(".deleted")]


def test_start_never_moves_back(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 10)
    log.delete_before(7)
    log.delete_before(3)
    assert log.start_offset == 7


def test_deletion_behind_the_end_is_out_of_range(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 10)
    with pytest.raises(OffsetOutOfRange):
        log.delete_before(11)
    log.delete_before(10)
    assert log.read(10, 100, log.written) == b""


def test_deletion_of_everything_keeps_the_offsets_going(disk: MemoryDisk) -> None:
    """Even if the machine stops before the start offset is noted down anywhere."""
    log = open_log(disk)
    append_many(log, 10)
    log.roll(NOW_MS)
    log.write()
    sync(log, disk)
    shorten(log, disk, 10)
    assert log.segment_count == 1
    assert files_of(disk, ".log") == [10]
    log = open_log(disk, clean=False)
    assert log.end_offset == 10


def test_epochs_before_the_start_are_forgotten(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for epoch in (1, 1, 2, 2, 3):
        append(log, epoch=epoch)
    log.write()
    log.delete_before(3)
    assert log.end_offset_for_epoch(1) == (1, 3)
    assert log.end_offset_for_epoch(2) == (2, 4)
    assert log.epoch_at(3) == 2


def test_producers_of_deleted_batches_are_still_known(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0)
    append_many(log, 100)
    sync(log, disk)
    shorten(log, disk, 90)
    assert send(log, 0) == (0, 1, -1, True)
    log = open_log(disk, clean=False, start_offset=90)
    assert send(log, 0) == (0, 1, -1, True)


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, 34])
def test_truncation_cuts_the_batch_and_all_behind_it(disk: MemoryDisk, offset: int) -> None:
    log = open_log(disk, LogConfig(segment_bytes=10 * SIZE, index_interval_bytes=100))
    append_many(log, 35)
    log.truncate(offset, NOW_MS)
    assert log.end_offset == log.written.offset == log.synced.offset == offset
    assert base_offsets(read_all(log)) == list(range(offset))
    assert max(files_of(disk, ".log")) <= offset
    append_many(log, 20)
    assert base_offsets(read_all(log, max_bytes=1)) == list(range(offset + 20))
    log.close()
    log = open_log(disk, LogConfig(segment_bytes=10 * SIZE))
    assert base_offsets(read_all(log, max_bytes=1)) == list(range(offset + 20))


def test_truncation_inside_of_a_batch_takes_all_of_it(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for _ in range(3):
        append(log, make_batch(5))
    log.write()
    log.truncate(7, NOW_MS)
    assert log.end_offset == 5


def test_places_to_read_on_from_are_forgotten_with_what_was_there(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 10)
    for offset in range(10):
        log.read(offset, 1, log.written)
    log.truncate(2, NOW_MS)
    append_many(log, 8, value=b"longer than before")
    for offset in reversed(range(10)):
        data = log.read(offset, 1, log.written)
        assert data is not None
        assert base_offsets(bytes(data)) == [offset]


def test_snapshots_of_what_was_cut_are_forgotten(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=10 * SIZE))
    append_many(log, 25)
    log.truncate(5, NOW_MS)
    log.config = LogConfig()
    for sequence in range(20):
        send(log, sequence)
    log.write()
    log.truncate(12, NOW_MS)
    assert send(log, 2) == (7, 8, -1, True), "the state at offset 10 was another one then"


def test_truncation_behind_the_end_only_drops_the_queue(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    append(log)
    log.truncate(10, NOW_MS)
    assert log.end_offset == 3


def test_truncation_takes_producers_and_epochs_back(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for sequence in range(40):
        send(log, sequence)
    log.write()
    log.start_epoch(5)
    append(log, epoch=5)
    log.write()
    log.truncate(20, NOW_MS)
    assert log.epoch_at(log.end_offset) == 0
    assert send(log, 19) == (19, 20, -1, True)
    assert send(log, 20) == (20, 21, -1, False)
    assert max(files_of(disk, ".snapshot")) <= 20


def test_truncation_whose_sync_fails_fences_the_log(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 5)
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.truncate(2, NOW_MS)
    assert log.fenced


def test_directory_of_a_partition_without_batches_stays_empty(disk: MemoryDisk) -> None:
    log = open_log(disk)
    log.start_epoch(3)
    log.close()
    assert disk.list(DIRECTORY) == []
