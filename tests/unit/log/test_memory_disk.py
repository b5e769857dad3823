"""The disk on which the other tests crash: does it lose what a real one may lose?"""

from __future__ import annotations

import errno
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
