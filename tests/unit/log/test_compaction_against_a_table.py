"""Arbitrary histories: the compacted log tells the same final table as the whole one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.log.handles import Handles
from ottla.testing.disks import MemoryDisk
from ottla.wire.compression import Compression
from ottla.wire.records import Record, headers_in
from unit.log.compaction_kit import (
    DELETE_RETENTION_MS,
    LARGE_MAP_BYTES,
    SMALL_MAP_BYTES,
    TINY,
    committed_in,
    compact_all,
    everything,
    put,
    put_marker,
    read_committed,
    records_in,
    table,
    write_and_sync,
)
from unit.log.house import NOW_MS, open_log

KEYS = [None, b"", b"a", b"b", b"c", b"d" * 40, b"e" * 40]
PLAIN, IDEMPOTENT, FIRST_TRANSACTIONAL, SECOND_TRANSACTIONAL = -1, 1, 2, 3

pairs = st.tuples(st.sampled_from(KEYS), st.sampled_from([None, b"v", b"w" * 30]))
puts = st.tuples(
    st.just("put"),
    st.lists(pairs, min_size=1, max_size=4),
    st.sampled_from([PLAIN, PLAIN, IDEMPOTENT, FIRST_TRANSACTIONAL, SECOND_TRANSACTIONAL]),
    st.sampled_from([Compression.NONE, Compression.NONE, Compression.LZ4, Compression.GZIP]),
)
markers = st.tuples(
    st.just("end"),
    st.sampled_from([FIRST_TRANSACTIONAL, SECOND_TRANSACTIONAL]),
    st.booleans(),
)
compactions = st.tuples(
    st.just("compact"),
    st.sampled_from([0, 1, DELETE_RETENTION_MS, 3 * DELETE_RETENTION_MS]),
    st.sampled_from([SMALL_MAP_BYTES, LARGE_MAP_BYTES]),
)
restarts = st.tuples(st.just("restart"), st.booleans(), st.booleans())
steps = st.one_of(puts, puts, puts, markers, st.just(("roll",)), compactions, restarts)


@dataclass
class House:
    """A log that is compacted now and then, and all that was ever appended to it."""

    disk: MemoryDisk
    now_ms: int = NOW_MS
    first_dirty: int = 0
    whole: bytes = b""
    sequences: dict[int, int] = field(default_factory=dict)
    # When compaction first saw a deletion marker, by its offset.
    seen_ms: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.handles = Handles(self.disk)
        self.log = open_log(self.disk, TINY, handles=self.handles)

    def note(self, offset: int) -> None:
        write_and_sync(self.log, self.disk)
        data = self.log.read(offset, 100_000, self.log.written, cached_only=False)
        self.whole += bytes(data or b"")

    def put(self, pairs: list[Any], producer: int, codec: Compression) -> None:
        fields: dict[str, Any] = {"compression": codec, "timestamp": self.now_ms}
        if producer != PLAIN:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(pairs)
            fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            fields["is_transactional"] = producer != IDEMPOTENT
        self.note(put(self.log, pairs, **fields))

    def end(self, producer: int, is_commit: bool) -> None:
        self.note(put_marker(self.log, producer, is_commit=is_commit, timestamp=self.now_ms))

    def roll(self) -> None:
        self.log.roll(self.now_ms)
        write_and_sync(self.log, self.disk)

    def compact(self, after_ms: int, map_bytes: int) -> None:
        self.now_ms += after_ms
        self.roll()
        self.first_dirty = compact_all(
            self.log,
            self.disk,
            self.handles,
            first_dirty=self.first_dirty,
            now_ms=self.now_ms,
            map_bytes=map_bytes,
        )
        for record in self.deleted():
            if record.offset < self.first_dirty:
                self.seen_ms.setdefault(record.offset, self.now_ms)

    def restart(self, is_clean: bool, has_snapshots: bool) -> None:
        producers = self.log.last_data_of_producers()
        if is_clean:
            self.log.close()
            has_snapshots = True
        elif not has_snapshots:
            for path in [path for path in self.disk.paths() if path.endswith(".snapshot")]:
                self.disk.remove(path)
        self.handles = Handles(self.disk)
        self.log = open_log(
            self.disk, TINY, clean=is_clean, handles=self.handles, now_ms=self.now_ms
        )
        assert not self.log.fenced
        again = self.log.last_data_of_producers()
        assert {one: last for one, last in again.items() if last[0] >= 0} == {
            one: last for one, last in producers.items() if last[0] >= 0
        }, "a producer's next sequence is another than before"

    def deleted(self) -> list[Record]:
        """The deletion markers that are the last word on their keys."""
        last = {record.key: record for record in committed_in(self.whole)}
        return [r for key, r in last.items() if key is not None and r.value is None]

    def check(self) -> None:
        found = everything(self.log)
        assert table(committed_in(found)) == table(committed_in(self.whole))
        limit = self.log.first_unstable(self.log.end_offset) or self.log.written
        stable = [record for record in committed_in(found) if record.offset < limit.offset]
        assert read_committed(self.log) == stable, "what a reader is told of aborted transactions"
        self.check_order(found)
        assert undecided(found) == undecided(self.whole), "a transaction has lost its end"
        offsets = {record.offset for record in records_in(found)}
        for record in self.deleted():
            seen_ms = self.seen_ms.get(record.offset)
            if seen_ms is None or self.now_ms < seen_ms + DELETE_RETENTION_MS:
                assert record.offset in offsets, "a deletion marker is gone too early"
        clean = [r for r in records_in(found) if r.offset < self.first_dirty]
        assert len({record.key for record in clean}) == len(clean), "a key has two values"
        assert all(record.key is not None for record in clean)

    def check_order(self, found: bytes) -> None:
        ever = {record.offset: record for record in records_in(self.whole)}
        records = records_in(found)
        assert [record.offset for record in records] == sorted({r.offset for r in records})
        assert all(ever[record.offset] == record for record in records)
        spans = {h.base_offset: (h.last_offset, h.producer_id, h.base_sequence, h.leader_epoch)
                 for _, h in headers_in(self.whole)}  # fmt: skip
        for _, header in headers_in(found):
            span = (
                header.last_offset,
                header.producer_id,
                header.base_sequence,
                header.leader_epoch,
            )
            assert spans[header.base_offset] == span


def undecided(data: bytes) -> set[int]:
    """The producers whose last transaction has no marker, as who replays the log sees it."""
    found: set[int] = set()
    for _, header in headers_in(data):
        if header.is_control:
            found.discard(header.producer_id)
        elif header.is_transactional:
            found.add(header.producer_id)
    return found


@settings(max_examples=250)
@given(st.lists(steps, max_size=30))
@example(
    [
        ("put", [(b"a", b"v")], PLAIN, Compression.NONE),
        ("put", [(b"a", None)], PLAIN, Compression.NONE),
        ("compact", 0, LARGE_MAP_BYTES),
        ("put", [(b"b", b"v")], PLAIN, Compression.NONE),
        ("compact", DELETE_RETENTION_MS - 1, LARGE_MAP_BYTES),
        ("put", [(b"b", b"v")], PLAIN, Compression.NONE),
        ("compact", 1, LARGE_MAP_BYTES),
        ("restart", False, False),
    ]
)
def test_the_compacted_log_tells_the_same_as_the_whole_one(history: list[Any]) -> None:
    disk = MemoryDisk()
    disk.make_directory("/data")
    house = House(disk)
    for name, *arguments in history:
        getattr(house, name)(*arguments)
        if name in ("compact", "restart"):
            house.check()
    for key in (b"x", b"y", b"z"):
        house.put([(key, b"v")], PLAIN, Compression.NONE)
        house.compact(2 * DELETE_RETENTION_MS, LARGE_MAP_BYTES)
        house.check()
    house.restart(False, False)
    house.check()
    assert not disk.closed_unsynced
