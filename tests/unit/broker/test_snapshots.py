"""The metadata log is cut behind snapshots, and nobody ever misses what was cut."""

from __future__ import annotations

import asyncio
import itertools
from random import Random
from typing import Any

import pytest

from ottla.broker.control.runtime import UNREADABLE_NAMED_MAX
from ottla.broker.control.snapshots import (
    REPLAYED_BYTES_MIN,
    Growth,
    Kept,
    is_due,
    is_worth_a_start,
    to_keep,
)
from ottla.cluster.brokers import FIRST
from ottla.cluster.image import MetadataImage
from ottla.cluster.snapshot_file import SnapshotId
from ottla.config import BrokerConfig
from ottla.errors import CannotStart, StorageFailed
from ottla.log.checkpoints import read_offsets
from ottla.testing.disks import MemoryDisk
from ottla.wire.compression import Compression
from ottla.wire.records import Record, encode_batch, read_header
from records_kit import forged
from unit.broker.metadata_node import DIRECTORY, NAME, NOW_MS, STARTS, Node, live, new_disk

DAY_MS = 86_400_000
EAGER = {
    "metadata.log.max.record.bytes.between.snapshots": "1",
    "log.segment.delete.delay.ms": "0",
}
SEEDS = 1
FRUGAL = {**EAGER, "metadata.max.retention.bytes": "0"}


# ------------------------------------------------------------------------------ when, and what

DEFAULTS = BrokerConfig()
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("growth", "expected"),
    [
        (Growth(new_bytes=0, snapshot_bytes=0, waited_ms=99 * DAY_MS), False),
        (Growth(new_bytes=20 * MIB - 1, snapshot_bytes=0, waited_ms=0), False),
        (Growth(new_bytes=20 * MIB, snapshot_bytes=0, waited_ms=0), True),
        (Growth(new_bytes=1, snapshot_bytes=0, waited_ms=3_599_999), False),
        (Growth(new_bytes=1, snapshot_bytes=0, waited_ms=3_600_000), True),
    ],
)
def test_a_snapshot_is_due_as_kafkas_settings_say(growth, expected):
    assert is_due(growth, DEFAULTS) is expected


def test_an_interval_of_zero_is_none():
    config = BrokerConfig.parse({"metadata.log.max.snapshot.interval.ms": "0"})
    assert not is_due(Growth(1, 0, 99 * DAY_MS), config)


def test_a_start_is_worth_a_snapshot_when_it_replays_much():
    assert not is_worth_a_start(Growth(REPLAYED_BYTES_MIN - 1, 0, 0))
    assert is_worth_a_start(Growth(REPLAYED_BYTES_MIN, 0, 0))
    assert not is_worth_a_start(Growth(MIB - 1, 4 * MIB, 0))
    assert is_worth_a_start(Growth(MIB, 4 * MIB, 0))


def kept(*ages_ms: int, size: int = MIB) -> list[Kept]:
    return [Kept(SnapshotId(n, 1), size, NOW_MS - age_ms) for n, age_ms in enumerate(ages_ms)]


def test_the_last_two_snapshots_are_kept():
    snapshots = kept(300, 200, 100)
    assert to_keep(snapshots, 0, NOW_MS, DEFAULTS) == snapshots[1:]
    assert to_keep(snapshots[:1], 10**12, NOW_MS, DEFAULTS) == snapshots[:1]


def test_one_is_kept_when_two_are_too_much_or_too_old():
    snapshots = kept(7 * DAY_MS + 1, 0)
    assert to_keep(snapshots, 0, NOW_MS, DEFAULTS) == snapshots[1:]
    snapshots = kept(7 * DAY_MS, 0)
    assert to_keep(snapshots, 98 * MIB, NOW_MS, DEFAULTS) == snapshots
    assert to_keep(snapshots, 98 * MIB + 1, NOW_MS, DEFAULTS) == snapshots[1:]
    for_ever = {"metadata.max.retention.bytes": "-1", "metadata.max.retention.ms": "-1"}
    assert to_keep(kept(10**15, 0), 10**15, NOW_MS, BrokerConfig.parse(for_ever))[0].id == (0, 1)


# ---------------------------------------------------------------------------------- a lifetime


async def a_busy_life(node: Node) -> None:
    """Each round of it changes something, takes a snapshot, and cuts the log."""
    await node.register()
    await node.create("a", 3, retention_ms="7")
    await node.snapshots.run()
    await node.ask("new_producer_id")
    await node.create("b", 2)
    await node.delete("a")
    await node.snapshots.run()
    await node.create("a", 1, segment_ms="9")
    await node.snapshots.run()
    await node.create("c")
    await node.snapshots.run()
    await node.create("d")
    # The files that were set aside go a turn later.
    await asyncio.sleep(0.001)


def test_the_log_is_cut_behind_the_older_of_two_snapshots():
    async def story():
        node = Node(new_disk(), EAGER, clean=True)
        await node.start()
        await a_busy_life(node)
        assert len(node.checkpoints()) == 2
        older, newer = (SnapshotId.of_name(name) for name in node.checkpoints())
        assert node.partition.start_offset == older.end_offset
        assert read_offsets(node.disk, STARTS) == {NAME: older.end_offset}
        assert node.partition.end_offset > newer.end_offset
        logs = [name for name in node.files() if name.endswith(".log")]
        assert logs == [f"{id.end_offset:020d}.log" for id in (older, newer)]
        await node.shortener.close()
        assert not [name for name in node.files() if name.endswith(".deleted")]

    live(story)


def test_a_start_reads_the_snapshot_and_what_is_behind_it():
    async def story():
        disk = new_disk()
        node = Node(disk, EAGER, clean=True)
        await node.start()
        await a_busy_life(node)
        node.stop()
        again = Node(disk, EAGER, clean=True)
        await again.start(epoch=2)
        assert again.cache.image == again.controller.machine.image == node.acknowledged
        assert set(again.cache.image.topics_by_name) == {"a", "b", "c", "d"}
        assert again.cache.image.next_producer_id == 1000
        assert again.cache.topic_config("a").segment_ms == 9
        # One record, the last: all before it is in the snapshot.
        assert 0 < again.controller.replayed_bytes < 400
        assert await again.ask("new_producer_id") == 1000

    live(story)


def test_a_failed_append_rebuilds_the_controller_from_the_snapshot():
    async def story():
        node = Node(new_disk(), FRUGAL, clean=True)
        await node.start()
        await a_busy_life(node)
        before = node.acknowledged
        assert node.partition.start_offset > 0
        node.disk.fail("write")
        with pytest.raises(Exception, match="refused"):
            await node.create("lost")
        await node.controller.start_loading()
        assert node.cache.image == node.controller.machine.image == before
        await node.create("found")
        assert node.cache.image == node.controller.machine.image != before

    live(story)


def test_nothing_new_means_no_new_snapshot():
    async def story():
        node = Node(new_disk(), EAGER, clean=True)
        await node.start()
        await node.register()
        await node.snapshots.run()
        checkpoints, operations = node.checkpoints(), node.disk.operations
        for _ in range(5):
            node.clock.ms += DAY_MS
            await node.snapshots.run()
        assert (node.checkpoints(), node.disk.operations) == (checkpoints, operations)

    live(story)


def test_a_round_on_a_full_disk_does_no_harm_and_the_next_one_works(caplog):
    async def story():
        node = Node(new_disk(), EAGER, clean=True)
        await node.start()
        await node.register()
        await node.snapshots.run()
        await node.create("a")
        node.disk.fail("create", times=2)
        before = node.files()
        await node.snapshots.run()
        assert "no snapshot of the metadata for now" in caplog.text
        assert node.snapshots.pause_s > 10
        assert node.files() == before
        node.disk.heal()
        await node.snapshots.run()
        assert node.snapshots.pause_s < 10
        assert len(node.checkpoints()) == 2

    live(story)


@pytest.mark.parametrize("changes", [1, 3, 12, 1_000])
def test_what_changes_while_it_is_copied_is_copied_again(monkeypatch, changes):
    monkeypatch.setattr("ottla.cluster.snapshot.COPIED_PER_STEP", 1)

    async def story():
        node = Node(new_disk(), EAGER, clean=True)
        await node.start()
        await node.register()
        for number in range(10):
            await node.create(f"t{number}")
        taking = asyncio.ensure_future(node.snapshots.take())
        asked = []
        while not taking.done():
            # Without waiting for it: the log is ahead of what is committed.
            if len(asked) < changes:
                asked.append(asyncio.ensure_future(node.ask("raise_leader_epochs", 1, FIRST)))
            await asyncio.sleep(0)
        await taking
        await asyncio.gather(*asked)
        found = node.snapshots.newest()
        told = [node.controller._decode(batch, 0)[1] for batch in found.batches]
        assert fold_of(told, found.end_offset) == fold_of(whole_log(node), found.end_offset)

    live(story)


def whole_log(node: Node) -> list[list[tuple[Any, int, int]]]:
    chunks, offset = [], 0
    while offset < node.partition.high_watermark.offset:
        offset, records = node.controller._read_chunk(offset)
        chunks.append(records)
    return chunks


def fold_of(chunks: list[list[tuple[Any, int, int]]], end_offset: int) -> MetadataImage:
    image = MetadataImage()
    for record, offset, _ in itertools.chain(*chunks):
        if offset < end_offset:
            image.apply(record)
    return image


def test_twenty_starts_do_not_make_the_next_one_longer(monkeypatch):
    """Each start writes a record for every partition: 4 kB here, and a snapshot has 8 kB."""
    monkeypatch.setattr("ottla.broker.control.snapshots.REPLAYED_BYTES_MIN", 5_000)

    async def story():
        disk, sizes, replayed = new_disk(), [], []
        for number in range(20):
            node = Node(disk, {}, clean=True)
            await node.start(epoch=number + 1)
            replayed.append(node.controller.replayed_bytes)
            await node.register()
            if not number:
                await node.create("many", 100)
            await node.snapshots.finish()
            await node.shortener.close()
            node.stop()
            sizes.append(sum(size for _, size in disk.sizes(DIRECTORY)))
        assert node.cache.image.topics_by_name["many"].partitions[99].leader_epoch == 19
        assert max(replayed) < 10_000, replayed
        assert max(sizes) < 50_000, sizes

    live(story)


# ------------------------------------------------------------------------------------- damage


def damaged(disk: MemoryDisk, name: str) -> None:
    path = f"{DIRECTORY}/{name}"
    data = bytearray(disk.read_file(path))
    data[len(data) // 2] ^= 1
    disk.write_file(path, bytes(data))


@pytest.mark.parametrize("rounds", ["one", "many"])
def test_a_damaged_snapshot_is_passed_over_for_what_came_before(rounds, caplog):
    async def story():
        disk = new_disk()
        node = Node(disk, EAGER, clean=True)
        await node.start()
        if rounds == "one":
            await node.register()
            await node.create("a", 5)
            await node.snapshots.run()
        else:
            await a_busy_life(node)
        node.stop()
        newest = node.checkpoints()[-1]
        damaged(disk, newest)
        again = Node(disk, EAGER, clean=True)
        await again.start(epoch=2)
        assert again.cache.image == again.controller.machine.image == node.acknowledged
        assert caplog.text.count(f"{newest} is passed over") == 1
        # The next rounds take a new one, and the damaged file goes.
        await again.create("e")
        await again.snapshots.run()
        await again.create("f")
        await again.snapshots.run()
        again.stop()
        last = Node(disk, EAGER, clean=True)
        await last.start(epoch=3)
        assert last.cache.image == again.acknowledged
        assert newest not in last.checkpoints()

    live(story)


def test_without_any_whole_snapshot_a_cut_log_is_refused_and_left_alone():
    async def story():
        disk = new_disk()
        node = Node(disk, EAGER, clean=True)
        await node.start()
        await a_busy_life(node)
        node.stop()
        for name in node.checkpoints():
            damaged(disk, name)
        precious = [path for path in disk.paths() if path.endswith((".log", ".checkpoint"))]
        before = {path: disk.read_file(path) for path in precious}
        for has_start, clean in itertools.product((True, False), (True, False)):
            if not has_start:
                disk.remove(STARTS)
            with pytest.raises(CannotStart, match="it begins at offset") as refused:
                await Node(disk, EAGER, clean=clean).start()
            assert "\n" not in str(refused.value)
            assert {path: disk.read_file(path) for path in precious} == before

    live(story)


@pytest.mark.parametrize("kind", ["flipped", "shortened"])
def test_a_damaged_log_is_refused_and_left_alone(kind):
    async def story():
        disk = new_disk()
        node = Node(disk, EAGER, clean=True)
        await node.start()
        await a_busy_life(node)
        node.stop()
        path = max(path for path in disk.paths() if path.endswith(".log"))
        if kind == "flipped":
            damaged(disk, path.removeprefix(f"{DIRECTORY}/"))
        else:
            disk.write_file(path, disk.read_file(path)[:50])
        before = disk.read_file(path)
        again = Node(disk, EAGER, clean=False)
        again.recovery_point = node.partition.end_offset
        with pytest.raises(CannotStart, match="The metadata log is damaged") as refused:
            await again.start(epoch=2)
        assert DIRECTORY in str(refused.value)
        assert disk.read_file(path) == before

    live(story)


UNREADABLE = [
    encode_batch([Record(0, NOW_MS, None, b"\x09\x02\x00 a frame of tomorrow")]),
    encode_batch([Record(0, NOW_MS, None, b"\x01\x02\x63 a version of tomorrow")]),
    encode_batch([Record(0, NOW_MS, None, b"\x01"), Record(1, NOW_MS, None, b"")]),
    forged(b"no frame of zstd", 2, is_packed=Compression.ZSTD),
]


@pytest.mark.parametrize("data", UNREADABLE, ids=["frame", "version", "cut off", "codec"])
def test_what_cannot_be_read_is_passed_over_and_kept(data, caplog):
    async def story():
        disk = new_disk()
        node = Node(disk, EAGER, clean=True)
        await node.start()
        await node.register()
        await node.create("a")
        offset = node.partition.end_offset
        view = memoryview(bytearray(data))
        node.partition.append_own(view, read_header(view), NOW_MS)
        await node.create("b")
        node.stop()
        for epoch in (2, 3):
            again = Node(disk, EAGER, clean=True)
            await again.start(epoch)
            assert again.cache.image == again.controller.machine.image == node.acknowledged
            assert again.controller.unreadable_records == read_header(data).count
            told = f"{NAME}: what is at offset {offset} cannot be read and is passed over"
            assert caplog.text.count(told) == epoch - 1
            # A snapshot would leave it out, and the log be cut behind it.
            await again.snapshots.run()
            await again.snapshots.finish()
            assert not again.checkpoints()
            assert again.partition.start_offset == 0
            again.stop()

    live(story)


def test_only_the_first_that_cannot_be_read_are_named(caplog):
    async def story():
        disk = new_disk()
        node = Node(disk, EAGER, clean=True)
        await node.start()
        view = memoryview(encode_batch([Record(at, NOW_MS, None, b"\x63") for at in range(50)]))
        node.partition.append_own(view, read_header(view), NOW_MS)
        await node.controller.all_committed()
        node.stop()
        again = Node(disk, EAGER, clean=True)
        await again.start(epoch=2)
        assert caplog.text.count("is passed over") == UNREADABLE_NAMED_MAX
        assert caplog.text.count("50 records could not be read") == 1
        again.stop()

    live(story)


def test_a_runtime_whose_snapshot_is_gone_does_not_make_up_a_state():
    async def story():
        node = Node(new_disk(), EAGER, clean=True)
        await node.start()
        await a_busy_life(node)
        for name in node.checkpoints():
            node.disk.remove(f"{DIRECTORY}/{name}")
        with pytest.raises(StorageFailed, match="no snapshot tells"):
            await node.controller.load()

    live(story)


def test_a_log_that_ends_before_its_snapshot_goes_on_behind_it(caplog):
    """Its end is lost, but not what it said: offsets of the snapshot must not be used again."""

    async def story():
        disk = new_disk()
        node = Node(disk, EAGER, clean=True)
        await node.start()
        await a_busy_life(node)
        await node.snapshots.run()
        node.stop()
        end_offset = node.partition.end_offset
        for name in node.files():
            if not name.endswith(".checkpoint"):
                disk.remove(f"{DIRECTORY}/{name}")
        disk.write_file(f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n0\n")
        again = Node(disk, EAGER, clean=False)
        await again.start(epoch=2)
        assert again.cache.image == node.acknowledged
        assert again.partition.end_offset == end_offset
        await again.create("e")
        again.stop()
        last = Node(disk, EAGER, clean=True)
        await last.start(epoch=3)
        assert last.cache.image == again.acknowledged != node.acknowledged

    live(story)


# --------------------------------------------------------------------------------- power loss


def crash_after(operations: int, settings: dict[str, str], seed: str) -> bool:
    """Lives until the disk has done so much, and starts again; False when it was not reached."""
    disk = new_disk()
    node = Node(disk, settings, clean=True)

    async def first_life():
        await node.start()
        disk.lose_power_in(operations)
        await a_busy_life(node)
        return True

    if live(first_life):
        return False
    after = disk.after_crash(Random(seed))
    possible = [node.acknowledged, node.controller.machine.image]

    async def second_life():
        again = Node(after, settings, clean=False)
        await again.start(epoch=2)
        assert again.cache.image == again.controller.machine.image
        assert again.cache.image in possible, (operations, seed)
        await again.register()
        await again.create("later")
        await again.snapshots.run()
        await again.create("last")
        again.stop()
        once_more = Node(after, settings, clean=True)
        await once_more.start(epoch=3)
        assert once_more.cache.image == again.acknowledged, (operations, seed)
        return True

    assert live(second_life)
    return True


@pytest.mark.seconds(60)
@pytest.mark.parametrize("settings", [EAGER, FRUGAL], ids=["two-kept", "one-kept"])
def test_no_step_of_taking_and_cutting_can_lose_metadata(settings):
    for operations in itertools.count():
        outcomes = [crash_after(operations, settings, f"{operations}-{n}") for n in range(SEEDS)]
        if not any(outcomes):
            break
    assert operations > 50
