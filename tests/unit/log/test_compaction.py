"""Which records, batches and markers stay when a log is compacted."""

from __future__ import annotations

import pytest

from ottla.errors import CorruptBatch
from ottla.log.compaction.rewrite import Compaction, KeyMapTooSmall
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.testing.disks import MemoryDisk
from ottla.wire.compression import Compression
from ottla.wire.records import BatchHeader, headers_in, read_header
from records_kit import forged
from unit.log.compaction_kit import (
    DELETE_RETENTION_MS,
    SMALL_MAP_BYTES,
    TINY,
    compact,
    compact_all,
    everything,
    job_for,
    put,
    put_marker,
    records_in,
    table,
    write_and_sync,
)
from unit.log.house import NOW_MS, append, open_log

LATER_MS = NOW_MS + DELETE_RETENTION_MS


@pytest.fixture
def handles(disk: MemoryDisk) -> Handles:
    return Handles(disk)


@pytest.fixture
def log(disk: MemoryDisk, handles: Handles) -> Log:
    return open_log(disk, TINY, handles=handles)


def roll(log: Log, disk: MemoryDisk) -> None:
    log.roll(NOW_MS)
    write_and_sync(log, disk)


def kept(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records_in(everything(log))]


def stored(log: Log, disk: MemoryDisk) -> list[BatchHeader]:
    """Those in the files: a reader is not told of batches without records."""
    files = (disk.read_file(segment.handle.path) for segment in log.segments if segment.size)
    return [header for data in files for _, header in headers_in(data)]


def test_the_last_value_of_each_key_stays_with_its_offset(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    put(log, [(b"a", b"1"), (b"b", b"2")])
    put(log, [(b"a", b"3"), (b"c", b"4")])
    roll(log, disk)
    put(log, [(b"c", b"5")])
    roll(log, disk)
    assert compact(log, disk, handles) == 5
    assert kept(log) == [(1, b"b", b"2"), (2, b"a", b"3"), (4, b"c", b"5")]
    assert log.end_offset == 5
    assert log.start_offset == 0


def test_a_batch_keeps_all_that_its_header_says_of_it(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    fields = {"producer_id": 9, "producer_epoch": 3, "base_sequence": 0}
    put(log, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], epoch=5, **fields)
    roll(log, disk)
    before = next(headers_in(everything(log)))[1]
    compact(log, disk, handles)
    after = next(headers_in(everything(log)))[1]
    same = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "producer_epoch",
            "base_sequence", "attributes", "max_timestamp")  # fmt: skip
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert after.count == 2


def test_a_deletion_marker_stays_until_its_horizon_has_passed(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    put(log, [(b"a", b"1")])
    put(log, [(b"a", None), (b"b", b"2")])
    roll(log, disk)
    first_dirty = compact(log, disk, handles)
    batches = [header for _, header in headers_in(everything(log))]
    assert [header.delete_horizon_ms for header in batches] == [LATER_MS]
    assert kept(log) == [(1, b"a", None), (2, b"b", b"2")]
    assert [record.timestamp for record in records_in(everything(log))] == [NOW_MS, NOW_MS + 1]
    assert batches[0].max_timestamp == NOW_MS + 1
    put(log, [(b"c", b"3")])
    roll(log, disk)
    first_dirty = compact(log, disk, handles, first_dirty=first_dirty, now_ms=LATER_MS - 1)
    assert kept(log)[0] == (1, b"a", None), "a reader may still be on its way to it"
    put(log, [(b"d", b"4")])
    roll(log, disk)
    compact(log, disk, handles, first_dirty=first_dirty, now_ms=LATER_MS)
    assert kept(log) == [(2, b"b", b"2"), (3, b"c", b"3"), (4, b"d", b"4")]


def test_a_horizon_once_set_is_not_moved(log: Log, disk: MemoryDisk, handles: Handles) -> None:
    put(log, [(b"a", None), (b"b", b"2")])
    roll(log, disk)
    first_dirty = compact(log, disk, handles)
    put(log, [(b"b", b"3")])
    roll(log, disk)
    compact(log, disk, handles, first_dirty=first_dirty, now_ms=NOW_MS + 500)
    horizons = [header.delete_horizon_ms for _, header in headers_in(everything(log))]
    assert horizons == [LATER_MS, None]


def test_records_without_a_key_go(log: Log, disk: MemoryDisk, handles: Handles) -> None:
    put(log, [(None, b"1"), (b"a", b"2"), (b"", b"3")])
    roll(log, disk)
    compact(log, disk, handles)
    assert kept(log) == [(1, b"a", b"2"), (2, b"", b"3")]


def test_batches_of_which_all_stays_are_copied_as_they_are(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    put(log, [(b"a", b"1" * 50)], compression=Compression.GZIP)
    put(log, [(b"b", b"2")])
    put(log, [(b"b", b"3")])
    roll(log, disk)
    before = everything(log)
    first = next(headers_in(before))[1].size
    compact(log, disk, handles)
    assert everything(log)[:first] == before[:first]


@pytest.mark.parametrize("codec", list(Compression))
def test_what_is_left_of_a_batch_is_compressed_as_before(
    log: Log, disk: MemoryDisk, handles: Handles, codec: Compression
) -> None:
    put(log, [(b"a", b"1" * 100), (b"b", b"2" * 100), (b"a", b"3" * 100)], compression=codec)
    roll(log, disk)
    compact(log, disk, handles)
    assert [header.compression for _, header in headers_in(everything(log))] == [codec]
    assert [offset for offset, _, _ in kept(log)] == [1, 2]


def test_a_segment_of_which_nothing_goes_is_left_alone(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    put(log, [(b"a", b"1")])
    roll(log, disk)
    operations = disk.operations
    compaction = Compaction(disk, job_for(log))
    assert [cleaned.is_changed for cleaned in compaction.run()] == [False]
    assert disk.operations == operations, "not a byte was written"


def test_small_neighbours_become_one_segment(log: Log, disk: MemoryDisk, handles: Handles) -> None:
    for number in range(6):
        put(log, [(b"k%d" % number, b"v" * 40)])
        roll(log, disk)
    assert log.segment_count == 7
    compact(log, disk, handles)
    assert log.segment_count == 2
    assert [offset for offset, _, _ in kept(log)] == list(range(6))
    names = [path.rpartition("/")[2] for path in disk.paths()]
    assert len([name for name in names if name.endswith(".log")]) == 2
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_neighbours_stay_apart_where_they_would_be_too_large(
    disk: MemoryDisk, handles: Handles
) -> None:
    config = LogConfig(segment_bytes=250, index_interval_bytes=100, segment_index_bytes=480)
    log = open_log(disk, config, handles=handles)
    for number in range(6):
        put(log, [(b"k%d" % number, b"v" * 40)])
        roll(log, disk)
    sizes = [segment.size for segment in log.segments]
    compact(log, disk, handles)
    assert [segment.size for segment in log.segments] == [sizes[0] * 2] * 3 + [0]


def test_a_segment_still_ends_where_the_next_begins(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    """Recovery takes a hole between two segments for lost data; compaction leaves none."""
    put(log, [(b"a", b"1" * 800)])
    roll(log, disk)
    put(log, [(b"a", b"2" * 800)])
    roll(log, disk)
    compact(log, disk, handles)
    headers = stored(log, disk)
    assert [(header.base_offset, header.count) for header in headers] == [(0, 0), (1, 1)]
    log.close()
    again = open_log(disk, TINY, clean=False, recovery_point=0)
    assert again.end_offset == 2
    assert not again.fenced


def test_the_last_batch_of_an_active_producer_stays_without_its_records(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    fields = {"producer_id": 9, "producer_epoch": 0}
    put(log, [(b"a", b"1")], base_sequence=0, **fields)
    put(log, [(b"a", b"2"), (b"a", b"3")], base_sequence=1, **fields)
    put(log, [(b"a", b"4")])
    put(log, [(b"b", b"5")])
    roll(log, disk)
    compact(log, disk, handles)
    headers = stored(log, disk)
    assert [(header.base_offset, header.count) for header in headers] == [(1, 0), (3, 1), (4, 1)]
    assert (headers[0].base_sequence, headers[0].last_sequence) == (1, 2)
    for path in [path for path in disk.paths() if path.endswith(".snapshot")]:
        disk.remove(path)
    again = open_log(disk, TINY, clean=False, recovery_point=0)
    assert again.last_data_of_producers()[9] == (2, 0), "its next sequence is still known"


def test_records_of_an_aborted_transaction_go_and_its_marker_with_a_delay(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    fields = {"producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    put(log, [(b"a", b"1")])
    put(log, [(b"a", b"lost")], producer_id=5, **fields)
    put(log, [(b"b", b"2")], producer_id=6, **fields)
    put_marker(log, 5, is_commit=False)
    put_marker(log, 6, is_commit=True)
    put(log, [(b"z", b"end")])
    roll(log, disk)
    log._producers._producers.clear()
    first_dirty = compact(log, disk, handles)
    assert kept(log) == [(0, b"a", b"1"), (2, b"b", b"2"), (5, b"z", b"end")]
    bases = [header.base_offset for _, header in headers_in(everything(log))]
    assert bases == [0, 2, 3, 4, 5], "the abort marker waits until nobody can be reading"
    horizons = {}
    for round_ms in (LATER_MS, 2 * LATER_MS, 3 * LATER_MS):
        put(log, [(b"z", b"end")])
        roll(log, disk)
        first_dirty = compact(log, disk, handles, first_dirty=first_dirty, now_ms=round_ms)
        headers = [header for _, header in headers_in(everything(log))]
        horizons[round_ms] = [(h.base_offset, h.delete_horizon_ms) for h in headers if h.is_control]
    assert horizons[LATER_MS] == [(3, LATER_MS + DELETE_RETENTION_MS), (4, None)]
    assert horizons[2 * LATER_MS] == [(4, None)], "that of committed data stays with the data"


def test_an_undecided_transaction_stops_compaction_in_front_of_it(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    fields = {"producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    put(log, [(b"a", b"1")])
    put(log, [(b"a", b"2")])
    put(log, [(b"a", b"open")], producer_id=5, **fields)
    put(log, [(b"a", b"3")])
    roll(log, disk)
    assert compact(log, disk, handles) == 2
    assert kept(log) == [(1, b"a", b"2"), (2, b"a", b"open"), (3, b"a", b"3")]
    put_marker(log, 5, is_commit=False)
    roll(log, disk)
    assert compact(log, disk, handles, first_dirty=2) == 5
    assert kept(log) == [(3, b"a", b"3")]


def test_more_keys_than_the_map_holds_take_several_passes(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    for number in range(60):
        put(log, [(b"%d" % (number % 30), b"%d" % number)])
    roll(log, disk)
    before = table(records_in(everything(log)))
    first = compact(log, disk, handles, map_bytes=SMALL_MAP_BYTES)
    assert 0 < first < 30
    compact_all(log, disk, handles, first_dirty=first, map_bytes=SMALL_MAP_BYTES)
    assert table(records_in(everything(log))) == before
    assert len(records_in(everything(log))) == 30


def test_a_batch_that_does_not_fit_the_map_is_told(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    put(log, [(b"%d" % number, b"") for number in range(50)])
    roll(log, disk)
    with pytest.raises(KeyMapTooSmall, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        compact(log, disk, handles, map_bytes=SMALL_MAP_BYTES)


def test_damage_is_not_carried_into_a_new_segment(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    put(log, [(b"a", b"1")])
    put(log, [(b"a", b"2")])
    roll(log, disk)
    file = disk.open(log.segments[0].handle.path)
    file.write([b"\xff"], log.segments[0].size - 2)
    with pytest.raises(CorruptBatch, match="a wrong CRC at position"):
        compact(log, disk, handles)


@pytest.mark.parametrize(
    "data",
    [
        forged(b"no frame of zstd", 2, is_packed=Compression.ZSTD),
        forged(b"\xff" * 20, 2),
    ],
    ids=["codec", "records"],
)
def test_a_batch_that_nobody_can_read_stays_as_it_is(
    log: Log, disk: MemoryDisk, handles: Handles, data: bytearray
) -> None:
    """Its CRC is right: it was written so, and what lies around it is compacted all the same."""
    put(log, [(b"a", b"1"), (b"b", b"1")])
    append(log, bytearray(data))
    put(log, [(b"a", b"2")])
    roll(log, disk)
    compact(log, disk, handles)
    (first, kept_as_is, last) = stored(log, disk)
    assert (first.base_offset, first.count) == (0, 1)
    assert (kept_as_is.base_offset, kept_as_is.size) == (2, len(data))
    assert (kept_as_is.crc, kept_as_is.count) == (read_header(data).crc, 2)
    assert (last.base_offset, last.count) == (4, 1)


def test_a_reader_of_old_segments_never_meets_new_bytes(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    for number in range(8):
        put(log, [(b"a", b"%d" % number * 60)])
        put(log, [(b"b%d" % number, b"%d" % number * 60)])
    roll(log, disk)
    before, old = everything(log), log.segments
    limit = log.written
    reader = log._reader
    compaction = Compaction(disk, job_for(log))
    from ottla.log.compaction.swap import Swap

    for cleaned in compaction.run():
        Swap(log, handles, cleaned).run()
    found, offset = b"", 0
    while offset < limit.offset:
        data = bytes(reader.read(old, offset, 100, limit, cached_only=False))
        _, header = next(headers_in(data))
        found += data[: header.size]
        offset = header.next_offset
    assert found == before
    assert len(everything(log)) < len(before)


def test_who_reads_on_from_an_old_place_gets_the_new_segment(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    for number in range(8):
        put(log, [(b"a", b"%d" % number * 60)])
        put(log, [(b"b%d" % number, b"%d" % number * 60)])
    roll(log, disk)
    data = log.read(0, 300, log.written, cached_only=False)
    offset = [header.next_offset for _, header in headers_in(data or b"")][-1]
    compact(log, disk, handles)
    wanted = [batch for batch in kept(log) if batch[0] >= offset]
    data = log.read(offset, 10_000, log.written, cached_only=False)
    records = records_in(bytes(data or b""))
    assert records
    assert [(r.offset, r.key, r.value) for r in records] == wanted[: len(records)]


def test_an_offset_that_is_gone_is_answered_with_the_next(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    for number in range(6):
        put(log, [(b"a", b"%d" % number)])
    roll(log, disk)
    append(log)
    write_and_sync(log, disk)
    compact(log, disk, handles)
    for offset in range(6):
        data = log.read(offset, 1000, log.written, cached_only=False)
        assert next(headers_in(data or b""))[1].base_offset == 5


def test_no_reply_has_only_batches_without_records_while_there_are_others(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    """librdkafka takes such a reply for a message that is too large to fetch."""
    log.config = LogConfig(segment_bytes=100)
    for number in range(5):
        put(log, [(b"a", b"%d" % number)])
        roll(log, disk)
    put(log, [(b"b", b"the last")])
    write_and_sync(log, disk)
    compact(log, disk, handles)
    assert [header.count for _, header in headers_in(everything(log))] == [1, 1]
    for offset in range(5):
        data = log.read(offset, 10_000, log.synced)
        assert data is not None
        assert next(headers_in(data))[1].count == 1


def test_who_has_only_batches_without_records_before_him_gets_past_them(
    log: Log, disk: MemoryDisk, handles: Handles
) -> None:
    put(log, [(b"a", b"1")])
    put(log, [(b"a", None)])
    roll(log, disk)
    compact(log, disk, handles)
    compact_all(log, disk, handles, now_ms=LATER_MS)
    data = log.read(1, 10_000, log.synced)
    assert data is not None
    assert [(header.count, header.next_offset) for _, header in headers_in(data)] == [(0, 2)]
