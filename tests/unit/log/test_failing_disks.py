"""A disk that refuses: what is taken back, what is fenced, what must be synced."""

from __future__ import annotations

import errno
from random import Random

import pytest

from ottla.errors import StorageFailed
from ottla.log.handles import Handles
from ottla.log.index import OFFSET_ENTRY
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk
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
    sync,
)

LOG_FILE = f"{DIRECTORY}/{0:020d}.log"


@pytest.mark.parametrize("torn_bytes", [0, 1, 70, 10_000])
def test_full_disk_takes_back_what_was_queued(disk: MemoryDisk, torn_bytes: int) -> None:
    log = open_log(disk)
    append_many(log, 3)
    stored = disk.read_file(LOG_FILE)
    for _ in range(3):
        append(log, epoch=4)
    disk.fail("write", errno.ENOSPC, torn_bytes=torn_bytes)
    with pytest.raises(OSError, match="No space"):
        log.write()
    assert not log.fenced
    assert log.end_offset == log.written.offset == 3
    assert log.size_bytes == len(stored)
    assert log.epoch_at(3) == 4, "the leader's epoch goes on, it only has nothing yet"
    assert disk.read_file(LOG_FILE) == stored, "torn bytes are cut off"


def test_refused_batches_leave_no_trace_in_the_indexes(disk: MemoryDisk) -> None:
    config = LogConfig(index_interval_bytes=1)
    log = open_log(disk, config)
    append_many(log, 5, timestamps=[NOW_MS])
    for _ in range(10):
        append(log, make_batch(3, timestamps=[NOW_MS + 1000], value=b"v" * 300))
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.write()
    assert log.max_timestamp(log.written) == (0, NOW_MS, 0)
    append_many(log, 20, timestamps=[NOW_MS + 500])
    for offset in range(25):
        data = log.read(offset, 1, log.written)
        assert data is not None
        assert base_offsets(bytes(data)) == [offset]
    assert log.first_at_or_after(NOW_MS + 1, log.written) == (5, NOW_MS + 500, 0)
    log.close()
    index = disk.read_file(f"{DIRECTORY}/{0:020d}.index")
    size = len(make_batch())
    assert index == b"".join(OFFSET_ENTRY.pack(at, at * size) for at in range(1, 25))


def test_epoch_that_began_with_a_refused_batch_has_not_begun_there(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    append(log, epoch=4)
    append(log, epoch=4)
    append(log, epoch=5)
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.write()
    assert log.epoch_at(log.end_offset) == 5
    assert log.end_offset_for_epoch(0) == (0, 3)
    assert log.end_offset_for_epoch(4) == (0, 3)
    append(log, epoch=5)
    assert log.epoch_at(3) == 5


def test_log_goes_on_when_there_is_room_again(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 2)
    append(log)
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.write()
    log.write()
    assert log.end_offset == 2, "what was taken back does not come with the next write"
    append_many(log, 30)
    assert base_offsets(read_all(log)) == list(range(32))
    sync(log, disk)
    assert log.synced == log.written


@pytest.mark.parametrize("operation", ["create", "write"])
@pytest.mark.parametrize("which", range(6))
def test_refusal_in_the_middle_of_a_roll_takes_all_of_it_back(
    disk: MemoryDisk, operation: str, which: int
) -> None:
    """Queue, indexes, snapshot, epochs, the next file: whichever of them does not fit."""
    log = open_log(disk)
    append_many(log, 5)
    expected = read_all(log)
    for _ in range(40):
        append(log, epoch=1)
    assert log.segment_count > 2
    disk.fail("nothing")
    _fail_later(disk, operation, which)
    with pytest.raises(OSError, match="No space"):
        log.write()
    assert log.segment_count == 1
    assert log.written.offset == log.end_offset == 5
    assert read_all(log) == expected
    append_many(log, 40)
    assert base_offsets(read_all(log)) == list(range(45))
    sync(log, disk)
    log.close()
    assert base_offsets(read_all(open_log(disk))) == list(range(45))


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_after_a_refusal_leaves_no_log_that_begins_in_the_middle(
    disk: MemoryDisk, seed: int
) -> None:
    """Of the removed files some may be back: the first ones, as they were made."""
    log = open_log(disk)
    for _ in range(80):
        append(log)
    _fail_later(disk, "write", 8)
    with pytest.raises(OSError, match="No space"):
        log.write()
    again = open_log(disk.after_crash(Random(seed)), clean=False)
    assert again.start_offset == 0


def _fail_later(disk: MemoryDisk, operation: str, which: int) -> None:
    begin, seen = disk.begin, 0

    def count(name: str, path: str, byte_count: int = 0) -> int | None:
        nonlocal seen
        if name == operation:
            seen += 1
            if seen == which + 1:
                disk.fail(operation, errno.ENOSPC)
        return begin(name, path, byte_count)

    disk.begin = count  # type: ignore[method-assign]


def test_first_file_that_cannot_be_made_leaves_an_empty_log(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log)
    disk.fail("create", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.write()
    append_many(log, 2)
    assert base_offsets(read_all(log)) == [0, 1]


def test_torn_write_that_cannot_be_cut_off_fences_the_log(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    sync(log, disk)
    append(log)
    disk.fail("write", errno.EIO, torn_bytes=30)
    disk.fail("truncate", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log.write()
    assert log.fenced
    with pytest.raises(StorageFailed):
        append(log)
    assert base_offsets(read_all(log)) == [0, 1, 2], "reads go on"
    log = log.reopen(NOW_MS)
    assert log.end_offset == 3
    append_many(log, 1)
    assert base_offsets(read_all(log)) == [0, 1, 2, 3]


def test_failed_sync_fences_the_log(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    sync(log, disk)
    append_many(log, 2)
    assert log.begin_sync() is not None
    log.fail_sync()
    with pytest.raises(StorageFailed):
        append(log)
    assert log.begin_sync() is None
    assert log.synced.offset == 3
    assert base_offsets(read_all(log, log.synced)) == [0, 1, 2], "reads go on"


def test_sync_that_succeeds_after_one_that_failed_proves_nothing(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    log.begin_sync()
    append_many(log, 2)
    second = log.begin_sync()
    assert second is not None
    log.fail_sync()
    disk.sync_many(second.files)
    log.finish_sync(second)
    assert log.synced.offset == 0


def test_reopened_log_believes_nothing_behind_a_failed_sync(disk: MemoryDisk) -> None:
    """The kernel drops pages it could not write and shows them until they are evicted."""
    log = open_log(disk, SMALL)
    append_many(log, 30)
    sync(log, disk)
    synced = log.synced.offset
    append_many(log, 30)
    ticket = log.begin_sync()
    assert ticket is not None
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_many(ticket.files)
    log.fail_sync()
    log = log.reopen(NOW_MS)
    assert log.end_offset == log.synced.offset == synced
    append_many(log, 1, value=b"new")
    sync(log, disk)
    log = open_log(disk.after_crash(Random(0)), clean=False, recovery_point=synced)
    assert log.end_offset == synced + 1


def test_segment_begun_after_the_last_good_sync_is_not_believed_either(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 5)
    sync(log, disk)
    log.roll(NOW_MS)
    append_many(log, 5)
    assert log.begin_sync() is not None
    log.fail_sync()
    log = log.reopen(NOW_MS)
    assert log.end_offset == 5


def test_indexes_that_a_failed_sync_left_in_memory_are_made_anew(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 1)
    sync(log, disk)
    log.close()
    log = open_log(disk)
    append_many(log, 1)
    log.roll(NOW_MS)
    log.write()
    ticket = log.begin_sync()
    assert ticket is not None
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_many(ticket.files)
    log.fail_sync()
    log = log.reopen(NOW_MS)
    disk.closed_unsynced.clear()
    log.close()
    assert not disk.closed_unsynced
    log = open_log(disk)
    assert log.end_offset == 1


def test_fenced_log_is_not_closed_cleanly(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 2)
    log.begin_sync()
    log.fail_sync()
    with pytest.raises(StorageFailed):
        log.close()
    assert not disk.open_files


def test_disk_that_fails_at_the_end_lets_the_files_go(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 2)
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        log.close()
    assert not disk.open_files


def test_nothing_to_sync_gives_no_ticket(disk: MemoryDisk) -> None:
    log = open_log(disk)
    assert log.begin_sync() is None
    append(log)
    assert log.begin_sync() is None, "queued is not written"
    log.write()
    sync(log, disk)
    assert log.begin_sync() is None
    assert log.synced == log.written


def test_ticket_covers_what_was_written_before_it(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 2)
    ticket = log.begin_sync()
    append_many(log, 2)
    assert ticket is not None
    assert ticket.position.offset == 2
    disk.sync_many(ticket.files)
    log.finish_sync(ticket)
    assert log.synced.offset == 2
    assert log.begin_sync() is not None, "the file was written to again"


def test_ticket_names_the_directory_of_a_new_file(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 1)
    ticket = log.begin_sync()
    assert ticket is not None
    assert ticket.directories == [DIRECTORY]
    disk.sync_many(ticket.files, ticket.directories)
    log.finish_sync(ticket)
    append_many(log, 1)
    ticket = log.begin_sync()
    assert ticket is not None
    assert ticket.directories == []


def test_name_made_while_a_sync_was_under_way_needs_the_next_one(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 1)
    first = log.begin_sync()
    log.roll(NOW_MS)
    append_many(log, 1)
    assert first is not None
    disk.sync_many(first.files, first.directories)
    log.finish_sync(first)
    second = log.begin_sync()
    assert second is not None
    assert second.directories == [DIRECTORY]


def test_ticket_covers_the_segments_that_were_rolled_away(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 40)
    ticket = log.begin_sync()
    assert ticket is not None
    names = {file.path.rsplit("/", 1)[1] for file in ticket.files}
    assert {f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")} <= names
    assert sum(name.endswith(".log") for name in names) == log.segment_count
    assert sum(name.endswith(".snapshot") for name in names) == log.segment_count - 1


def test_later_ticket_covers_what_an_earlier_one_has_not_brought_back(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 20)
    first = log.begin_sync()
    append_many(log, 1)
    second = log.begin_sync()
    assert first is not None
    assert second is not None
    assert {file.path for file in first.files} <= {file.path for file in second.files}
    disk.sync_many(second.files, second.directories)
    log.finish_sync(second)
    assert log.synced.offset == 21
    log.finish_sync(first)
    assert log.synced.offset == 21


def test_file_with_unsynced_bytes_is_never_closed(disk: MemoryDisk) -> None:
    handles = Handles(disk, files_max=2)
    logs = [open_log(disk, handles=handles, directory=f"/data/t-{at}") for at in range(10)]
    for log in logs:
        append_many(log, 5)
    assert len(handles) == 10
    assert disk.closed_unsynced == []
    for log in logs:
        sync(log, disk)
        read_all(log)
    assert len(handles) <= 2
    assert disk.closed_unsynced == []


def test_idle_logs_hold_no_files(disk: MemoryDisk) -> None:
    for at in range(5):
        log = open_log(disk, directory=f"/data/t-{at}")
        append_many(log, 30)
        log.close()
    assert not disk.open_files
    logs = [open_log(disk, directory=f"/data/t-{at}") for at in range(5)]
    assert [log.end_offset for log in logs] == [30] * 5
    assert not disk.open_files


def test_abandoned_log_lets_go_of_its_files(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append(log, make_batch())
    log.write()
    log.abandon()
    assert not disk.open_files
    with pytest.raises(StorageFailed):
        append(log)


def test_files_stay_open_for_a_sync_that_is_under_way(disk: MemoryDisk) -> None:
    """The partition is deleted meanwhile; the sync of its neighbours must not stumble over it."""
    log = open_log(disk)
    append_many(log, 20)
    ticket = log.begin_sync()
    assert ticket is not None
    log.abandon()
    disk.sync_many(ticket.files)
    log.finish_sync(ticket)
    assert log.synced.offset == 0
    assert not disk.open_files


def _probe(log: Log, byte_count: int) -> None:
    probing = log.begin_probe(byte_count)
    assert probing is not None
    try:
        probing.run()
    finally:
        log.end_probe(probing)


def test_probe_leaves_nothing_behind_whether_it_fits_or_not(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    stored = disk.read_file(LOG_FILE)
    _probe(log, 500)
    assert disk.read_file(LOG_FILE) == stored
    disk.fail("write", errno.ENOSPC, torn_bytes=100)
    with pytest.raises(OSError, match="No space"):
        _probe(log, 500)
    assert disk.read_file(LOG_FILE) == stored
    disk.fail("write", errno.ENOSPC, torn_bytes=100)
    disk.fail("truncate", errno.EIO)
    with pytest.raises(OSError, match="No space"):
        _probe(log, 500)
    assert log.fenced
