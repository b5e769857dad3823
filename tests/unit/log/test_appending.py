"""Offsets, the queue, and when a new segment begins."""

from __future__ import annotations

import pytest

from ottla.broker.storage.disk import RealDisk
from ottla.log.log import LogConfig
from ottla.testing.disks import MemoryDisk
from ottla.wire.records import read_header, stamp_append_time
from unit.log.house import (
    NOW_MS,
    append,
    append_many,
    base_offsets,
    make_batch,
    open_log,
    read_all,
    sync,
)


def test_offsets_go_on_where_the_last_batch_ended(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert append(log, make_batch(3)) == (0, 3, -1, False)
    assert append(log, make_batch(1)) == (3, 4, -1, False)
    assert log.end_offset == 4


def test_appending_touches_no_disk(disk: MemoryDisk) -> None:
    log = open_log(disk)
    operations = disk.operations
    for _ in range(100):
        append(log)
    assert log.segment_count > 1, "it has rolled on the way"
    assert disk.operations == operations
    assert disk.paths() == []
    assert log.written.offset == 0


def test_all_queued_batches_are_one_write(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 1)
    before = disk.operations
    for _ in range(500):
        append(log)
    log.write()
    assert disk.operations == before + 1
    assert log.written.offset == 501
    assert log.synced.offset == 0


def test_a_write_may_hold_more_batches_than_one_system_call(tmp_path: object) -> None:
    log = open_log(RealDisk(), LogConfig(), directory=f"{tmp_path}/t-0")
    append_many(log, 3000)
    assert base_offsets(read_all(log, max_bytes=1_000_000)) == list(range(3000))
    log.close()


def test_append_time_comes_back_with_the_offsets(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batch = make_batch(2)
    stamp_append_time(memoryview(batch), NOW_MS + 5)
    assert append(log, batch) == (0, 2, NOW_MS + 5, False)


def test_segment_ends_before_the_batch_that_does_not_fit(disk: MemoryDisk) -> None:
    size = len(make_batch())
    log = open_log(disk, LogConfig(segment_bytes=3 * size))
    append_many(log, 3)
    assert log.segment_count == 1
    append_many(log, 1)
    assert log.segment_count == 2
    assert log.written == (4, 3, size)
    assert log.size_bytes == 4 * size


def test_batch_larger_than_a_segment_gets_one_for_itself(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=1000))
    for size in (10, 5000, 5000, 10):
        append(log, make_batch(value=b"v" * size))
    log.write()
    assert log.segment_count == 4
    assert base_offsets(read_all(log)) == [0, 1, 2, 3]


def test_rolls_between_queued_batches_split_the_write(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 200, value=b"x" * 100)
    assert log.segment_count > 10
    assert base_offsets(read_all(log)) == list(range(200))
    sync(log, disk)
    log.close()
    again = open_log(disk)
    assert base_offsets(read_all(again)) == list(range(200))


def test_segment_ages_by_the_timestamps_of_its_batches(disk: MemoryDisk) -> None:
    """As in Kafka: from the first batch's timestamp to the new one's, whatever the clock says."""
    log = open_log(disk, LogConfig(segment_ms=1000))
    append(log, make_batch(timestamps=[5000]), now_ms=NOW_MS)
    append(log, make_batch(timestamps=[6000]), now_ms=NOW_MS + 10**6)
    assert log.segment_count == 1
    append(log, make_batch(timestamps=[6001]))
    assert log.segment_count == 2


def test_segment_without_timestamps_ages_by_the_clock(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(segment_ms=1000))
    append(log, make_batch(timestamps=[-1]))
    append(log, make_batch(timestamps=[-1]), now_ms=NOW_MS + 1000)
    assert log.segment_count == 1
    append(log, make_batch(timestamps=[-1]), now_ms=NOW_MS + 1001)
    assert log.segment_count == 2


def test_segment_age_counts_on_after_a_restart(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(segment_ms=1000))
    append(log, make_batch(timestamps=[5000]))
    log.close()
    log = open_log(disk, LogConfig(segment_ms=1000))
    append(log, make_batch(timestamps=[6001]))
    assert log.segment_count == 2


def test_jitter_spreads_the_rolls_of_different_partitions(disk: MemoryDisk) -> None:
    config = LogConfig(segment_ms=1000, segment_jitter_ms=900)
    counts = set()
    for partition in range(20):
        log = open_log(disk, config, directory=f"/data/t-{partition}")
        append(log, make_batch(timestamps=[0]))
        append(log, make_batch(timestamps=[500]))
        counts.add(log.segment_count)
    assert counts == {1, 2}


def test_segment_ends_when_its_index_is_full(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=1, segment_index_bytes=36))
    for _ in range(5):
        append(log, make_batch(timestamps=[NOW_MS]))
    assert log.segment_count == 1, "the first batch needs no entry, and four fit into 36 bytes"
    append(log, make_batch(timestamps=[NOW_MS]))
    assert log.segment_count == 2


def test_segment_ends_when_its_time_index_is_full(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=1, segment_index_bytes=36))
    for at in range(3):
        append(log, make_batch(timestamps=[NOW_MS + at]))
    assert log.segment_count == 1, "two entries, and a place for the last one"
    append(log, make_batch(timestamps=[NOW_MS + 3]))
    assert log.segment_count == 2


def test_segment_ends_where_relative_offsets_would_overflow(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append(log)
    batch = make_batch()
    header = read_header(batch)._replace(last_offset_delta=2**31 - 1)
    log.append(memoryview(batch), header, 0, NOW_MS)
    assert log.segment_count == 2
    assert log.end_offset == 2**31 + 1


def test_new_settings_count_from_the_next_batch(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 3)
    log.config = LogConfig(segment_bytes=100)
    append_many(log, 2)
    assert log.segment_count == 3


def test_forced_roll_of_an_empty_segment_is_nothing(disk: MemoryDisk) -> None:
    log = open_log(disk)
    log.roll(NOW_MS)
    log.write()
    assert log.segment_count == 1
    assert disk.paths() == []


def test_batch_that_cannot_be_stamped_leaves_no_trace(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batch = bytes(make_batch())
    with pytest.raises(TypeError):
        log.append(memoryview(batch), read_header(batch), 0, NOW_MS)
    assert log.end_offset == 0
    assert append(log).base_offset == 0
