"""Arbitrary leaders, arbitrary cuts of their bytes: a follower has what its leader has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.log.producer_state import ProducerState
from ottla.log.segment import SNAPSHOT, path_of
from ottla.testing.disks import MemoryDisk
from ottla.types import NO_EPOCH
from ottla.wire.compression import Compression
from ottla.wire.records import headers_in
from unit.log.compaction_kit import TINY, compact_all, put, put_marker, write_and_sync
from unit.log.house import NOW_MS, append, make_batch, open_log, shorten, sync
from unit.log.replica_kit import FOLLOWER, check_replica, given_to_replicas, replayed, take

CONFIGS = (
    TINY,
    LogConfig(segment_bytes=300, index_interval_bytes=1, segment_index_bytes=240),
    LogConfig(segment_bytes=100_000),
)

pairs = st.tuples(st.sampled_from([b"a", b"b", b"c", None]), st.sampled_from([None, b"v" * 30]))
puts = st.tuples(
    st.just("put"),
    st.lists(pairs, min_size=1, max_size=4),
    st.sampled_from([-1, 1, 2]),
    st.sampled_from([Compression.NONE, Compression.LZ4]),
)
steps = st.one_of(
    puts,
    puts,
    puts,
    st.tuples(st.just("end"), st.booleans()),
    st.just(("roll",)),
    st.just(("lead",)),
    st.just(("compact",)),
)
histories = st.lists(steps, min_size=1, max_size=25)


@dataclass
class Leader:
    """A log that is written to under one epoch after the other, and compacted now and then."""

    disk: MemoryDisk
    epoch: int = 0
    first_dirty: int = 0
    sequences: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.handles = Handles(self.disk)
        self.log = open_log(self.disk, TINY, handles=self.handles)

    def put(self, keys_and_values: list[Any], producer: int, codec: Compression) -> None:
        fields: dict[str, Any] = {"compression": codec, "epoch": self.epoch}
        if producer >= 0:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(keys_and_values)
            fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            fields["is_transactional"] = producer == 2
        put(self.log, keys_and_values, **fields)
        write_and_sync(self.log, self.disk)

    def end(self, is_commit: bool) -> None:
        if self.epoch == 0:
            put_marker(self.log, 2, is_commit=is_commit)
            write_and_sync(self.log, self.disk)

    def roll(self) -> None:
        self.log.roll(NOW_MS)
        write_and_sync(self.log, self.disk)

    def lead(self) -> None:
        self.epoch += 2
        self.log.start_epoch(self.epoch)

    def compact(self) -> None:
        self.roll()
        self.first_dirty = compact_all(
            self.log, self.disk, self.handles, first_dirty=self.first_dirty
        )


def led(disk: MemoryDisk, history: list[Any]) -> Leader:
    leader = Leader(disk)
    for step, *arguments in history:
        getattr(leader, step)(*arguments)
    return leader


@settings(max_examples=120)
@given(
    history=histories,
    config=st.sampled_from(CONFIGS),
    cuts=st.lists(st.integers(0, 700), min_size=1, max_size=20),
    is_written=st.lists(st.booleans(), min_size=1, max_size=7),
)
def test_a_follower_has_what_its_leader_has(
    history: list[Any], config: LogConfig, cuts: list[int], is_written: list[bool]
) -> None:
    disk = MemoryDisk()
    disk.make_directory("/data")
    leader = led(disk, history)
    follower = open_log(disk, config, directory=FOLLOWER)
    fetch_in_pieces(leader.log, follower, cuts, is_written)
    data = given_to_replicas(leader.log)
    check_replica(follower, data)
    check_snapshots(disk, follower, data)
    for clean in (True, False):
        if clean:
            follower.close()
        follower = open_log(disk, config, directory=FOLLOWER, clean=clean)
        check_replica(follower, data)


def fetch_in_pieces(leader: Log, follower: Log, cuts: list[int], is_written: list[bool]) -> None:
    """The bytes come cut anywhere; what is left of a batch is asked for again."""
    rounds = 0
    while follower.end_offset < leader.written.offset:
        max_bytes = cuts[rounds % len(cuts)]
        data = leader.read(
            follower.end_offset, max_bytes, leader.written, cached_only=False, with_empty=True
        )
        assert data
        cut = bytes(data)[: max(1, max_bytes)]
        taken = take(follower, cut) or take(follower, bytes(data))
        assert taken == sum(header.size for _, header in headers_in(bytes(data)[:taken]))
        if is_written[rounds % len(is_written)]:
            follower.write()
        rounds += 1
    follower.write()


def check_snapshots(disk: MemoryDisk, log: Log, data: bytes) -> None:
    """The producers' state at each roll is that of all batches before it."""
    for segment in log.segments[1:]:
        before = [
            data[at : at + header.size]
            for at, header in headers_in(data)
            if header.base_offset < segment.base_offset
        ]
        _, producers = replayed(b"".join(before))
        file = disk.read_file(path_of(log.directory, segment.base_offset, SNAPSHOT))
        assert ProducerState.decode(file).encode() == producers.encode()


# ---------------------------------------------------------------------------------- divergence

# In each epoch one replica leads, begins its epoch and writes so many batches; others fetch some.
terms = st.tuples(
    st.integers(0, 2),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=3),
)


@settings(max_examples=150)
@given(terms=st.lists(terms, min_size=1, max_size=12))
def test_what_diverges_is_cut_and_nothing_that_both_have(terms: list[Any]) -> None:
    """Any replica may lead, so all that an unclean election can do is among these histories."""
    disk = MemoryDisk()
    disk.make_directory("/data")
    logs = [open_log(disk, CONFIGS[at], directory=f"/data/r-{at}") for at in range(3)]
    for epoch, (leader_at, count, fetches) in enumerate(terms):
        leader = logs[leader_at]
        leader.start_epoch(epoch)
        for at in range(count):
            append(leader, make_batch(1 + at % 2, value=b"%d" % epoch), epoch=epoch)
        write_and_sync(leader, disk)
        for follower_at, batch_count in fetches:
            if follower_at != leader_at:
                reconcile(logs[follower_at], leader)
                fetch_batches(logs[follower_at], leader, batch_count)
                write_and_sync(logs[follower_at], disk)


def reconcile(follower: Log, leader: Log) -> None:
    """Cuts until the leader has no objection, as KIP-595 does it with every fetch."""
    own, other = given_to_replicas(follower), given_to_replicas(leader)
    common = common_end(own, other)
    while (epoch := follower.last_batch_epoch) != NO_EPOCH:
        known_epoch, end_offset = leader.end_offset_for_epoch(epoch)
        if known_epoch == epoch and end_offset >= follower.end_offset:
            break
        before = follower.end_offset
        cut = follower.cut_for(known_epoch, end_offset)
        assert common <= cut < before, "what both have is cut, or nothing at all"
        follower.truncate(cut, NOW_MS)
    assert follower.end_offset == common, "more than both have is left"
    check_replica(follower, own[: len(given_to_replicas(follower))])
    assert other.startswith(given_to_replicas(follower))


def common_end(one: bytes, other: bytes) -> int:
    """Where two logs that begin alike go different ways."""
    end = 0
    for at, header in headers_in(one):
        if one[at : at + header.size] != other[at : at + header.size]:
            break
        end = header.next_offset
    return end


def fetch_batches(follower: Log, leader: Log, count: int) -> None:
    for _ in range(count):
        if follower.end_offset < leader.written.offset:
            data = leader.read(
                follower.end_offset, 1, leader.written, cached_only=False, with_empty=True
            )
            assert data
            take(follower, bytes(data), leader.latest_epoch)


# ------------------------------------------------------------------------------ other beginnings


@settings(max_examples=60)
@given(history=histories, start=st.integers(1, 60), kept=st.integers(0, 20))
def test_a_follower_whose_leader_begins_after_its_end_starts_anew(
    history: list[Any], start: int, kept: int
) -> None:
    disk = MemoryDisk()
    disk.make_directory("/data")
    leader = led(disk, history).log
    leader.roll(NOW_MS)
    write_and_sync(leader, disk)
    follower = open_log(disk, CONFIGS[1], directory=FOLLOWER)
    append(follower, make_batch(kept + 1), epoch=0)
    write_and_sync(follower, disk)
    start = min(start, leader.end_offset)
    shorten(leader, disk, start)
    follower.restart_at(leader.start_offset, NOW_MS)
    data = b""
    if leader.end_offset > start:
        data = given_to_replicas(leader)
        first = next(headers_in(data))[1].base_offset
        if first < start:
            # The leader begins in the middle of a batch, and gives no other offset for it.
            follower.restart_at(first, NOW_MS)
            take(follower, data)
        fetch_in_pieces(leader, follower, [400], [True])
    check_replica(follower, data)
    sync(follower, disk)
    again = open_log(
        disk,
        CONFIGS[1],
        directory=FOLLOWER,
        clean=False,
        recovery_point=follower.recovery_point,
        start_offset=follower.start_offset,
    )
    assert again.corruption is None
    check_replica(again, data)
