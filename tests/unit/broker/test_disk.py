"""The real disk, with what Linux gives and with the fallbacks for systems that lack it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.broker.storage import disk as disks
from ottla.broker.storage.disk import (
    IOV_MAX,
    SYNCFS_FILES_MIN,
    RealDisk,
    SyncCosts,
    tells_failed_writes_of_file_systems,
)


@pytest.fixture(params=[False, True], ids=["linux", "portable"])
def disk(request: pytest.FixtureRequest) -> RealDisk:
    return RealDisk(portable=request.param)


def test_buffers_are_written_one_behind_the_other(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    buffers = [bytes([number % 256]) * 3 for number in range(IOV_MAX + 10)]
    file.write(buffers, 5)
    assert file.size() == 5 + 3 * len(buffers)
    assert bytes(file.read(10_000, 5)) == b"".join(buffers)
    file.close()


def test_a_read_is_short_only_at_the_end(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    file.write([b"0123456789"], 0)
    assert bytes(file.read(4, 8)) == b"89"
    cached = file.read_cached(100, 4)
    assert cached is not None
    assert bytes(cached) == b"456789"
    assert bytes(file.read_cached(4, 10) or b"") == b""
    file.close()


def test_a_cold_page_is_told_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(4 * 1024 * 1024))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    file = RealDisk().open(str(path))
    if file.read_cached(4096, 2 * 1024 * 1024) is not None:
        pytest.skip("this file system keeps its pages in memory")
    assert bytes(file.read(4096, 2 * 1024 * 1024)) == path.read_bytes()[2**21 : 2**21 + 4096]
    assert file.read_cached(4096, 2 * 1024 * 1024) is not None
    file.close()


def test_a_read_writes_nothing_not_even_when_it_was(tmp_path: Path) -> None:
    place = tmp_path / "f"
    place.write_bytes(b"0123456789")
    os.utime(place, (1, 2))
    file = RealDisk().open(str(place))
    assert bytes(file.read(4, 0)) == b"0123"
    assert file.read_cached(4, 0) is not None
    file.close()
    assert place.stat().st_atime == 1


def test_a_file_of_somebody_else_is_opened_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & disks.NO_ATIME:
            raise PermissionError("not the owner")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    file.write([b"x"], 0)
    assert file.size() == 1
    file.close()


@pytest.mark.parametrize("count", [2, SYNCFS_FILES_MIN + 1])
def test_few_and_many_files_can_be_synced(disk: RealDisk, tmp_path: Path, count: int) -> None:
    files = [disk.open(str(tmp_path / str(number)), create=True) for number in range(count)]
    for file in files:
        file.write([b"x"], 0)
    disk.sync_many(files, [str(tmp_path)])
    disk.sync_file_system(str(tmp_path))
    for file in files:
        file.close()


def test_a_file_is_replaced_as_a_whole(disk: RealDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    disk.write_file(path, b"a long first version")
    disk.write_file(path, b"second")
    assert disk.read_file(path) == b"second"
    assert disk.list(str(tmp_path)) == ["f"]


def test_only_one_holds_a_lock(disk: RealDisk, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    held = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    held.close()
    disk.lock(path).close()


def test_absence_is_no_error_when_removing_but_is_when_opening(
    disk: RealDisk, tmp_path: Path
) -> None:
    disk.remove(str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError):
        disk.open(str(tmp_path / "nothing"))


def test_the_cheaper_way_to_sync_many_files_is_learned() -> None:
    costs = SyncCosts()
    assert not costs.prefers_file_system(SYNCFS_FILES_MIN - 1)
    assert costs.prefers_file_system(100)
    for _ in range(20):
        costs.took(100, 2.0, is_file_system=True)
    assert not costs.prefers_file_system(100), "somebody else writes much"
    choices = [costs.prefers_file_system(100) for _ in range(2000)]
    assert choices[-1], "it is worth another try some day"
    for _ in range(20):
        costs.took(1, 0.5, is_file_system=False)
        costs.took(100, 0.001, is_file_system=True)
    assert costs.prefers_file_system(SYNCFS_FILES_MIN)


@pytest.mark.parametrize(
    ("release", "tells"),
    [
        ("2.6.39", False),
        ("4.18.0-553.el8_10.x86_64", False),
        ("5.7.19", False),
        ("5.8.0", True),
        ("5.10.0-28-amd64", True),
        ("5.15.167.4-microsoft-standard-WSL2", True),
        ("6.1", True),
        ("6.18.44-fc-v445", True),
        ("10.0-rc1", True),
        ("5", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_only_from_linux_5_8_on_a_file_systems_sync_tells_what_failed(
    release: str, tells: bool
) -> None:
    assert tells_failed_writes_of_file_systems(release) is tells


def test_where_a_file_systems_sync_tells_no_errors_every_file_is_synced_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()

    def note(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(disks.os, "fdatasync", note)
    monkeypatch.setattr(disks.os, "fsync", note)
    disk = RealDisk(portable=False, release="5.7.19")
    below = tmp_path / "t-0"
    below.mkdir()
    paths = [tmp_path / "f", *(below / str(number) for number in range(100))]
    files = [disk.open(str(path), create=True) for path in paths]
    assert disk.sync_many(files, [str(tmp_path)]) is False
    everything = {path.stat().st_ino for path in (tmp_path, *paths)}
    assert synced == everything
    synced.clear()
    disk.sync_file_system(str(tmp_path))
    assert synced == everything | {below.stat().st_ino}
    for file in files:
        file.close()
    assert RealDisk(portable=False, release="5.8.0").sync_many([], []) is False
