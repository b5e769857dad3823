"""Reads: from any offset, up to any limit, at the same price wherever in the log."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ottla.broker.storage.disk import RealDisk
from ottla.errors import OffsetOutOfRange, StorageFailed
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig, LogPosition
from ottla.testing.disks import MemoryDisk
from ottla.wire.records import Record, encode_batch, headers_in
from unit.log.house import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    append,
    append_many,
    base_offsets,
    make_batch,
    open_log,
    read_all,
    shorten,
    sync,
)


def test_read_begins_with_the_batch_that_contains_the_offset(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for _ in range(20):
        append(log, make_batch(3))
    log.write()
    for offset in range(60):
        data = log.read(offset, 1, log.written)
        assert data is not None
        assert base_offsets(bytes(data)) == [offset // 3 * 3]


def test_first_batch_comes_whole_however_small_the_limit(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batch = make_batch(value=b"v" * 100_000)
    append(log, batch)
    log.write()
    for max_bytes in (0, 1, 61, 4096, 99_999):
        assert log.read(0, max_bytes, log.written) == batch


def test_no_more_than_asked_for_behind_the_first_batch(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 50)
    size = len(make_batch())
    data = log.read(3, 5 * size + 10, log.written)
    assert data is not None
    assert len(data) == 5 * size + 10, "the sixth batch is cut short, as Kafka does it"
    assert base_offsets(bytes(data)) == [3, 4, 5, 6, 7]


def test_nothing_behind_the_limit_is_seen(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    limit = log.written
    append_many(log, 3)
    assert base_offsets(read_all(log, limit)) == [0, 1, 2]
    assert log.read(3, 1000, limit) == b""
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 1000, limit)


def test_queued_batches_cannot_be_read(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log)
    assert log.read(0, 1000, log.written) == b""


def test_offsets_outside_of_the_log_are_out_of_range(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 40)
    sync(log, disk)
    log.delete_before(10)
    for offset in (-1, 0, 9, 41):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1000, log.written)
    assert log.read(40, 1000, log.written) == b""


def test_empty_log_has_nothing_to_read(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert log.read(0, 1000, log.written) == b""


def test_read_stops_at_the_end_of_a_segment_and_goes_on_in_the_next(disk: MemoryDisk) -> None:
    size = len(make_batch())
    log = open_log(disk, LogConfig(segment_bytes=4 * size))
    append_many(log, 10)
    data = log.read(2, 10_000, log.written)
    assert data is not None
    assert base_offsets(bytes(data)) == [2, 3]
    data = log.read(4, 10_000, log.written)
    assert data is not None
    assert base_offsets(bytes(data)) == [4, 5, 6, 7]


def test_limit_at_the_seam_of_two_segments_may_name_either(disk: MemoryDisk) -> None:
    size = len(make_batch())
    log = open_log(disk, LogConfig(segment_bytes=4 * size))
    append_many(log, 8)
    for limit in (LogPosition(4, 0, 4 * size), LogPosition(4, 4, 0)):
        assert base_offsets(read_all(log, limit)) == [0, 1, 2, 3]
        assert log.read(4, 100, limit) == b""


def test_cold_page_is_not_waited_for(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 30)
    disk.is_cold = True
    assert log.read(0, 1000, log.written) is None
    assert log.read(17, 1000, log.written) is None
    data = log.read(17, 1, log.written, cached_only=False)
    assert data is not None
    assert base_offsets(bytes(data)) == [17]


def test_cold_index_is_not_waited_for_either(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 100)
    log.close()
    log = open_log(disk)
    disk.is_cold = True
    assert log.read(50, 100, log.written) is None


@pytest.mark.parametrize("clean_restart", [False, True])
def test_price_of_a_read_does_not_grow_with_the_log(disk: MemoryDisk, clean_restart: bool) -> None:
    config = LogConfig(index_interval_bytes=4096)
    log = open_log(disk, config)
    append_many(log, 20_000)
    if clean_restart:
        log.close()
        log = open_log(disk, config)
    for offset in (0, 1, 9_999, 19_000, 19_999):
        before = disk.reads
        log.read(offset, 100, log.written)
        assert disk.reads - before <= (5 if clean_restart else 1)


def test_who_reads_on_needs_no_index(disk: MemoryDisk) -> None:
    """After the first look-up every read is one read of the file, in old segments as well."""
    log = open_log(disk, LogConfig(segment_bytes=20_000, index_interval_bytes=100))
    append_many(log, 1000)
    log.close()
    log = open_log(disk, LogConfig(segment_bytes=20_000))
    offset, counts = 10, []
    while offset < log.written.offset:
        before = disk.reads
        data = log.read(offset, 1000, log.written)
        assert data is not None
        counts.append(disk.reads - before)
        for _, header in headers_in(data):
            offset = header.next_offset
    assert len(counts) > 50
    assert set(counts[1:]) == {1}


def test_who_reads_at_the_end_finds_the_next_batch_where_it_stopped(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 3)
    log.read(0, 10_000, log.written)
    assert log._reader._ends == {3: (log._active, 3 * len(make_batch()))}


def test_places_to_read_on_from_are_bounded(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 500)
    for offset in range(400):
        log.read(offset, 100, log.written)
    assert len(log._reader._ends) <= 16


def test_gap_of_a_compacted_log_is_passed_over(disk: MemoryDisk) -> None:
    """Offsets 5-9 and 12-19 are gone; a segment may even end before the next begins."""
    first = encode_batch([Record(at, 1, b"k", b"v") for at in range(5)])
    second = encode_batch([Record(at, 1, b"k", b"v") for at in (10, 11)], base_offset=10)
    third = encode_batch([Record(20, 1, b"k", b"v")], base_offset=20)
    disk.make_directory(DIRECTORY)
    disk.write_file(f"{DIRECTORY}/{0:020d}.log", bytes(first + second))
    disk.write_file(f"{DIRECTORY}/{20:020d}.log", bytes(third))
    log = open_log(disk, SMALL, clean=False, recovery_point=21)
    assert log.end_offset == 21
    expected = {0: 0, 4: 0, 5: 10, 9: 10, 11: 10, 12: 20, 19: 20, 20: 20}
    for offset, base in expected.items():
        data = log.read(offset, 1, log.written)
        assert data is not None
        assert base_offsets(bytes(data)) == [base], offset


def test_file_shorter_than_its_batches_is_told_and_not_passed_over(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    path = f"{DIRECTORY}/{0:020d}.log"
    disk.open(path).truncate(len(make_batch()) - 5)
    with pytest.raises(StorageFailed, match="byte 0, offset 0"):
        log.read(0, 1000, log.written)
    assert log.suspicion is not None


def test_threads_read_while_the_log_grows_rolls_and_shrinks(tmp_path: object) -> None:
    disk = RealDisk()
    log = open_log(disk, SMALL, handles=Handles(disk, files_max=4), directory=f"{tmp_path}/t-0")
    append_many(log, 50)
    stop = threading.Event()

    def read_on(seed: int) -> int:
        count = 0
        while not stop.is_set():
            try:
                count += _read_from_start(log, max_bytes=200 + seed * 100)
            except OffsetOutOfRange:
                continue
        return count

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read_on, seed) for seed in range(3)]
        try:
            for turn in range(60):
                append_many(log, 4)
                sync(log, disk)
                if turn % 10 == 9:
                    shorten(log, disk, log.end_offset - 100)
                log.first_at_or_after(NOW_MS, log.written)
        finally:
            stop.set()
        assert all(reader.result(timeout=60) > 0 for reader in readers)
    log.close()


def _read_from_start(log: Log, max_bytes: int) -> int:
    limit = log.written
    offset, count = log.start_offset, 0
    while offset < limit.offset:
        data = log.read(offset, max_bytes, limit, cached_only=False)
        assert data
        for _, header in headers_in(data):
            assert header.base_offset == offset
            offset, count = header.next_offset, count + 1
    return count


@pytest.mark.parametrize("value_bytes", [10, 3_000, 200_000])
def test_who_reads_on_needs_one_read_each_time(disk: MemoryDisk, value_bytes: int) -> None:
    log = open_log(disk, LogConfig())
    for _ in range(4_000_000 // (3 * value_bytes + 100)):
        append(log, make_batch(3, value=b"v" * value_bytes))
    log.write()
    offset, reads_needed = 0, []
    while offset < log.written.offset:
        before = disk.reads
        data = log.read(offset, 1_000_000, log.written)
        reads_needed.append(disk.reads - before)
        assert data
        offset = [header.next_offset for _, header in headers_in(bytes(data))][-1]
    assert set(reads_needed[1:]) == {1}
