"""The disk on which the other tests crash: does it lose what a real one may lose?"""

from __future__ import annotations

import errno
import threading
from random import Random

import pytest

from ottla.testing.disks import SECTOR_BYTES, MemoryDisk, PowerLoss


def survivors(disk: MemoryDisk, path: str) -> set[bytes | None]:
    found: set[bytes | None] = set()
    for seed in range(300):
        after = disk.after_crash(Random(seed))
        found.add(after.read_file(path) if after.exists(path) else None)
    return found


def test_synced_bytes_and_names_survive(disk: MemoryDisk) -> None:
    file = disk.open("/data/f", create=True)
    file.write([b"ab", b"cd"], 0)
    disk.sync_many([file], ["/data"])
    assert survivors(disk, "/data/f") == {b"abcd"}


def test_synced_bytes_of_an_unsynced_name_may_be_lost(disk: MemoryDisk) -> None:
    file = disk.open("/data/f", create=True)
    file.write([b"abcd"], 0)
    file.sync()
    assert survivors(disk, "/data/f") == {b"abcd", None}


def test_unsynced_bytes_may_be_there_or_not_or_be_zeros(disk: MemoryDisk) -> None:
    file = disk.open("/data/f", create=True)
    disk.sync_directory("/data")
    file.write([b"x" * 4], 0)
    found = survivors(disk, "/data/f")
    assert {b"", b"xxxx"} < found
    assert any(data and set(data) == {0} for data in found)


def test_sectors_of_one_write_are_lost_one_by_one(disk: MemoryDisk) -> None:
    file = disk.open("/data/f", create=True)
    file.write([b"a" * 3 * SECTOR_BYTES], 0)
    disk.sync_many([file], ["/data"])
    file.write([b"b" * 2 * SECTOR_BYTES], SECTOR_BYTES // 2)
    half = SECTOR_BYTES // 2
    parts = {data[half:-half:half] for data in survivors(disk, "/data/f") if data}
    assert len(parts) == 8, "three sectors, each old or new"


def test_names_survive_in_the_order_in_which_they_were_made(disk: MemoryDisk) -> None:
    for at in range(3):
        disk.open(f"/data/{at}", create=True)
    disk.rename("/data/0", "/data/moved")
    seen = set()
    for seed in range(300):
        seen.add(tuple(disk.after_crash(Random(seed)).list("/data")))
    assert seen == {(), ("0",), ("0", "1"), ("0", "1", "2"), ("1", "2", "moved")}


def test_failed_sync_loses_what_it_should_have_written(disk: MemoryDisk) -> None:
    file = disk.open("/data/f", create=True)
    disk.sync_directory("/data")
    file.write([b"abcd"], 0)
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert file.read(4, 0) == b"abcd", "seen"
    assert survivors(disk, "/data/f") == {b""}, "and not there"


def test_torn_write_leaves_its_beginning(disk: MemoryDisk) -> None:
    file = disk.open("/data/f", create=True)
    disk.fail("write", errno.ENOSPC, torn_bytes=3)
    with pytest.raises(OSError, match="No space"):
        file.write([b"abcdef"], 0)
    assert file.read(10, 0) == b"abc"
    file.write([b"xyz"], 0)
    assert file.read(10, 0) == b"xyz"


def test_power_fails_at_the_operation_asked_for(disk: MemoryDisk) -> None:
    disk.lose_power_in(1)
    file = disk.open("/data/f", create=True)
    with pytest.raises(PowerLoss):
        file.write([b"a"], 0)


def test_files_replaced_as_a_whole_are_durable_at_once(disk: MemoryDisk) -> None:
    disk.write_file("/data/f", b"one")
    disk.write_file("/data/f", b"two")
    assert survivors(disk, "/data/f") == {b"two"}


def test_use_after_close_is_noticed(disk: MemoryDisk) -> None:
    file = disk.open("/data/f", create=True)
    file.write([b"a"], 0)
    file.close()
    assert disk.closed_unsynced == ["/data/f"]
    with pytest.raises(OSError, match="closed"):
        file.read(1, 0)


def test_a_file_replaced_without_power_is_the_old_one_or_the_new_one() -> None:
    found = set()
    for step in range(12):
        disk = MemoryDisk()
        disk.make_directory("/data")
        disk.write_file("/data/f", b"old")
        disk.lose_power_in(step)
        try:
            disk.write_file("/data/f", b"new!")
        except PowerLoss:
            found |= survivors(disk, "/data/f")
    assert found == {b"old", b"new!"}


def test_a_refused_replacement_leaves_its_scratch_file_as_the_real_disk_does(
    disk: MemoryDisk,
) -> None:
    disk.write_file("/data/f", b"old")
    disk.fail("write", errno.ENOSPC, torn_bytes=1)
    with pytest.raises(OSError, match="No space"):
        disk.write_file("/data/f", b"new")
    assert disk.read_file("/data/f") == b"old"
    assert disk.list("/data") == ["f", "f.tmp"]


def test_a_file_is_lost_with_the_directory_that_nobody_synced() -> None:
    disk = MemoryDisk(forgets_directories=True)
    disk.make_directory("/data/t-0")
    disk.write_file("/data/t-0/f", b"synced")
    assert survivors(disk, "/data/t-0/f") == {b"synced", None}
    disk.sync_directory("/data")
    assert survivors(disk, "/data/t-0/f") == {b"synced", None}, "its parent may go as well"
    disk.sync_directory("/")
    assert survivors(disk, "/data/t-0/f") == {b"synced"}


def test_a_directory_moves_with_all_that_is_in_it_and_its_new_name_may_be_lost() -> None:
    disk = MemoryDisk(forgets_directories=True)
    disk.make_directory("/data/t-0")
    disk.write_file("/data/t-0/f", b"x")
    disk.sync_file_system("/data")
    disk.rename("/data/t-0", "/data/gone")
    assert disk.read_file("/data/gone/f") == b"x"
    assert not disk.exists("/data/t-0")
    assert survivors(disk, "/data/t-0/f") == survivors(disk, "/data/gone/f") == {b"x", None}
    disk.remove_tree("/data/gone")
    assert disk.list("/data") == []


def test_a_sync_covers_what_was_written_before_it_began(disk: MemoryDisk) -> None:
    file = disk.open("/data/f", create=True)
    disk.sync_directory("/data")
    file.write([b"before"], 0)
    disk.delay = lambda operation, path: file.write([b"beside"], 6) if operation == "sync" else None
    file.sync()
    disk.delay = None
    assert min(survivors(disk, "/data/f"), key=len) == b"before"
    assert file.read(20, 0) == b"beforebeside"


def test_a_whole_file_system_is_synced_where_that_is_cheaper(disk: MemoryDisk) -> None:
    disk.file_system_share = 1.0
    other = disk.open("/data/other", create=True)
    other.write([b"o"], 0)
    files = [disk.open(f"/data/{at}", create=True) for at in range(3)]
    assert disk.sync_many(files[:2]) is False
    assert disk.sync_many(files) is True
    assert survivors(disk, "/data/other") == {b"o"}


def test_without_power_no_thread_changes_anything(disk: MemoryDisk) -> None:
    """The operation that loses the power hangs, others go on; then nothing goes for anybody."""
    file = disk.open("/data/f", create=True)
    disk.sync_directory("/data")
    hanging, told = threading.Event(), threading.Event()
    go_on = threading.Event()

    def hang() -> None:
        hanging.set()
        go_on.wait(20)

    disk.hang, disk.on_power_loss = hang, told.set
    disk.lose_power_in(0)
    outcomes = []

    def lose() -> None:
        try:
            file.sync()
        except PowerLoss:
            outcomes.append("lost")

    thread = threading.Thread(target=lose)
    thread.start()
    assert hanging.wait(20)
    file.write([b"late"], 0)
    go_on.set()
    thread.join()
    assert (outcomes, told.is_set(), disk.is_off) == (["lost"], True, True)
    for attempt in (
        lambda: file.write([b"more"], 0),
        lambda: file.read(1, 0),
        lambda: disk.remove("/data/f"),
        lambda: disk.write_file("/data/g", b""),
        lambda: disk.sync_file_system("/data"),
    ):
        with pytest.raises(PowerLoss):
            attempt()
    assert b"more" not in survivors(disk, "/data/f")
    disk.after_crash(Random(1)).lock("/data/.lock")


def test_a_full_disk_takes_what_fits_and_refuses_the_rest(disk: MemoryDisk) -> None:
    disk.capacity_bytes = 4
    file = disk.open("/data/f", create=True)
    with pytest.raises(OSError, match="No space"):
        file.write([b"abcdef"], 0)
    assert file.read(10, 0) == b"abcd"
    file.write([b"xy"], 0)
    with pytest.raises(OSError, match="No space"):
        disk.open("/data/g", create=True)
    assert disk.room_bytes("/data") == (4, 0)
    file.truncate(1)
    disk.open("/data/g", create=True)
