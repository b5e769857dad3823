"""Power cuts at every point of the lives of followers, by seed.

A follower fetches, writes, syncs, moves its recovery point, cuts what diverges and starts anew, and
loses power in the middle of whatever it does. Its leader, on another machine, goes on: it is
compacted, loses its end to a new leader, loses its beginning to retention. Whatever is cut, the
follower's log is a prefix of what it was given, and has all that it has synced.
"""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random

import pytest

from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk, PowerLoss
from ottla.types import NO_EPOCH
from ottla.wire.records import headers_in
from unit.log.compaction_kit import TINY, compact_all, put, write_and_sync
from unit.log.house import NOW_MS, open_log, save_progress, shorten
from unit.log.replica_kit import FOLLOWER, check_replica, given_to_replicas, take
from unit.log.test_replication import batch_at

ROUNDS = int(os.environ.get("SIM_ROUNDS", "120"))
FIRST_SEED = int(os.environ.get("SIM_SEED", "1"))
LIVES_PER_TEST = 20
CRASHES = 6
STEPS = 12

CONFIGS = (
    LogConfig(segment_bytes=600, index_interval_bytes=100, segment_index_bytes=240),
    LogConfig(segment_bytes=3000, index_interval_bytes=300),
    LogConfig(segment_bytes=100_000, index_interval_bytes=4096),
)


class Life:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.config = self.random.choice(CONFIGS)
        self.leader_disk = MemoryDisk()
        self.leader_handles = Handles(self.leader_disk)
        self.leader = open_log(self.leader_disk, TINY, handles=self.leader_handles)
        self.epoch = 0
        self.sequences = [0, 0]
        self.first_dirty = 0
        self.disk = MemoryDisk()
        self.disk.make_directory("/data")
        # What the follower was given; what it had before a cut may come back with a crash.
        self.given = b""
        self.before: list[bytes] = []
        self.promised = 0
        self.recovery_point = 0
        self.start = 0
        self.log = self.open()

    def live(self) -> None:
        for _ in range(CRASHES):
            self.disk.lose_power_in(self.random.randrange(50))
            with suppress(PowerLoss):
                for _ in range(STEPS):
                    self.step()
            self.crash()

    def step(self) -> None:
        often = (self.fetch, self.fetch, self.fetch, self.sync, self.sync, self.write_leader)
        rare = (self.checkpoint, self.save_hints, self.compact_leader, self.change_leader)
        rarest = (self.shorten_leader, self.roll)
        self.random.choice(self.random.choice((often, often, often, rare, rare, rarest)))()

    # -------------------------------------------------------------------------------- the leader

    def write_leader(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            producer = self.random.choice((-1, 0, 1))
            fields = {}
            if producer >= 0:
                fields = {"producer_id": producer, "producer_epoch": self.epoch}
                fields["base_sequence"] = self.sequences[producer]
                self.sequences[producer] += 1
            key, value = b"%d" % self.random.randrange(4), b"%d" % self.random.getrandbits(40)
            put(self.leader, [(key, value)], epoch=self.epoch, **fields)
        write_and_sync(self.leader, self.leader_disk)

    def compact_leader(self) -> None:
        self.leader.roll(NOW_MS)
        write_and_sync(self.leader, self.leader_disk)
        first_dirty = max(self.first_dirty, self.leader.start_offset)
        self.first_dirty = compact_all(
            self.leader, self.leader_disk, self.leader_handles, first_dirty=first_dirty
        )

    def change_leader(self) -> None:
        """The next one lacks some of the end: not all of it was committed."""
        ends = [header.next_offset for _, header in headers_in(given_to_replicas(self.leader))]
        cut = self.random.choice([*ends[-4:], self.leader.end_offset])
        self.leader.truncate(cut, NOW_MS)
        self.first_dirty = min(self.first_dirty, cut)
        self.epoch += 1
        self.sequences = [0, 0]
        self.leader.start_epoch(self.epoch)

    def shorten_leader(self) -> None:
        ends = [header.next_offset for _, header in headers_in(given_to_replicas(self.leader))]
        if ends:
            shorten(self.leader, self.leader_disk, self.random.choice(ends))

    # ------------------------------------------------------------------------------ the follower

    def fetch(self) -> None:
        if self.log.fenced:
            return
        if self.leader.start_offset > self.log.end_offset:
            self.restart()
        self.reconcile()
        if self.log.end_offset == self.leader.written.offset:
            return
        max_bytes = self.random.choice((1, 300, 2000))
        data = self.leader.read(
            self.log.end_offset,
            max_bytes,
            self.leader.written,
            cached_only=False,
            with_empty=True,
        )
        assert data
        taken = take(self.log, bytes(data))
        self.given += bytes(data)[:taken]
        self.log.write()

    def reconcile(self) -> None:
        while (epoch := self.log.last_batch_epoch) != NO_EPOCH:
            known_epoch, end_offset = self.leader.end_offset_for_epoch(epoch)
            if known_epoch == epoch and end_offset >= self.log.end_offset:
                return
            cut = self.log.cut_for(known_epoch, end_offset)
            self.before.append(self.given)
            self.recovery_point = min(self.recovery_point, cut)
            self.promised = min(self.promised, cut)
            self.log.truncate(cut, NOW_MS)
            assert self.log.end_offset == cut
            self.given = up_to(self.given, cut)

    def restart(self) -> None:
        self.before.append(self.given)
        self.start = self.leader.start_offset
        self.log.restart_at(self.start, NOW_MS)
        self.given = b""
        self.promised = self.start

    def sync(self) -> None:
        ticket = self.log.begin_sync()
        if ticket is not None:
            self.disk.sync_many(ticket.files, ticket.directories)
            self.log.finish_sync(ticket)
        self.promised = self.log.synced.offset

    def checkpoint(self) -> None:
        self.recovery_point = self.log.recovery_point

    def save_hints(self) -> None:
        save_progress(self.log)

    def roll(self) -> None:
        self.log.roll(NOW_MS)
        self.log.write()

    def crash(self) -> None:
        self.disk = self.disk.after_crash(self.random)
        for _ in range(self.random.randrange(2)):
            self.disk.lose_power_in(self.random.randrange(8))
            with suppress(PowerLoss):
                self.open()
            self.disk = self.disk.after_crash(self.random)
        self.log = self.open()
        self.take_what_is_there()

    def open(self) -> Log:
        log = open_log(
            self.disk,
            self.config,
            directory=FOLLOWER,
            clean=False,
            recovery_point=self.recovery_point,
            start_offset=self.start,
        )
        assert log.corruption is None, f"healthy, yet {log.corruption}"
        return log

    def take_what_is_there(self) -> None:
        assert self.log.end_offset >= self.promised, "what was synced is gone"
        found = given_to_replicas(self.log)
        histories = [after(given, self.log.start_offset) for given in (self.given, *self.before)]
        assert any(given.startswith(found) for given in histories), "not a prefix"
        synced = up_to(after(self.given, self.log.start_offset), self.promised)
        assert found.startswith(synced), "not what was synced"
        check_replica(self.log, found)
        self.given, self.before, self.promised = found, [], self.log.synced.offset


def up_to(data: bytes, end: int) -> bytes:
    return b"".join(
        data[at : at + header.size] for at, header in headers_in(data) if header.next_offset <= end
    )


def after(data: bytes, start: int) -> bytes:
    return b"".join(
        data[at : at + header.size]
        for at, header in headers_in(data)
        if header.base_offset >= start
    )


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + ROUNDS, LIVES_PER_TEST))
def test_whatever_a_power_cut_takes_a_follower_has_a_prefix_and_all_it_synced(first: int) -> None:
    for seed in range(first, min(first + LIVES_PER_TEST, FIRST_SEED + ROUNDS)):
        try:
            Life(seed).live()
        except BaseException as error:
            error.add_note(f"again: SIM_SEED={seed} SIM_ROUNDS=1 pytest {__file__}")
            raise


@pytest.mark.parametrize("recovery_point", [0, 1])
def test_a_gap_right_after_the_recovery_point_is_no_damage(
    disk: MemoryDisk, recovery_point: int
) -> None:
    """The leader was compacted; the follower has synced what comes after the gap."""
    log = open_log(disk, directory=FOLLOWER)
    data = batch_at(0) if recovery_point else b""
    data += batch_at(10) + batch_at(20, epoch=3)
    take(log, data)
    write_and_sync(log, disk)
    for seed in range(10):
        found = open_log(
            disk.after_crash(Random(seed)),
            directory=FOLLOWER,
            clean=False,
            recovery_point=recovery_point,
        )
        check_replica(found, data)
