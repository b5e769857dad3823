"""The rows of the comparison that need three nodes, each with all replicas, and acks=all."""

from __future__ import annotations

from itertools import product
from typing import Final

from bench.cases import Case
from bench.loads import Backlog, EndToEnd, Requests, Written

ROW: Final = 5
NOTE: Final = (
    "Three nodes of each side on the same cores as the load, broker and controller each; "
    "replication 3, `min.insync.replicas=2`, acks=all. CPU and RSS are those of all three "
    "processes. cached: Ottla with `write.caching=true`, Kafka as shipped. synced: Ottla's default "
    "(all in-sync replicas have synced), Kafka with `flush.messages=1`."
)
WRITE_GOALS: Final = {"produce_per_s": 1.0, "produce_cpu_us": 0.6, "load_rss_mb": 0.2}
LATENCY_GOALS: Final = {"latency_p99_ms": 1.0, "latency_cpu_us": 0.6}
REQUEST_GOALS: Final = {"requests_per_s": 1.0, "request_cpu_us": 0.6, "request_p99_ms": 1.0}
COUNTS: Final = {100: 1_000_000, 1000: 250_000}
SIZES: Final = {100: "100 B", 1000: "1 KB"}
PARTITIONS: Final = 12


def _durability(is_cached: bool) -> str:
    return "cached" if is_cached else "synced"


def _written(size: int, is_cached: bool) -> Case:
    load = Backlog(size, COUNTS[size], "all", is_cached=is_cached, partitions=PARTITIONS)
    how = _durability(is_cached)
    return Case(
        f"cluster-produce-{SIZES[size]}-{how}".replace(" ", ""),
        f"{SIZES[size]} in large batches, {PARTITIONS} partitions, {how}",
        Written(load),
        limits=WRITE_GOALS,
        row=ROW,
        about_s=4,
    )


def _requests(is_cached: bool) -> Case:
    how = _durability(is_cached)
    return Case(
        f"cluster-requests-16-{how}",
        f"16 connections with one message per request, {how}",
        Requests(16, seconds=3, acks="all", is_cached=is_cached, window_ms=1500),
        limits=REQUEST_GOALS,
        row=ROW,
        about_s=5,
    )


def _latency(is_cached: bool) -> Case:
    how = _durability(is_cached)
    return Case(
        f"cluster-latency-1k-{how}",
        f"1,000/s of 100 B, unbatched, end to end, {how}",
        EndToEnd(1000, 4, is_cached=is_cached),
        limits=LATENCY_GOALS,
        row=ROW,
        about_s=6,
    )


CLUSTERED: Final = (
    *(_written(size, is_cached) for size, is_cached in product(COUNTS, (True, False))),
    *map(_requests, (True, False)),
    *map(_latency, (True, False)),
)
