"""The rows of the comparison with Kafka, numbered as in its plan.

*cached* is `write.caching=true` against Kafka as shipped; *synced* is Ottla's default against
Kafka with `flush.messages=1`. Both sides of a row have the same acks, batches and linger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from bench.cases import Case
from bench.group_loads import GroupBacklog, Join, Live
from bench.java_loads import JavaBacklog, JavaLatency
from bench.lives import Memory, Package, RoundRobin, Start
from bench.loads import Backlog, EndToEnd, Fetches, Requests, SteadyRequests, Written

ROWS: Final = {
    1: "Produce in large batches",
    2: "Consume a backlog",
    3: "Smallest requests: one message each, one in flight per connection",
    4: "End to end",
    5: "Three nodes, replication 3, acks=all",
    6: "2,000 partitions written in turn",
    7: "Start, memory, package",
    8: "Pause after kill -9 of a leader",
    9: "50 consumers join one group",
    10: "One writer, three reading groups",
}
# Rows of several nodes, and where their figures are.
WITH_THE_CLUSTER: Final = {5: "in peers-cluster.md", 8: "in kills.md"}
NOTE: Final = (
    "cached: Ottla with `write.caching=true`, Kafka as shipped. synced: Ottla's default, Kafka "
    "with `flush.messages=1`, which then also syncs its indexes. One node, replication 1, "
    "`group.initial.rebalance.delay.ms=0` on both sides, deleted files removed at once. lz4 "
    "messages shrink to about half. "
    "Times its floor: how much slower or dearer than the machine at its best, Ottla then Kafka."
)

WRITE_GOALS: Final = {"produce_per_s": 1.0, "produce_cpu_us": 0.6}
READ_GOALS: Final = {"consume_per_s": 1.0, "consume_cpu_us": 0.6}
LIVE_GOALS: Final = {"produce_per_s": 1.0, "consume_per_s": 1.0, "both_cpu_us": 0.6}
LATENCY_GOALS: Final = {"latency_p50_ms": 1.0, "latency_p99_ms": 1.0}
SYNC_FLOORS: Final = {
    "latency_p50_ms": "fdatasync_p50_ms",
    "latency_p99_ms": "fdatasync_p99_ms",
    "request_p50_ms": "fdatasync_p50_ms",
    "request_p99_ms": "fdatasync_p99_ms",
}
# So many that a run takes about a second.
COUNTS: Final = {100: 2_000_000, 1000: 500_000}
SIZES: Final = {100: "100 B", 1000: "1 KB"}


def _written() -> Iterator[Case]:
    for size, partitions, acks, codec in product(COUNTS, (1, 12), ("1", "all"), ("none", "lz4")):
        load = Backlog(size, COUNTS[size], acks, partitions=partitions, codec=codec)
        yield _write_case(load)
    for size in COUNTS:
        yield _write_case(Backlog(size, COUNTS[size], "all", is_cached=False))


def _write_case(load: Backlog) -> Case:
    size, compression = SIZES[load.message_bytes], "" if load.codec == "none" else load.codec
    durability = "cached" if load.is_cached else "synced"
    words = (
        size,
        f"{load.partitions} partition{'s' if load.partitions > 1 else ''}",
        f"acks={load.acks}",
        compression,
        durability,
    )
    short = ("produce", size, f"{load.partitions}p", f"acks-{load.acks}", compression, durability)
    return Case(
        "-".join(filter(None, short)).replace(" ", ""),
        ", ".join(filter(None, words)),
        Written(load),
        limits=WRITE_GOALS,
        row=1,
        # What crosses the connection is then less than what is counted.
        floors={"produce_mb_per_s": ""} if compression else {},
    )


def _read(groups: int, load: Backlog) -> Case:
    size = SIZES[load.message_bytes]
    who = "1 group" if groups == 1 else f"{groups} groups at once"
    name = f"consume-{size}-{groups}g".replace(" ", "")
    title = f"{size}, {who}, cached"
    return Case(name, title, GroupBacklog(groups, load), limits=READ_GOALS, row=2)


def _requests(connections: int) -> Case:
    return Case(
        f"requests-{connections}",
        f"{connections} connection{'s' if connections > 1 else ''}, acks=1, cached",
        Requests(connections, seconds=2),
        limits={"requests_per_s": 1},
        row=3,
        # An echo has one connection, and so is no limit for several.
        floors={"requests_per_s": "echo_uvloop_per_s"} if connections == 1 else {},
        about_s=3.5,
    )


def _java_backlog(message_bytes: int, count: int) -> Case:
    size = SIZES[message_bytes]
    return Case(
        f"java-{size}".replace(" ", ""),
        f"{size}, 1 partition, acks=1, cached, Java client",
        JavaBacklog(message_bytes, count),
        limits=WRITE_GOALS | READ_GOALS,
        row=1,
        about_s=7,
    )


def _latency(name: str, title: str, load: EndToEnd) -> Case:
    floors = {} if load.is_cached else SYNC_FLOORS
    about_s = load.seconds + 1.5
    return Case(name, title, load, limits=LATENCY_GOALS, row=4, floors=floors, about_s=about_s)


PEERS: Final = (
    Case("start", "empty disk", Start(), limits={"first_ack_s": 0.15}, row=7, about_s=3),
    Case(
        "memory",
        "idle, then 500 MB of 1 KB messages through",
        Memory(2, Backlog(1000, 500_000)),
        limits={"rss_mb": 0.2},
        row=7,
        about_s=9,
    ),
    Case(
        "package",
        "jars as they are, wheels unpacked, without Java and Python",
        Package(),
        row=7,
        about_s=1,
    ),
    *_written(),
    _java_backlog(100, 1_250_000),
    _read(1, Backlog(100, 1_500_000)),
    _read(3, Backlog(100, 1_000_000)),
    _read(1, Backlog(1000, 250_000)),
    _requests(1),
    _requests(16),
    _requests(64),
    Case(
        "requests-16-synced",
        "16 connections, acks=all, synced",
        # A window of the statistics needs many requests to have a p99, and here they are slow.
        Requests(16, seconds=4, acks="all", is_cached=False, window_ms=2000),
        limits={"requests_per_s": 1},
        row=3,
        floors=SYNC_FLOORS,
        about_s=5.5,
    ),
    Case(
        "requests-16-steady",
        "16 connections, together 1,600/s, acks=all, synced",
        SteadyRequests(16, per_s=1600, seconds=4.5),
        limits={"request_p99_ms": 1},
        row=3,
        floors=SYNC_FLOORS,
        about_s=5.5,
    ),
    _latency(
        "latency-1k",
        "1,000/s of 100 B, unbatched, acks=1, cached",
        EndToEnd(1000, 5, acks="1", is_cached=True),
    ),
    _latency(
        "latency-10k",
        "10,000/s of 1 KB, linger 5 ms, acks=1, cached",
        EndToEnd(10_000, 4, acks="1", is_cached=True, message_bytes=1000, linger_ms=5),
    ),
    _latency(
        "latency-50k",
        "50,000/s of 100 B, linger 5 ms, acks=1, cached",
        EndToEnd(50_000, 4, acks="1", is_cached=True, linger_ms=5),
    ),
    _latency(
        "latency-1k-synced", "1,000/s of 100 B, unbatched, acks=all, synced", EndToEnd(1000, 5)
    ),
    _latency(
        "latency-10k-synced",
        "10,000/s of 1 KB, linger 5 ms, acks=all, synced",
        EndToEnd(10_000, 4, message_bytes=1000, linger_ms=5),
    ),
    Case(
        "java-latency-synced",
        "one message at a time, 100 B, acks=all, synced, Java client, in whole ms",
        JavaLatency(1000),
        limits={"latency_p99_ms": 1},
        row=4,
        floors=SYNC_FLOORS,
        about_s=5,
    ),
    Case(
        "fetch-10k",
        "fetches of 64 KB from a backlog while 10,000/s of 1 KB are written, acks=all, synced",
        Fetches(10_000, 4),
        limits={"fetch_p99_ms": 1},
        row=4,
        about_s=7,
    ),
    Case(
        "join-50",
        "50 partitions, classic protocol, a heartbeat every 100 ms",
        Join(50),
        limits={"join_s": 1},
        row=9,
        about_s=2,
    ),
    Case(
        "live-100B",
        "100 B, acks=1, cached",
        Live(3, Backlog(100, 1_500_000)),
        limits=LIVE_GOALS,
        row=10,
        about_s=4,
    ),
    Case(
        "round-robin-2000",
        "100 B in batches of 100, acks=1, cached",
        RoundRobin(2000, batches_each=2, batch_messages=100),
        limits=WRITE_GOALS,
        row=6,
        about_s=4,
        prepare_s=95,
    ),
)

# With the broker on one core: enough to see what a second core is worth to each side.
PINNED: Final = tuple(
    case
    for case in PEERS
    if case.name
    in {
        "produce-100B-1p-acks-1-cached",
        "produce-1KB-1p-acks-all-synced",
        "consume-100B-1g",
        "requests-1",
        "requests-16",
        "requests-64",
    }
)


@dataclass(frozen=True, slots=True)
class Promise:
    """What Ottla holds by itself: at most so much, or so many times its floor."""

    case: str
    figure: str
    limit: float
    floor: str = ""


PROMISES: Final = (
    Promise("requests-16-synced", "request_p99_ms", 3, "fdatasync_p99_ms"),
    Promise("requests-16-steady", "request_p99_ms", 3, "fdatasync_p99_ms"),
    Promise("latency-10k-synced", "request_p99_ms", 10),
    Promise("fetch-10k", "fetch_p99_ms", 5),
    Promise("latency-10k-synced", "latency_p99_ms", 50),
)
