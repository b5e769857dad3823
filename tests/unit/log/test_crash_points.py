"""Crashes at every point of random lives of a log, by seed.

A life appends, writes, syncs, rolls, deletes, truncates, closes and opens, on a disk whose syncs
sometimes fail. It is cut off in the middle of whatever it does: by a power loss, of which an
arbitrary part of the unsynced sectors survives, or by the death of the process, of which everything
survives that was written, also what the kernel could not sync. Then the log is opened again, and
the life goes on. SIM_ROUNDS and SIM_SEED choose how many lives there are and which is the first.
"""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random
from typing import NamedTuple

import pytest

from ottla.log.aborted import decode_entries
from ottla.log.log import Log, LogConfig
from ottla.log.markers import ABORT, COMMIT, Marker, marker_batch, read_marker
from ottla.log.producer_state import ProducerState
from ottla.log.reading import end_of
from ottla.testing.disks import MemoryDisk, PowerLoss
from ottla.wire.records import headers_in, read_header, stamp
from unit.log.house import DIRECTORY, NOW_MS, append, make_batch, read_all, save_progress

ROUNDS = int(os.environ.get("SIM_ROUNDS", "120"))
FIRST_SEED = int(os.environ.get("SIM_SEED", "1"))
LIVES_PER_TEST = 20
TRANSACTIONAL = (5, 6)
CRASHES = 8
STEPS = 14

CONFIGS = (
    LogConfig(segment_bytes=1200, index_interval_bytes=100, segment_index_bytes=240),
    LogConfig(segment_bytes=6000, index_interval_bytes=700),
    LogConfig(segment_bytes=100_000, index_interval_bytes=4096),
)


class Batch(NamedTuple):
    base: int
    end: int
    data: bytes
    epoch: int


class Life:
    """One log, what it was given, and how much of that it has promised to keep."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.config = self.random.choice(CONFIGS)
        self.disk = MemoryDisk()
        self.disk.make_directory("/data")
        self.history: list[Batch] = []
        # Batches that were taken back or cut off, but may have reached the disk before.
        self.others: list[list[Batch]] = []
        self.promised = 0
        self.recovery_point = 0
        self.start = 0
        self.epoch = 0
        self.is_closed = False
        self.closed_bytes: int | None = None
        self.sequences: dict[int, int] = {}
        self.log = self.open(clean=True)

    # ------------------------------------------------------------------------------ its steps

    def live(self) -> None:
        for _ in range(CRASHES):
            self.disk.lose_power_in(self.random.randrange(60))
            with suppress(PowerLoss):
                for _ in range(STEPS):
                    self.step()
            self.disk.lose_power_in(10**9)
            self.crash()

    def step(self) -> None:
        steps = (self.append, self.append, self.append, self.sync, self.sync, self.checkpoint)
        rare = (self.roll, self.delete, self.truncate, self.close, self.fail_sync, self.lead)
        rare += (self.save_progress, self.save_progress)
        self.random.choice(steps + rare)()

    def append(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            count = self.random.randint(1, 3)
            producer_id = self.random.choice((-1, 3, 4, *TRANSACTIONAL))
            if producer_id in TRANSACTIONAL and self.random.random() < 0.5:
                self.end_transaction(producer_id)
                continue
            fields = {"is_transactional": producer_id in TRANSACTIONAL}
            if producer_id >= 0:
                sequence = self.sequences.get(producer_id, 0)
                fields |= {"producer_id": producer_id, "producer_epoch": 0}
                fields["base_sequence"] = sequence
                self.sequences[producer_id] = sequence + count
            value = b"%d" % self.random.getrandbits(60) * self.random.choice((1, 5, 40))
            batch = make_batch(count, value=value, **fields)
            base, end, _, is_duplicate = append(self.log, batch, epoch=self.epoch)
            assert not is_duplicate
            self.history.append(Batch(base, end, bytes(batch), self.epoch))
        if self.random.random() < 0.15:
            self.others.append(list(self.history))
            self.disk.fail("write", torn_bytes=self.random.randrange(900))
        try:
            self.log.write()
        except OSError:
            self.history = [b for b in self.history if b.end <= self.log.written.offset]
            self.recount_sequences()
        self.disk.heal()
        if self.log.fenced:
            self.reopen()

    def end_transaction(self, producer_id: int) -> None:
        """Half of these end nothing, and are not in the log."""
        marker = Marker(self.random.choice((ABORT, ABORT, COMMIT)), 0)
        known = self.log.append_marker(producer_id, 0, marker, self.epoch, NOW_MS, 0)
        if not known.is_duplicate:
            data = marker_batch(producer_id, 0, marker, NOW_MS)
            stamp(memoryview(data), known.base_offset, self.epoch)
            self.history.append(Batch(known.base_offset, known.end_offset, bytes(data), self.epoch))

    def sync(self) -> None:
        ticket = self.log.begin_sync()
        if ticket is not None:
            self.disk.sync_many(ticket.files, ticket.directories)
            self.log.finish_sync(ticket)
        self.promised = self.log.synced.offset

    def fail_sync(self) -> None:
        ticket = self.log.begin_sync()
        if ticket is None:
            return
        self.disk.fail("sync", times=self.random.randint(1, 5))
        try:
            self.disk.sync_many(ticket.files, ticket.directories)
        except OSError:
            for file in ticket.files[1:]:
                with suppress(OSError):
                    file.sync()
            self.disk.heal()
            self.log.fail_sync()
            if self.random.random() < 0.5:
                raise PowerLoss("the process dies before it opens the log again") from None
            self.reopen()
        else:
            self.log.finish_sync(ticket)
            self.promised = self.log.synced.offset

    def reopen(self) -> None:
        self.others.append(list(self.history))
        self.log = self.log.reopen(NOW_MS)
        assert self.log.corruption is None
        self.history = [b for b in self.history if b.end <= self.log.end_offset]
        self.recount_sequences()
        self.check("reopened")

    def save_progress(self) -> None:
        save_progress(self.log)

    def checkpoint(self) -> None:
        self.recovery_point = self.log.recovery_point

    def roll(self) -> None:
        self.log.roll(NOW_MS)
        self.log.write()

    def lead(self) -> None:
        self.epoch += 1
        self.log.start_epoch(self.epoch)

    def delete(self) -> None:
        if self.promised > self.start:
            self.start = self.random.randint(self.start, self.promised)
            self.log.delete_before(self.start)

    def truncate(self) -> None:
        offset = self.random.randint(self.start, self.log.end_offset)
        if offset in [batch.end for batch in self.history]:
            self.others.append(list(self.history))
            # Who truncates moves the recovery point first.
            self.recovery_point = min(self.recovery_point, offset)
            self.promised = min(self.promised, offset)
            self.log.truncate(offset, NOW_MS)
            self.history = [batch for batch in self.history if batch.end <= offset]
            self.recount_sequences()
            self.promised = self.log.synced.offset

    def close(self) -> None:
        self.log.close()
        self.promised = self.log.end_offset
        self.recovery_point = self.log.recovery_point
        self.is_closed, self.closed_bytes = True, self.log.bytes_from(self.start)
        self.log = self.open(clean=True)
        self.check("opened after a clean stop")

    # ------------------------------------------------------------------------------- its end

    def crash(self) -> None:
        self.disk.heal()
        is_power = self.random.random() < 0.7
        if is_power:
            self.disk = self.disk.after_crash(self.random)
        for _ in range(self.random.randrange(3)):
            # Recovery may be cut off, too.
            self.disk.lose_power_in(self.random.randrange(8))
            with suppress(PowerLoss):
                self.open(clean=False)
            if is_power:
                self.disk = self.disk.after_crash(self.random)
        self.disk.lose_power_in(10**9)
        self.log = self.open(clean=False)
        self.take_what_is_there()
        self.check("opened after a power loss" if is_power else "opened after a crash")

    def open(self, *, clean: bool) -> Log:
        known = self.closed_bytes if self.is_closed and clean else None
        self.is_closed = False
        log = Log.open(
            self.disk,
            DIRECTORY,
            self.config,
            now_ms=NOW_MS,
            clean=clean,
            recovery_point=self.recovery_point,
            start_offset=self.start,
            known_bytes=known,
        )
        assert log.corruption is None, f"healthy, yet {log.corruption}"
        return log

    def take_what_is_there(self) -> None:
        """All that was promised, byte for byte; after it what once was appended at that place."""
        assert self.log.end_offset >= self.promised, "acknowledged batches are gone"
        given = {b.data: b for history in (*self.others, self.history) for b in history}
        found = read_all(self.log)
        kept = [b for b in self.history if b.end <= self.start]
        for at, header in headers_in(found):
            batch = given.get(found[at : at + header.size])
            assert batch is not None, f"nobody appended what is at {header.base_offset}"
            kept.append(batch)
        ends = [self.start, *(batch.end for batch in kept)]
        assert [b.base for b in kept[1:]] == [b.end for b in kept[:-1]], "a hole"
        assert self.log.end_offset == max(ends)
        agreed = [batch for batch in self.history if self.start < batch.end <= self.promised]
        assert [batch for batch in kept if self.start < batch.end <= self.promised] == agreed
        self.history, self.others = kept, []
        self.promised = self.log.synced.offset
        assert self.promised == self.log.end_offset
        self.epoch = max([self.epoch, *(batch.epoch for batch in kept)]) + 1
        self.recount_sequences()

    def check(self, when: str) -> None:
        for batch in self.history:
            if batch.base >= self.start:
                assert self.log.epoch_at(batch.base) == batch.epoch, f"{when}: epochs"
        if self.start == 0:
            expected = ProducerState()
            for batch in self.history:
                expected.replay(read_header(batch.data), batch.data, NOW_MS)
            assert self.log._producers == expected, f"{when}: producers"
            self.check_transactions(when)
        bases = [batch.base for batch in self.history if batch.end > self.start]
        found = [header.base_offset for _, header in headers_in(read_all(self.log, max_bytes=200))]
        assert found == bases, f"{when}: batches"

    def check_transactions(self, when: str) -> None:
        """By the plainest of models: what is open, and what was aborted, as the batches say."""
        begun: dict[int, int] = {}
        aborted: list[tuple[int, int, int, int]] = []
        for batch in self.history:
            header = read_header(batch.data)
            if header.is_control:
                start = begun.pop(header.producer_id, None)
                marker = read_marker(batch.data)
                if start is not None and marker is not None and marker.kind == ABORT:
                    stable = min(begun.values(), default=batch.end)
                    aborted.append((header.producer_id, start, batch.base, stable))
            elif header.is_transactional:
                begun.setdefault(header.producer_id, batch.base)
        log = self.log
        found = [
            tuple(entry)
            for segment in log.segments
            for entry in decode_entries(segment.read_aborted(log._handles))
        ]
        assert found == aborted, f"{when}: the transaction index"
        place = log.first_unstable(log.end_offset)
        assert (place and place.offset) == min(begun.values(), default=None), (
            f"{when}: what is open"
        )
        if place is not None:
            assert place == log.position_at(place.offset), f"{when}: where the first one begins"
        if self.history:
            offset = self.random.choice(self.history).base
            read = log.read_stable(offset, 300, log.written, cached_only=False)
            assert read is not None
            end = end_of(read[0])
            told = [entry for entry in aborted if entry[2] >= offset and entry[1] < end]
            assert [tuple(entry) for entry in read[1]] == told, f"{when}: what a reader is told"

    def recount_sequences(self) -> None:
        self.sequences = {}
        for batch in self.history:
            header = read_header(batch.data)
            if header.producer_id >= 0 and not header.is_control:
                self.sequences[header.producer_id] = header.last_sequence + 1


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + ROUNDS, LIVES_PER_TEST))
def test_no_crash_takes_what_was_acknowledged_or_invents_what_was_not(first: int) -> None:
    for seed in range(first, min(first + LIVES_PER_TEST, FIRST_SEED + ROUNDS)):
        try:
            Life(seed).live()
        except BaseException as error:
            error.add_note(f"again: SIM_SEED={seed} SIM_ROUNDS=1 make sim")
            raise
