"""Looking records up by their time."""

from __future__ import annotations

import pytest

from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk
from ottla.wire.compression import Compression
from ottla.wire.records import read_header, seal_batch, stamp_append_time
from ottla.wire.scanning import OPENED_RECORDS_MAX, STEP_RECORDS, Steps
from unit.log.house import append, append_many, make_batch, open_log, sync

FINE = LogConfig(segment_bytes=800, index_interval_bytes=50)


def fill(log: Log, *times: int) -> None:
    for at, time in enumerate(times):
        append(log, make_batch(timestamps=[time]), epoch=at // 4)
    log.write()


@pytest.mark.parametrize("restart", [False, True])
def test_first_record_at_or_after_a_time(disk: MemoryDisk, restart: bool) -> None:
    log = open_log(disk, FINE)
    times = [100 + 10 * at for at in range(40)]
    fill(log, *times)
    if restart:
        log.close()
        log = open_log(disk, FINE)
    assert log.segment_count > 3
    for at, time in enumerate(times):
        assert log.first_at_or_after(time, log.written) == (at, time, at // 4)
        assert log.first_at_or_after(time - 5, log.written) == (at, time, at // 4)
    assert log.first_at_or_after(times[-1] + 1, log.written) is None


def test_record_inside_of_a_compressed_batch_is_found(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batch = make_batch(5, timestamps=[10, 20, 15, 30, 25], compression=Compression.ZSTD)
    append(log, batch, epoch=6)
    log.write()
    assert log.first_at_or_after(16, log.written) == (1, 20, 6)
    assert log.first_at_or_after(21, log.written) == (3, 30, 6)
    assert log.max_timestamp(log.written) == (3, 30, 6)


def test_unordered_times_find_the_first_by_offset(disk: MemoryDisk) -> None:
    log = open_log(disk, FINE)
    fill(log, 100, 500, 200, 300, 400, 150, 600)
    assert log.first_at_or_after(150, log.written) == (1, 500, 0)
    assert log.first_at_or_after(501, log.written) == (6, 600, 1)


def test_equal_times_find_the_first_of_them(disk: MemoryDisk) -> None:
    log = open_log(disk, FINE)
    fill(log, *[100] * 10, *[200] * 30, *[300] * 3)
    assert log.first_at_or_after(200, log.written) == (10, 200, 2)
    assert log.max_timestamp(log.written) == (40, 300, 10)


def test_log_append_time_counts_for_all_records(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batch = make_batch(3, timestamps=[10, 20, 30])
    stamp_append_time(memoryview(batch), 5000)
    append(log, batch)
    log.write()
    assert log.first_at_or_after(4000, log.written) == (0, 5000, 0)
    assert log.max_timestamp(log.written) == (0, 5000, 0)


def test_nothing_behind_the_limit_is_found(disk: MemoryDisk) -> None:
    log = open_log(disk, FINE)
    fill(log, *range(100, 130))
    limit = log.written
    fill(log, *range(130, 160))
    assert log.first_at_or_after(129, limit) == (29, 129, 7)
    assert log.first_at_or_after(130, limit) is None
    assert log.max_timestamp(limit) == (29, 129, 7)


def test_indexed_batch_right_behind_the_limit_does_not_count(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=1))
    fill(log, *range(100, 110))
    limit = log.written
    fill(log, *range(200, 210))
    assert log.max_timestamp(limit) == (9, 109, 2)


def test_largest_time_below_a_limit_needs_no_scan_of_the_segment(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=4096))
    fill(log, *range(1000, 1000 + 30_000))
    limit = log.written
    append_many(log, 1, timestamps=[10**6])
    before = disk.reads
    assert log.max_timestamp(limit) == (29_999, 30_999, 29_999 // 4)
    assert disk.reads - before <= 3


def test_nothing_before_the_start_is_found(disk: MemoryDisk) -> None:
    log = open_log(disk, FINE)
    fill(log, 900, *range(100, 140))
    sync(log, disk)
    log.delete_before(20)
    assert log.first_at_or_after(50, log.written) == (20, 119, 5)
    assert log.max_timestamp(log.written) == (40, 139, 10)


def test_nothing_before_the_start_is_found_in_the_same_batch(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, make_batch(5, timestamps=[10, 20, 30, 40, 50]))
    log.write()
    log.delete_before(2)
    assert log.first_at_or_after(0, log.written) == (2, 30, 0)


def test_only_the_batch_in_question_is_opened(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=10**6))
    fill(log, *range(1000, 2000))
    before = disk.reads
    assert log.first_at_or_after(1900, log.written) == (900, 1900, 225)
    assert disk.reads - before == 2, "one to look at the headers, one for the batch"


def test_messages_without_a_time_are_not_found(disk: MemoryDisk) -> None:
    log = open_log(disk)
    fill(log, -1, -1)
    assert log.first_at_or_after(0, log.written) is None
    assert log.max_timestamp(log.written) is None


def test_empty_log_has_no_times(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert log.first_at_or_after(0, log.written) is None
    assert log.max_timestamp(log.written) is None


@pytest.mark.parametrize("is_lie", [False, True], ids=["too large", "a lie"])
def test_a_batch_that_cannot_be_opened_stands_as_a_whole_for_its_records(
    disk: MemoryDisk, is_lie: bool
) -> None:
    log = open_log(disk)
    append(log, make_batch(timestamps=[10]))
    batch = make_batch(2, timestamps=[20, 30])
    count = 3 if is_lie else OPENED_RECORDS_MAX + 1
    header = read_header(batch)._replace(count=count, last_offset_delta=count - 1)
    if is_lie:
        header = header._replace(batch_length=49 + 9)
    append(log, seal_batch(header, b"\xff" * 9 if is_lie else batch[61:]), epoch=4)
    append(log, make_batch(timestamps=[25]), epoch=5)
    log.write()
    assert log.first_at_or_after(25, log.written) == (1, 30, 4)
    assert log.max_timestamp(log.written) == (1, 30, 4)
    assert log.first_at_or_after(10, log.written) == (0, 10, 0)


def test_who_asks_goes_through_the_steps(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log, make_batch(3 * STEP_RECORDS, timestamps=range(3 * STEP_RECORDS)))
    log.write()
    counts = []

    def count_steps(steps: Steps[tuple[int, int] | None]) -> tuple[int, int] | None:
        def counted() -> Steps[tuple[int, int] | None]:
            counts.append(0)
            found = yield from steps
            return found

        searching = counted()
        while True:
            try:
                next(searching)
            except StopIteration as end:
                return end.value
            counts[-1] += 1

    last = 3 * STEP_RECORDS - 1
    assert log.first_at_or_after(last, log.written, count_steps) == (last, last, 0)
    assert log.max_timestamp(log.written, count_steps) == (last, last, 0)
    assert counts == [2, 2]
