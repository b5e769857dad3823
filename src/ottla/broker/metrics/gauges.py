"""What is read off the broker's state at every scrape, instead of being counted."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ottla.broker.counters import Metrics
from ottla.broker.metrics.cluster_gauges import register_cluster_gauges
from ottla.broker.metrics.replication_gauges import register_replication_gauges
from ottla.broker.metrics.transaction_gauges import register_transaction_gauges
from ottla.broker.network.connection import Connections
from ottla.broker.services import Services
from ottla.types import METADATA_TOPIC


def register_gauges(metrics: Metrics, services: Services, connections: Connections) -> None:
    partitions = services.partitions

    def log_bytes() -> Iterator[tuple[tuple[str, ...], int]]:
        for topic, here in partitions.by_topic().items():
            yield (topic,), sum(partition.size_bytes for partition in here.values())

    def segments() -> Iterator[tuple[tuple[str, ...], int]]:
        for topic, here in partitions.by_topic().items():
            yield (topic,), sum(partition.segment_count for partition in here.values())

    def lag() -> Iterator[tuple[tuple[str, ...], int]]:
        for group, topic, index, offset in services.groups.committed_offsets():
            partition = (partitions.in_topic(topic) or {}).get(index)
            if partition is not None:
                lag = max(0, partition.high_watermark.offset - offset)
                yield (group, topic, str(index)), lag

    def unreadable() -> Iterator[tuple[tuple[str, ...], int]]:
        yield (METADATA_TOPIC,), services.controller.unreadable_records
        for service in (services.groups, services.transactions):
            yield (service.topic,), sum(each.unreadable_records for each in service.shards())

    register_transaction_gauges(metrics, services)
    metrics.gauge(
        "ottla_unreadable_records",
        "Records of internal topics that were passed over when these were read.",
        unreadable,
        ("topic",),
    )
    started_s = services.clock.wall_ms() / 1000
    metrics.gauge(
        "ottla_info", "Always 1; what runs here.", lambda: [((_version(),), 1)], ("version",)
    )
    metrics.value(
        "ottla_started_timestamp_seconds", "When this process began to listen.", lambda: started_s
    )
    metrics.gauge("ottla_log_size_bytes", "Bytes of log on disk.", log_bytes, ("topic",))
    metrics.gauge("ottla_log_segments", "Segment files.", segments, ("topic",))
    metrics.gauge(
        "ottla_group_lag",
        "Messages between a group's committed offset and the high watermark.",
        lag,
        ("group", "topic", "partition"),
    )
    register_replication_gauges(
        metrics, partitions, services.metadata, services.throttles, services.clock
    )
    register_cluster_gauges(metrics, services)
    metrics.value(
        "ottla_connections", "Open client connections.", lambda: len(connections.connections)
    )
    metrics.value(
        "ottla_requests_in_flight_bytes",
        "Memory of requests that are not answered yet, and of those that are still arriving.",
        lambda: connections.held_bytes,
    )
    metrics.value("ottla_partitions", "Partitions here.", lambda: sum(1 for _ in partitions))
    metrics.value(
        "ottla_partitions_failing",
        "Partitions whose writes the disk refuses.",
        lambda: len(partitions.failing()),
    )
    metrics.value(
        "ottla_fetch_sessions", "Fetch sessions remembered.", lambda: len(services.fetch_sessions)
    )


@functools.cache
def _version() -> str:
    """Looked up by the first scrape; a start need not wait for it."""
    from importlib.metadata import version

    return version("ottla")
