"""Which segments may go: the three rules, one by one and together."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ottla.log.log import LogConfig
from ottla.log.retention import FOR_EVER, Extent, Limits, count_expired, extents, start_without
from ottla.testing.disks import MemoryDisk
from unit.log.house import NOW_MS, append_many, make_batch, open_log, shorten, sync
from unit.log.retention_rules import Rules

HOUR_MS = 3_600_000


def of_sizes(*sizes: int) -> list[Extent]:
    """Segments of ten offsets each."""
    return [Extent(10 * at, 10 * at + 10, size) for at, size in enumerate(sizes)]


def expired(
    log: Sequence[Extent],
    limits: Limits,
    *,
    ages_ms: Sequence[int] = (),
    start: int = 0,
    high_watermark: int | None = None,
) -> int:
    committed = log[-1].next_base if high_watermark is None else high_watermark
    ages = ages_ms or [0] * len(log)
    return count_expired(log, limits, start, committed, NOW_MS, lambda at: NOW_MS - ages[at])


def test_nothing_goes_that_is_to_be_kept_for_ever() -> None:
    log = of_sizes(100, 100, 100)
    assert expired(log, Limits(), ages_ms=[10**12] * 3) == 0


def test_a_segment_goes_when_its_youngest_record_is_too_old() -> None:
    log = of_sizes(100, 100, 100)
    limits = Limits(retention_ms=HOUR_MS)
    assert expired(log, limits, ages_ms=[HOUR_MS + 1, HOUR_MS, 0]) == 1


def test_an_old_segment_after_a_young_one_stays() -> None:
    log = of_sizes(100, 100, 100)
    assert expired(log, Limits(retention_ms=5), ages_ms=[0, 100, 100]) == 0


def test_the_segment_being_written_to_goes_when_it_is_too_old() -> None:
    assert expired(of_sizes(100, 100), Limits(retention_ms=5), ages_ms=[6, 6]) == 2


def test_an_empty_last_segment_stays_however_old() -> None:
    assert expired(of_sizes(100, 0), Limits(retention_ms=5), ages_ms=[6, 6]) == 1
    assert expired(of_sizes(0), Limits(retention_ms=5, retention_bytes=0), ages_ms=[6]) == 0


@pytest.mark.parametrize(
    ("kept_bytes", "count"), [(301, 0), (300, 0), (201, 0), (200, 1), (100, 2), (1, 2), (0, 3)]
)
def test_segments_go_while_enough_is_left_without_them(kept_bytes: int, count: int) -> None:
    """As in Kafka: a partition keeps at least `retention.bytes`, and up to a segment more."""
    assert expired(of_sizes(100, 100, 100), Limits(retention_bytes=kept_bytes)) == count


def test_nothing_at_or_behind_the_high_watermark_goes() -> None:
    log = of_sizes(100, 100, 100)
    limits = Limits(retention_ms=0, retention_bytes=0)
    ages = [50, 50, 50]
    assert expired(log, limits, ages_ms=ages, high_watermark=9) == 0
    assert expired(log, limits, ages_ms=ages, high_watermark=10) == 1
    assert expired(log, limits, ages_ms=ages, high_watermark=29) == 2
    assert expired(log, limits, ages_ms=ages, high_watermark=30) == 3


def test_without_the_policy_to_delete_only_the_start_counts() -> None:
    log = of_sizes(100, 100, 100)
    limits = Limits(deletes=False, retention_ms=0, retention_bytes=0)
    assert expired(log, limits, ages_ms=[50, 50, 50]) == 0
    assert expired(log, limits, ages_ms=[50, 50, 50], start=20) == 2
    assert expired(log, limits, ages_ms=[50, 50, 50], start=30) == 2


def test_time_goes_on_where_size_has_stopped() -> None:
    """A young segment that goes by its size does not protect old ones after it."""
    limits = Limits(retention_ms=5, retention_bytes=200)
    assert expired(of_sizes(100, 100, 100), limits, ages_ms=[0, 6, 0]) == 2


def test_no_more_timestamps_are_asked_for_than_needed() -> None:
    asked = []

    def youngest_ms(at: int) -> int:
        asked.append(at)
        return NOW_MS

    log = of_sizes(100, 100, 100)
    count_expired(log, Limits(retention_ms=5, retention_bytes=200), 0, 30, NOW_MS, youngest_ms)
    assert asked == [1]
    count_expired(log, Limits(retention_ms=FOR_EVER), 0, 30, NOW_MS, youngest_ms)
    assert asked == [1]


def test_the_start_moves_to_the_next_segment_and_never_back() -> None:
    log = of_sizes(100, 100)
    assert [start_without(log, gone, 13) for gone in (0, 1, 2)] == [13, 13, 20]
    assert [start_without(log, gone, 3) for gone in (0, 1, 2)] == [3, 10, 20]


@settings(max_examples=300)
@given(data=st.data())
def test_any_log_loses_what_the_rules_say(data: st.DataObject) -> None:
    log = of_sizes(*data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6)))
    ages = [data.draw(st.integers(0, 4)) for _ in log]
    end = log[-1].next_base
    committed = data.draw(st.integers(0, end))
    start = data.draw(st.integers(0, committed))
    limits = Limits(
        data.draw(st.booleans()), data.draw(st.integers(-1, 4)), data.draw(st.integers(-1, 12))
    )
    sizes = [extent.size for extent in log]
    ends = [extent.next_base for extent in log]
    rules = Rules(list(zip(ends, sizes, ages, strict=True)), committed)
    rules.by_start(start)
    if limits.deletes:
        rules.by_size(limits.retention_bytes)
        rules.by_age(limits.retention_ms)
    gone = expired(log, limits, ages_ms=ages, start=start, high_watermark=committed)
    assert gone == len(log) - len(rules.left)
    assert start <= start_without(log, gone, start) <= max(start, committed)


# ------------------------------------------------------------------------- what a log tells of it


def test_a_segment_is_as_young_as_its_youngest_batch_also_after_a_restart(
    disk: MemoryDisk,
) -> None:
    config = LogConfig(segment_bytes=3 * len(make_batch()))
    log = open_log(disk, config)
    for timestamp in (5, 70, 6, 7, 8, 9, 300, 10):
        append_many(log, 1, timestamps=[NOW_MS + timestamp])
    found = [log.youngest_ms(segment) - NOW_MS for segment in log.segments]
    assert found == [70, 9, 300]
    log.close()
    log = open_log(disk, config)
    assert [log.youngest_ms(segment) - NOW_MS for segment in log.segments] == found
    assert extents(log.segments, log.end_offset)[-1] == (6, 8, 2 * len(make_batch()))


def test_batches_without_a_time_are_as_young_as_their_file(disk: MemoryDisk) -> None:
    config = LogConfig(segment_bytes=2 * len(make_batch()))
    log = open_log(disk, config)
    for disk.now_ms in (10, 20, 30):
        append_many(log, 1, timestamps=[-1])
    assert [log.youngest_ms(segment) for segment in log.segments] == [20, 30]
    disk.now_ms = 40
    log.close()
    log = open_log(disk, config)
    assert [log.youngest_ms(segment) for segment in log.segments] == [20, 30]


def test_a_segment_begun_on_request_is_what_is_left_of_a_log(disk: MemoryDisk) -> None:
    """Its name tells where the log goes on, without a checkpoint."""
    log = open_log(disk)
    append_many(log, 10)
    log.roll(NOW_MS)
    log.write()
    sync(log, disk)
    shorten(log, disk, 10)
    assert (log.segment_count, log.size_bytes, log.start_offset) == (1, 0, 10)
    for clean in (False, True):
        log.close()
        log = open_log(disk, clean=clean)
        assert (log.start_offset, log.end_offset) == (10, 10)
    append_many(log, 1)
    assert log.end_offset == 11


def test_a_roll_of_nothing_is_none(disk: MemoryDisk) -> None:
    log = open_log(disk)
    append_many(log, 3)
    for _ in range(3):
        log.roll(NOW_MS)
        log.write()
    assert log.segment_count == 2


def test_a_look_up_goes_on_when_a_segment_leaves_under_its_eyes(disk: MemoryDisk) -> None:
    log = open_log(disk, LogConfig(segment_bytes=2 * len(make_batch())))
    for timestamp in range(6):
        append_many(log, 1, timestamps=[NOW_MS + timestamp])
    sync(log, disk)
    for segment in log.segments[:-1]:
        # Its indexes are files: it says its largest timestamp by opening one.
        segment.__dict__ if hasattr(segment, "__dict__") else None
    log.close()
    log = open_log(disk, LogConfig(segment_bytes=2 * len(make_batch())))
    opened, moved = disk.open, []

    def open_late(path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
        if not moved:
            moved.append(path)
            shorten(log, disk, 2)
        return opened(path, create=create)

    disk.open = open_late  # type: ignore[method-assign]
    assert log.first_at_or_after(NOW_MS, log.written) == (2, NOW_MS + 2, 0)
    assert moved
