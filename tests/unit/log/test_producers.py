"""Idempotent producers: what is a repetition, what is out of order, and what a log remembers."""

from __future__ import annotations

import errno
from random import Random

import pytest

from ottla.errors import InvalidProducerEpoch, InvalidRecord, OutOfOrderSequence, StorageFailed
from ottla.log.log import LogConfig
from ottla.testing.disks import MemoryDisk
from ottla.wire.records import SEQUENCE_MAX, stamp_append_time
from unit.log.house import (
    DIRECTORY,
    NOW_MS,
    append,
    append_many,
    make_batch,
    open_log,
    read_all,
    send,
    sync,
)


def test_repetition_gets_the_first_offsets_and_is_not_appended(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 5)
    assert send(log, 0, count=3) == (5, 8, -1, False)
    assert send(log, 0, count=3) == (5, 8, -1, True)
    log.write()
    assert send(log, 0, count=3) == (5, 8, -1, True)
    assert log.end_offset == 8


def test_each_of_the_last_five_batches_is_known(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for sequence in range(6):
        send(log, sequence)
    for sequence in range(1, 6):
        assert send(log, sequence) == (sequence, sequence + 1, -1, True)


def test_repetition_older_than_the_window_is_out_of_order(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for sequence in range(6):
        send(log, sequence)
    with pytest.raises(OutOfOrderSequence):
        send(log, 0)


def test_repetition_must_have_the_same_last_sequence(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, count=3)
    with pytest.raises(OutOfOrderSequence):
        send(log, 0, count=2)


def test_gap_in_the_sequence_is_refused_and_leaves_no_trace(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0)
    with pytest.raises(OutOfOrderSequence):
        send(log, 2)
    assert send(log, 1).base_offset == 1


def test_unknown_producer_may_begin_with_any_sequence(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert send(log, 4711).base_offset == 0
    assert send(log, 4712).base_offset == 1


def test_sequence_starts_over_after_the_largest(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, SEQUENCE_MAX - 1, count=2)
    assert send(log, 0).base_offset == 2
    assert send(log, SEQUENCE_MAX - 1, count=2) == (0, 2, -1, True)


def test_sequence_starts_over_inside_of_a_batch(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, SEQUENCE_MAX - 1, count=5)
    assert send(log, 3).base_offset == 5
    assert send(log, SEQUENCE_MAX - 1, count=5) == (0, 5, -1, True)


def test_fenced_producer_cannot_append(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, producer_epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 1, producer_epoch=2)


def test_fenced_producer_cannot_even_repeat(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, producer_epoch=2)
    send(log, 0, producer_epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 0, producer_epoch=2)


def test_new_producer_epoch_begins_at_zero(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 5)
    with pytest.raises(OutOfOrderSequence):
        send(log, 6, producer_epoch=1)
    assert send(log, 0, producer_epoch=1).base_offset == 1
    assert send(log, 1, producer_epoch=1).base_offset == 2


def test_producer_without_a_sequence_is_refused(disk: MemoryDisk) -> None:
    log = open_log(disk)
    with pytest.raises(InvalidRecord):
        send(log, -1)


def test_producers_do_not_mix(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for sequence in range(3):
        for producer_id in (1, 2):
            send(log, sequence, producer_id=producer_id)
    assert send(log, 2, producer_id=1) == (4, 5, -1, True)
    assert send(log, 2, producer_id=2) == (5, 6, -1, True)


def test_append_time_of_a_repetition_is_that_of_the_first(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for now_ms, is_duplicate in ((NOW_MS, False), (NOW_MS + 500, True)):
        batch = make_batch(producer_id=1, producer_epoch=0, base_sequence=0)
        stamp_append_time(memoryview(batch), now_ms)
        assert append(log, batch) == (0, 1, NOW_MS, is_duplicate)


def test_whole_window_survives_a_clean_restart(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for sequence in range(6):
        send(log, sequence)
    log.close()
    log = open_log(disk)
    for sequence in range(1, 6):
        assert send(log, sequence) == (sequence, sequence + 1, -1, True)
    assert send(log, 6).base_offset == 6


@pytest.mark.parametrize("segment_bytes", [400, 10**6])
def test_whole_window_survives_a_crash(disk: MemoryDisk, segment_bytes: int) -> None:
    config = LogConfig(segment_bytes=segment_bytes)
    log = open_log(disk, config)
    for sequence in range(20):
        send(log, sequence)
    log.write()
    sync(log, disk)
    disk = disk.after_crash(Random(1))
    log = open_log(disk, config, clean=False, recovery_point=17)
    for sequence in range(15, 20):
        assert send(log, sequence) == (sequence, sequence + 1, -1, True)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_removed", [True, False])
def test_lost_or_damaged_snapshots_are_replayed_from_the_batches(
    disk: MemoryDisk, clean: bool, is_removed: bool
) -> None:
    log = open_log(disk)
    for sequence in range(60):
        send(log, sequence)
    log.close()
    for path in disk.paths():
        if path.endswith(".snapshot"):
            disk.remove(path) if is_removed else disk.write_file(path, b"\0" * 56)
    log = open_log(disk, clean=clean)
    assert log.end_offset == 60
    for sequence in range(55, 60):
        assert send(log, sequence) == (sequence, sequence + 1, -1, True)


def test_batch_that_was_not_written_is_not_remembered(disk: MemoryDisk) -> None:
    """A retry of it must be appended: to call it a repetition would lose it."""
    log = open_log(disk)
    send(log, 0)
    log.write()
    send(log, 1)
    send(log, 2)
    send(log, 0, producer_id=99)
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.write()
    assert len(log.last_data_of_producers()) == 1
    assert send(log, 1) == (1, 2, -1, False)
    assert send(log, 0) == (0, 1, -1, True)


def test_batch_whose_sync_failed_is_not_remembered(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0)
    log.write()
    sync(log, disk)
    send(log, 1)
    log.write()
    log.begin_sync()
    log.fail_sync()
    with pytest.raises(StorageFailed):
        send(log, 1)
    log = log.reopen(NOW_MS)
    assert send(log, 1) == (1, 2, -1, False)
    assert send(log, 0) == (0, 1, -1, True)


def test_idle_producers_are_forgotten(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(producer_expiry_ms=1000))
    send(log, 0, producer_id=1)
    append(
        log,
        make_batch(producer_id=2, producer_epoch=0, base_sequence=0),
        now_ms=NOW_MS + 500,
    )
    log.expire_producers(NOW_MS + 999)
    assert len(log.last_data_of_producers()) == 2
    log.expire_producers(NOW_MS + 1000)
    assert len(log.last_data_of_producers()) == 1
    assert send(log, 7, producer_id=1).is_duplicate is False


def test_producer_of_old_messages_is_not_idle(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(producer_expiry_ms=1000))
    send(log, 0, timestamps=[5])
    log.expire_producers(NOW_MS + 999)
    assert send(log, 0).is_duplicate


def test_idle_producers_are_not_loaded(disk: MemoryDisk) -> None:
    config = LogConfig(producer_expiry_ms=1000)
    log = open_log(disk, config)
    send(log, 0)
    log.close()
    assert len(open_log(disk, config, now_ms=NOW_MS + 999).last_data_of_producers()) == 1
    assert len(open_log(disk, config, now_ms=NOW_MS + 1000).last_data_of_producers()) == 0


def test_state_at_the_end_of_a_segment_lies_beside_the_next(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0)
    log.roll(NOW_MS)
    send(log, 1)
    log.write()
    assert f"{DIRECTORY}/00000000000000000001.snapshot" in disk.paths()
    log.close()
    snapshots = [path for path in disk.paths() if path.endswith(".snapshot")]
    assert [path[-12:-9] for path in snapshots] == ["001", "002"]


def test_snapshot_of_the_last_stop_is_replaced_by_the_next(disk: MemoryDisk) -> None:
    for sequence in range(3):
        log = open_log(disk)
        send(log, sequence)
        log.close()
    snapshots = [path for path in disk.paths() if path.endswith(".snapshot")]
    assert snapshots == [f"{DIRECTORY}/00000000000000000003.snapshot"]
    assert len(read_all(open_log(disk))) > 0
