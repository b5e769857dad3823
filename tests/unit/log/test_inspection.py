"""Every kind of damage is found, named rightly and placed; what is in order is not."""

from __future__ import annotations

import struct
from random import Random

import pytest

from ottla.cluster.snapshot_file import SnapshotId, encode_snapshot
from ottla.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_SIZES,
    RECOVERY_POINTS,
    START_OFFSETS,
    write_offsets,
)
from ottla.log.corruption import NOTE
from ottla.log.directory import CLEAN_MARKER, META_PROPERTIES, PARTITION_METADATA
from ottla.log.inspection.findings import ADVICE, Checked, Finding, Trouble
from ottla.log.inspection.inspection import Inspection, NothingToInspect, TopicFacts, find_target
from ottla.log.inspection.partition_check import FINDINGS_MAX
from ottla.log.inspection.walk import walk
from ottla.testing.disks import MemoryDisk
from ottla.types import TopicPartition
from ottla.wire.checksum import crc32c
from ottla.wire.messages.metadata_records import NoOpRecord
from ottla.wire.records import Record, encode_batch, headers_in
from unit.log.house import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    append,
    append_many,
    make_batch,
    open_log,
    send,
    sync,
)

PARTITION = TopicPartition("t", 0)
OURS = b"version=1\ncluster.id=c\nnode.id=1\nottla.format.version=1\n"
FIRST = f"{DIRECTORY}/00000000000000000000.log"


def inspect(
    disk: MemoryDisk,
    path: str = DIRECTORY,
    topics: dict[str, TopicFacts] | None = None,
    *,
    deep: bool = False,
) -> tuple[list[Finding], list[Checked]]:
    operations = disk.operations
    found = list(Inspection(disk, find_target(disk, path), topics, deep).run())
    assert disk.operations == operations, "an inspection changes nothing"
    assert not disk.open_files
    findings = [each for each in found if isinstance(each, Finding)]
    return findings, [each for each in found if isinstance(each, Checked)]


def troubles(disk: MemoryDisk, path: str = DIRECTORY) -> list[Trouble]:
    return [finding.trouble for finding in inspect(disk, path)[0]]


def write_log(disk: MemoryDisk, batches: int = 45) -> None:
    """Three segments or so of a log that was closed."""
    log = open_log(disk)
    for number in range(batches):
        send(log, number * 2, count=2, timestamps=(NOW_MS + number, NOW_MS + number + 1))
    log.write()
    sync(log, disk)
    log.close()
    assert not disk.open_files


def in_a_data_directory(
    disk: MemoryDisk, *, clean: bool, recovery_point: int = 0, start: int = 0, committed: int = 0
) -> None:
    disk.write_file(f"/data/{META_PROPERTIES}", OURS)
    if clean:
        disk.write_file(f"/data/{CLEAN_MARKER}", b"{}")
    write_offsets(disk, f"/data/{RECOVERY_POINTS}", {PARTITION: recovery_point})
    write_offsets(disk, f"/data/{START_OFFSETS}", {PARTITION: start})
    write_offsets(disk, f"/data/{HIGH_WATERMARKS}", {PARTITION: committed})


def segments(disk: MemoryDisk, suffix: str = ".log") -> list[str]:
    return [path for path in disk.paths() if path.startswith(DIRECTORY) and path.endswith(suffix)]


def change(disk: MemoryDisk, path: str, at: int, data: bytes) -> None:
    contents = bytearray(disk.read_file(path))
    contents[at : at + len(data)] = data
    disk.write_file(path, bytes(contents))


def flip(disk: MemoryDisk, path: str, at: int) -> None:
    change(disk, path, at, bytes([disk.read_file(path)[at] ^ 0x10]))


def places(disk: MemoryDisk, path: str) -> list[int]:
    return [at for at, _ in headers_in(disk.read_file(path))]


# ------------------------------------------------------------------------------------ in order


def test_a_log_in_order_gives_no_finding_and_is_counted(disk: MemoryDisk) -> None:
    write_log(disk)
    findings, (checked,) = inspect(disk, deep=True)
    assert findings == []
    assert checked.segments == len(segments(disk)) >= 3
    assert (checked.name, checked.batches, checked.records) == ("t-0", 45, 90)
    assert (checked.start_offset, checked.end_offset) == (0, 90)
    assert checked.size == sum(len(disk.read_file(path)) for path in segments(disk))


def test_a_log_that_is_being_written_is_in_order(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 40)
    in_a_data_directory(disk, clean=False)
    findings = list(Inspection(disk, find_target(disk, "/data")).run())
    assert [each for each in findings if isinstance(each, Finding)] == []
    log.abandon()


def test_one_segment_alone_is_checked_without_the_others(disk: MemoryDisk) -> None:
    write_log(disk)
    first, second, *_ = segments(disk)
    flip(disk, first, 70)
    findings, (checked,) = inspect(disk, second)
    assert findings == []
    assert checked.segments == 1
    assert troubles(disk, first) == [Trouble.CRC]
    assert troubles(disk, first.replace(".log", ".index")) == [Trouble.CRC]


def test_gaps_of_a_compacted_topic_are_in_order(disk: MemoryDisk) -> None:
    leave_a_gap(disk)
    assert troubles(disk) == [Trouble.GAP]
    disk.write_file(f"/data/{META_PROPERTIES}", OURS)
    disk.write_file(f"/data/{CLEAN_MARKER}", b"{}")
    compacted = {"t": TopicFacts(bytes(16), is_compacted=True)}
    assert inspect(disk, DIRECTORY, compacted)[0] == []
    disk.write_file("/data/cleaner-offset-checkpoint", b"0\n1\nt 0 5\n")
    assert inspect(disk)[0] == []


def test_a_batch_with_fewer_records_than_offsets_shows_that_the_log_was_compacted(
    disk: MemoryDisk,
) -> None:
    kept = [Record(offset, NOW_MS, b"k", b"v") for offset in (10, 13)]
    leave_a_gap(disk, bytes(encode_batch(kept, base_offset=10)))
    assert troubles(disk) == []


def test_the_zeros_at_the_end_of_kafkas_active_indexes_are_no_entries(disk: MemoryDisk) -> None:
    write_log(disk)
    for suffix in (".index", ".timeindex"):
        path = segments(disk, suffix)[-1]
        disk.write_file(path, disk.read_file(path) + bytes(12 * 100))
    assert troubles(disk) == []


def leave_a_gap(disk: MemoryDisk, after: bytes | None = None) -> None:
    """Offsets 1 to 9 are missing."""
    records = [Record(10, NOW_MS, b"k", b"v")]
    after = after or bytes(encode_batch(records, base_offset=10))
    disk.make_directory(DIRECTORY)
    disk.write_file(FIRST, bytes(make_batch()) + after)


# -------------------------------------------------------------------------------------- damage


def test_a_flipped_bit_is_found_with_its_place_and_the_lost_offsets(disk: MemoryDisk) -> None:
    write_log(disk)
    at = places(disk, FIRST)[3]
    flip(disk, FIRST, at + 70)
    (finding,), (checked,) = inspect(disk)
    assert (finding.trouble, finding.path) == (Trouble.CRC, FIRST)
    assert (finding.position, finding.offset) == (at, 6)
    assert "offsets 6 to 7 cannot be read" in finding.what
    assert (checked.problems, checked.batches, checked.end_offset) == (1, 44, 90)


@pytest.mark.parametrize("length", [0, 3, 10_000, 2**31 - 1])
def test_a_wrong_length_is_found_and_the_batches_behind_it_are_read(
    disk: MemoryDisk, length: int
) -> None:
    write_log(disk)
    at = places(disk, FIRST)[2]
    change(disk, FIRST, at + 8, struct.pack(">i", length))
    (finding,), (checked,) = inspect(disk)
    assert finding.trouble is Trouble.LENGTH
    assert (finding.position, finding.offset, checked.batches) == (at, 4, 44)


def test_a_length_that_is_off_by_a_little_does_not_hide_the_next_batch(disk: MemoryDisk) -> None:
    write_log(disk)
    at, after = places(disk, FIRST)[2:4]
    change(disk, FIRST, at + 8, struct.pack(">i", after - at - 12 + 7))
    (finding,), (checked,) = inspect(disk)
    assert finding.trouble is Trouble.CRC
    assert checked.batches == 44


def test_zeros_where_batches_were_are_named(disk: MemoryDisk) -> None:
    write_log(disk)
    at, after = places(disk, FIRST)[2], places(disk, FIRST)[4]
    change(disk, FIRST, at, bytes(after - at))
    (finding,), _ = inspect(disk)
    assert (finding.trouble, finding.position) == (Trouble.ZEROS, at)
    assert "offsets 4 to 7 cannot be read" in finding.what


def test_a_segment_cut_short_in_the_middle_of_the_log_is_no_torn_tail(disk: MemoryDisk) -> None:
    write_log(disk)
    in_a_data_directory(disk, clean=False, recovery_point=90, committed=90)
    disk.write_file(FIRST, disk.read_file(FIRST)[:-20])
    findings, _ = inspect(disk)
    assert [f.trouble for f in findings if f.path == FIRST] == [Trouble.LENGTH]
    assert all(finding.is_problem for finding in findings)


def test_a_segment_cut_between_two_batches_leaves_a_gap(disk: MemoryDisk) -> None:
    write_log(disk)
    cut_at = places(disk, FIRST)[-1]
    disk.write_file(FIRST, disk.read_file(FIRST)[:cut_at])
    findings, _ = inspect(disk)
    assert Trouble.GAP in [finding.trouble for finding in findings]


def test_a_missing_segment_leaves_a_gap(disk: MemoryDisk) -> None:
    write_log(disk)
    second = segments(disk)[1]
    disk.remove(second)
    (finding, *_), _ = inspect(disk)
    assert finding.trouble is Trouble.GAP
    assert finding.offset == int(second[-24:-4])


def test_offsets_that_go_back_are_found(disk: MemoryDisk) -> None:
    write_log(disk)
    at = places(disk, FIRST)[4]
    change(disk, FIRST, at, struct.pack(">q", 1))
    finding = inspect(disk)[0][0]
    assert (finding.trouble, finding.position, finding.offset) == (Trouble.ORDER, at, 1)


def test_a_leader_epoch_that_goes_back_is_found(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for epoch in (1, 1, 2, 2):
        append(log, epoch=epoch)
    log.write()
    log.close()
    assert troubles(disk) == []
    change(disk, FIRST, places(disk, FIRST)[3] + 12, struct.pack(">i", 0))
    assert troubles(disk) == [Trouble.ORDER]


def test_messages_of_the_old_formats_are_named_not_called_damage(disk: MemoryDisk) -> None:
    old = b"".join(
        struct.pack(">qiIbbii", offset, 14, 0, magic, 0, -1, -1)
        for offset, magic in ((0, 0), (1, 1), (2, 1))
    )
    disk.make_directory(DIRECTORY)
    disk.write_file(FIRST, old)
    (finding,), _ = inspect(disk)
    assert finding.trouble is Trouble.OLD_FORMAT
    assert "3 messages of magic 0" in finding.what


def test_an_intact_batch_that_cannot_be_opened_is_found_by_looking_deep(disk: MemoryDisk) -> None:
    broken = encode_batch([Record(0, NOW_MS, None, b"x")])
    # A record that claims to be longer than its batch, under a CRC that fits.
    broken[61] = 0x7E
    struct.pack_into(">I", broken, 17, crc32c(bytes(broken[21:])))
    disk.make_directory(DIRECTORY)
    disk.write_file(FIRST, bytes(broken))
    assert inspect(disk)[0] == []
    (finding,), _ = inspect(disk, deep=True)
    assert finding.trouble is Trouble.RECORDS


def test_damage_everywhere_is_told_a_hundred_times_and_counted_in_full(disk: MemoryDisk) -> None:
    log = open_log(disk, SMALL)
    append_many(log, 400)
    log.close()
    for path in segments(disk):
        for at in places(disk, path)[::2]:
            flip(disk, path, at + 65)
    findings, (checked,) = inspect(disk)
    assert len(findings) == FINDINGS_MAX
    assert checked.problems == FINDINGS_MAX + checked.problems_not_shown > FINDINGS_MAX


# ----------------------------------------------------------------------------------- torn tails


def test_a_torn_tail_behind_the_recovery_point_is_a_note(disk: MemoryDisk) -> None:
    write_log(disk)
    in_a_data_directory(disk, clean=False, recovery_point=40)
    last = segments(disk)[-1]
    size = len(disk.read_file(last))
    disk.write_file(last, disk.read_file(last)[:-20])
    (finding,), (checked,) = inspect(disk)
    assert finding.trouble is Trouble.TORN
    assert not finding.is_problem
    assert "after the recovery point 40" in finding.what
    assert finding.position is not None
    assert finding.position < size
    assert (checked.problems, checked.notes, checked.end_offset) == (0, 1, 88)


def test_the_same_tail_before_the_recovery_point_or_after_a_clean_stop_is_damage(
    disk: MemoryDisk,
) -> None:
    write_log(disk)
    last = segments(disk)[-1]
    disk.write_file(last, disk.read_file(last)[:-20])
    in_a_data_directory(disk, clean=False, recovery_point=90)
    assert troubles(disk) == [Trouble.LENGTH, Trouble.SHORT_LOG]
    in_a_data_directory(disk, clean=True, recovery_point=40)
    assert troubles(disk) == [Trouble.LENGTH]


def test_unsynced_damage_with_intact_batches_behind_it_is_no_mere_tail(disk: MemoryDisk) -> None:
    write_log(disk)
    in_a_data_directory(disk, clean=False, recovery_point=2)
    flip(disk, FIRST, places(disk, FIRST)[3] + 65)
    (finding,), (checked,) = inspect(disk)
    assert finding.trouble is Trouble.CUT
    assert finding.is_problem
    assert "41 intact batches up to offset 89 follow" in finding.what
    assert checked.end_offset == 6


@pytest.mark.parametrize("seed", range(0, 200, 50))
def test_what_a_power_loss_leaves_is_never_taken_for_damage_of_what_was_synced(seed: int) -> None:
    for each in range(seed, seed + 50):
        random = Random(each)
        disk = MemoryDisk()
        log = open_log(disk)
        written = synced = 0
        for _ in range(random.randint(1, 30)):
            for _ in range(random.randint(1, 4)):
                batch = make_batch(value=b"v" * random.choice((1, 50, 700)))
                written = append(log, batch, epoch=written // 20).end_offset
            log.write()
            if random.random() < 0.3:
                sync(log, disk)
                synced = written
        in_a_data_directory(disk, clean=False, recovery_point=synced, committed=synced)
        crashed = disk.after_crash(random)
        findings, (checked,) = inspect(crashed, "/data")
        assert {finding.trouble for finding in findings} <= {Trouble.TORN, Trouble.CUT}, each
        assert checked.end_offset >= synced
        open_log(crashed, clean=False, recovery_point=synced).close()
        in_a_data_directory(crashed, clean=True, recovery_point=synced, committed=synced)
        # A torn snapshot may stay where it is: nobody believes it.
        assert {f.trouble for f in inspect(crashed, "/data")[0]} <= {Trouble.SNAPSHOT}, each


# -------------------------------------------------------------------------------- index files


@pytest.mark.parametrize("off_by", [-1, 1])
def test_an_index_entry_that_points_beside_a_batch_is_found(disk: MemoryDisk, off_by: int) -> None:
    write_log(disk)
    path = segments(disk, ".index")[0]
    relative, position = struct.unpack(">ii", disk.read_file(path)[8:16])
    change(disk, path, 8, struct.pack(">ii", relative, position + off_by))
    (finding,), _ = inspect(disk)
    assert (finding.trouble, finding.path, finding.position) == (Trouble.INDEX, path, 8)


@pytest.mark.parametrize("off_by", [-1, 1])
def test_an_index_entry_with_another_offset_is_found(disk: MemoryDisk, off_by: int) -> None:
    write_log(disk)
    path = segments(disk, ".index")[0]
    relative, position = struct.unpack(">ii", disk.read_file(path)[:8])
    change(disk, path, 0, struct.pack(">ii", relative + off_by, position))
    assert troubles(disk) == [Trouble.INDEX]


def test_index_entries_out_of_order_behind_the_end_or_half_are_found(disk: MemoryDisk) -> None:
    write_log(disk)
    path = segments(disk, ".index")[0]
    whole = disk.read_file(path)
    assert len(whole) >= 16
    for wrong in (
        whole[8:16] + whole[:8] + whole[16:],
        whole + struct.pack(">ii", 10_000, 1_000_000),
        whole[:-3],
    ):
        disk.write_file(path, wrong)
        assert troubles(disk) == [Trouble.INDEX]


def test_a_missing_index_matters_unless_the_segment_is_being_written(disk: MemoryDisk) -> None:
    write_log(disk)
    for path in (segments(disk, ".index")[-1], segments(disk, ".timeindex")[-1]):
        disk.remove(path)
    assert troubles(disk) == []
    disk.remove(segments(disk, ".index")[0])
    assert troubles(disk) == [Trouble.INDEX]
    disk.remove(segments(disk, ".timeindex")[0])
    assert troubles(disk) == [Trouble.INDEX, Trouble.TIME_INDEX]


@pytest.mark.parametrize("later_ms", [-1, 1])
@pytest.mark.parametrize("entry", [0, -1])
def test_a_time_index_that_disagrees_with_the_batches_is_found(
    disk: MemoryDisk, later_ms: int, entry: int
) -> None:
    write_log(disk)
    path = segments(disk, ".timeindex")[0]
    at = entry % (len(disk.read_file(path)) // 12) * 12
    timestamp, relative = struct.unpack(">qi", disk.read_file(path)[at : at + 12])
    change(disk, path, at, struct.pack(">qi", timestamp + later_ms, relative))
    assert troubles(disk) == [Trouble.TIME_INDEX]


def test_a_time_index_without_the_youngest_batch_is_found(disk: MemoryDisk) -> None:
    """Retention judges a closed segment by that entry."""
    write_log(disk)
    path = segments(disk, ".timeindex")[0]
    disk.write_file(path, disk.read_file(path)[:-12])
    assert troubles(disk) == [Trouble.TIME_INDEX]


# ------------------------------------------------------------------- snapshots and checkpoints


def test_a_damaged_snapshot_is_found(disk: MemoryDisk) -> None:
    write_log(disk)
    path = segments(disk, ".snapshot")[0]
    flip(disk, path, 20)
    (finding,), _ = inspect(disk)
    assert (finding.trouble, finding.path) == (Trouble.SNAPSHOT, path)
    assert "CRC" in finding.what
    in_a_data_directory(disk, clean=False)
    assert troubles(disk) == [Trouble.TORN]


def test_a_snapshot_that_knows_more_than_its_offset_is_found(disk: MemoryDisk) -> None:
    write_log(disk)
    earlier, *_, latest = segments(disk, ".snapshot")
    disk.write_file(earlier, disk.read_file(latest))
    assert troubles(disk) == [Trouble.SNAPSHOT]


def test_a_metadata_snapshot_is_whole_or_is_told(disk: MemoryDisk) -> None:
    id = SnapshotId(7, 2)
    disk.make_directory("/data/__cluster_metadata-0")
    path = f"/data/__cluster_metadata-0/{id}.checkpoint"
    whole = b"".join(encode_snapshot(id, [NoOpRecord()] * 3, NOW_MS, NOW_MS))
    disk.write_file(path, whole)
    findings, (checked,) = inspect(disk, path)
    assert findings == []
    assert (checked.batches, checked.records, checked.size) == (3, 5, len(whole))
    footer = places(disk, path)[-1]
    for wrong in (whole[:footer], whole[:-5], whole[:70] + b"\xff" + whole[71:]):
        disk.write_file(path, wrong)
        assert troubles(disk, path) == [Trouble.METADATA_SNAPSHOT]
        assert troubles(disk, "/data")[-1] is Trouble.METADATA_SNAPSHOT


def test_an_epoch_checkpoint_that_contradicts_the_batches_is_found(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for epoch in (1, 1, 4, 4):
        append(log, epoch=epoch)
    log.write()
    log.close()
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    assert disk.read_file(path) == b"0\n2\n1 0\n4 2\n"
    for wrong in (
        b"0\n2\n1 0\n4 3\n",  # begins later than the batches say
        b"0\n2\n4 2\n1 0\n",  # out of order
        b"0\n3\n1 0\n4 2\n",  # fewer lines than it says
        b"0\n2\n1 0\n4 2\n".replace(b"0\n", b"7\n", 1),  # a version nobody knows
    ):
        disk.write_file(path, wrong)
        assert troubles(disk) == [Trouble.EPOCH], wrong


def test_a_log_shorter_than_it_was_synced_or_committed_is_found(disk: MemoryDisk) -> None:
    write_log(disk)
    in_a_data_directory(disk, clean=False, recovery_point=92)
    (finding,), _ = inspect(disk)
    assert finding.trouble is Trouble.SHORT_LOG
    assert "ends at offset 90, but was synced up to 92" in finding.what
    in_a_data_directory(disk, clean=True, recovery_point=90, committed=91)
    assert troubles(disk) == [Trouble.SHORT_LOG]
    in_a_data_directory(disk, clean=True, recovery_point=90, committed=90)
    assert troubles(disk) == []


def test_a_log_shorter_than_a_clean_stop_left_it_is_found(disk: MemoryDisk) -> None:
    write_log(disk)
    in_a_data_directory(disk, clean=True)
    size = sum(len(disk.read_file(path)) for path in segments(disk))
    write_offsets(disk, f"/data/{LOG_SIZES}", {PARTITION: size})
    assert troubles(disk) == []
    last = segments(disk)[-1]
    disk.write_file(last, disk.read_file(last)[: places(disk, last)[-1]])
    finding = inspect(disk)[0][-1]
    assert finding.trouble is Trouble.SHORT_LOG
    assert f"a clean stop left {size} bytes" in finding.what


def test_offsets_of_a_deleted_topic_of_the_same_name_are_passed_over(disk: MemoryDisk) -> None:
    write_log(disk)
    in_a_data_directory(disk, clean=True)
    old, new = bytes(15) + b"\x01", bytes(15) + b"\x02"
    write_offsets(disk, f"/data/{RECOVERY_POINTS}", {PARTITION: 1000}, {"t": old})
    known = {"t": TopicFacts(new, is_compacted=False)}
    assert inspect(disk, "/data", known)[0] == []
    known = {"t": TopicFacts(old, is_compacted=False)}
    assert [f.trouble for f in inspect(disk, "/data", known)[0]] == [Trouble.SHORT_LOG]


def test_the_brokers_own_note_about_damage_is_shown(disk: MemoryDisk) -> None:
    write_log(disk)
    disk.write_file(f"{DIRECTORY}/{NOTE}", b"{}")
    assert troubles(disk) == [Trouble.NOTED]


def test_a_front_that_is_missing_is_told_from_one_that_was_deleted(disk: MemoryDisk) -> None:
    write_log(disk)
    first, second, *_ = segments(disk)
    for suffix in (".log", ".index", ".timeindex"):
        disk.remove(first.replace(".log", suffix))
    in_a_data_directory(disk, clean=True)
    assert troubles(disk) == [Trouble.MISSING_FRONT]
    in_a_data_directory(disk, clean=True, start=int(second[-24:-4]))
    assert troubles(disk) == []
    in_a_data_directory(disk, clean=True)
    disk.write_file(f"{first}.swap", b"compaction is about to give it the name")
    assert troubles(disk) == [Trouble.LEFTOVER]


def test_a_front_that_goes_while_it_is_looked_at_is_not_missing(disk: MemoryDisk) -> None:
    write_log(disk)
    first, second, *_ = segments(disk)
    in_a_data_directory(disk, clean=False)

    class Retaining(MemoryDisk):
        """Retention comes when the directory is listed: first the start moves, then files go."""

        def list(self, directory: str) -> list[str]:
            write_offsets(disk, f"/data/{START_OFFSETS}", {PARTITION: int(second[-24:-4])})
            for suffix in (".log", ".index", ".timeindex"):
                disk.remove(first.replace(".log", suffix))
            return disk.list(directory)

    retaining = Retaining()
    vars(retaining).update(vars(disk))
    inspection = Inspection(retaining, find_target(disk, DIRECTORY)).run()
    assert [found for found in inspection if isinstance(found, Finding)] == []


@pytest.mark.parametrize("name", [RECOVERY_POINTS, START_OFFSETS, HIGH_WATERMARKS])
def test_a_checkpoint_file_that_cannot_be_read_is_found(disk: MemoryDisk, name: str) -> None:
    write_log(disk)
    in_a_data_directory(disk, clean=True)
    disk.write_file(f"/data/{name}", b"0\n1\nt zero 5\n")
    (finding,), _ = inspect(disk, "/data")
    assert (finding.trouble, finding.path) == (Trouble.CHECKPOINT, f"/data/{name}")


def test_a_directory_of_another_topic_of_the_same_name_is_found(disk: MemoryDisk) -> None:
    write_log(disk)
    in_a_data_directory(disk, clean=True)
    path = f"{DIRECTORY}/{PARTITION_METADATA}"
    disk.write_file(path, b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    known = {"t": TopicFacts(bytes(15) + b"\x01", is_compacted=False)}
    assert inspect(disk, "/data", known)[0] == []
    stale = {"t": TopicFacts(bytes(15) + b"\x02", is_compacted=False)}
    (finding,), _ = inspect(disk, "/data", stale)
    assert (finding.trouble, finding.path) == (Trouble.TOPIC_ID, path)
    disk.write_file(path, b"version: 0\ntopic_id: short")
    assert troubles(disk, "/data") == [Trouble.TOPIC_ID]


def test_a_partition_without_its_directory_is_found_while_its_topic_is_there(
    disk: MemoryDisk,
) -> None:
    in_a_data_directory(disk, clean=True, recovery_point=60)
    known = {"t": TopicFacts(bytes(16), is_compacted=False)}
    (finding,), _ = inspect(disk, "/data", known)
    assert finding.trouble is Trouble.SHORT_LOG
    assert finding.path == DIRECTORY
    assert inspect(disk, "/data", {})[0] == []


def test_a_segment_that_compaction_replaces_meanwhile_is_no_damage(disk: MemoryDisk) -> None:
    write_log(disk)

    class Replacing(MemoryDisk):
        """Between log and index another segment comes."""

        def read_file(self, path: str) -> bytes:
            if path == FIRST.replace(".log", ".index"):
                half = places(disk, FIRST)[8]
                disk.write_file(FIRST, disk.read_file(FIRST)[:half])
                return b"".join(struct.pack(">ii", n, n) for n in (100, 200))
            return disk.read_file(path)

    replacing = Replacing()
    vars(replacing).update(vars(disk))
    assert troubles(replacing) == [Trouble.GONE]


def test_what_waits_to_be_removed_is_a_note(disk: MemoryDisk) -> None:
    write_log(disk)
    disk.write_file(f"{DIRECTORY}/00000000000000000000.log.deleted", b"x")
    (finding,), _ = inspect(disk)
    assert finding.trouble is Trouble.LEFTOVER
    assert not finding.is_problem


def test_a_stray_is_a_persons_problem_and_can_be_looked_into(disk: MemoryDisk) -> None:
    write_log(disk)
    data = DIRECTORY.rpartition("/")[0]
    stray = f"{data}/gone-0.{'ab' * 16}-stray"
    disk.make_directory(stray)
    for path in disk.paths():
        if path.startswith(DIRECTORY + "/"):
            disk.write_file(stray + path.removeprefix(DIRECTORY), disk.read_file(path))
    (finding,) = [each for each in inspect(disk, data)[0] if each.trouble is Trouble.STRAY]
    assert finding.path == stray
    assert finding.is_problem
    assert "ottla log dump" in finding.advice
    assert find_target(disk, stray).partition == stray


# ------------------------------------------------------------------------------------- targets


def test_what_is_no_log_is_refused_with_words(disk: MemoryDisk) -> None:
    disk.write_file("/data/notes.txt", b"")
    for path, words in (
        ("/nowhere", "does not exist"),
        ("/data", "neither a data directory"),
        ("/data/notes.txt", "no file of a log"),
    ):
        with pytest.raises(NothingToInspect, match=words):
            find_target(disk, path)


def test_every_byte_is_in_one_piece_whatever_the_bytes_are(disk: MemoryDisk) -> None:
    write_log(disk)
    data = bytearray(disk.read_file(FIRST))
    for at in range(0, len(data), 37):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF

        def read(count: int, position: int, damaged: bytearray = damaged) -> bytes:
            return bytes(damaged[position : position + count])

        pieces = list(walk(read, len(damaged), 0))
        assert [s.position for s in pieces[1:]] == [s.position + s.size for s in pieces[:-1]]
        assert sum(piece.size for piece in pieces) == len(damaged)
        assert len([s for s in pieces if s.trouble]) <= 1


def test_every_kind_of_finding_has_advice() -> None:
    assert ADVICE.keys() == set(Trouble)
