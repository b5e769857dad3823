"""The state of disks and logs: room, syncs, retention, compaction, scrubbing, damage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ottla.broker.counters import Metrics
from ottla.gateway.prometheus import Sample

if TYPE_CHECKING:
    from ottla.broker.storage.compaction import CompactionChore
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.partitions import Partitions
    from ottla.broker.storage.retention import RetentionChore
    from ottla.broker.storage.scrub import ScrubChore
    from ottla.broker.storage.stores import Store
    from ottla.log.handles import Handles


class Snapshots(Protocol):
    last_run_ms: int


@dataclass(slots=True)
class Storage:
    """Whose state is read at every scrape."""

    stores: Iterable[Store]
    partitions: Partitions
    metadata: Partition
    handles: Handles
    snapshots: Snapshots
    retention: RetentionChore
    compaction: CompactionChore
    scrub: ScrubChore
    recovery_s: float
    was_clean: bool


def register_storage_gauges(metrics: Metrics, storage: Storage) -> None:
    _register_directories(metrics, storage)
    _register_logs(metrics, storage)
    _register_retention(metrics, storage.retention)
    _register_compaction(metrics, storage.compaction)
    _register_scrub(metrics, storage.scrub)


def _register_directories(metrics: Metrics, storage: Storage) -> None:
    def each(read: Callable[[Store], float]) -> Callable[[], Iterator[Sample]]:
        return lambda: (((store.path,), read(store)) for store in storage.stores)

    def online(read: Callable[[Store], float]) -> Callable[[], Iterator[Sample]]:
        """What nobody knows of a directory that is offline has no series."""
        return lambda: (((s.path,), read(s)) for s in storage.stores if s.is_online)

    for name, help, samples in (
        (
            "ottla_directory_online",
            "1 while a data directory is in use, 0 after its disk has failed.",
            each(lambda store: int(store.is_online)),
        ),
        (
            "ottla_disk_total_bytes",
            "Size of the file system of a data directory.",
            online(lambda store: store.total_bytes),
        ),
        (
            "ottla_disk_free_bytes",
            "Bytes that the broker may still write there, measured once a minute.",
            online(lambda store: store.usable_bytes),
        ),
        (
            "ottla_disk_stalled_seconds",
            "For how long the write or sync that is under way has been waiting for the disk.",
            online(lambda store: max(flusher.stalled_s for flusher in store.flushers)),
        ),
        (
            "ottla_disk_waiting_bytes",
            "Bytes that wait to be written or synced.",
            online(lambda store: sum(flusher.waiting_bytes for flusher in store.flushers)),
        ),
    ):
        metrics.gauge(name, help, samples, ("directory",))
    metrics.gauge(
        "ottla_log_sync_failures_total",
        "Group commits that failed; what they were to make durable is fenced.",
        each(lambda store: sum(flusher.failed_syncs for flusher in store.flushers)),
        ("directory",),
        kind="counter",
    )


def _register_logs(metrics: Metrics, storage: Storage) -> None:
    partitions = storage.partitions

    def messages() -> Iterator[Sample]:
        for topic, here in partitions.by_topic().items():
            held = (p.high_watermark.offset - p.start_offset for p in here.values())
            yield (topic,), sum(held)

    metrics.gauge(
        "ottla_log_offsets",
        "Offsets between the start of a topic's logs and their high watermarks.",
        messages,
        ("topic",),
    )
    for name, help, read in (
        (
            "ottla_partitions_corrupt",
            "Partitions that are fenced because their files are damaged.",
            lambda: sum(partition.is_damaged for partition in partitions),
        ),
        (
            "ottla_metadata_log_size_bytes",
            "Bytes of the metadata log, without its snapshots.",
            lambda: storage.metadata.size_bytes,
        ),
        (
            "ottla_metadata_snapshot_last_timestamp_seconds",
            "When a snapshot of the metadata was last written by this process; 0 is never.",
            lambda: storage.snapshots.last_run_ms / 1000,
        ),
        (
            "ottla_log_open_files",
            "Files of logs that are kept open.",
            lambda: len(storage.handles),
        ),
        (
            "ottla_recovery_seconds",
            "How long it took to open the logs of all partitions at the start.",
            lambda: storage.recovery_s,
        ),
        (
            "ottla_clean_start",
            "1 when every data directory had been left by a clean stop.",
            lambda: int(storage.was_clean),
        ),
    ):
        metrics.value(name, help, read)


def _register_retention(metrics: Metrics, retention: RetentionChore) -> None:
    metrics.value(
        "ottla_retention_last_run_timestamp_seconds",
        "When retention last went round; 0 is never.",
        lambda: retention.last_run_ms / 1000,
    )
    metrics.count(
        "ottla_retention_deleted_bytes_total",
        "Bytes of segments that retention or DeleteRecords removed.",
        lambda: retention.bytes_deleted,
    )
    metrics.count(
        "ottla_retention_deleted_segments_total",
        "Segments that retention or DeleteRecords removed.",
        lambda: retention.segments_deleted,
    )


def _register_compaction(metrics: Metrics, compaction: CompactionChore) -> None:
    def dirtiest() -> Iterator[Sample]:
        largest: dict[str, float] = {}
        for partition, ratio in compaction.ratios.items():
            largest[partition.topic] = max(ratio, largest.get(partition.topic, 0.0))
        return (((topic,), ratio) for topic, ratio in largest.items())

    metrics.gauge(
        "ottla_log_dirty_ratio",
        "Share of the bytes of a compacted topic's dirtiest log that is still to be compacted.",
        dirtiest,
        ("topic",),
    )
    for name, help, read in (
        (
            "ottla_compaction_last_run_timestamp_seconds",
            "When compaction last went round; 0 is never.",
            lambda: compaction.last_run_ms / 1000,
        ),
        (
            "ottla_compaction_given_up",
            "Logs that cannot be compacted: they are damaged, or the key map is too small.",
            lambda: len(compaction.given_up),
        ),
    ):
        metrics.value(name, help, read)
    for name, help, read in (
        (
            "ottla_compaction_logs_total",
            "Logs that were compacted.",
            lambda: compaction.logs_cleaned,
        ),
        (
            "ottla_compaction_cleaned_bytes_total",
            "Dirty bytes that were compacted.",
            lambda: compaction.bytes_cleaned,
        ),
        (
            "ottla_compaction_freed_bytes_total",
            "Bytes by which compaction made logs smaller.",
            lambda: compaction.bytes_freed,
        ),
    ):
        metrics.count(name, help, read)


def _register_scrub(metrics: Metrics, scrub: ScrubChore) -> None:
    metrics.value(
        "ottla_scrub_progress_ratio",
        "How much of the current pass over all logs is done; 1 while none is under way.",
        lambda: scrub.progress,
    )
    metrics.value(
        "ottla_scrub_last_pass_timestamp_seconds",
        "When a pass over all logs was last finished; 0 is never since the start.",
        lambda: scrub.last_full_pass_ms / 1000,
    )
    metrics.count(
        "ottla_scrub_read_bytes_total",
        "Bytes of log whose CRC was checked.",
        lambda: scrub.bytes_read,
    )
    metrics.count(
        "ottla_scrub_corruptions_total",
        "Damaged places that were found.",
        lambda: scrub.corruptions_found,
    )
