"""A copy of a log in another directory is what the log is, whatever befell it meanwhile."""

from __future__ import annotations

from random import Random

import pytest

from ottla.log.copying import LogCopy, SourceChanged, contents_of
from ottla.log.directory import MOVED, PARTITION_METADATA
from ottla.log.handles import Handles
from ottla.log.log import LogPosition
from ottla.log.relocation import relocated
from ottla.testing.disks import MemoryDisk
from unit.log.compaction_kit import compact_all, put
from unit.log.house import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    append,
    append_many,
    open_log,
    save_progress,
    send,
    shorten,
    sync,
)
from unit.log.replica_kit import given_to_replicas

TARGET = "/other/t-0"
SEEDS = 60
STEPS = 40


@pytest.fixture
def target(disk: MemoryDisk) -> str:
    disk.make_directory(TARGET)
    disk.write_file(f"{TARGET}/{PARTITION_METADATA}", b"id")
    return TARGET


class Story:
    """A log to which things happen, and a copy that follows it at its own pace."""

    def __init__(self, disk: MemoryDisk, seed: int) -> None:
        self.random, self.disk, self.handles = Random(seed), disk, Handles(disk)
        self.log = open_log(disk, SMALL, handles=self.handles)
        self.copy = LogCopy(disk, DIRECTORY, TARGET)
        self.sequence = 0

    def step(self) -> None:
        often = (self.write, self.follow)
        rarely = (self.shorten, self.cut, self.begin_anew, self.compact, self.reopen, self.save)
        self.random.choice((*often, *often, *often, *rarely))()

    def write(self) -> None:
        for _ in range(self.random.randint(1, 8)):
            if self.random.random() < 0.5:
                put(self.log, [(b"%d" % self.random.randrange(4), b"." * 50)])
            else:
                send(self.log, self.sequence)
                self.sequence += 1
        self.log.write()
        if self.random.random() < 0.7:
            sync(self.log, self.disk)

    def follow(self) -> None:
        self.copy.add(contents_of(self.log), self.random.choice((10, 300, 2000, 10**6)))

    def shorten(self) -> None:
        sync(self.log, self.disk)
        shorten(self.log, self.disk, self.random.randint(self.log.start_offset, self.end))

    def cut(self) -> None:
        """What is compacted is committed, and is not cut any more."""
        sync(self.log, self.disk)
        self.log.truncate(self.random.randint(self.log.segments[-1].base_offset, self.end), NOW_MS)
        self.sequence = self._next_sequence()

    def begin_anew(self) -> None:
        if self.random.random() < 0.3:
            sync(self.log, self.disk)
            self.log.restart_at(self.end + self.random.randrange(3), NOW_MS)
            self.sequence = 0

    def compact(self) -> None:
        sync(self.log, self.disk)
        compact_all(self.log, self.disk, self.handles)

    def reopen(self) -> None:
        self.log.fenced = True
        self.log = self.log.reopen(NOW_MS)
        self.sequence = self._next_sequence()

    def save(self) -> None:
        if save_progress(self.log):
            sync(self.log, self.disk)

    @property
    def end(self) -> int:
        return self.log.end_offset

    def _next_sequence(self) -> int:
        known = self.log._producers.get(7)
        return 0 if known is None else known.spans[-1].last_sequence + 1 if known.spans else 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_copy_of_a_log_opens_as_the_log_itself(
    disk: MemoryDisk, target: str, seed: int
) -> None:
    story = Story(disk, seed)
    for _ in range(STEPS):
        story.step()
    log = story.log
    story.copy.complete(contents_of(log), is_only_other=True)
    assert story.copy.lacks_bytes(contents_of(log)) == 0
    assert story.copy.end_offset(contents_of(log)) == log.end_offset
    assert disk.exists(f"{target}/{MOVED}")
    options = {"start_offset": log.start_offset, "recovery_point": log.synced.offset}
    # All of it was synced: what a power cut leaves is all of it.
    kept = disk.after_crash(Random(seed))
    copied = open_log(kept, SMALL, clean=False, directory=target, **options)
    assert copied.corruption is None
    assert (copied.start_offset, copied.end_offset) == (log.start_offset, log.end_offset)
    assert given_to_replicas(copied) == given_to_replicas(log)
    # What a start would find in the log's own directory, had it lost nothing.
    found = open_log(disk, SMALL, clean=False, **options)
    assert copied._producers == found._producers
    assert copied._epochs.entries == found._epochs.entries


def test_a_relocated_log_goes_on_with_what_was_queued(disk: MemoryDisk, target: str) -> None:
    log = open_log(disk)
    append_many(log, 30)
    sync(log, disk)
    copy = LogCopy(disk, DIRECTORY, target)
    copy.complete(contents_of(log), is_only_other=True)
    for _ in range(20):
        append(log)
    moved, close_files = relocated(log, target)
    close_files()
    assert moved.end_offset == 50
    assert log.fenced
    disk.remove_tree(DIRECTORY)
    moved.write()
    sync(moved, disk)
    assert moved.synced == LogPosition(50, moved.synced.segment_base, moved.synced.bytes_in_segment)
    data = given_to_replicas(moved)
    opened = open_log(disk, clean=False, directory=target)
    assert given_to_replicas(opened) == data
    assert opened.end_offset == 50


def test_a_log_that_has_moved_and_may_be_elsewhere_does_not_lose_its_mark(
    disk: MemoryDisk, target: str
) -> None:
    log = open_log(disk)
    append_many(log, 3)
    sync(log, disk)
    disk.write_file(f"{DIRECTORY}/{MOVED}", b"")
    copy = LogCopy(disk, DIRECTORY, target)
    with pytest.raises(SourceChanged, match="may be elsewhere"):
        copy.complete(contents_of(log), is_only_other=False)
    assert disk.exists(f"{DIRECTORY}/{MOVED}")
    copy.complete(contents_of(log), is_only_other=True)
    assert not disk.exists(f"{DIRECTORY}/{MOVED}")
