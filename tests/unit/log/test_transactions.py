"""Transactions in a log: what opens them, what ends them, what is refused, and what is stable."""

from __future__ import annotations

import errno

import pytest

from ottla.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from ottla.log.aborted import ENTRY_BYTES, decode_entries
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.log.markers import ABORT, COMMIT, Marker, marker_batch, read_marker
from ottla.log.segment import TXN_INDEX
from ottla.testing.disks import MemoryDisk
from ottla.wire.records import Record, encode_batch, read_header
from unit.log.house import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    aborted_in,
    append,
    append_many,
    end_transaction,
    make_batch,
    open_log,
    send,
    sync,
)

TXN = {"is_transactional": True}


def stable(log: Log, high_watermark: int | None = None) -> int:
    """The last stable offset, were so much committed."""
    committed = log.end_offset if high_watermark is None else high_watermark
    unstable = log.first_unstable(committed)
    return committed if unstable is None else min(unstable.offset, committed)


def index_of(disk: MemoryDisk, base_offset: int = 0) -> list[tuple[int, ...]]:
    try:
        data = disk.read_file(f"{DIRECTORY}/{base_offset:020d}{TXN_INDEX}")
    except FileNotFoundError:
        return []
    assert len(data) % ENTRY_BYTES == 0
    return [tuple(entry) for entry in decode_entries(data)]


def test_a_marker_says_how_it_ended_and_who_decided_so() -> None:
    batch = marker_batch(7, 3, Marker(ABORT, 11), NOW_MS)
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert read_marker(batch) == (ABORT, 11)


def test_nothing_after_an_open_transaction_is_stable_until_it_ends(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    assert stable(log) == 3
    send(log, 0, count=2, **TXN)
    send(log, 0, producer_id=8, **TXN)
    append(log)
    assert stable(log) == 3
    end_transaction(log, COMMIT)
    assert stable(log) == 5
    end_transaction(log, COMMIT, producer_id=8)
    assert stable(log) == log.end_offset == 9


def test_a_transaction_whose_marker_is_not_committed_is_not_stable(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    append(log)
    end_transaction(log, COMMIT)
    assert stable(log, 2) == 0
    assert stable(log, 3) == 3


def test_second_batch_of_a_transaction_leaves_its_beginning(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 1)
    send(log, 0, **TXN)
    send(log, 1, **TXN)
    send(log, 0, producer_epoch=1, **TXN)
    assert log.producers(1)[0][1].transaction_start == 1


def test_what_is_not_transactional_cannot_come_inside_of_a_transaction(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    for epoch, sequence in ((0, 1), (1, 0)):
        with pytest.raises(InvalidTransactionState):
            send(log, sequence, producer_epoch=epoch)
    end_transaction(log, ABORT)
    assert send(log, 1).base_offset == 2


def test_sequences_go_on_after_a_marker_of_the_same_epoch_and_begin_with_another(
    disk: MemoryDisk,
) -> None:
    log = open_log(disk)
    send(log, 0, count=2, **TXN)
    end_transaction(log, COMMIT)
    assert send(log, 0, count=2, **TXN).is_duplicate
    send(log, 2, **TXN)
    end_transaction(log, COMMIT, producer_epoch=1, version=2)
    with pytest.raises(OutOfOrderSequence):
        send(log, 3, producer_epoch=1, **TXN)
    assert not send(log, 0, producer_epoch=1, **TXN).is_duplicate


def test_a_marker_fences_the_epochs_before_its_own(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    end_transaction(log, ABORT, producer_epoch=1, version=2)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 1, **TXN)
    with pytest.raises(InvalidProducerEpoch):
        end_transaction(log, COMMIT)


def test_a_late_marker_of_the_transaction_before_ends_nothing(disk: MemoryDisk) -> None:
    """The hole that KIP-890 closes: by its first version the second transaction would end."""
    log = open_log(disk)
    send(log, 0, **TXN)
    end_transaction(log, COMMIT, producer_epoch=1, version=2)
    send(log, 0, producer_epoch=1, **TXN)
    with pytest.raises(InvalidProducerEpoch):
        end_transaction(log, COMMIT, producer_epoch=1, version=2)
    assert log.has_open_transaction(7, 1)
    assert stable(log) == 2


@pytest.mark.parametrize(("version", "epoch"), [(0, 0), (1, 0), (2, 1)])
def test_a_marker_that_comes_twice_is_written_once(
    disk: MemoryDisk, version: int, epoch: int
) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    first = end_transaction(log, ABORT, producer_epoch=epoch, version=version)
    again = end_transaction(log, ABORT, producer_epoch=epoch, version=version)
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert again.end_offset == first.end_offset == log.end_offset == 2
    log.write()
    assert index_of(disk) == [(7, 0, 1, 2)]


def test_a_coordinator_that_was_replaced_ends_nothing(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    end_transaction(log, COMMIT, coordinator_epoch=5)
    send(log, 1, **TXN)
    with pytest.raises(TransactionCoordinatorFenced):
        end_transaction(log, ABORT, coordinator_epoch=4)
    assert log.has_open_transaction(7, 0)
    end_transaction(log, ABORT, coordinator_epoch=6)
    assert not log.has_open_transaction(7, 0)


def test_a_marker_without_a_transaction_tells_the_epoch_and_is_in_no_index(
    disk: MemoryDisk,
) -> None:
    log = open_log(disk)
    assert not end_transaction(log, ABORT, producer_epoch=3, coordinator_epoch=2).is_duplicate
    log.write()
    assert log.producers(1) == [(7, (3, (), NOW_MS, 2, -1))]
    assert index_of(disk) == []
    with pytest.raises(InvalidProducerEpoch):
        send(log, 0, producer_epoch=2)


def test_the_index_tells_of_aborted_transactions_and_of_no_others(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)  # 0
    send(log, 0, producer_id=8, **TXN)  # 1
    end_transaction(log, ABORT)  # 2
    end_transaction(log, COMMIT, producer_id=8)  # 3
    send(log, 1, **TXN)  # 4
    send(log, 1, producer_id=8, **TXN)  # 5
    end_transaction(log, ABORT, producer_id=8)  # 6
    end_transaction(log, ABORT)  # 7
    log.write()
    assert index_of(disk) == [(7, 0, 2, 1), (8, 5, 6, 4), (7, 4, 7, 8)]
    assert aborted_in(log) == [(7, 0), (8, 5), (7, 4)]
    assert aborted_in(log, 3) == [(8, 5), (7, 4)]
    assert aborted_in(log, 7) == [(7, 4)]
    assert aborted_in(log, 0, max_bytes=1) == [(7, 0)]


def test_an_abort_in_a_later_segment_is_found(disk: MemoryDisk) -> None:
    log = open_log(disk, SMALL)
    send(log, 0, **TXN)
    append_many(log, 60)
    assert log.segment_count > 2
    end_transaction(log, ABORT)
    append_many(log, 60)
    last = [segment.base_offset for segment in log.segments if segment.aborted_bytes]
    assert len(last) == 1
    assert last[0] > 0
    assert index_of(disk, last[0]) == [(7, 0, 61, 62)]
    assert aborted_in(log, 0, max_bytes=1) == [(7, 0)]
    assert aborted_in(log, 30, max_bytes=1) == [(7, 0)]
    assert aborted_in(log, 62) == []


def test_a_refused_write_leaves_the_transaction_as_it_was(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    send(log, 0, producer_id=8, **TXN)
    end_transaction(log, ABORT, producer_id=8)
    log.write()
    end_transaction(log, ABORT)
    send(log, 1, **TXN)
    send(log, 0, producer_id=9, **TXN)
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.write()
    assert stable(log) == stable(log, 100) == 0
    assert log.has_open_transaction(7, 0)
    assert not log.has_open_transaction(9, 0)
    assert index_of(disk) == [(8, 1, 2, 0)]
    end_transaction(log, ABORT)
    log.write()
    assert index_of(disk) == [(8, 1, 2, 0), (7, 0, 3, 4)]
    assert stable(log) == 4


def test_the_first_entry_of_an_index_that_is_refused_leaves_no_file(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    log.write()
    end_transaction(log, ABORT)
    disk.fail("write", errno.ENOSPC, after=1)
    with pytest.raises(OSError, match="No space"):
        log.write()
    assert index_of(disk) == []
    assert log.has_open_transaction(7, 0)
    end_transaction(log, COMMIT)
    log.write()
    assert aborted_in(log) == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restart_knows_open_transactions_and_aborted_ones(
    disk: MemoryDisk, is_clean: bool
) -> None:
    log = open_log(disk)
    append_many(log, 2)
    send(log, 0, **TXN)
    send(log, 0, producer_id=8, **TXN)
    end_transaction(log, ABORT, producer_id=8, coordinator_epoch=3)
    log.write()
    sync(log, disk)
    if is_clean:
        log.close()
    again = open_log(disk, clean=is_clean, recovery_point=5 if is_clean else 2)
    assert stable(again) == 2
    assert again.first_unstable(5) == log.first_unstable(5)
    assert aborted_in(again, 3) == [(8, 3)]
    assert again._producers == log._producers
    with pytest.raises(TransactionCoordinatorFenced):
        end_transaction(again, COMMIT, producer_id=8, producer_epoch=1, coordinator_epoch=2)
    end_transaction(again, ABORT)
    again.write()
    assert index_of(disk) == [(8, 3, 4, 2), (7, 2, 5, 6)]


def test_cutting_off_a_marker_opens_its_transaction_again(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    end_transaction(log, ABORT)
    send(log, 1, **TXN)
    end_transaction(log, ABORT)
    log.write()
    log.truncate(3, NOW_MS)
    assert index_of(disk) == [(7, 0, 1, 2)]
    assert stable(log) == 2
    log.truncate(1, NOW_MS)
    assert index_of(disk) == []
    assert stable(log) == 0
    end_transaction(log, COMMIT)
    log.write()
    assert aborted_in(log) == []
    assert stable(log) == 2


def test_a_log_that_begins_anew_has_no_transactions(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    send(log, 0, producer_id=8, **TXN)
    end_transaction(log, ABORT)
    log.write()
    log.restart_at(10, NOW_MS)
    assert stable(log) == 10
    assert [name for name in disk.list(DIRECTORY) if name.endswith(TXN_INDEX)] == []


def test_an_open_transaction_does_not_expire_with_its_producer(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(producer_expiry_ms=1000))
    send(log, 0, **TXN)
    send(log, 0, producer_id=8, **TXN)
    end_transaction(log, COMMIT, producer_id=8)
    log.expire_producers(NOW_MS + 1_000_000)
    assert log.producer_ids() == [7]
    assert stable(log) == 0


def test_retention_takes_an_index_with_its_segment(disk: MemoryDisk) -> None:
    log = open_log(disk, SMALL)
    for sequence in range(40):
        send(log, sequence, **TXN)
        end_transaction(log, ABORT)
        log.write()
    first = log.segments[1].base_offset
    assert index_of(disk, 0)
    for path in log.set_aside(log.delete_before(first)):
        disk.remove(path)
    names = disk.list(DIRECTORY)
    assert min(name for name in names if name.endswith(TXN_INDEX)) == f"{first:020d}{TXN_INDEX}"
    assert aborted_in(log, first, max_bytes=1)


def test_a_follower_has_the_leaders_transactions_and_index(disk: MemoryDisk) -> None:
    leader = open_log(disk)
    for sequence in range(3):
        send(leader, sequence, **TXN)
        append(leader)
        end_transaction(leader, ABORT if sequence % 2 == 0 else COMMIT)
    send(leader, 3, **TXN)
    leader.write()
    data = leader.read(0, 1 << 20, leader.written, with_empty=True)
    assert data is not None
    follower = Log.new(Handles(disk), "/data/f-0", LogConfig(), NOW_MS)
    taken = follower.append_replicated(memoryview(bytes(data)), leader.latest_epoch, NOW_MS)
    assert taken == len(data)
    follower.write()
    assert follower._producers == leader._producers
    assert follower.first_unstable(9) == leader.first_unstable(9)
    name = f"{0:020d}{TXN_INDEX}"
    assert disk.read_file(f"/data/f-0/{name}") == disk.read_file(f"{DIRECTORY}/{name}")


# ------------------------------------------------------------- asking the coordinator (KIP-890)


def verifying(disk: MemoryDisk) -> Log:
    return open_log(disk, LogConfig(verifies_transactions=True))


def begin(log: Log, sequence: int, verification: object = None, epoch: int = 0) -> None:
    batch = make_batch(
        producer_id=7, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
    )
    header = read_header(batch)
    log.append(memoryview(batch), header, 0, NOW_MS, verification)  # type: ignore[arg-type]


def test_a_transaction_begins_only_where_its_coordinator_was_asked(disk: MemoryDisk) -> None:
    log = verifying(disk)
    with pytest.raises(InvalidTransactionState):
        begin(log, 0)
    verification = log.begin_verification(7, 0, 0, NOW_MS)
    begin(log, 0, verification)
    assert log.begin_verification(7, 0, 1, NOW_MS) is None
    begin(log, 1)


def test_an_answer_is_worth_nothing_after_a_marker(disk: MemoryDisk) -> None:
    log = verifying(disk)
    verification = log.begin_verification(7, 0, 0, NOW_MS)
    end_transaction(log, ABORT)
    with pytest.raises(InvalidTransactionState):
        begin(log, 0, verification)
    begin(log, 0, log.begin_verification(7, 0, 0, NOW_MS))


def test_the_first_of_those_that_are_asked_about_comes_first(disk: MemoryDisk) -> None:
    log = verifying(disk)
    second = log.begin_verification(7, 0, 1, NOW_MS)
    first = log.begin_verification(7, 0, 0, NOW_MS)
    assert first is second
    with pytest.raises(OutOfOrderSequence):
        begin(log, 1, second)
    begin(log, 0, first)
    begin(log, 1)


def test_another_epoch_of_an_open_transaction_has_to_be_asked_about(disk: MemoryDisk) -> None:
    log = verifying(disk)
    begin(log, 0, log.begin_verification(7, 0, 0, NOW_MS))
    with pytest.raises(InvalidTransactionState):
        begin(log, 0, epoch=1)
    begin(log, 0, log.begin_verification(7, 1, 0, NOW_MS), epoch=1)


def test_what_a_coordinator_writes_for_a_producer_has_no_sequence(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batch = encode_batch(
        [Record(0, NOW_MS, b"k", b"v")],
        producer_id=7,
        producer_epoch=2,
        is_transactional=True,
    )
    log.append(memoryview(batch), read_header(batch), 0, NOW_MS, is_own=True)
    assert log.has_open_transaction(7, 2)
    older = bytearray(batch)
    older[51:53] = (1).to_bytes(2, "big")
    with pytest.raises(InvalidProducerEpoch):
        log.append(memoryview(older), read_header(older), 0, NOW_MS, is_own=True)


def test_what_was_aborted_in_the_same_write_as_a_roll_is_in_the_index_of_its_segment(
    disk: MemoryDisk,
) -> None:
    log = open_log(disk, SMALL)
    for sequence in range(12):
        send(log, sequence, value=b"v" * 200, **TXN)
        end_transaction(log, ABORT)
    log.write()
    assert log.segment_count > 2
    markers = []
    for segment in log.segments:
        entries = index_of(disk, segment.base_offset)
        assert all(entry[2] >= segment.base_offset for entry in entries)
        markers += [entry[2] for entry in entries]
    assert markers == list(range(1, 24, 2))
    assert aborted_in(log, 0, max_bytes=1) == [(7, 0)]


def test_what_is_aborted_while_a_thread_writes_goes_with_the_next_write(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0, **TXN)
    writing = log.begin_write()
    assert writing is not None
    end_transaction(log, ABORT)
    writing.run()
    log.finish_write(writing)
    assert index_of(disk) == []
    log.write()
    assert index_of(disk) == [(7, 0, 1, 2)]
