"""A follower takes what its leader has, and nothing else."""

from __future__ import annotations

import struct

import pytest

from ottla.errors import CorruptBatch, StorageFailed
from ottla.log.handles import Handles
from ottla.log.intake import BatchBeginsEarlier
from ottla.log.log import Log, LogConfig, LogPosition
from ottla.testing.disks import MemoryDisk
from ottla.types import NO_EPOCH, LeaderEpoch
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_MIN,
    headers_in,
    read_header,
    seal_batch,
)
from unit.log.compaction_kit import TINY, compact, put, write_and_sync
from unit.log.house import (
    NOW_MS,
    append,
    append_many,
    make_batch,
    open_log,
    send,
    shorten,
    sync,
)
from unit.log.replica_kit import FOLLOWER, check_replica, follow, given_to_replicas, take

LARGE = LogConfig(segment_bytes=100_000)


@pytest.fixture
def leader(disk: MemoryDisk) -> Log:
    """Three epochs, an idempotent producer among its writers, several segments."""
    log = open_log(disk)
    for epoch in (0, 2, 5):
        log.start_epoch(epoch)
        for at in range(6):
            append(log, make_batch(2), epoch=epoch)
            append(log, _sequenced(3 * at, count=3, producer_epoch=epoch), epoch=epoch)
    log.write()
    return log


@pytest.fixture
def follower(disk: MemoryDisk) -> Log:
    return open_log(disk, directory=FOLLOWER)


def _sequenced(sequence: int, *, count: int, producer_epoch: int) -> bytearray:
    return make_batch(count, producer_id=7, producer_epoch=producer_epoch, base_sequence=sequence)


def batch_at(offset: int, *, epoch: int = 0, count: int = 1) -> bytes:
    """As a leader has it."""
    data = make_batch(count)
    return bytes(
        seal_batch(
            read_header(data)._replace(base_offset=offset, leader_epoch=epoch),
            data[BATCH_HEADER_BYTES:],
        )
    )


# More records than offsets.
LYING = read_header(batch_at(5))._replace(count=2, batch_length=BATCH_LENGTH_MIN)


# ------------------------------------------------------------------------------------ appending


def test_a_follower_has_the_bytes_epochs_and_producers_of_its_leader(
    leader: Log, follower: Log
) -> None:
    follow(follower, leader)
    check_replica(follower, given_to_replicas(leader))
    assert follower.segment_count > 2
    assert follower.end_offset == follower.written.offset == leader.end_offset
    assert follower.last_batch_epoch == 5


def test_a_batch_cut_short_at_the_end_is_left_out(follower: Log) -> None:
    first, second = batch_at(0, count=2), batch_at(2)
    for cut in (1, BATCH_HEADER_BYTES - 1, BATCH_HEADER_BYTES, len(second) - 1):
        assert take(follower, first[:cut]) == 0
    assert take(follower, first + second[:-1]) == len(first)
    assert follower.end_offset == 2
    assert take(follower, second) == len(second)
    follower.write()
    assert given_to_replicas(follower) == first + second


def test_gaps_are_taken_as_they_are(follower: Log) -> None:
    data = batch_at(3) + batch_at(10, count=2) + batch_at(500, epoch=4)
    assert take(follower, data) == len(data)
    follower.write()
    check_replica(follower, data)
    assert follower.end_offset == 501


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        pytest.param(batch_at(5)[:-1] + b"x", "CRC", id="another byte"),
        pytest.param(batch_at(5)[:16] + b"\1" + batch_at(5)[17:], "magic", id="an old magic"),
        pytest.param(batch_at(2), "after 4", id="an offset that was there"),
        pytest.param(batch_at(5, epoch=1), "epoch", id="an epoch that is over"),
        pytest.param(batch_at(5 + 2**31, epoch=2), "ends at 5", id="too far away"),
        pytest.param(
            bytes(
                seal_batch(
                    read_header(batch_at(5))._replace(count=2, batch_length=BATCH_LENGTH_MIN), b""
                )
            ),
            "records",
            id="more records than offsets",
        ),
    ],
)
def test_what_no_leader_has_is_refused_with_all_that_came_with_it(
    follower: Log, bad: bytes, why: str
) -> None:
    take(follower, batch_at(0, count=4, epoch=2))
    with pytest.raises(CorruptBatch, match=why):
        take(follower, batch_at(4, epoch=2) + bad)
    assert follower.end_offset == 4
    follower.write()
    check_replica(follower, batch_at(0, count=4, epoch=2))


def test_of_a_leader_that_has_lost_its_lead_only_its_own_epoch_is_taken(follower: Log) -> None:
    own, of_the_next = batch_at(0, epoch=3), batch_at(1, epoch=4)
    assert take(follower, own + of_the_next + batch_at(2, epoch=4), epoch_max=3) == len(own)
    assert (follower.end_offset, follower.last_batch_epoch) == (1, 3)


def test_a_refused_write_takes_back_all_that_was_replicated(
    disk: MemoryDisk, leader: Log, follower: Log
) -> None:
    data = given_to_replicas(leader)
    half = data[: [at for at, _ in headers_in(data)][4]]
    take(follower, half)
    follower.write()
    take(follower, data[len(half) :])
    disk.fail("write", torn_bytes=100)
    with pytest.raises(OSError, match="Input/output"):
        follower.write()
    disk.heal()
    check_replica(follower, half)
    follow(follower, leader)
    check_replica(follower, data)


def test_a_fenced_log_takes_nothing(follower: Log) -> None:
    follower.fail_sync()
    with pytest.raises(StorageFailed):
        take(follower, batch_at(0))


def test_the_epoch_of_a_leader_that_wrote_nothing_never_was(follower: Log) -> None:
    """It led epoch 5 for a moment, and follows somebody who goes on with what was of epoch 4."""
    take(follower, batch_at(0, epoch=4))
    follower.start_epoch(5)
    assert (follower.latest_epoch, follower.last_batch_epoch) == (5, 4)
    take(follower, batch_at(3, epoch=4) + batch_at(4, epoch=6))
    assert follower._epochs.entries == [(4, 0), (6, 4)]


def test_a_truncation_to_the_end_forgets_an_epoch_without_batches(follower: Log) -> None:
    take(follower, batch_at(0, epoch=4))
    follower.write()
    follower.start_epoch(5)
    follower.truncate(1, NOW_MS)
    assert follower.latest_epoch == 4


def test_a_producer_goes_on_where_it_was_when_its_follower_leads(
    leader: Log, follower: Log
) -> None:
    follow(follower, leader)
    follower.start_epoch(6)
    assert send(follower, 15, count=3, producer_epoch=5).is_duplicate
    assert not send(follower, 18, producer_epoch=5).is_duplicate


# -------------------------------------------------------------------------- compacted leaders


def compacted_leader(disk: MemoryDisk) -> Log:
    """Its first segments have holes; the last batch of each is there, empty or not."""
    handles = Handles(disk)
    log = open_log(disk, TINY, handles=handles)
    for at in range(24):
        fields = {"producer_id": at % 3, "producer_epoch": 0, "base_sequence": at // 3}
        put(log, [(b"key", b"v%d" % at)], epoch=at // 5, **fields)
    log.roll(NOW_MS)
    put(log, [(b"key", b"last")], epoch=7)
    write_and_sync(log, disk)
    compact(log, disk, handles)
    return log


def test_a_follower_of_a_compacted_leader_gets_empty_batches_and_holes(
    disk: MemoryDisk, follower: Log
) -> None:
    leader = compacted_leader(disk)
    data = given_to_replicas(leader)
    headers = [header for _, header in headers_in(data)]
    assert any(header.count == 0 for header in headers)
    assert len(headers) < 24
    follow(follower, leader)
    check_replica(follower, data)


def test_consumers_are_spared_empty_batches(disk: MemoryDisk) -> None:
    leader = compacted_leader(disk)
    data = leader.read(0, 100, leader.written, cached_only=False)
    assert data is not None
    assert read_header(data).count > 0


# ------------------------------------------------------------------------------------ positions


def test_every_batch_has_a_position(leader: Log) -> None:
    places = {}
    for segment in leader.segments:
        read = segment.reader(leader._handles)
        for at, header in headers_in(read(segment.size, 0)):
            place = LogPosition(header.base_offset, segment.base_offset, at)
            places |= dict.fromkeys(range(header.base_offset, header.next_offset), place)
    assert {offset: leader.position_at(offset) for offset in places} == places
    assert leader.position_at(leader.end_offset) == leader.written
    assert leader.position_at(leader.end_offset + 1) == leader.written


def test_a_position_in_a_gap_is_that_of_the_next_batch(follower: Log) -> None:
    first = batch_at(0)
    take(follower, first + batch_at(10))
    follower.write()
    assert follower.position_at(5) == LogPosition(5, 0, len(first))
    assert follower.read(0, 1000, follower.position_at(5), cached_only=False) == first


def test_a_position_knows_nothing_of_what_is_queued(follower: Log) -> None:
    append_many(follower, 2)
    append(follower)
    assert follower.position_at(2) == follower.position_at(3) == follower.written


# ------------------------------------------------------------------------------- starting anew


def test_a_log_that_restarts_is_empty_and_goes_on_from_there(disk: MemoryDisk, leader: Log) -> None:
    sync(leader, disk)
    leader.restart_at(1000, NOW_MS)
    assert (leader.start_offset, leader.end_offset, leader.size_bytes) == (1000, 1000, 0)
    assert (leader.latest_epoch, leader.producer_ids()) == (NO_EPOCH, [])
    data = batch_at(1000, epoch=9) + batch_at(1004, epoch=9)
    take(leader, data)
    leader.write()
    check_replica(leader, data)
    names = [name for name in disk.list("/data/t-0") if name.endswith((".log", ".snapshot"))]
    assert names == ["00000000000000001000.log"]


def test_an_empty_log_that_restarted_begins_there_after_a_stop(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    log.restart_at(1000, NOW_MS)
    log.close()
    assert open_log(disk).end_offset == 1000


def test_producers_that_a_restart_forgets_may_begin_anywhere(disk: MemoryDisk) -> None:
    """What they sent meanwhile went to the leader, and retention has taken it."""
    log = open_log(disk)
    send(log, 0)
    log.write()
    log.restart_at(1000, NOW_MS)
    assert send(log, 40).base_offset == 1000


def test_a_log_that_begins_within_a_batch_is_told_where_that_begins(follower: Log) -> None:
    follower.restart_at(12, NOW_MS)
    data = batch_at(10, count=5) + batch_at(15)
    with pytest.raises(BatchBeginsEarlier) as caught:
        take(follower, data)
    follower.restart_at(caught.value.base_offset, NOW_MS)
    assert take(follower, data) == len(data)
    follower.write()
    shorten(follower, MemoryDisk(), 12)
    assert given_to_replicas(follower, 12) == data
    assert follower.start_offset == 12


def test_a_log_with_batches_takes_none_that_begins_earlier(follower: Log) -> None:
    take(follower, batch_at(10))
    with pytest.raises(CorruptBatch) as caught:
        take(follower, batch_at(9, count=5))
    assert not isinstance(caught.value, BatchBeginsEarlier)


# -------------------------------------------------------------------------- disks that fail


def reopened(log: Log, disk: MemoryDisk) -> Log:
    disk.heal()
    with pytest.raises(StorageFailed):
        append(log)
    return log.reopen(NOW_MS)


@pytest.mark.parametrize("operation", ["truncate", "sync", "remove", "write"])
def test_a_truncation_that_fails_is_completed_by_opening_the_log_again(
    disk: MemoryDisk, leader: Log, operation: str
) -> None:
    sync(leader, disk)
    whole = given_to_replicas(leader)
    disk.fail(operation)
    try:
        leader.truncate(12, NOW_MS)
    except OSError:
        leader = reopened(leader, disk)
    disk.heal()
    assert leader.corruption is None
    data = b"".join(
        whole[at : at + header.size] for at, header in headers_in(whole) if header.next_offset <= 12
    )
    check_replica(leader, data)


@pytest.mark.parametrize("operation", ["sync", "remove", "write"])
def test_a_restart_that_fails_is_completed_by_opening_the_log_again(
    disk: MemoryDisk, leader: Log, operation: str
) -> None:
    sync(leader, disk)
    disk.fail(operation)
    try:
        leader.restart_at(1000, NOW_MS)
    except OSError:
        leader = reopened(leader, disk)
    disk.heal()
    assert leader.corruption is None
    assert (leader.start_offset, leader.end_offset) == (1000, 1000)
    take(leader, batch_at(1000, epoch=9))
    leader.write()
    check_replica(leader, batch_at(1000, epoch=9))


# ------------------------------------------------------------------------- where to truncate


def test_a_follower_cuts_what_its_leader_never_had(disk: MemoryDisk) -> None:
    """KIP-101: epoch by epoch, and each where it ends first."""
    log = open_log(disk)
    for epoch, start, count in ((1, 0, 10), (3, 10, 5), (6, 15, 5)):
        take(log, batch_at(start, epoch=epoch, count=count))
    asked = [(6, 17), (6, 40), (3, 12), (3, 99), (5, 14), (2, 99), (1, 4), (0, 0)]
    cuts = [17, 20, 12, 15, 14, 10, 4, 0]
    assert [log.cut_for(LeaderEpoch(epoch), end) for epoch, end in asked] == cuts


def test_no_cut_lies_before_the_start(disk: MemoryDisk) -> None:
    log = open_log(disk)
    take(log, batch_at(0, epoch=1, count=10))
    log.write()
    log.delete_before(5)
    assert log.cut_for(LeaderEpoch(0), 0) == 5


def test_an_empty_log_has_no_last_epoch(follower: Log) -> None:
    assert follower.last_batch_epoch == NO_EPOCH
    follower.start_epoch(3)
    assert follower.last_batch_epoch == NO_EPOCH
    append(follower, epoch=3)
    assert follower.last_batch_epoch == 3


def test_the_control_batches_of_a_leader_come_along(disk: MemoryDisk, follower: Log) -> None:
    marker = make_batch(producer_id=7, producer_epoch=1, is_control=True, is_transactional=True)
    header = read_header(marker)._replace(base_offset=0, leader_epoch=0)
    data = bytes(seal_batch(header, marker[BATCH_HEADER_BYTES:]))
    take(follower, data)
    follower.write()
    check_replica(follower, data)
    assert struct.unpack_from(">h", given_to_replicas(follower), 21)[0] & 0x20
