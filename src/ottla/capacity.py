"""How many brokers a workload needs: measured coefficients, and the arithmetic over them.

Nothing here was measured on more than one machine; what is assumed is named so, and
docs/capacity.md works through what follows. Sizes are decimal, as in the benchmark: 1 KB is 1000 B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.config import TOPIC_SETTINGS
from ottla.wire.records import BATCH_HEADER_BYTES

# Measured by `python -m bench quick`; that run is a line of docs/benchmarks/history.jsonl. Where
# its rows with and without a sync differ, the slower one counts.
MEASURED_ON: Final = "2026-11-15"
MEASURED_REVISION: Final = "e6fc43d"
MEASURED_BY: Final = "python -m bench quick"


class MessageCost(NamedTuple):
    """The broker's CPU time for one message of this size in full requests (1 MB)."""

    message_bytes: int
    produce_cpu_us: float
    consume_cpu_us: float


SMALL: Final = MessageCost(100, 0.135, 0.110)
LARGE: Final = MessageCost(1000, 1.925, 0.675)
# The smallest produce request at 16 connections, without and with a sync before the answer.
REQUEST_CPU_US: Final = 67.2
SYNCED_REQUEST_CPU_US: Final = 122.6
IDLE_RSS_BYTES: Final = 33_600_000
PARTITIONS_MEASURED_MAX: Final = 5000
PARTITION_RSS_BYTES: Final = (64_800_000 - IDLE_RSS_BYTES) // PARTITIONS_MEASURED_MAX
# `python -m bench flat --gb 20` on the same day: the highest anonymous memory above the idle one.
LOADED_RSS_BYTES: Final = 7_400_000
# RSS of a MetadataImage of 100,000 topics with ten partitions of three replicas on 600 brokers,
# per partition; the same day and machine, Python 3.11.7.
IMAGE_PARTITION_BYTES: Final = 328

# The formats': a record's varints and flags at their usual widths, and an entry of index and time
# index for every `index.interval.bytes`.
RECORD_OVERHEAD_BYTES: Final = 12
INDEX_ENTRY_BYTES: Final = 8 + 12
INDEX_INTERVAL_BYTES: Final[int] = TOPIC_SETTINGS["index.interval.bytes"].default
SEGMENT_BYTES: Final[int] = TOPIC_SETTINGS["segment.bytes"].default
SEGMENT_MS: Final[int] = TOPIC_SETTINGS["segment.ms"].default

# Assumed: how busy a broker may be, and how late a reader may come to be served from memory.
BUSY_SHARE_MAX: Final = 0.6
PAGE_CACHE_S: Final = 30


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of the cluster. Without `partitions` there are as few as will do."""

    messages_per_s: float
    message_bytes: int
    replication: int = 3
    retention_s: float = 7 * 86_400
    reads: int = 3
    topics: int = 1
    partitions: int | None = None
    batch_bytes: int = 64_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What it takes, for the whole cluster unless the name says otherwise."""

    brokers: int
    decided_by: str
    brokers_by_cpu: int
    brokers_by_partitions: int
    partitions: int
    replicas: int
    copies_written: int
    copies_read: int
    produce_cpu_us: float
    consume_cpu_us: float
    batches_per_s: float
    batch_fill_s: float
    cores_writing: float
    cores_reading: float
    cores_requests: float
    cores_busy: float
    wire_bytes_per_message: float
    wire_bytes_per_s: float
    stored_bytes_per_s: float
    network_in_bytes_per_s: float
    network_out_bytes_per_s: float
    disk_written_bytes_per_s: float
    disk_retained_bytes: float
    disk_open_segments_bytes: float
    disk_bytes: float
    broker_process_bytes: float
    broker_page_cache_bytes: float
    memory_bytes: float

    @property
    def busy_share(self) -> float:
        return self.cores_busy / self.brokers


class _Cpu(NamedTuple):
    produce_us: float
    consume_us: float
    batches_per_s: float
    writing: float
    reading: float
    requests: float


def plan(load: Workload) -> Plan:
    """The smallest cluster that the coefficients allow."""
    written, read = load.replication, load.replication - 1 + load.reads
    cpu = _cpu(load, written, read)
    busy = cpu.writing + cpu.reading + cpu.requests
    by_cpu = max(1, math.ceil(busy / BUSY_SHARE_MAX))
    partitions = load.partitions or max(load.topics, by_cpu)
    replicas = partitions * load.replication
    by_partitions = math.ceil(replicas / PARTITIONS_MEASURED_MAX)
    bounds = {"CPU": by_cpu, "partitions": by_partitions, "replication": load.replication}
    decided_by = max(bounds, key=lambda name: bounds[name])
    brokers = bounds[decided_by]

    header = BATCH_HEADER_BYTES * cpu.batches_per_s / load.messages_per_s
    wire = load.message_bytes + RECORD_OVERHEAD_BYTES + header
    wire_per_s = load.messages_per_s * wire
    stored_per_s = wire_per_s * (1 + INDEX_ENTRY_BYTES / INDEX_INTERVAL_BYTES)
    retained = stored_per_s * load.retention_s * written
    segment = min(SEGMENT_BYTES, stored_per_s / partitions * SEGMENT_MS / 1000)
    process = (
        IDLE_RSS_BYTES
        + LOADED_RSS_BYTES
        + replicas / brokers * PARTITION_RSS_BYTES
        + partitions * IMAGE_PARTITION_BYTES
    )
    page_cache = stored_per_s * written / brokers * PAGE_CACHE_S
    return Plan(
        brokers=brokers,
        decided_by=decided_by,
        brokers_by_cpu=by_cpu,
        brokers_by_partitions=by_partitions,
        partitions=partitions,
        replicas=replicas,
        copies_written=written,
        copies_read=read,
        produce_cpu_us=cpu.produce_us,
        consume_cpu_us=cpu.consume_us,
        batches_per_s=cpu.batches_per_s,
        batch_fill_s=partitions / cpu.batches_per_s,
        cores_writing=cpu.writing,
        cores_reading=cpu.reading,
        cores_requests=cpu.requests,
        cores_busy=busy,
        wire_bytes_per_message=wire,
        wire_bytes_per_s=wire_per_s,
        stored_bytes_per_s=stored_per_s,
        network_in_bytes_per_s=wire_per_s * written,
        network_out_bytes_per_s=wire_per_s * read,
        disk_written_bytes_per_s=stored_per_s * written,
        disk_retained_bytes=retained,
        disk_open_segments_bytes=segment * replicas,
        disk_bytes=retained + segment * replicas,
        broker_process_bytes=process,
        broker_page_cache_bytes=page_cache,
        memory_bytes=(process + page_cache) * brokers,
    )


def message_cpu_us(message_bytes: int) -> tuple[float, float]:
    """Produced and consumed: a line between the measured sizes, above them by the byte.

    A message below the smallest measured size counts as one of that size.
    """
    if message_bytes >= LARGE.message_bytes:
        share = message_bytes / LARGE.message_bytes
        return LARGE.produce_cpu_us * share, LARGE.consume_cpu_us * share
    beyond = max(0, message_bytes - SMALL.message_bytes)
    share = beyond / (LARGE.message_bytes - SMALL.message_bytes)
    return (
        SMALL.produce_cpu_us + share * (LARGE.produce_cpu_us - SMALL.produce_cpu_us),
        SMALL.consume_cpu_us + share * (LARGE.consume_cpu_us - SMALL.consume_cpu_us),
    )


def _cpu(load: Workload, written: int, read: int) -> _Cpu:
    """Cores kept busy. A follower's fetch is assumed to be a consume there and a produce here."""
    produce_us, consume_us = message_cpu_us(load.message_bytes)
    # A batch holds at least one message, however small it was meant to be.
    batches_per_s = load.messages_per_s / max(1.0, load.batch_bytes / load.message_bytes)
    request_us = written * SYNCED_REQUEST_CPU_US + read * REQUEST_CPU_US
    return _Cpu(
        produce_us,
        consume_us,
        batches_per_s,
        writing=load.messages_per_s * written * produce_us / 1e6,
        reading=load.messages_per_s * read * consume_us / 1e6,
        requests=batches_per_s * request_us / 1e6,
    )
