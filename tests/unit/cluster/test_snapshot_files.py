"""Snapshots on disk: Kafka's format, written so that a name means a whole file."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cluster.framing import decode_record
from ottla.cluster.snapshot_file import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    DamagedSnapshot,
    SnapshotFiles,
    SnapshotId,
    decode_snapshot,
    encode_snapshot,
)
from ottla.errors import PositionOutOfRange, SnapshotNotFound
from ottla.testing.disks import MemoryDisk, PowerLoss
from ottla.wire.messages.metadata_records import ConfigRecord, TopicRecord
from ottla.wire.records import decode_records, headers_in

NOW_MS = 1_700_000_000_000
ID = SnapshotId(1234, 7)
DIRECTORY = "/data/__cluster_metadata-0"


def topics(count, prefix="t"):
    return [
        TopicRecord(name=f"{prefix}{number}", topic_id=number.to_bytes(16, "big"))
        for number in range(count)
    ]


def encoded(records, id=ID):
    return b"".join(encode_snapshot(id, records, NOW_MS - 1, NOW_MS))


def records_in(snapshot):
    return [
        decode_record(record.value)
        for batch in snapshot.batches
        for record in decode_records(batch)
    ]


@pytest.fixture
def files():
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    return SnapshotFiles(disk, DIRECTORY)


@pytest.fixture
def disk(files):
    return files._disk


def write(files, id, records):
    return files.write(id, encode_snapshot(id, records, NOW_MS, NOW_MS))


def test_a_snapshot_is_called_as_kafka_calls_it():
    assert str(ID) == "00000000000000001234-0000000007"
    assert SnapshotId.of_name("00000000000000001234-0000000007.checkpoint") == ID
    for other in (
        "00000000000000001234.log",
        "00000000000000001234-0000000007.checkpoint.part",
        "00000000000000001234-0000000007.checkpoint.deleted",
        "1234-7.checkpoint",
        "leader-epoch-checkpoint",
        "0000000000000000123x-0000000007.checkpoint",
    ):
        assert SnapshotId.of_name(other) is None


def test_what_is_written_is_read_again():
    records = topics(2 * BATCH_RECORDS_MAX + 1)
    snapshot = decode_snapshot(ID, encoded(records))
    assert records_in(snapshot) == records
    assert (snapshot.end_offset, snapshot.last_contained_ms) == (1234, NOW_MS - 1)
    assert len(snapshot.batches) == 3


def test_an_empty_snapshot_is_whole():
    assert records_in(decode_snapshot(ID, encoded([]))) == []


def test_large_records_do_not_make_large_batches():
    records = [
        ConfigRecord(resource_type=2, resource_name="t", name=f"n{n}", value="v" * 30_000)
        for n in range(100)
    ]
    data = encoded(records)
    assert records_in(decode_snapshot(ID, data)) == records
    assert max(header.size for _, header in headers_in(data)) < BATCH_BYTES_MAX + 100_000


def test_the_two_ends_are_kafkas_control_records():
    data = encoded(topics(3))
    [(first, head), (_, body), (last, foot)] = headers_in(data)
    assert (head.is_control, body.is_control, foot.is_control) == (True, False, True)
    assert [head.base_offset, body.base_offset, foot.base_offset] == [0, 1, 4]
    assert {head.leader_epoch, body.leader_epoch, foot.leader_epoch} == {7}
    [header] = decode_records(data, first)
    assert header.key == struct.pack(">hh", 0, 3)
    # Version, the time of the last record, no tagged fields.
    assert header.value == struct.pack(">hqb", 0, NOW_MS - 1, 0)
    [footer] = decode_records(data, last)
    assert (footer.key, footer.value) == (struct.pack(">hh", 0, 4), struct.pack(">hb", 0, 0))


WHOLE = encoded(topics(5))


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_snapshot_that_is_cut_anywhere_is_damaged(size):
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(ID, WHOLE[:size])


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_found_unless_it_changes_nothing(at, bit):
    flipped = bytearray(WHOLE)
    flipped[at] ^= 1 << bit
    try:
        snapshot = decode_snapshot(ID, bytes(flipped))
    except DamagedSnapshot:
        return
    # The leader epoch of a batch lies outside its CRC, and nobody reads it here.
    assert records_in(snapshot) == topics(5)


def test_a_batch_that_is_missing_in_the_middle_is_found():
    data = encoded(topics(3 * BATCH_RECORDS_MAX))
    places = [(at, at + header.size) for at, header in headers_in(data)]
    start, stop = places[2]
    with pytest.raises(DamagedSnapshot, match="offset"):
        decode_snapshot(ID, data[:start] + data[stop:])


def test_a_snapshot_without_its_footer_says_so():
    places = [(at, at + header.size) for at, header in headers_in(WHOLE)]
    with pytest.raises(DamagedSnapshot, match="footer"):
        decode_snapshot(ID, WHOLE[: places[-1][0]])


def test_what_follows_the_footer_does_not_belong_there():
    with pytest.raises(DamagedSnapshot, match="cut off"):
        decode_snapshot(ID, WHOLE + bytes(7))


def test_the_newest_whole_snapshot_is_taken(files, disk, caplog):
    assert files.newest() is None
    for offset in (10, 20, 30):
        write(files, SnapshotId(offset, 1), topics(offset))
    assert records_in(files.newest()) == topics(30)
    newest = files.path(SnapshotId(30, 1))
    disk.write_file(newest, disk.read_file(newest)[:-1])
    assert records_in(files.newest()) == topics(20)
    assert f"{newest} is passed over" in caplog.text


def test_a_later_epoch_is_newer_at_the_same_offset(files):
    write(files, SnapshotId(10, 3), topics(3))
    write(files, SnapshotId(10, 2), topics(2))
    assert files.ids() == [SnapshotId(10, 2), SnapshotId(10, 3)]
    assert records_in(files.newest()) == topics(3)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
def test_a_disk_that_refuses_leaves_no_file(files, disk, operation):
    write(files, SnapshotId(10, 1), topics(1))
    disk.fail(operation)
    with pytest.raises(OSError, match="checkpoint"):
        write(files, SnapshotId(20, 1), topics(2))
    assert [path for path in disk.paths() if "checkpoint" in path] == [
        files.path(SnapshotId(10, 1))
    ]
    write(files, SnapshotId(20, 1), topics(2))
    assert records_in(files.newest()) == topics(2)


def test_what_a_crash_left_unfinished_is_removed(files, disk):
    write(files, SnapshotId(10, 1), topics(1))
    scratch = files.path(SnapshotId(20, 1), ".checkpoint.part")
    disk.write_file(scratch, b"half")
    files.remove_unfinished()
    assert not disk.exists(scratch)
    assert files.ids() == [SnapshotId(10, 1)]


def test_a_name_means_a_whole_file_wherever_power_is_lost():
    for seed in range(10):
        for steps in range(100):
            disk = MemoryDisk()
            disk.make_directory(DIRECTORY)
            files = SnapshotFiles(disk, DIRECTORY)
            write(files, SnapshotId(10, 1), topics(10))
            disk.lose_power_in(steps)
            try:
                write(files, SnapshotId(20, 1), topics(30))
                is_done = True
            except PowerLoss:
                is_done = False
            after = SnapshotFiles(disk.after_crash(random.Random(f"{seed}-{steps}")), DIRECTORY)
            for id in after.ids():
                assert records_in(after.read(id)) == topics(id.end_offset // 10 * 20 - 10)
            if is_done:
                assert after.newest().id == SnapshotId(20, 1)
                break
        else:
            raise AssertionError("it never ended")


# ------------------------------------------------------- one that comes from another, in pieces


def send(source: SnapshotFiles, target: SnapshotFiles, id: SnapshotId, bytes_max: int) -> None:
    position, size = 0, 1
    while position < size:
        size, data = source.piece(id, position, bytes_max)
        target.add_piece(id, position, data)
        position += len(data)


@pytest.mark.parametrize("bytes_max", [1, 100, 10_000_000])
def test_pieces_are_a_snapshot_when_they_were_taken_and_not_before(files, bytes_max):
    other = MemoryDisk()
    other.make_directory(DIRECTORY)
    target = SnapshotFiles(other, DIRECTORY)
    write(files, ID, topics(3))
    send(files, target, ID, bytes_max)
    assert records_in(target.check_pieces(ID)) == topics(3)
    assert target.ids() == []
    target.take_pieces(ID)
    assert records_in(target.newest()) == topics(3)


def test_what_is_gone_or_beyond_the_end_is_refused(files):
    write(files, ID, topics(3))
    with pytest.raises(SnapshotNotFound):
        files.piece(SnapshotId(99, 1), 0, 10)
    for position in (-1, len(encoded(topics(3)))):
        with pytest.raises(PositionOutOfRange):
            files.piece(ID, position, 10)


def test_damaged_pieces_are_no_snapshot(files):
    data = bytearray(encoded(topics(3)))
    data[len(data) // 2] ^= 1
    files.add_piece(ID, 0, data)
    with pytest.raises(DamagedSnapshot):
        files.check_pieces(ID)
    files.forget_pieces(ID)
    # The next ones begin a new file, whatever was there.
    files.add_piece(ID, 0, encoded(topics(1)))
    assert records_in(files.check_pieces(ID)) == topics(1)


@pytest.mark.parametrize("seed", range(10))
def test_power_cut_between_any_two_steps_of_taking_pieces_leaves_whole_snapshots(seed):
    sent = encoded(topics(30))
    for steps in range(60):
        disk = MemoryDisk()
        disk.make_directory(DIRECTORY)
        disk.sync_directory("/data")
        files = SnapshotFiles(disk, DIRECTORY)
        disk.lose_power_in(steps)
        try:
            for position in range(0, len(sent), 700):
                files.add_piece(ID, position, sent[position : position + 700])
            files.check_pieces(ID)
            files.take_pieces(ID)
            is_done = True
        except PowerLoss:
            is_done = False
        after = SnapshotFiles(disk.after_crash(random.Random(f"{seed}-{steps}")), DIRECTORY)
        for id in after.ids():
            assert records_in(after.read(id)) == topics(30)
        if is_done:
            assert after.newest().id == ID
            break
    else:
        raise AssertionError("it never ended")
