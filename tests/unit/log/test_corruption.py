"""Damage in what was synced: told, fenced, never cut away; and indexes that lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest

from ottla.errors import StorageFailed
from ottla.log.corruption import NOTE, UNKNOWN_END, survey
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY
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

SIZE = len(make_batch())
Damage = Callable[[bytes], bytes]


def path_of(offset: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{offset:020d}{suffix}"


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def damage(disk: MemoryDisk, path: str, change: Damage) -> None:
    """In place: a log that has the file open sees it, too."""
    data = change(disk.read_file(path))
    file = disk.open(path)
    file.write([data], 0)
    file.truncate(len(data))
    file.sync()
    file.close()


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    paths = [path for path in disk.paths() if not path.endswith(NOTE)]
    return {path: disk.read_file(path) for path in paths}


def closed_log(disk: MemoryDisk, count: int = 100) -> int:
    """A log that was stopped cleanly; returns its bytes."""
    log = open_log(disk)
    append_many(log, count)
    log.close()
    return log.size_bytes


def check_fenced(log: Log, offset: int, path: str) -> None:
    assert log.corruption is not None
    assert (log.corruption.path, log.corruption.offset) == (path, offset)
    assert log.fenced
    with pytest.raises(StorageFailed):
        append(log)
    with pytest.raises(StorageFailed):
        log.reopen(NOW_MS)
    if offset < log.end_offset:
        with pytest.raises(StorageFailed, match="offset"):
            log.read(offset, 1000, log.written, cached_only=False)
    found, at = [], log.start_offset
    while at < offset:
        data = log.read(at, 100, log.written, cached_only=False)
        assert data, f"nothing at {at}"
        found += base_offsets(bytes(data))
        at = found[-1] + 1
    assert found == list(range(log.start_offset, offset)), "what lies before it can be read"


# ------------------------------------------------------------------- after the recovery point


@pytest.mark.parametrize(
    ("change", "position"),
    [
        pytest.param(lambda data: flipped(data, 3 * SIZE + 16), 3, id="a bit of the magic"),
        pytest.param(lambda data: flipped(data, 3 * SIZE + 8), 3, id="a bit of the length"),
        pytest.param(lambda data: data[: 3 * SIZE + 20], 3, id="cut short"),
        pytest.param(lambda data: data[: 3 * SIZE], 3, id="cut short between two batches"),
        pytest.param(lambda data: flipped(data, 4 * SIZE + 2), 4, id="an offset far ahead"),
    ],
)
def test_damage_before_the_recovery_point_fences_and_cuts_nothing(
    disk: MemoryDisk, change: Damage, position: int
) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 10)
    sync(log, disk)
    damage(disk, path_of(0), change)
    before = contents(disk)
    log = open_log(disk, LogConfig(), clean=False, recovery_point=10)
    check_fenced(log, position, path_of(0))
    assert contents(disk) == before
    assert log.recovery_point == 10


def test_torn_end_behind_the_recovery_point_is_cut_as_ever(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 10)
    damage(disk, path_of(0), lambda data: flipped(data, 7 * SIZE + 65))
    log = open_log(disk, LogConfig(), clean=False, recovery_point=7)
    assert log.corruption is None
    assert log.end_offset == 7


@pytest.mark.parametrize("kept_bytes", [SIZE, SIZE + 30, 0])
def test_older_segment_that_was_cut_short_is_found_after_a_crash(
    disk: MemoryDisk, kept_bytes: int
) -> None:
    log = open_log(disk)
    append_many(log, 100)
    sync(log, disk)
    second = log.segments[1].base_offset
    damage(disk, path_of(second), lambda data: data[:kept_bytes])
    before = contents(disk)
    log = open_log(disk, clean=False, recovery_point=100)
    if kept_bytes == SIZE or not kept_bytes:
        # It ends between two batches, as compaction may leave it; only its indexes are amiss.
        assert log.corruption is None
        return
    check_fenced(log, second + 1, path_of(second))
    assert contents(disk) == before
    third = log.segments[2].base_offset
    data = log.read(third, 100, log.written, cached_only=False)
    assert base_offsets(bytes(data or b""))[0] == third, "the next segment can be read"


def test_all_files_gone_is_not_a_new_log(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 10)
    sync(log, disk)
    disk.remove_tree(DIRECTORY)
    log = open_log(disk, clean=False, recovery_point=10)
    assert log.corruption is not None
    assert log.end_offset == 10
    log.close()
    assert open_log(disk).corruption is not None, "and is remembered"


# --------------------------------------------------------------------------- after a clean stop


@pytest.mark.parametrize(
    ("change", "offset"),
    [
        pytest.param(lambda data: data[:-1], -1, id="cut short"),
        pytest.param(lambda data: data[:-SIZE], -1, id="cut short between two batches"),
        pytest.param(lambda data: data + data[:SIZE], 0, id="grown"),
    ],
)
def test_file_that_changed_its_size_while_the_broker_was_down(
    disk: MemoryDisk, change: Damage, offset: int
) -> None:
    byte_count = closed_log(disk)
    last = max(int(path[-24:-4]) for path in disk.paths() if path.endswith(".log"))
    damage(disk, path_of(last), change)
    before = contents(disk)
    log = open_log(disk, known_bytes=byte_count)
    check_fenced(log, 100 + offset, path_of(last))
    assert log.end_offset == 100
    assert contents(disk) == before


def test_missing_middle_segment(disk: MemoryDisk) -> None:
    byte_count = closed_log(disk)
    bases = sorted(int(path[-24:-4]) for path in disk.paths() if path.endswith(".log"))
    disk.remove(path_of(bases[2]))
    log = open_log(disk, known_bytes=byte_count)
    check_fenced(log, bases[2], path_of(bases[1]))
    data = log.read(bases[3], 100, log.written, cached_only=False)
    assert base_offsets(bytes(data or b""))[0] == bases[3]


@pytest.mark.parametrize("is_clean", [True, False])
def test_damage_is_remembered_until_it_is_repaired(disk: MemoryDisk, is_clean: bool) -> None:
    byte_count = closed_log(disk)
    last = max(int(path[-24:-4]) for path in disk.paths() if path.endswith(".log"))
    intact = disk.read_file(path_of(last))
    disk.write_file(path_of(last), intact[:-SIZE])
    log = open_log(disk, known_bytes=byte_count)
    log.close()
    for _ in range(2):
        log = open_log(disk, clean=is_clean, recovery_point=99, known_bytes=log.size_bytes)
        assert log.corruption is not None
        log.close()
    disk.write_file(path_of(last), intact)
    log = open_log(disk, clean=is_clean, recovery_point=99)
    assert log.corruption is None
    assert log.end_offset == 100
    assert not disk.exists(f"{DIRECTORY}/{NOTE}")
    append_many(log, 1)


def test_clean_start_with_known_sizes_still_reads_no_batch(disk: MemoryDisk) -> None:
    byte_count = closed_log(disk, 500)
    before = disk.reads
    assert open_log(disk, known_bytes=byte_count).corruption is None
    assert disk.reads == before


# ------------------------------------------------------------------------------ while it is open


def test_condemned_log_serves_what_is_around_the_damage(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 10)
    sync(log, disk)
    damage(disk, path_of(0), lambda data: flipped(data, 4 * SIZE + 65))
    log = open_log(disk, LogConfig(), clean=False, recovery_point=10)
    assert log.corruption is None, "a start does not read everything"
    found = survey(log.segments, log._handles).corruption
    assert found is not None
    assert (found.offset, found.until, found.position) == (4, 5, 4 * SIZE)
    log.condemn(found)
    check_fenced(log, 4, path_of(0))
    data = log.read(5, 10_000, log.written, cached_only=False)
    assert base_offsets(bytes(data or b"")) == [5, 6, 7, 8, 9]


def test_look_up_by_time_does_not_jump_over_the_damage(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    for at in range(10):
        append(log, make_batch(timestamps=[NOW_MS + at]))
    log.write()
    sync(log, disk)
    damage(disk, path_of(0), lambda data: flipped(data, 4 * SIZE + 65))
    found = survey(log.segments, log._handles).corruption
    assert found is not None
    log.condemn(found)
    assert log.first_at_or_after(NOW_MS + 3, log.written) == (3, NOW_MS + 3, 0)
    with pytest.raises(StorageFailed, match="offset 4"):
        log.first_at_or_after(NOW_MS + 4, log.written)
    with pytest.raises(StorageFailed, match="offset 4"):
        log.max_timestamp(log.written)
    log.delete_before(5)
    assert log.first_at_or_after(NOW_MS + 4, log.written) == (5, NOW_MS + 5, 0)


def test_damage_without_an_end_gives_up_the_rest_of_the_segment(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 100)
    sync(log, disk)
    third = log.segments[2].base_offset
    damage(disk, path_of(0), lambda data: flipped(data, SIZE + 8))
    found = survey(log.segments, log._handles).corruption
    assert found is not None
    assert (found.offset, found.until) == (1, log.segments[1].base_offset)
    damage(disk, path_of(third), lambda data: flipped(data, 16))
    second = survey(log.segments, log._handles).corruption
    assert second is not None
    assert (second.offset, second.until) == (1, log.segments[3].base_offset)


def test_last_segment_has_no_end_to_go_on_from(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 10)
    sync(log, disk)
    damage(disk, path_of(0), lambda data: data[: 5 * SIZE + 7])
    with pytest.raises(StorageFailed, match=f"byte {5 * SIZE}, offset 5"):
        log.read(5, 1000, log.written, cached_only=False)
    found = survey(log.segments, log._handles).corruption
    assert found is not None
    assert found.until == UNKNOWN_END


# ------------------------------------------------------------------------------- a failed sync


@pytest.mark.parametrize("seed", range(20))
def test_what_recovery_keeps_after_a_failed_sync_is_really_on_disk(
    disk: MemoryDisk, seed: int
) -> None:
    """The process dies before it can reopen; then, after the next start, the power goes."""
    log = open_log(disk)
    append_many(log, 5)
    sync(log, disk)
    for at in range(30):
        append(log, epoch=at // 10)
    log.write()
    ticket = log.begin_sync()
    assert ticket is not None
    disk.fail("sync", times=len(ticket.files))
    for file in ticket.files:
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    log.fail_sync()
    log = open_log(disk, clean=False, recovery_point=5)
    assert log.synced.offset == log.end_offset == 35
    believed = read_all(log)
    survivor = disk.after_crash(Random(seed))
    again = open_log(survivor, clean=False, recovery_point=35)
    assert again.corruption is None
    assert read_all(again) == believed
    assert [again.epoch_at(at) for at in range(5, 35)] == [at // 10 for at in range(30)]


# ----------------------------------------------------------------------------- indexes that lie


def entry_at(data: bytes, entry: struct.Struct, at: int) -> tuple[int, ...]:
    return entry.unpack_from(data, at * entry.size)


def with_entry(data: bytes, entry: struct.Struct, at: int, fields: tuple[int, ...]) -> bytes:
    changed = bytearray(data)
    entry.pack_into(changed, at * entry.size, *fields)
    return bytes(changed)


WRONG_OFFSETS = [
    pytest.param(lambda o, p: (o, p + 1), id="inside a batch"),
    pytest.param(lambda o, p: (o, p + 3 * SIZE), id="three batches too far"),
    pytest.param(lambda o, p: (o - 3, p), id="an offset too small"),
    pytest.param(lambda o, p: (o, 10**9), id="far outside"),
    pytest.param(lambda o, p: (o, -5), id="negative"),
    pytest.param(lambda o, p: (0, 0), id="zeros"),
]


@pytest.mark.parametrize("wrong", WRONG_OFFSETS)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_written_to", [True, False])
def test_wrong_entry_of_an_offset_index_never_gives_a_wrong_answer(
    disk: MemoryDisk,
    wrong: Callable[[int, int], tuple[int, int]],
    clean: bool,
    is_written_to: bool,
) -> None:
    config = LogConfig(segment_bytes=40 * SIZE, index_interval_bytes=3 * SIZE)
    log = open_log(disk, config)
    append_many(log, 100)
    log.close()
    for base in (0, 80):
        path = path_of(base, ".index")
        data = disk.read_file(path)
        at = len(data) // OFFSET_ENTRY.size // 2
        offset, position = entry_at(data, OFFSET_ENTRY, at)
        disk.write_file(path, with_entry(data, OFFSET_ENTRY, at, wrong(offset, position)))
    log = open_log(disk, config, clean=clean, recovery_point=100)
    if is_written_to:
        append_many(log, 5)
    # Backwards: who reads on needs no index.
    for offset in reversed(range(log.end_offset)):
        data = bytes(log.read(offset, 1, log.written, cached_only=False) or b"")
        assert base_offsets(data) == [offset]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda t, o: (t, o + 5), id="an offset too large"),
        pytest.param(lambda t, o: (t - 7, o), id="a time that was not"),
        pytest.param(lambda t, o: (t + 70_000, o), id="a time too late"),
        pytest.param(lambda t, o: (0, 0), id="zeros"),
    ],
)
@pytest.mark.parametrize("which", [-1, 4])
def test_wrong_entry_of_a_time_index_never_gives_a_wrong_answer(
    disk: MemoryDisk, wrong: Callable[[int, int], tuple[int, int]], which: int
) -> None:
    config = LogConfig(segment_bytes=40 * SIZE, index_interval_bytes=3 * SIZE)
    log = open_log(disk, config)
    for at in range(100):
        append(log, make_batch(timestamps=[NOW_MS + 10 * at]))
    log.write()
    log.close()
    path = path_of(0, ".timeindex")
    data = disk.read_file(path)
    count = len(data) // TIME_ENTRY.size
    time, offset = entry_at(data, TIME_ENTRY, which % count)
    disk.write_file(path, with_entry(data, TIME_ENTRY, which % count, wrong(time, offset)))
    log = open_log(disk, config)
    for at in range(100):
        moment = (at, NOW_MS + 10 * at, 0)
        assert log.first_at_or_after(NOW_MS + 10 * at - 3, log.written) == moment
    assert log.max_timestamp(log.written) == (99, NOW_MS + 990, 0)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage_to", [lambda d: d[:24], lambda d: b"", lambda d: d[: len(d) // 2]])
def test_index_without_its_end_never_gives_a_wrong_answer(
    disk: MemoryDisk, suffix: str, damage_to: Damage
) -> None:
    log = open_log(disk, SMALL)
    for at in range(60):
        append(log, make_batch(timestamps=[NOW_MS + 10 * at]))
    log.write()
    log.close()
    for path in [path for path in disk.paths() if path.endswith(suffix)]:
        damage(disk, path, damage_to)
    log = open_log(disk, SMALL)
    for at in reversed(range(60)):
        data = bytes(log.read(at, 1, log.written, cached_only=False) or b"")
        assert base_offsets(data) == [at]
        assert log.first_at_or_after(NOW_MS + 10 * at, log.written) == (at, NOW_MS + 10 * at, 0)


def test_index_removed_under_a_running_broker(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 100)
    log.close()
    log = open_log(disk)
    for path in [path for path in disk.paths() if path.endswith((".index", ".timeindex"))]:
        disk.remove(path)
    assert base_offsets(read_all(log, max_bytes=1)) == list(range(100))
    assert log.first_at_or_after(NOW_MS, log.written) == (0, NOW_MS, 0)
    append_many(log, 1)
