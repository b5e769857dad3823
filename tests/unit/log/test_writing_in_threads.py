"""A log whose batches are written in a thread: what comes meanwhile, and what fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from ottla.errors import OutOfOrderSequence
from ottla.log.handles import Handle, Handles
from ottla.log.log import Log, SyncTicket
from ottla.log.writing import Writing
from ottla.testing.disks import MemoryDisk
from unit.log.house import (
    DIRECTORY,
    SMALL,
    append,
    append_many,
    base_offsets,
    make_batch,
    open_log,
    read_all,
    send,
    sync,
)

LIVES = 400
STEPS = 60


def _begin(log: Log) -> Writing:
    writing = log.begin_write()
    assert writing is not None
    return writing


def test_what_is_queued_during_a_write_goes_with_the_next(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append(log)
    writing = _begin(log)
    append(log)
    writing.run()
    log.finish_write(writing)
    assert (log.written.offset, log.end_offset) == (1, 2)
    log.write()
    assert base_offsets(read_all(log)) == [0, 1]


def test_a_failed_write_takes_what_was_queued_meanwhile_with_it(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    stored = read_all(log)
    send(log, 0)
    writing = _begin(log)
    for sequence in range(1, 30):
        send(log, sequence)
    assert log.segment_count > 1
    disk.fail("write", errno.ENOSPC, torn_bytes=40)
    with pytest.raises(OSError, match="No space"):
        writing.run()
    log.fail_write(writing)
    assert not log.fenced
    assert (log.end_offset, log.segment_count) == (3, 1)
    assert read_all(log) == stored == disk.read_file(f"{DIRECTORY}/{0:020d}.log")
    assert not send(log, 0).is_duplicate
    log.write()
    assert base_offsets(read_all(log)) == [0, 1, 2, 3]


def test_sequences_of_a_written_batch_stay_when_the_next_one_fails(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 0)
    writing = _begin(log)
    send(log, 1)
    writing.run()
    log.finish_write(writing)
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.write()
    assert send(log, 0).is_duplicate, "it is on disk, once"
    with pytest.raises(OutOfOrderSequence):
        send(log, 2)
    assert not send(log, 1).is_duplicate, "it is not there, so it is no repetition"


class _Interrupting(dict[Handle, int]):
    """Lets the loop do something between the writing thread's look at its file and its mark."""

    interrupt: Callable[[], None] | None = None

    def __setitem__(self, key: Handle, value: int) -> None:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()
        super().__setitem__(key, value)


def test_a_sync_that_ends_during_a_write_does_not_close_the_file_beneath_it(
    disk: MemoryDisk,
) -> None:
    handles = Handles(disk, files_max=1)
    log = open_log(disk, handles=handles)
    append_many(log, 1)
    ticket = log.begin_sync()
    assert ticket is not None
    append(log)
    writing = _begin(log)

    def end_sync() -> None:
        disk.sync_many(ticket.files, ticket.directories)
        log.finish_sync(ticket)
        assert log.synced.offset == 1, "who waits for the sync is told at once"
        other = Handle("/data/other")
        handles.acquire(other, create=True)
        handles.release(other)

    log._unsynced._written = _Interrupting(log._unsynced._written)
    log._unsynced._written.interrupt = end_sync
    writing.run()
    log.finish_write(writing)
    sync(log, disk)
    assert log.synced.offset == 2
    assert not disk.closed_unsynced


def test_a_log_that_is_given_up_during_a_write_touches_no_file_afterwards(
    disk: MemoryDisk,
) -> None:
    log = open_log(disk)
    append(log)
    writing = _begin(log)
    writing.run()
    log.abandon()
    operations = disk.operations
    log.fail_write(writing)
    assert disk.operations == operations, "the names may be another topic's by now"
    assert not disk.open_files


class _Life:
    """A log that is written to in pieces, against a list; any write may be refused."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.disk.make_directory("/data")
        self.log = open_log(self.disk, SMALL, handles=Handles(self.disk, files_max=2))
        self.batches: list[bytes] = []
        self.written = 0
        self.sequence = 0
        self.sequences: list[int] = []
        self.writing: tuple[Writing, int] | None = None
        self.tickets: list[tuple[SyncTicket, int]] = []

    def live(self) -> None:
        steps = (self.append, self.append, self.begin, self.finish, self.sync, self.synced)
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.finish()
        self.begin()
        self.finish()
        assert read_all(self.log) == b"".join(self.batches[: self.written])
        self.log.close()
        again = open_log(self.disk)
        assert read_all(again) == b"".join(self.batches[: self.written])
        assert not self.disk.closed_unsynced

    def append(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            value = b"v" * self.random.choice((1, 200))
            sequenced = {"producer_id": 1, "producer_epoch": 0, "base_sequence": self.sequence}
            batch = make_batch(1, value=value, **sequenced)
            appended = append(self.log, batch)
            assert (appended.base_offset, appended.is_duplicate) == (len(self.batches), False)
            self.sequence += 1
            self.batches.append(bytes(batch))

    def begin(self) -> None:
        if self.writing is None:
            writing = self.log.begin_write()
            if writing is not None:
                self.writing = (writing, len(self.batches))

    def finish(self) -> None:
        if self.writing is None:
            return
        (writing, end), self.writing = self.writing, None
        if self.random.random() < 0.3:
            kind = self.random.choice(("write", "write", "create"))
            self.disk.fail(kind, errno.ENOSPC, torn_bytes=self.random.choice((None, 70)))
        try:
            writing.run()
        except OSError:
            self.log.fail_write(writing)
            del self.batches[self.written :]
            self.sequence = self.written
        else:
            self.log.finish_write(writing)
            self.written = end
        self.disk.heal()
        assert self.log.written.offset == self.written
        assert self.log.end_offset == len(self.batches)

    def sync(self) -> None:
        if self.writing is None:
            ticket = self.log.begin_sync()
            if ticket is not None:
                self.tickets.append((ticket, self.written))

    def synced(self) -> None:
        if self.tickets:
            ticket, written = self.tickets.pop(0)
            self.disk.sync_many(ticket.files, ticket.directories)
            self.log.finish_sync(ticket)
            assert self.log.synced.offset >= written


def test_written_in_pieces_a_log_is_what_a_list_says() -> None:
    for seed in range(LIVES):
        try:
            _Life(seed).live()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
