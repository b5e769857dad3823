"""Open files are few, and none is closed beneath its user."""

from __future__ import annotations

import pytest

from ottla.log.handles import Handle, Handles, NotCached
from ottla.testing.disks import MemoryDisk


@pytest.fixture
def files(disk: MemoryDisk) -> list[Handle]:
    for at in range(10):
        disk.write_file(f"/data/{at}", bytes([at]) * 10)
    return [Handle(f"/data/{at}") for at in range(10)]


def test_no_more_files_are_open_than_allowed(disk: MemoryDisk, files: list[Handle]) -> None:
    handles = Handles(disk, files_max=3)
    for turn in range(30):
        at = turn % 10
        assert handles.read(files[at], 4, 0, cached_only=True) == bytes([at]) * 4
        assert len(disk.open_files) == len(handles) <= 3


def test_file_in_use_stays_open(disk: MemoryDisk, files: list[Handle]) -> None:
    handles = Handles(disk, files_max=2)
    used = handles.acquire(files[0])
    for handle in files[1:]:
        handles.read(handle, 1, 0, cached_only=True)
    assert used.size() == 10
    assert files[0].file is used
    handles.release(files[0])


def test_recently_used_file_stays_open_longer(disk: MemoryDisk, files: list[Handle]) -> None:
    handles = Handles(disk, files_max=3)
    handles.read(files[0], 1, 0, cached_only=True)
    kept = files[0].file
    for handle in files[1:]:
        handles.read(files[0], 1, 0, cached_only=True)
        handles.read(handle, 1, 0, cached_only=True)
        assert files[0].file is kept


def test_dropped_file_is_closed_after_its_last_user(disk: MemoryDisk, files: list[Handle]) -> None:
    handles = Handles(disk)
    file = handles.acquire(files[0])
    handles.acquire(files[0])
    handles.drop(files[0])
    handles.release(files[0])
    assert file.size() == 10
    handles.release(files[0])
    assert not disk.open_files
    assert len(handles) == 0


def test_more_files_in_use_than_allowed_are_closed_once_released(
    disk: MemoryDisk, files: list[Handle]
) -> None:
    handles = Handles(disk, files_max=2)
    for handle in files:
        handles.acquire(handle)
    assert len(handles) == 10
    for handle in files:
        handles.release(handle)
    assert len(handles) == 2


def test_cold_read_says_so_and_lets_go(disk: MemoryDisk, files: list[Handle]) -> None:
    handles = Handles(disk)
    disk.is_cold = True
    with pytest.raises(NotCached):
        handles.read(files[0], 1, 0, cached_only=True)
    assert files[0].users == 0


def test_missing_file_is_not_counted(disk: MemoryDisk) -> None:
    handles = Handles(disk)
    handle = Handle("/data/none")
    with pytest.raises(FileNotFoundError):
        handles.acquire(handle)
    assert handle.users == 0
    assert len(handles) == 0


def test_on_a_slow_disk_who_may_not_wait_opens_no_file(disk: MemoryDisk) -> None:
    disk.make_directory("/data")
    disk.write_file("/data/x", b"x")
    handles, handle = Handles(disk), Handle("/data/x")
    handles.is_slow = lambda path: path == "/data/x"
    with pytest.raises(NotCached):
        handles.read(handle, 1, 0, cached_only=True)
    assert len(handles) == 0
    assert handles.read(handle, 1, 0, cached_only=False) == b"x"
    assert handles.read(handle, 1, 0, cached_only=True) == b"x", "it is open by now"
