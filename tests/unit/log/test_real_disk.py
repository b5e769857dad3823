"""The same log on the operating system's own files."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from ottla.broker.storage.disk import RealDisk
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.wire.records import headers_in
from unit.log.house import NOW_MS, SMALL, append, make_batch, read_all, send, sync


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_any_history_on_real_files(tmp_path: Path, portable: bool, seed: int) -> None:
    random = Random(seed)
    disk = RealDisk(portable=portable)
    directory = str(tmp_path / "t-0")
    handles = Handles(disk, files_max=3)
    before = open_files()

    def start(*, clean: bool, recovery_point: int = 0) -> Log:
        return Log.open(
            disk,
            directory,
            SMALL,
            now_ms=NOW_MS,
            clean=clean,
            recovery_point=recovery_point,
            handles=handles,
        )

    log = start(clean=True)
    expected: list[bytes] = []
    for _ in range(200):
        step = random.random()
        for _ in range(random.randint(0, 5)):
            batch = make_batch(random.randint(1, 3), value=b"v" * random.randint(0, 400))
            append(log, batch)
            expected.append(bytes(batch))
        log.write()
        if step < 0.3:
            sync(log, disk)
        elif step < 0.35:
            log.roll(NOW_MS)
        elif step < 0.45:
            log.close()
            log = start(clean=True)
        elif step < 0.5:
            log.abandon()
            log = start(clean=False, recovery_point=log.synced.offset)
            assert log.synced == log.written
        offset = random.randint(0, log.end_offset)
        data = log.read(offset, random.choice([1, 300, 5000]), log.written)
        if data:
            _, header = next(headers_in(data))
            assert header.base_offset <= offset <= header.last_offset
    assert read_all(log) == b"".join(expected)
    log.close()
    assert open_files() == before


def test_crashed_process_leaves_a_log_that_can_be_cut_and_used(tmp_path: Path) -> None:
    directory = str(tmp_path / "t-0")
    log = Log.open(RealDisk(), directory, LogConfig(), now_ms=NOW_MS, clean=True)
    for sequence in range(10):
        send(log, sequence)
    log.write()
    log.abandon()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    with path.open("ab") as file:
        file.write(b"half a batch")
    log = Log.open(RealDisk(), directory, LogConfig(), now_ms=NOW_MS, clean=False)
    assert log.end_offset == 10
    assert send(log, 9) == (9, 10, -1, True)
    send(log, 10)
    log.close()
    log = Log.open(RealDisk(), directory, LogConfig(), now_ms=NOW_MS, clean=True)
    assert len(list(headers_in(read_all(log)))) == 11


def test_read_only_directory_refuses_writes_and_serves_reads(tmp_path: Path) -> None:
    """As a full disk does; tried with a limit on file sizes, because root may write anywhere."""
    import resource
    import signal

    directory = str(tmp_path / "t-0")
    log = Log.open(RealDisk(), directory, LogConfig(), now_ms=NOW_MS, clean=True)
    append(log)
    log.write()
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.size_bytes + 20, hard))
        append(log)
        with pytest.raises(OSError, match="too large"):
            log.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert log.end_offset == 1
    assert os.path.getsize(f"{directory}/{0:020d}.log") == log.size_bytes
    append(log)
    log.write()
    assert log.written.offset == 2
    log.close()
