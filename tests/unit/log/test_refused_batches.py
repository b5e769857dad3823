"""A refused first batch is awaited: what was in flight after it does not take its place."""

from __future__ import annotations

import errno

import pytest

from ottla.errors import InvalidProducerEpoch, OutOfOrderSequence, StorageFailed
from ottla.log import producer_state
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk
from ottla.wire.records import SEQUENCE_MAX, read_header
from unit.log.house import NOW_MS, make_batch, open_log, send, sync


def refuse(log: Log, sequence: int, *, producer_id: int = 7, producer_epoch: int = 0) -> None:
    fields = {"producer_id": producer_id, "producer_epoch": producer_epoch}
    log.refuse(read_header(make_batch(base_sequence=sequence, **fields)), NOW_MS)


def fill_the_disk(log: Log, disk: MemoryDisk) -> None:
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.write()


@pytest.mark.parametrize("first", [0, 4711, SEQUENCE_MAX - 1])
def test_the_disk_refuses_a_first_batch_and_those_after_it_wait(
    disk: MemoryDisk, first: int
) -> None:
    log = open_log(disk)
    send(log, first, count=2)
    following = (first + 2) & SEQUENCE_MAX
    send(log, following)
    fill_the_disk(log, disk)
    for late in (following, (following + 1) & SEQUENCE_MAX):
        with pytest.raises(OutOfOrderSequence, match=f"{first} was refused"):
            send(log, late)
    assert send(log, first, count=2) == (0, 2, -1, False)
    assert send(log, following) == (2, 3, -1, False)


def test_it_is_awaited_however_often_it_is_refused(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for _ in range(3):
        send(log, 0)
        fill_the_disk(log, disk)
    with pytest.raises(OutOfOrderSequence):
        send(log, 1)


def test_more_batches_than_the_window_holds_are_refused_at_once(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for sequence in range(producer_state.WINDOW_BATCHES + 2):
        send(log, sequence)
    fill_the_disk(log, disk)
    with pytest.raises(OutOfOrderSequence):
        send(log, 1)
    assert send(log, 0).base_offset == 0


def test_a_batch_that_never_came_to_the_log_is_awaited_as_well(disk: MemoryDisk) -> None:
    log = open_log(disk)
    refuse(log, 0)
    refuse(log, 1)
    with pytest.raises(OutOfOrderSequence):
        send(log, 1)
    assert send(log, 0).base_offset == 0
    assert send(log, 1).base_offset == 1


def test_producers_are_awaited_each_for_itself(disk: MemoryDisk) -> None:
    log = open_log(disk)
    refuse(log, 0, producer_id=1)
    assert send(log, 77, producer_id=2).base_offset == 0
    with pytest.raises(OutOfOrderSequence):
        send(log, 1, producer_id=1)


def test_a_producer_without_an_id_is_not_awaited(disk: MemoryDisk) -> None:
    log = open_log(disk)
    log.refuse(read_header(make_batch()), NOW_MS)
    assert send(log, 5).base_offset == 0


def test_what_a_client_repeats_from_before_the_refused_batch_is_taken(disk: MemoryDisk) -> None:
    log = open_log(disk)
    refuse(log, 5)
    assert send(log, 4).base_offset == 0
    assert send(log, 5).base_offset == 1


def test_a_new_epoch_begins_at_zero_and_an_old_one_is_fenced(disk: MemoryDisk) -> None:
    log = open_log(disk)
    refuse(log, 3, producer_epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 3, producer_epoch=0)
    with pytest.raises(OutOfOrderSequence):
        send(log, 4, producer_epoch=2)
    assert send(log, 0, producer_epoch=2).base_offset == 0


def test_a_refused_new_epoch_is_awaited_in_the_place_of_the_old(disk: MemoryDisk) -> None:
    log = open_log(disk)
    refuse(log, 3, producer_epoch=0)
    refuse(log, 0, producer_epoch=1)
    with pytest.raises(OutOfOrderSequence):
        send(log, 1, producer_epoch=1)
    assert send(log, 0, producer_epoch=1).base_offset == 0


def test_a_cut_log_awaits_what_the_cut_took_and_what_was_refused_meanwhile(
    disk: MemoryDisk,
) -> None:
    log = open_log(disk)
    send(log, 0, producer_id=1)
    log.write()
    sync(log, disk)
    for producer_id, sequence in ((1, 1), (2, 0), (2, 1)):
        send(log, sequence, producer_id=producer_id)
    log.write()
    log.begin_sync()
    log.fail_sync()
    refuse(log, 0, producer_id=3)
    with pytest.raises(StorageFailed):
        send(log, 2, producer_id=2)
    healed = log.reopen(NOW_MS)
    healed.inherit(log, NOW_MS)
    for producer_id, late in ((1, 2), (2, 1), (2, 2), (3, 1)):
        with pytest.raises(OutOfOrderSequence):
            send(healed, late, producer_id=producer_id)
    for producer_id, missing in ((1, 1), (2, 0), (3, 0)):
        send(healed, missing, producer_id=producer_id)
    assert healed.end_offset == 4


def test_a_truncated_log_awaits_what_was_cut(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, producer_id=1)
    send(log, 0, producer_id=2)
    log.write()
    sync(log, disk)
    log.truncate(1, NOW_MS)
    with pytest.raises(OutOfOrderSequence):
        send(log, 1, producer_id=2)
    assert send(log, 1, producer_id=1).base_offset == 1
    assert send(log, 0, producer_id=2).base_offset == 2


def test_a_known_producer_does_not_expire_between_a_refusal_and_what_comes_after_it(
    disk: MemoryDisk,
) -> None:
    log = open_log(disk, LogConfig(producer_expiry_ms=1000))
    send(log, 0)
    log.write()
    late = read_header(make_batch(producer_id=7, producer_epoch=0, base_sequence=1))
    log.refuse(late, NOW_MS + 999)
    log.expire_producers(NOW_MS + 1000)
    with pytest.raises(OutOfOrderSequence):
        send(log, 2)


def test_who_does_not_come_back_is_forgotten(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(producer_expiry_ms=1000))
    refuse(log, 0)
    log.expire_producers(NOW_MS + 999)
    with pytest.raises(OutOfOrderSequence):
        send(log, 9)
    log.expire_producers(NOW_MS + 1000)
    assert send(log, 9).base_offset == 0


def test_more_refused_producers_than_can_be_remembered_have_to_begin_at_zero(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_state, "AWAITED_MAX", 2)
    log = open_log(disk, LogConfig(producer_expiry_ms=1000))
    for producer_id in range(4):
        refuse(log, 0, producer_id=producer_id)
    for _ in range(2):
        # Also when it comes again: this refusal is none that could be mended by a repetition.
        with pytest.raises(OutOfOrderSequence):
            send(log, 1, producer_id=3)
        refuse(log, 1, producer_id=3)
    for producer_id in range(4):
        send(log, 0, producer_id=producer_id)
        send(log, 1, producer_id=producer_id)
    with pytest.raises(OutOfOrderSequence):
        send(log, 1, producer_id=99)
    log.expire_producers(NOW_MS + 1000)
    assert send(log, 1, producer_id=99).base_offset == 8
