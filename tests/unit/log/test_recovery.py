"""Opening a log: believed after a clean stop, checked after a crash."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk, MemoryFile
from ottla.wire.schema import Buffer
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
    save_progress,
    send,
    sync,
)

SIZE = len(make_batch())
LOG_FILE = f"{DIRECTORY}/{0:020d}.log"


def crashed(disk: MemoryDisk, keep_all: bool = True) -> MemoryDisk:
    """After a stop of the process, or (`keep_all=False`) of a machine that loses all it can."""
    if keep_all:
        return disk
    return next(
        survivor
        for survivor in (disk.after_crash(Random(seed)) for seed in range(1000))
        if _log_bytes(survivor) == _stored_bytes(disk)
    )


def _log_bytes(disk: MemoryDisk) -> int:
    return sum(len(disk.read_file(path)) for path in disk.paths() if path.endswith(".log"))


def _stored_bytes(disk: MemoryDisk) -> int:
    return sum(disk.durable_bytes(path) for path in disk.paths() if path.endswith(".log"))


def recover(disk: MemoryDisk, recovery_point: int = 0, **options: object) -> Log:
    return open_log(disk, clean=False, recovery_point=recovery_point, **options)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- clean starts


def test_clean_start_reads_no_batch(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 500)
    log.close()
    before = disk.reads
    log = open_log(disk)
    assert log.end_offset == log.synced.offset == 500
    assert disk.reads == before


def test_clean_start_goes_on_writing_the_same_segment(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=100))
    append_many(log, 10)
    log.close()
    log = open_log(disk, LogConfig(index_interval_bytes=100))
    append_many(log, 10)
    assert log.segment_count == 1
    log.close()
    log = open_log(disk, LogConfig(index_interval_bytes=100))
    assert base_offsets(read_all(log, max_bytes=1)) == list(range(20))


def test_clean_start_of_an_empty_log(disk: MemoryDisk) -> None:
    open_log(disk).close()
    log = open_log(disk)
    assert (log.start_offset, log.end_offset) == (0, 0)
    append_many(log, 1)
    assert base_offsets(read_all(log)) == [0]


def test_clean_start_without_the_last_snapshot_looks_for_the_end(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 100)
    log.close()
    disk.remove(f"{DIRECTORY}/{100:020d}.snapshot")
    assert open_log(disk).end_offset == 100


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_missing_index_files_are_built_again(disk: MemoryDisk, suffix: str, clean: bool) -> None:
    log = open_log(disk)
    append_many(log, 100)
    log.close()
    paths = [path for path in disk.paths() if path.endswith(suffix)]
    before = {path: disk.read_file(path) for path in paths}
    for path in paths:
        disk.remove(path)
    log = open_log(disk, clean=clean, recovery_point=100)
    assert base_offsets(read_all(log, max_bytes=1)) == list(range(100))
    assert log.first_at_or_after(NOW_MS, log.written) == (0, NOW_MS, 0)
    log.close()
    assert {path: disk.read_file(path) for path in paths} == before


@pytest.mark.parametrize("damage", [lambda d: d + b"\0\0\0", lambda d: bytes(len(d))])
def test_damaged_index_of_an_older_segment_is_built_again(
    disk: MemoryDisk, damage: Callable[[bytes], bytes]
) -> None:
    log = open_log(disk)
    append_many(log, 100)
    sync(log, disk)
    path = f"{DIRECTORY}/{0:020d}.index"
    intact = disk.read_file(path)
    assert intact
    disk.write_file(path, damage(intact))
    log = recover(disk, recovery_point=100)
    assert base_offsets(read_all(log, max_bytes=1)) == list(range(100))
    assert disk.read_file(path) == intact


def test_leftovers_are_removed(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    log.close()
    for name in (f"{7:020d}.log.deleted", "leader-epoch-checkpoint.tmp"):
        disk.write_file(f"{DIRECTORY}/{name}", b"x")
    open_log(disk)
    assert not [path for path in disk.paths() if path.endswith((".deleted", ".tmp"))]


# ------------------------------------------------------------------------------ after a crash


def test_what_was_synced_survives_and_the_rest_may_go(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 30)
    sync(log, disk)
    append_many(log, 30)
    survivor = crashed(disk, keep_all=False)
    log = recover(survivor)
    assert log.end_offset == 30
    assert base_offsets(read_all(log)) == list(range(30))


def test_what_survives_unsynced_is_synced_before_it_is_served(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 30)
    survivor = crashed(disk)
    log = recover(survivor)
    assert log.synced.offset == log.end_offset == 30
    again = recover(crashed(survivor, keep_all=False))
    assert again.end_offset == 30


def test_names_of_surviving_files_are_synced_as_well(disk: MemoryDisk) -> None:
    """The data is on disk and its name is not: the sync of recovery has to bring both."""
    log = open_log(disk)
    append_many(log, 30)
    for path in disk.paths():
        disk.open(path).sync()
    log = recover(disk)
    assert log.end_offset == 30
    assert all(disk.is_durable(path) for path in disk.paths() if path.endswith(".log"))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="cut short"),
        pytest.param(lambda data: data[: -SIZE + 20], id="half a header"),
        pytest.param(lambda data: data[:-SIZE] + bytes(SIZE), id="zeros"),
        pytest.param(lambda data: data + bytes(4096), id="zeros after"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), id="a flipped bit"),
        pytest.param(lambda data: data[:-SIZE] + b"\xff" * SIZE, id="ones"),
        pytest.param(lambda data: data + data[:SIZE], id="an old batch again"),
    ],
)
def test_log_is_cut_at_the_first_batch_that_is_not_intact(
    disk: MemoryDisk, damage: Callable[[bytes], bytes]
) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 10)
    intact = disk.read_file(LOG_FILE)
    disk.write_file(LOG_FILE, damage(intact))
    log = recover(disk)
    kept = log.end_offset
    assert kept in (9, 10)
    assert base_offsets(read_all(log)) == list(range(kept))
    assert disk.read_file(LOG_FILE) == intact[: kept * SIZE], "the bad bytes are gone"
    append_many(log, 1)
    assert base_offsets(read_all(log)) == list(range(kept + 1))


def test_segments_behind_a_bad_batch_are_removed(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 100)
    sync(log, disk)
    second = log.segments[1].base_offset
    path = f"{DIRECTORY}/{second:020d}.log"
    data = disk.read_file(path)
    disk.write_file(path, data[: SIZE + 10])
    log = recover(disk)
    assert log.end_offset == second + 1
    assert log.segment_count == 2
    bases = {int(path[-24:-4]) for path in disk.paths() if path.endswith(".log")}
    assert bases == {0, second}
    assert not [p for p in disk.paths() if p.endswith(".snapshot") and int(p[-29:-9]) > second]


def test_hole_between_segments_ends_the_log(disk: MemoryDisk) -> None:
    """The old segment lost its unsynced end, the new one is whole: it must not be served."""
    log = open_log(disk)
    append_many(log, 5)
    sync(log, disk)
    append_many(log, 3)
    log.roll(NOW_MS)
    append_many(log, 3)
    data = disk.read_file(LOG_FILE)
    disk.write_file(LOG_FILE, data[: 6 * SIZE])
    log = recover(disk, recovery_point=5)
    assert log.end_offset == 6
    assert log.segment_count == 1


def test_batches_below_the_recovery_point_are_not_read_in_whole(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    for _ in range(3):
        append(log, make_batch(value=b"v" * 3_000_000))
    log.write()
    sync(log, disk)
    corrupt = bytearray(disk.read_file(LOG_FILE))
    corrupt[1_000_000] ^= 1
    disk.write_file(LOG_FILE, bytes(corrupt))
    assert recover(disk, recovery_point=3).end_offset == 3
    assert recover(disk, recovery_point=0).end_offset == 0


def test_segments_below_the_recovery_point_are_not_read_at_all(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=100_000))
    append_many(log, 10_000)
    sync(log, disk)
    assert log.segment_count > 5
    before = disk.reads
    log = recover(disk, recovery_point=10_000)
    assert log.end_offset == 10_000
    assert disk.reads - before < 5 * log.segment_count + 5


def test_offsets_must_grow(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    append_many(log, 3)
    data = disk.read_file(LOG_FILE)
    disk.write_file(LOG_FILE, data + data[SIZE : 2 * SIZE])
    assert recover(disk).end_offset == 3


def test_epochs_are_found_again_in_the_batches(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for at in range(60):
        append(log, epoch=at // 10)
    log.write()
    sync(log, disk)
    disk.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
    log = recover(disk, recovery_point=55)
    assert [log.epoch_at(at) for at in range(60)] == [at // 10 for at in range(60)]
    assert log.end_offset_for_epoch(2) == (2, 30)


def test_damaged_epoch_file_is_built_again(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for at in range(60):
        append(log, epoch=at // 10)
    log.write()
    sync(log, disk)
    disk.write_file(f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n7\n1 2\n")
    log = recover(disk, recovery_point=55)
    assert [log.epoch_at(at) for at in range(60)] == [at // 10 for at in range(60)]


def test_snapshot_of_a_lost_future_is_not_believed(disk: MemoryDisk) -> None:
    """The roll's snapshot is on disk, the batches it tells of are not."""
    log = open_log(disk)
    send(log, 0)
    log.write()
    sync(log, disk)
    for sequence in range(1, 30):
        send(log, sequence)
    log.write()
    disk.write_file(LOG_FILE, disk.read_file(LOG_FILE)[:SIZE])
    log = recover(disk, recovery_point=1)
    assert log.end_offset == 1
    assert send(log, 1) == (1, 2, -1, False)
    for sequence in range(2, 60):
        send(log, sequence, value=b"other")
    log.write()
    log = recover(disk, recovery_point=1)
    assert send(log, 59) == (59, 60, -1, True)


def test_snapshot_of_an_earlier_stop_goes_with_the_batches_it_tells_of(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig())
    for sequence in range(10):
        send(log, sequence)
    log.close()
    disk.write_file(LOG_FILE, disk.read_file(LOG_FILE)[: 5 * SIZE])
    log = recover(disk)
    assert log.end_offset == 5
    for sequence in range(20):
        send(log, sequence, producer_id=8)
    log.write()
    log.truncate(12, NOW_MS)
    assert send(log, 4) == (4, 5, -1, True)
    assert send(log, 6, producer_id=8) == (11, 12, -1, True)


def test_epochs_of_lost_batches_are_forgotten(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    for _ in range(30):
        append(log, epoch=1)
    log.write()
    disk.write_file(LOG_FILE, disk.read_file(LOG_FILE)[: 2 * SIZE])
    log = recover(disk)
    assert log.epoch_at(log.end_offset) == 0
    assert log.end_offset_for_epoch(0) == (0, 2)


def test_crash_right_after_recovery_changes_nothing(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 100)
    sync(log, disk)
    append_many(log, 50)
    for seed in range(30):
        first = recover(disk.after_crash(Random(seed)))
        survivor = first._handles.disk
        assert isinstance(survivor, MemoryDisk)
        second = recover(survivor.after_crash(Random(seed + 1)))
        assert read_all(second) == read_all(first)


def test_clean_stop_after_recovery_is_a_clean_start(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 100)
    log = recover(disk)
    log.close()
    before = disk.reads
    log = open_log(disk)
    assert disk.reads == before
    assert base_offsets(read_all(log, max_bytes=1)) == list(range(100))


def test_log_that_ends_before_its_start_begins_there_anew(disk: MemoryDisk) -> None:
    """Deleted up to 50, and then the crash took all of it: offsets must not be given twice."""
    log = open_log(disk, SMALL)
    for sequence in range(20):
        send(log, sequence)
    log.write()
    log = recover(disk, start_offset=50)
    assert (log.start_offset, log.end_offset) == (50, 50)
    assert send(log, 19) == (50, 51, -1, False)
    log.write()
    log.close()
    assert open_log(disk, start_offset=50).end_offset == 51


def test_deleted_segments_that_come_back_are_removed(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 100)
    log.close()
    log = open_log(disk, start_offset=60)
    assert log.start_offset == 60
    first = log.segments[0].base_offset
    assert 0 < first <= 60
    assert min(int(path[-24:-4]) for path in disk.paths() if path.endswith(".log")) == first


@pytest.mark.parametrize("seed", range(40))
def test_epochs_written_at_a_roll_that_was_not_synced(disk: MemoryDisk, seed: int) -> None:
    """The messages are safe and the recovery point knows; the files of the roll are not."""
    log = open_log(disk)
    for at in range(12):
        append(log, epoch=at // 4)
    log.write()
    sync(log, disk)
    log.roll(NOW_MS)
    log.write()
    log = recover(disk.after_crash(Random(seed)), recovery_point=12)
    assert [log.epoch_at(at) for at in range(12)] == [at // 4 for at in range(12)]
    assert log.end_offset == 12


def test_quiet_log_is_not_read_after_a_crash(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written since its last clean stop: only its end is looked at."""
    config = LogConfig(segment_bytes=10_000_000)
    log = open_log(disk, config)
    for sequence in range(30_000):
        send(log, sequence)
    log.write()
    log.close()
    assert log.size_bytes > 2_000_000
    read, read_bytes = MemoryFile.read, 0

    def counted(file: MemoryFile, count: int, position: int) -> Buffer:
        nonlocal read_bytes
        data = read(file, count, position)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(MemoryFile, "read", counted)
    log = recover(disk, recovery_point=30_000, config=config)
    assert read_bytes < 10_000
    assert log.end_offset == 30_000
    assert send(log, 29_999) == (29_999, 30_000, -1, True)
    assert send(log, 30_000) == (30_000, 30_001, -1, False)


def test_snapshot_from_before_the_first_segment_is_not_believed(disk: MemoryDisk) -> None:
    """Its producer has written on, in segments that are gone: that is no missing message."""
    log = open_log(disk)
    for sequence in range(5):
        send(log, sequence)
    log.write()
    log.close()
    log = open_log(disk)
    for sequence in range(5, 60):
        send(log, sequence)
    log.write()
    sync(log, disk)
    first = log.segments[2].base_offset
    for path in disk.paths():
        offset = path.rsplit("/", 1)[1][:20]
        if offset.isdecimal() and int(offset) < first and int(offset) != 5:
            disk.remove(path)
    disk.remove(f"{DIRECTORY}/{first:020d}.snapshot")
    assert disk.exists(f"{DIRECTORY}/{5:020d}.snapshot")
    disk.write_file(f"{DIRECTORY}/{first:020d}.log", b"")
    log = recover(disk, recovery_point=first, start_offset=first)
    assert send(log, first) == (first, first + 1, -1, False)


def test_log_in_use_is_read_from_its_last_snapshot_on(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two clean stops lie weeks; what was synced long ago is not read once more."""
    config = LogConfig(segment_bytes=10_000_000)
    log = open_log(disk, config)
    for sequence in range(10_000):
        send(log, sequence)
    log.write()
    assert save_progress(log)
    assert not save_progress(log), "once is enough"
    for sequence in range(10_000, 20_000):
        send(log, sequence)
    log.write()
    assert save_progress(log)
    sync(log, disk)
    for sequence in range(20_000, 20_100):
        send(log, sequence)
    log.write()
    intact = disk.read_file(LOG_FILE)
    read, read_bytes = MemoryFile.read, 0

    def counted(file: MemoryFile, count: int, position: int) -> Buffer:
        nonlocal read_bytes
        data = read(file, count, position)
        read_bytes += len(data) if file.path == LOG_FILE else 0
        return data

    monkeypatch.setattr(MemoryFile, "read", counted)
    log = recover(disk, recovery_point=20_000, config=config)
    assert read_bytes < 50_000
    assert log.end_offset == 20_100
    assert send(log, 20_099) == (20_099, 20_100, -1, True)
    assert send(log, 20_100) == (20_100, 20_101, -1, False)
    log.write()
    log.close()
    assert disk.read_file(LOG_FILE)[: len(intact)] == intact
    index = disk.read_file(f"{DIRECTORY}/{0:020d}.index")
    times = disk.read_file(f"{DIRECTORY}/{0:020d}.timeindex")
    disk.remove(f"{DIRECTORY}/{0:020d}.index")
    open_log(disk, config).close()
    assert disk.read_file(f"{DIRECTORY}/{0:020d}.index") == index
    assert disk.read_file(f"{DIRECTORY}/{0:020d}.timeindex") == times
    snapshots = [path for path in disk.paths() if path.endswith(".snapshot")]
    assert len(snapshots) == 1


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_hints_that_cannot_be_right_are_not_followed(disk: MemoryDisk, suffix: str) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=100))
    for sequence in range(50):
        send(log, sequence, timestamps=[NOW_MS + sequence])
    log.write()
    save_progress(log)
    sync(log, disk)
    (path,) = [path for path in disk.paths() if path.endswith(suffix)]
    data = bytearray(disk.read_file(path))
    data[len(data) // 2] ^= 0x55
    disk.write_file(path, bytes(data))
    log = recover(disk, recovery_point=50, config=LogConfig(index_interval_bytes=100))
    assert log.corruption is None
    assert send(log, 49) == (49, 50, -1, True)
    for at in reversed(range(50)):
        assert base_offsets(bytes(log.read(at, 1, log.written, cached_only=False) or b"")) == [at]
        assert log.first_at_or_after(NOW_MS + at, log.written) == (at, NOW_MS + at, 0)


@pytest.mark.parametrize("is_rolled", [False, True])
def test_what_was_cut_off_before_a_crash_does_not_come_back(
    disk: MemoryDisk, is_rolled: bool
) -> None:
    """A process died between a cut and its sync; the log was opened; then the power went."""
    log = open_log(disk, LogConfig())
    append_many(log, 10)
    sync(log, disk)
    disk.open(LOG_FILE).truncate(5 * SIZE)
    if is_rolled:
        disk.open(f"{DIRECTORY}/{5:020d}.log", create=True)
        disk.sync_directory(DIRECTORY)
    assert recover(disk, recovery_point=5).end_offset == 5
    for seed in range(20):
        again = recover(disk.after_crash(Random(seed)), recovery_point=5)
        assert again.corruption is None
        assert again.end_offset == 5
        assert base_offsets(read_all(again)) == list(range(5))
