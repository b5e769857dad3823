"""What the metrics page says of disks that are offline, stalled, or have failed a sync."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from ottla.broker.counters import Metrics
from ottla.broker.metrics.storage_gauges import Storage, register_storage_gauges
from ottla.types import TopicPartition
from records_kit import NOW_MS, batch
from unit.broker.test_group_commit import Waiter, a_house
from unit.broker.test_metrics import scrape, value


def flusher(**figures: float) -> Any:
    return SimpleNamespace(**{"stalled_s": 0.0, "waiting_bytes": 0, "failed_syncs": 0, **figures})


def store(path: str, *flushers: Any, is_online: bool = True) -> Any:
    pair = flushers or (flusher(), flusher())
    return SimpleNamespace(
        path=path, is_online=is_online, total_bytes=1000, usable_bytes=250, flushers=pair
    )


def page_of(*stores: Any, **parts: Any) -> Any:
    metrics = Metrics()
    given: dict[str, Any] = {
        "stores": stores,
        "partitions": MagicMock(),
        "metadata": MagicMock(),
        "handles": (),
        "snapshots": SimpleNamespace(last_run_ms=0),
        "retention": SimpleNamespace(last_run_ms=0, bytes_deleted=0, segments_deleted=0),
        "compaction": SimpleNamespace(
            ratios={}, last_run_ms=0, given_up={}, logs_cleaned=0, bytes_cleaned=0, bytes_freed=0
        ),
        "scrub": SimpleNamespace(
            progress=1.0, last_full_pass_ms=0, bytes_read=0, corruptions_found=0
        ),
        "recovery_s": 1.5,
        "was_clean": True,
        **parts,
    }
    given["metadata"].size_bytes = 0
    register_storage_gauges(metrics, Storage(**given))
    return scrape(metrics)


def test_a_directory_that_is_offline_is_told_and_its_room_is_not_known() -> None:
    page = page_of(store("/a"), store("/b", is_online=False))
    assert value(page, "ottla_directory_online", directory="/a") == 1
    assert value(page, "ottla_directory_online", directory="/b") == 0
    assert value(page, "ottla_disk_free_bytes", directory="/a") == 250
    known = {sample.labels["directory"] for sample in page["ottla_disk_free_bytes"].samples}
    assert known == {"/a"}


def test_a_directory_is_as_slow_as_its_slower_flusher() -> None:
    busy = flusher(stalled_s=0.5, waiting_bytes=10, failed_syncs=1)
    stuck = flusher(stalled_s=7.0, waiting_bytes=5, failed_syncs=2)
    page = page_of(store("/a", busy, stuck))
    assert value(page, "ottla_disk_stalled_seconds", directory="/a") == 7.0
    assert value(page, "ottla_disk_waiting_bytes", directory="/a") == 15
    assert value(page, "ottla_log_sync_failures_total", directory="/a") == 3


def test_a_topic_is_as_dirty_as_its_dirtiest_log() -> None:
    ratios = {TopicPartition("t", 0): 0.25, TopicPartition("t", 1): 0.75}
    compaction = SimpleNamespace(
        ratios={**ratios, TopicPartition("u", 0): 0.0},
        last_run_ms=2000,
        given_up={TopicPartition("t", 0): "why"},
        logs_cleaned=1,
        bytes_cleaned=2,
        bytes_freed=3,
    )
    page = page_of(compaction=compaction)
    assert value(page, "ottla_log_dirty_ratio", topic="t") == 0.75
    assert value(page, "ottla_log_dirty_ratio", topic="u") == 0.0
    assert value(page, "ottla_compaction_last_run_timestamp_seconds") == 2.0
    assert value(page, "ottla_compaction_given_up") == 1


def test_a_sync_that_fails_is_counted_and_one_that_does_not_is_not() -> None:
    async def story() -> None:
        async with a_house() as house:
            partition, waiter = house.partition(), Waiter()
            for failures in (0, 1):
                if failures:
                    house.disk.fail("sync", errno.EIO)
                appended = partition.append(batch(b"x"), NOW_MS)
                partition.wait_committed(appended.end_offset, waiter, "x")
                told = await waiter.told_about(failures + 1)
                assert (told[-1][1] is not None) == bool(failures)
                assert house.flusher.failed_syncs == failures

    asyncio.run(asyncio.wait_for(story(), 20))
