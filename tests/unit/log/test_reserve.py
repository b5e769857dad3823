"""Room that is kept for a full disk: given up in slices, taken back as there is room."""

from __future__ import annotations

import errno
from random import Random as Seeded

import pytest

from ottla.log.reserve import FILE_NAME, RESERVE_BYTES, SHARE, SLICE_BYTES, Reserve
from ottla.testing.disks import MemoryDisk

PATH = f"/data/{FILE_NAME}"


class Entropy:
    def bytes(self, count: int) -> bytes:
        return Seeded(1).randbytes(count)

    def below(self, bound: int) -> int:
        return 0


class SmallDisk(MemoryDisk):
    total_bytes = 1 << 40

    def room_bytes(self, directory: str) -> tuple[int, int]:
        return self.total_bytes, self.total_bytes


@pytest.fixture
def disk() -> SmallDisk:
    disk = SmallDisk()
    disk.make_directory("/data")
    return disk


def _reserve(disk: MemoryDisk) -> Reserve:
    reserve = Reserve(disk, "/data", Entropy())
    reserve.look()
    return reserve


def test_it_is_made_once_and_found_again(disk: SmallDisk) -> None:
    reserve = _reserve(disk)
    assert not reserve.is_whole
    reserve.take_back()
    assert reserve.is_whole
    assert len(disk.read_file(PATH)) == RESERVE_BYTES
    operations = disk.operations
    again = _reserve(disk)
    again.take_back()
    assert again.is_whole
    assert disk.operations == operations, "nothing was written"


def test_it_is_given_up_in_slices_until_nothing_is_left(disk: SmallDisk) -> None:
    reserve = _reserve(disk)
    reserve.take_back()
    sizes = []
    while reserve.give():
        sizes.append(len(disk.read_file(PATH)))
    assert sizes == list(range(RESERVE_BYTES - SLICE_BYTES, -1, -SLICE_BYTES))
    assert not reserve.is_short, "it was given, not refused"


def test_what_a_full_disk_takes_of_it_stays(disk: SmallDisk) -> None:
    reserve = _reserve(disk)
    reserve.take_back()
    reserve.give(3 * SLICE_BYTES)
    disk.fail("write", errno.ENOSPC, torn_bytes=100)
    reserve.take_back()
    assert reserve.is_short
    assert reserve.size == len(disk.read_file(PATH)) == RESERVE_BYTES - 3 * SLICE_BYTES
    disk.heal()
    reserve.take_back()
    assert reserve.is_whole
    assert not reserve.is_short


def test_another_trouble_is_not_taken_for_a_full_disk(disk: SmallDisk) -> None:
    reserve = _reserve(disk)
    disk.fail("create", errno.EACCES)
    reserve.take_back()
    assert not reserve.is_whole
    assert not reserve.is_short


def test_of_a_small_disk_it_is_a_small_part(disk: SmallDisk) -> None:
    disk.total_bytes = 4 * 1024 * 1024
    reserve = _reserve(disk)
    reserve.take_back()
    assert reserve.is_whole
    assert len(disk.read_file(PATH)) == disk.total_bytes // SHARE
