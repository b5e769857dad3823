"""What may happen to a log between the steps in which compacted segments take their place."""

from __future__ import annotations

import pytest

from ottla.log.compaction.output import CleanedSegment
from ottla.log.compaction.rewrite import Compaction
from ottla.log.compaction.swap import Swap, SwapAbandoned, remove_cleaned
from ottla.log.handles import Handles
from ottla.log.log import Log
from ottla.testing.disks import MemoryDisk
from unit.log.compaction_kit import TINY, everything, job_for, put, records_in, write_and_sync
from unit.log.house import DIRECTORY, NOW_MS, open_log


@pytest.fixture
def handles(disk: MemoryDisk) -> Handles:
    return Handles(disk)


@pytest.fixture
def log(disk: MemoryDisk, handles: Handles) -> Log:
    """One key, three segments of two values each, and an active one."""
    log = open_log(disk, TINY, handles=handles)
    for number in range(6):
        put(log, [(b"k", b"%d" % number)])
        if number % 2:
            log.roll(NOW_MS)
    put(log, [(b"other", b"active")])
    write_and_sync(log, disk)
    return log


def cleaned(log: Log, disk: MemoryDisk) -> CleanedSegment:
    (only,) = Compaction(disk, job_for(log)).run()
    assert only.bases == (0, 2, 4)
    return only


def names(disk: MemoryDisk, *suffixes: str) -> list[str]:
    return [path for path in disk.paths() if path.endswith(suffixes)]


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in records_in(everything(log))]


def test_segments_that_retention_took_are_not_replaced(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    swap = Swap(log, handles, cleaned(log, disk))
    swap.begin()
    swap.announce()
    swap.sync()
    log.set_aside(log.delete_before(2))
    with pytest.raises(SwapAbandoned):
        swap.replace()
    swap.close()
    assert values(log) == [b"2", b"3", b"4", b"5", b"active"]
    assert not names(disk, ".swap")
    remove_cleaned(disk, DIRECTORY)
    assert not names(disk, ".cleaned")
    with pytest.raises(SwapAbandoned):
        Swap(log, handles, CleanedSegment((0, 2, 4), 1, True, 0))


def test_a_new_segment_that_retention_took_leaves_no_file(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    swap = Swap(log, handles, cleaned(log, disk))
    swap.begin()
    swap.announce()
    swap.sync()
    swap.replace()
    log.set_aside(log.delete_before(6))
    swap.finish()
    swap.close()
    assert not names(disk, ".swap")
    assert [name for name in names(disk, ".log") if "0000000006.log" not in name] == []
    assert values(log) == [b"active"]


def test_a_log_fenced_before_its_segments_are_replaced_is_completed_by_opening_it(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    """Somebody may be opening it in a thread just now: nothing is taken away from under it."""
    swap = Swap(log, handles, cleaned(log, disk))
    swap.begin()
    swap.announce()
    swap.sync()
    log.fail_sync()
    with pytest.raises(SwapAbandoned):
        swap.replace()
    swap.close()
    assert names(disk, ".swap")
    again = log.reopen(NOW_MS)
    assert values(again) == [b"5", b"active"]
    assert not names(disk, ".swap")


def test_a_log_fenced_before_the_last_name_is_right_is_completed_by_opening_it(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    swap = Swap(log, handles, cleaned(log, disk))
    swap.begin()
    swap.announce()
    swap.replace()
    log.fail_sync()
    with pytest.raises(SwapAbandoned):
        swap.finish()
    swap.close()
    assert values(log) == [b"5", b"active"], "who has it open reads on"
    assert values(log.reopen(NOW_MS)) == [b"5", b"active"]


def test_a_partition_that_is_gone_is_not_touched(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    is_current = True
    swap = Swap(log, handles, cleaned(log, disk), lambda: is_current)
    swap.begin()
    is_current = False
    before = disk.paths()
    with pytest.raises(SwapAbandoned):
        swap.announce()
    swap.close()
    assert disk.paths() == before


def test_a_cleaned_file_of_another_size_is_not_used(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    told = cleaned(log, disk)
    swap = Swap(log, handles, told._replace(size=told.size + 1))
    with pytest.raises(SwapAbandoned):
        swap.begin()
    swap.close()
    assert len(values(log)) == 7


def test_no_file_stays_open_that_nobody_needs(log: Log, disk: MemoryDisk, handles: Handles) -> None:
    everything(log)
    Swap(log, handles, cleaned(log, disk)).run()
    everything(log)
    log.close()
    assert not [file.path for file in disk.open_files]
