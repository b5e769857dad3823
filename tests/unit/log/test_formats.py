"""The files byte by byte, as Kafka 4.0 writes and reads them."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY, Indexes, search
from ottla.log.log import LogConfig
from ottla.log.producer_state import CorruptSnapshot, Producer, ProducerState
from ottla.testing.disks import MemoryDisk
from ottla.wire.records import BATCH_HEADER_BYTES, read_header
from unit.log.house import DIRECTORY, NOW_MS, append, make_batch, open_log, send, sync


def test_files_are_named_by_the_base_offset_in_twenty_digits(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for _ in range(3):
        append(log)
    log.roll(NOW_MS)
    append(log)
    log.write()
    assert disk.paths() == [
        "/data/t-0/00000000000000000000.index",
        "/data/t-0/00000000000000000000.log",
        "/data/t-0/00000000000000000000.timeindex",
        "/data/t-0/00000000000000000003.log",
        "/data/t-0/00000000000000000003.snapshot",
        "/data/t-0/leader-epoch-checkpoint",
    ]


def test_log_file_is_the_batches_one_behind_the_other(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batches = [make_batch(2), make_batch(3), make_batch(1)]
    for batch in batches:
        append(log, batch, epoch=5)
    log.write()
    data = disk.read_file(f"{DIRECTORY}/00000000000000000000.log")
    assert data == b"".join(batches)
    assert [read_header(batch).base_offset for batch in batches] == [0, 2, 5]
    assert {read_header(batch).leader_epoch for batch in batches} == {5}


def test_offset_index_holds_last_offset_and_start_of_a_batch(disk: MemoryDisk) -> None:
    """Entries come after more than the interval: batch 2 begins 158 bytes after the first."""
    log = open_log(disk, LogConfig(index_interval_bytes=100))
    for _ in range(5):
        append(log, make_batch(2))
    size = len(make_batch(2))
    assert 50 < size < 100
    log.close()
    data = disk.read_file(f"{DIRECTORY}/00000000000000000000.index")
    assert data == struct.pack(">iiii", 5, 2 * size, 9, 4 * size)


def test_batch_exactly_at_the_interval_gets_no_entry_yet(disk: MemoryDisk) -> None:
    size = len(make_batch())
    log = open_log(disk, LogConfig(index_interval_bytes=2 * size))
    for _ in range(5):
        append(log)
    log.close()
    data = disk.read_file(f"{DIRECTORY}/00000000000000000000.index")
    assert data == struct.pack(">ii", 3, 3 * size)


def test_time_index_holds_the_first_batch_of_each_new_largest_timestamp(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=100))
    for timestamp in (1000, 3000, 2000, 2500, 2600, 3000, 4000):
        append(log, make_batch(timestamps=[timestamp]))
    log.close()
    data = disk.read_file(f"{DIRECTORY}/00000000000000000000.timeindex")
    # At the batch of offset 2 the largest is 3000 (offset 1), and so it is at offset 4; the last
    # entry, for 4000 at offset 6, is made at the entry of offset 6 or by closing.
    assert data == struct.pack(">qiqi", 3000, 1, 4000, 6)


def test_closing_adds_the_largest_timestamp_to_the_time_index(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(index_interval_bytes=4096))
    append(log, make_batch(timestamps=[1234]))
    log.close()
    data = disk.read_file(f"{DIRECTORY}/00000000000000000000.timeindex")
    assert data == struct.pack(">qi", 1234, 0)
    assert disk.read_file(f"{DIRECTORY}/00000000000000000000.index") == b""


def test_snapshot_of_one_producer(disk: MemoryDisk) -> None:
    log = open_log(disk)
    send(log, 10, count=3, producer_id=0x1122334455, producer_epoch=2, timestamps=[NOW_MS])
    log.close()
    data = disk.read_file(f"{DIRECTORY}/00000000000000000003.snapshot")
    entry = (
        bytes.fromhex("0000001122334455")  # producer id
        + bytes.fromhex("0002")  # epoch
        + bytes.fromhex("0000000c")  # last sequence 12
        + bytes.fromhex("0000000000000002")  # last offset
        + bytes.fromhex("00000002")  # offset delta
        + NOW_MS.to_bytes(8, "big")  # timestamp
        + bytes.fromhex("ffffffff")  # coordinator epoch
        + bytes.fromhex("ffffffffffffffff")  # no transaction
    )
    body = bytes.fromhex("00000001") + entry
    assert data == bytes.fromhex("0001") + crc32c(body).to_bytes(4, "big") + body


def test_snapshot_keeps_the_whole_window_the_last_batch_last() -> None:
    """Kafka reads the same file and keeps, of one producer id, the last entry."""
    state = ProducerState()
    for sequence in range(7):
        header = read_header(make_batch(producer_id=4, producer_epoch=0, base_sequence=sequence))
        state.add(header, 100 + sequence, NOW_MS)
    data = state.encode()
    assert len(data) == 2 + 4 + 4 + 5 * 46
    last_sequences = [struct.unpack_from(">i", data, 10 + at * 46 + 10)[0] for at in range(5)]
    assert last_sequences == [2, 3, 4, 5, 6]
    assert ProducerState.decode(data) == state


def test_snapshot_as_kafka_writes_it_is_read() -> None:
    """One entry per producer; one of them has only its epoch left."""
    rows = struct.pack(">qhiqiqiq", 9, 1, 41, 99, 4, 777, -1, -1)
    rows += struct.pack(">qhiqiqiq", 12, 3, -1, -1, 0, 888, 6, -1)
    body = struct.pack(">i", 2) + rows
    state = ProducerState.decode(struct.pack(">hI", 1, crc32c(body)) + body)
    assert state.get(9) == Producer(1, ((37, 41, 95, 99, 777),), 777)  # type: ignore[arg-type]
    assert state.get(12) == Producer(3, (), 888, 6)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"\0\2" + data[2:],
        lambda data: data[:-1],
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda data: b"",
        lambda data: bytes(len(data)),
    ],
)
def test_damaged_snapshot_is_not_believed(damage: object) -> None:
    state = ProducerState()
    state.add(read_header(make_batch(producer_id=4, producer_epoch=0, base_sequence=0)), 0, 0)
    with pytest.raises(CorruptSnapshot):
        ProducerState.decode(damage(state.encode()))  # type: ignore[operator]


def test_leader_epochs_are_lines_of_epoch_and_start_offset(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for epoch in (3, 3, 8):
        append(log, epoch=epoch)
    log.start_epoch(9)
    log.close()
    data = disk.read_file(f"{DIRECTORY}/leader-epoch-checkpoint")
    assert data == b"0\n2\n3 0\n8 2\n", "an epoch without a batch is nothing to remember"


def test_indexes_survive_their_own_encoding() -> None:
    indexes = Indexes()
    for at in range(1, 700):
        indexes.add(at * 3, at * 90, 90, NOW_MS + at * 7, 100)
    again = Indexes.decode(indexes.encode_offsets(), indexes.encode_times())
    assert again.offsets == indexes.offsets
    assert again.positions == indexes.positions
    assert again.timestamps[:-1] == indexes.timestamps[: len(again.timestamps) - 1]
    assert again.max_timestamp == NOW_MS + 699 * 7


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257, 1000])
def test_index_file_is_searched_without_reading_all_of_it(count: int) -> None:
    data = b"".join(OFFSET_ENTRY.pack(at * 10, at * 100) for at in range(1, count + 1))
    reads = 0

    def read(size: int, position: int) -> bytes:
        nonlocal reads
        reads += 1
        return data[position : position + size]

    for key in range(0, count * 10 + 20, 7):
        reads = 0
        entry = search(read, len(data), OFFSET_ENTRY, key)
        wanted = min(key // 10, count)
        assert entry == ((wanted * 10, wanted * 100) if wanted else None)
        assert reads <= 5


def test_search_ignores_half_an_entry_at_the_end() -> None:
    data = TIME_ENTRY.pack(5, 1) + b"\0" * 7
    found = search(lambda size, at: data[at : at + size], len(data), TIME_ENTRY, 9)
    assert found == (5, 1)


def test_batches_are_synced_in_one_piece_with_header_and_crc(disk: MemoryDisk) -> None:
    log = open_log(disk)
    batch = make_batch(4)
    append(log, batch, epoch=77)
    log.write()
    sync(log, disk)
    stored = disk.read_file(f"{DIRECTORY}/00000000000000000000.log")
    assert stored[:8] == bytes(8)
    assert stored[12:16] == (77).to_bytes(4, "big")
    header = read_header(stored)
    assert header.crc == crc32c(stored[21:])
    assert len(stored) > BATCH_HEADER_BYTES
