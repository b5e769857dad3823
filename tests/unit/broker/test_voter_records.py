"""The voters of the metadata log as records in its batches and its snapshots."""

from __future__ import annotations

import pytest

from ottla.broker.control.control_batches import leader_change_batch, voters_batch
from ottla.broker.control.voter_records import (
    read_history,
    snapshot_voters,
    voters_in,
    voters_of_record,
    voters_record,
)
from ottla.cluster.snapshot_file import Snapshot, SnapshotId, decode_snapshot, encode_snapshot
from ottla.errors import CannotStart
from ottla.log.handles import Handles
from ottla.log.log import Log, LogConfig
from ottla.quorum.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from ottla.testing.disks import MemoryDisk
from ottla.types import LeaderEpoch, NodeId, Offset
from ottla.wire.messages.metadata_records import FeatureLevelRecord
from ottla.wire.records import read_header

NOW_MS = 1_790_000_000_000


def voters(*ids: int) -> VoterSet:
    return VoterSet(
        Voter(
            ReplicaKey(NodeId(n), bytes([n]) * 16), (Endpoint("CONTROLLER", f"host{n}", 9000 + n),)
        )
        for n in ids
    )


def log_of(*batches: bytearray) -> Log:
    disk = MemoryDisk()
    disk.make_directory("/log")
    log = Log.new(Handles(disk), "/log", LogConfig(), NOW_MS)
    for batch in batches:
        view = memoryview(batch)
        log.append(view, read_header(view), 1, NOW_MS)
    log.write()
    return log


def snapshot_of(end_offset: int, told: VoterSet | None, level: int = 1) -> Snapshot:
    id = SnapshotId(Offset(end_offset), LeaderEpoch(1))
    record = None if told is None else voters_record(told)
    records = [FeatureLevelRecord(name="metadata.version", feature_level=21)]
    batches = encode_snapshot(id, records, NOW_MS, NOW_MS, record, level)
    return decode_snapshot(id, b"".join(batches))


def test_what_is_written_is_read_again() -> None:
    assert voters_of_record(voters_record(voters(1, 2, 3))) == voters(1, 2, 3)


def test_sets_are_found_with_the_offsets_of_their_records() -> None:
    log = log_of(
        leader_change_batch(1, [1], [1], NOW_MS),
        voters_batch(voters_record(voters(1)), NOW_MS, is_first=True),
        voters_batch(voters_record(voters(1, 2)), NOW_MS, is_first=False),
    )
    data = log.read(0, 1 << 20, log.written, cached_only=False, with_empty=True)
    assert list(voters_in(data)) == [(2, voters(1)), (3, voters(1, 2))]


def test_the_last_set_of_the_log_counts() -> None:
    log = log_of(
        voters_batch(voters_record(voters(1)), NOW_MS, is_first=True),
        voters_batch(voters_record(voters(1, 2)), NOW_MS, is_first=False),
    )
    history = read_history(VoterHistory(VoterSet(()), can_change=False), None, log)
    assert history.last == (2, voters(1, 2))
    history.cut(Offset(2))
    assert (history.last.voters, history.can_change) == (voters(1), True)


def test_a_snapshot_tells_the_voters_of_the_log_that_is_gone() -> None:
    snapshot = snapshot_of(40, voters(1, 2, 3))
    assert snapshot_voters(snapshot) == (39, voters(1, 2, 3))
    history = read_history(VoterHistory(VoterSet(()), can_change=False), snapshot, log_of())
    assert history.last == (39, voters(1, 2, 3))


def test_what_a_disk_was_formatted_with_stands_before_the_log() -> None:
    formatted = snapshot_of(0, voters(1))
    history = read_history(VoterHistory(VoterSet(()), can_change=False), formatted, log_of())
    assert (history.last, history.can_change) == ((-1, voters(1)), True)
    nobody = read_history(VoterHistory(voters(1), can_change=False), snapshot_of(0, None), log_of())
    assert (list(nobody.last.voters), nobody.can_change) == ([], True)


def test_a_snapshot_of_voters_that_are_a_setting_tells_none() -> None:
    snapshot = snapshot_of(40, None, level=0)
    assert (snapshot.kraft_version, snapshot.voters) == (None, None)


def test_a_later_kraft_version_is_not_guessed_at() -> None:
    with pytest.raises(CannotStart, match=r"kraft\.version 2, .* reads up to 1"):
        snapshot_voters(snapshot_of(40, voters(1), level=2))
