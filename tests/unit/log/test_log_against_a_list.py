"""The log against a plain list: any history of appends, failures, crashes and restarts."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.errors import InvalidProducerEpoch, OffsetOutOfRange, OutOfOrderSequence, StorageFailed
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig, LogPosition, SyncTicket
from ottla.testing.disks import MemoryDisk, PowerLoss
from ottla.wire.records import SEQUENCE_MAX, headers_in
from unit.log.house import DIRECTORY, NOW_MS, append, make_batch, read_all, shorten

CONFIG = LogConfig(
    segment_bytes=1200, segment_ms=5_000, index_interval_bytes=100, segment_index_bytes=120
)
HANDLES_MAX = 3
FIRST_SEQUENCE = SEQUENCE_MAX - 3


class Entry(NamedTuple):
    """A batch of the model."""

    base: int
    end: int
    data: bytes
    timestamps: tuple[int, ...]
    epoch: int
    producer_id: int
    producer_epoch: int
    sequence: int


@dataclass
class Window:
    """What a list tells about a producer."""

    epoch: int = -1
    entries: list[Entry] = field(default_factory=list)

    @property
    def next_sequence(self) -> int:
        if not self.entries:
            return FIRST_SEQUENCE
        last = self.entries[-1]
        return (last.sequence + last.end - last.base) & SEQUENCE_MAX


class UnderWay(NamedTuple):
    """A sync that has begun."""

    ticket: SyncTicket
    count: int
    ghosts: list[list[Entry]]


class LogAgainstAList(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.disk = MemoryDisk()
        self.disk.make_directory("/data")
        self.now_ms = NOW_MS
        self.epoch = 0
        self.start = 0
        self.entries: list[Entry] = []
        self.written_count = 0
        self.synced_count = 0
        self.recovery_points = [0]
        self.limits: list[LogPosition] = []
        self.tickets: list[UnderWay] = []
        # What the log would be if a refused write were found on the disk after a crash: until the
        # next sync nobody knows that it was cut off again.
        self.ghosts: list[list[Entry]] = []
        self.open(clean=True)

    def open(self, *, clean: bool) -> None:
        self.handles = Handles(self.disk, HANDLES_MAX)
        self.log = Log.open(
            self.disk,
            DIRECTORY,
            CONFIG,
            now_ms=self.now_ms,
            clean=clean,
            recovery_point=self.recovery_points[-1],
            start_offset=self.start,
            handles=self.handles,
        )
        self.opened()

    def opened(self) -> None:
        self.limits = [self.log.written]
        self.tickets = []
        self.epoch += 1
        self.log.start_epoch(self.epoch)

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else 0

    def end_of(self, count: int) -> int:
        return self.entries[count - 1].end if count else 0

    def window(self, producer_id: int) -> Window:
        window = Window()
        for entry in self.entries:
            if entry.producer_id == producer_id:
                if entry.producer_epoch != window.epoch:
                    window = Window(entry.producer_epoch)
                window.entries = [*window.entries[-4:], entry]
        return window

    # ----------------------------------------------------------------------------- appending

    def put(self, entry: Entry, size: int) -> None:
        count = entry.end - entry.base
        batch = make_batch(
            count,
            value=b"v" * size,
            timestamps=entry.timestamps,
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            base_sequence=entry.sequence,
        )
        appended = append(self.log, batch, epoch=self.epoch, now_ms=self.now_ms)
        assert appended == (entry.base, entry.end, -1, False)
        self.entries.append(entry._replace(data=bytes(batch)))

    @rule(
        size=st.sampled_from([0, 5, 60, 300, 1300]),
        times=st.lists(st.integers(-3000, 3000), min_size=1, max_size=4),
        step_ms=st.integers(0, 3000),
    )
    def append_plain(self, size: int, times: list[int], step_ms: int) -> None:
        self.now_ms += step_ms
        timestamps = tuple(self.now_ms + delta for delta in times)
        end = self.end + len(times)
        self.put(Entry(self.end, end, b"", timestamps, self.epoch, -1, -1, -1), size)

    @rule(producer_id=st.integers(0, 2), count=st.integers(1, 3))
    def append_in_sequence(self, producer_id: int, count: int) -> None:
        window = self.window(producer_id)
        epoch = max(0, window.epoch)
        timestamps = (self.now_ms,) * count
        entry = Entry(
            self.end, self.end + count, b"", timestamps, self.epoch, producer_id, epoch, 0
        )
        self.put(entry._replace(sequence=window.next_sequence), 10)

    @rule(producer_id=st.integers(0, 2))
    def append_under_a_new_producer_epoch(self, producer_id: int) -> None:
        epoch = self.window(producer_id).epoch + 1
        if epoch == 0:
            return
        times = (self.now_ms,)
        self.put(Entry(self.end, self.end + 1, b"", times, self.epoch, producer_id, epoch, 0), 10)

    @rule(producer_id=st.integers(0, 2), back=st.integers(0, 4))
    def repeat(self, producer_id: int, back: int) -> None:
        """Each of the last five batches is known by its first offsets, however often it comes."""
        window = self.window(producer_id)
        if back >= len(window.entries):
            return
        entry = window.entries[-1 - back]
        batch = make_batch(
            entry.end - entry.base,
            producer_id=producer_id,
            producer_epoch=window.epoch,
            base_sequence=entry.sequence,
        )
        assert append(self.log, batch, epoch=self.epoch) == (entry.base, entry.end, -1, True)

    @rule(producer_id=st.integers(0, 2), skip=st.integers(1, 3), is_old=st.booleans())
    def append_what_must_be_refused(self, producer_id: int, skip: int, is_old: bool) -> None:
        window = self.window(producer_id)
        if not window.entries:
            return
        epoch = window.epoch - 1 if is_old else window.epoch
        sequence = (window.next_sequence + skip) & SEQUENCE_MAX
        batch = make_batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        try:
            append(self.log, batch, epoch=self.epoch)
        except InvalidProducerEpoch:
            assert is_old
        except OutOfOrderSequence:
            assert not is_old
        else:
            raise AssertionError("a gap in the sequence was taken")

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    # -------------------------------------------------------------------- writing and syncing

    @rule()
    def write(self) -> None:
        self.log.write()
        self.written_count = len(self.entries)
        self.limits.append(self.log.written)

    @rule(
        operation=st.sampled_from(["write", "create"]),
        torn_bytes=st.sampled_from([None, 0, 1, 100, 700, 5000]),
        later=st.integers(0, 2),
    )
    def write_to_a_full_disk(self, operation: str, torn_bytes: int | None, later: int) -> None:
        if operation != "write":
            torn_bytes = None
        for _ in range(later):
            self.append_plain(60, [0], 0)
        self.disk.fail(operation, errno.ENOSPC, torn_bytes=torn_bytes)
        try:
            self.log.write()
        except OSError:
            self.ghosts.append(list(self.entries))
            del self.entries[self.written_count :]
        finally:
            self.disk.heal()
        self.written_count = len(self.entries)
        self.limits.append(self.log.written)

    @rule()
    def begin_sync(self) -> None:
        ticket = self.log.begin_sync()
        if ticket is not None:
            self.tickets.append(UnderWay(ticket, self.written_count, list(self.ghosts)))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def finish_any_sync(self, data: st.DataObject) -> None:
        self.finish_sync(data.draw(st.sampled_from(range(len(self.tickets)))))

    def finish_sync(self, at: int) -> None:
        done = self.tickets.pop(at)
        self.disk.sync_many(done.ticket.files, done.ticket.directories)
        self.log.finish_sync(done.ticket)
        self.synced_count = max(self.synced_count, done.count)
        self.ghosts = [ghost for ghost in self.ghosts if ghost not in done.ghosts]

    @rule()
    def sync(self) -> None:
        self.begin_sync()
        while self.tickets:
            self.finish_sync(0)

    @rule()
    def checkpoint(self) -> None:
        self.recovery_points.append(self.log.synced.offset)

    @precondition(lambda self: self.written_count > self.synced_count)
    @rule()
    def fail_sync_and_reopen(self) -> None:
        ticket = self.log.begin_sync()
        assert ticket is not None
        self.disk.fail("sync")
        try:
            self.disk.sync_many(ticket.files)
        except OSError:
            self.log.fail_sync()
        try:
            append(self.log)
        except StorageFailed:
            self.log = self.log.reopen(self.now_ms)
        else:
            raise AssertionError("a fenced log took a batch")
        del self.entries[self.synced_count :]
        self.written_count = self.synced_count
        self.ghosts = []
        self.disk.closed_unsynced.clear()
        self.opened()

    # ------------------------------------------------------------------ stopping and starting

    @rule()
    def restart_cleanly(self) -> None:
        self.sync()
        self.log.close()
        assert not self.disk.open_files
        self.written_count = self.synced_count = len(self.entries)
        self.ghosts = []
        self.open(clean=True)

    @rule(seed=st.integers(0, 2**16))
    def crash(self, seed: int) -> None:
        self.disk = self.disk.after_crash(Random(seed))
        self.open(clean=False)
        synced = self.entries[: self.synced_count]
        self.entries = self.found_entries()
        assert self.entries[: self.synced_count] == synced, "a crash took what was synced"
        self.written_count = self.synced_count = len(self.entries)
        self.ghosts = []
        assert self.log.end_offset == self.log.synced.offset

    def found_entries(self) -> list[Entry]:
        """The history of which the log holds the beginning."""
        found = read_all(self.log)
        for history in (self.entries, *self.ghosts):
            entries = [entry for entry in history if entry.end <= self.log.end_offset]
            ends = [entry.end for entry in entries]
            data = b"".join(entry.data for entry in entries if entry.end > self.start)
            if data == found and self.log.end_offset == max(ends, default=0):
                return entries
        raise AssertionError("the log is the beginning of nothing that was appended")

    @rule(operations=st.integers(0, 6), seed=st.integers(0, 2**16))
    def lose_power_while_writing(self, operations: int, seed: int) -> None:
        for size in (60, 700):
            self.append_plain(size, [0], 0)
        self.disk.lose_power_in(operations)
        with suppress(PowerLoss):
            self.write()
            self.sync()
        self.crash(seed)

    @rule(operations=st.integers(0, 6), seed=st.integers(0, 2**16))
    def lose_power_while_starting(self, operations: int, seed: int) -> None:
        """Recovery itself may be cut off at any point and be begun again."""
        self.disk = self.disk.after_crash(Random(seed))
        self.disk.lose_power_in(operations)
        with suppress(PowerLoss):
            self.open(clean=False)
        self.crash(seed + 1)

    # ------------------------------------------------------------------------------ shortening

    @rule(data=st.data())
    def delete_before(self, data: st.DataObject) -> None:
        if self.log.synced.offset > self.start:
            offset = data.draw(st.integers(self.start, self.log.synced.offset))
            self.start = max(self.start, offset)
            shorten(self.log, self.disk, offset, remove=data.draw(st.booleans()))
            assert self.log.start_offset == self.start

    @precondition(lambda self: not self.tickets)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        written = self.entries[: self.written_count]
        end = self.end_of(self.written_count)
        offset = data.draw(st.integers(self.start, end))
        kept = sum(entry.end <= offset for entry in written)
        if offset < end and self.end_of(kept) < self.start:
            return  # The start would lie after the end.
        self.log.truncate(offset, self.now_ms)
        del self.entries[kept:]
        self.written_count = kept
        if offset < end:
            self.synced_count = kept
            self.ghosts = []
        self.recovery_points = [min(point, self.end) for point in self.recovery_points]
        self.limits = [self.log.written]
        self.log.start_epoch(self.epoch)

    # --------------------------------------------------------------------------------- reading

    @rule(data=st.data(), max_bytes=st.sampled_from([0, 1, 70, 500, 3000]), is_cold=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, is_cold: bool) -> None:
        limit = data.draw(st.sampled_from(self.limits))
        if limit.offset < self.start:
            return
        offset = data.draw(st.integers(self.start, limit.offset))
        self.disk.is_cold = is_cold
        found = self.log.read(offset, max_bytes, limit)
        self.disk.is_cold = False
        if found is None:
            assert is_cold
            found = self.log.read(offset, max_bytes, limit, cached_only=False)
        assert found is not None
        wanted = [e for e in self.entries if e.end > offset and e.end <= limit.offset]
        if not wanted:
            assert found == b""
            return
        assert len(found) >= len(wanted[0].data)
        assert len(found) <= max(max_bytes, len(wanted[0].data))
        assert b"".join(entry.data for entry in wanted).startswith(bytes(found))

    @rule(data=st.data(), max_bytes=st.sampled_from([1, 300, 5000]))
    def read_on_and_on(self, data: st.DataObject, max_bytes: int) -> None:
        limit = data.draw(st.sampled_from(self.limits))
        offset = max(self.start, 0)
        bases = []
        while offset < limit.offset:
            found = self.log.read(offset, max_bytes, limit)
            assert found
            for _, header in headers_in(found):
                bases.append(header.base_offset)
                offset = header.next_offset
        wanted = [e.base for e in self.entries if self.start < e.end <= limit.offset]
        assert bases == (wanted if limit.offset > self.start else [])

    @rule(outside=st.sampled_from([-1, 1]))
    def read_outside(self, outside: int) -> None:
        offset = self.start - 1 if outside < 0 else self.log.written.offset + 1
        try:
            self.log.read(offset, 100, self.log.written)
        except OffsetOutOfRange:
            return
        raise AssertionError(f"read at {offset}")

    @rule(data=st.data(), delta_ms=st.integers(-4000, 4000))
    def look_up_a_time(self, data: st.DataObject, delta_ms: int) -> None:
        limit = data.draw(st.sampled_from(self.limits))
        timestamp = self.now_ms + delta_ms
        records = [
            (entry.base + at, time, entry.epoch)
            for entry in self.entries
            if entry.end <= limit.offset
            for at, time in enumerate(entry.timestamps)
            if entry.base + at >= self.start
        ]
        first = next((record for record in records if record[1] >= timestamp), None)
        assert self.log.first_at_or_after(timestamp, limit) == first
        youngest = max(records, key=lambda record: record[1], default=None)
        if not any(entry.base < self.start < entry.end for entry in self.entries):
            assert self.log.max_timestamp(limit) == youngest

    # ------------------------------------------------------------------------------ invariants

    @invariant()
    def offsets_are_those_of_the_list(self) -> None:
        assert self.log.end_offset == self.end
        assert self.log.written.offset == self.end_of(self.written_count)
        assert self.log.synced.offset == self.end_of(self.synced_count)
        assert self.log.start_offset == self.start

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        for entry in self.entries:
            if entry.base >= self.start:
                assert self.log.epoch_at(entry.base) == entry.epoch
        assert self.log.epoch_at(self.log.end_offset) == self.epoch
        assert self.log.end_offset_for_epoch(self.epoch) == (self.epoch, self.end)

    @invariant()
    def no_file_was_closed_with_unsynced_bytes(self) -> None:
        assert not self.disk.closed_unsynced


TestLogAgainstAList = LogAgainstAList.TestCase
TestLogAgainstAList.settings = settings(max_examples=150, stateful_step_count=40)
