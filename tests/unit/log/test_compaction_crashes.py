"""Power is lost at every step of a compaction: each group of segments is the old or the new."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import TypeVar

import pytest

from ottla.log.handles import Handles
from ottla.log.log import Log
from ottla.testing.disks import MemoryDisk, PowerLoss
from ottla.wire.records import headers_in
from unit.log.compaction_kit import TINY, compact, everything, put, write_and_sync
from unit.log.house import DIRECTORY, NOW_MS, open_log

SEEDS = range(4)

Batches = dict[int, bytes]
# All batches before and after, the offsets of each group, and how many operations it takes.
Outcome = tuple[Batches, Batches, list[range], int]


class RefusingDisk(MemoryDisk):
    """Refuses one operation of a kind, after so many others."""

    def __init__(self) -> None:
        super().__init__()
        self._refused = ""
        self._passed = 0
        self.has_refused = False

    def refuse(self, operation: str, passed: int) -> None:
        self._refused, self._passed = operation, passed

    def begin(self, operation: str, path: str, byte_count: int = 0) -> int | None:
        if operation == self._refused and not self.has_refused:
            self._passed -= 1
            if self._passed < 0:
                self.has_refused = True
                raise OSError(errno.EIO, "refused", path)
        return super().begin(operation, path, byte_count)


D = TypeVar("D", bound=MemoryDisk)


def dirty_log(disk: D) -> tuple[D, Log, Handles]:
    """Several groups: some of many segments, some of a single one, one that stays as it is."""
    disk.make_directory("/data")
    handles = Handles(disk)
    log = open_log(disk, TINY, handles=handles)
    random = Random(3)
    for number in range(24):
        key = b"once-%d" % number if number < 6 else b"key-%d" % random.randrange(6)
        size = 3 if number > 14 else random.randrange(10, 80)
        put(log, [(key, b"%d" % number * size)])
        if number > 14 or random.random() < 0.15:
            log.roll(NOW_MS)
    log.roll(NOW_MS)
    put(log, [(b"key-1", b"active")])
    write_and_sync(log, disk)
    disk.sync_directory("/data")
    return disk, log, handles


def after_disorderly_crash(disk: MemoryDisk, random: Random) -> MemoryDisk:
    """As on a file system where any unsynced name may be lost while later ones are kept."""
    return disk.after_crash(random, in_order=False)


def batches_by_offset(data: bytes) -> Batches:
    return {h.base_offset: data[at : at + h.size] for at, h in headers_in(data)}


def groups_of(before: list[int], after: list[int], end: int) -> Iterator[range]:
    """The offsets of each group: from one new segment's base to the next."""
    assert set(after) <= set(before)
    for base, following in zip(after, [*after[1:], end], strict=True):
        yield range(base, following)


def within(batches: Batches, offsets: range) -> Batches:
    return {offset: batch for offset, batch in batches.items() if offset in offsets}


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    disk, log, handles = dirty_log(MemoryDisk())
    old, old_bases = batches_by_offset(everything(log)), [s.base_offset for s in log.segments]
    operations = disk.operations
    compact(log, disk, handles)
    new, new_bases = batches_by_offset(everything(log)), [s.base_offset for s in log.segments]
    groups = list(groups_of(old_bases, new_bases, log.end_offset))
    assert len(groups) > 3
    assert any(len(set(old_bases) & set(group)) > 2 for group in groups), "no group of several"
    assert sum(within(old, group) != within(new, group) for group in groups) > 2
    return old, new, groups, disk.operations - operations


def check(
    disk: MemoryDisk,
    outcome: Outcome,
    recovery_point: int,
    where: str,
) -> None:
    old, new, groups, _ = outcome
    log = open_log(disk, TINY, clean=False, recovery_point=recovery_point)
    assert not log.fenced, where
    found = batches_by_offset(everything(log))
    for group in groups:
        now = within(found, group)
        assert now in (within(old, group), within(new, group)), f"{where}: {group} is half"
    assert sum(len(within(found, group)) for group in groups) == len(found), where
    assert log.end_offset == groups[-1].stop, where
    for offset in range(log.start_offset, log.end_offset):
        data = log.read(offset, 1, log.written, cached_only=False)
        assert next(headers_in(data or b""))[1].last_offset >= offset, where
    names = [path for path in disk.paths() if path.startswith(DIRECTORY)]
    assert not [n for n in names if n.endswith((".cleaned", ".swap", ".deleted"))], where
    log.close()


@pytest.mark.parametrize("recovery_point", [0, 24])
def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    outcome: Outcome, recovery_point: int
) -> None:
    for step in range(outcome[3] + 1):
        disk, log, handles = dirty_log(MemoryDisk())
        disk.lose_power_in(step)
        try:
            compact(log, disk, handles)
            assert step == outcome[3]
        except PowerLoss:
            pass
        for seed in SEEDS:
            where = f"power lost at operation {step}, seed {seed}"
            crash = after_disorderly_crash if seed % 2 else MemoryDisk.after_crash
            check(crash(disk, Random(seed)), outcome, recovery_point, where)


def test_a_second_crash_while_the_first_is_mended_changes_nothing(
    outcome: Outcome,
) -> None:
    for step in range(outcome[3] + 1):
        disk, log, handles = dirty_log(MemoryDisk())
        disk.lose_power_in(step)
        with suppress(PowerLoss):
            compact(log, disk, handles)
        crashed = disk.after_crash(Random(step))
        if not any(path.endswith(".swap") for path in crashed.paths()):
            continue
        for second in range(0, 12, 2):
            again = crashed.after_crash(Random(second))
            again.lose_power_in(second)
            with suppress(PowerLoss):
                open_log(again, TINY, clean=False, recovery_point=24)
            where = f"power lost at operation {step}, then at {second} of opening"
            check(again.after_crash(Random(second)), outcome, 24, where)


@pytest.mark.parametrize("operation", ["write", "sync", "create", "rename", "sync_directory"])
def test_a_disk_that_refuses_a_step_leaves_a_readable_log(outcome: Outcome, operation: str) -> None:
    old, new, groups, _ = outcome
    for passed in range(80):
        disk, log, handles = dirty_log(RefusingDisk())
        disk.refuse(operation, passed)
        with suppress(OSError):
            compact(log, disk, handles)
        found = batches_by_offset(everything(log))
        for group in groups:
            assert within(found, group) in (within(old, group), within(new, group)), passed
        check(disk.after_crash(Random(passed)), outcome, 24, f"{operation} {passed} refused")
        if not disk.has_refused:
            return
    raise AssertionError("more steps than were tried")
