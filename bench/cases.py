"""The rows of the benchmark. A new row is a new entry in one of these tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from bench.lives import Flat, Idle, Partitions, Start
from bench.loads import Backlog, EndToEnd, Requests
from bench.nodes import Lab
from bench.sessions import IdleSession
from bench.spread import Figures


class Load(Protocol):
    def run(self, lab: Lab) -> Figures: ...


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a load, how often it runs, and what its figures must not exceed.

    In a comparison the limits are ratios to the peer, and the floor of a figure of which more is
    better.
    """

    name: str
    title: str
    load: Load
    repeats: int = 1
    limits: Mapping[str, float] = field(default_factory=dict)
    # Of a comparison: the number of its row, its floors besides the usual, and what it takes.
    row: int = 0
    floors: Mapping[str, str] = field(default_factory=dict)
    about_s: float = 2.5
    # What both sides take before their first round, when the broker stays for all rounds.
    prepare_s: float = 0

    @property
    def is_lasting(self) -> bool:
        return self.prepare_s > 0


def _backlog(name: str, title: str, load: Backlog, limit_us: float | None = None) -> Case:
    limits = {} if limit_us is None else {"both_cpu_us": limit_us}
    return Case(name, title, load, repeats=3, limits=limits)


QUICK: Final = (
    Case("start", "empty disk", Start(), repeats=5, limits={"first_ack_s": 0.5}),
    Case("idle", "nobody connected", Idle(seconds=5), limits={"rss_mb": 60}),
    _backlog("backlog-100B", "100 B, acks=1, write.caching", Backlog(100, 2_000_000), limit_us=0.4),
    _backlog(
        "backlog-100B-synced",
        "100 B, acks=all, synced",
        Backlog(100, 2_000_000, acks="all", is_cached=False),
        limit_us=0.4,
    ),
    _backlog("backlog-1KB", "1 KB, acks=1, write.caching", Backlog(1000, 400_000)),
    _backlog(
        "backlog-1KB-synced",
        "1 KB, acks=all, synced",
        Backlog(1000, 400_000, acks="all", is_cached=False),
    ),
    Case(
        "requests-1",
        "1 connection, acks=1, write.caching",
        Requests(1, seconds=3),
        repeats=3,
        limits={"request_cpu_us": 60},
    ),
    Case(
        "requests-16",
        "16 connections, acks=1, write.caching",
        Requests(16, seconds=3),
        repeats=3,
        limits={"request_cpu_us": 60},
    ),
    Case(
        "requests-16-synced",
        "16 connections, acks=all, synced",
        Requests(16, seconds=3, acks="all", is_cached=False),
        repeats=3,
    ),
    Case(
        "latency-1k",
        "1,000 msg/s, acks=1, write.caching",
        EndToEnd(1000, 5, acks="1", is_cached=True),
    ),
    Case("latency-1k-synced", "1,000 msg/s, acks=all, synced", EndToEnd(1000, 5)),
    Case("partitions-1", "1", Partitions(1, 200_000, idle_s=3)),
    Case("partitions-100", "100", Partitions(100, 200_000, idle_s=3)),
    Case(
        "partitions-5000",
        "5,000",
        Partitions(5000, 100_000, idle_s=10),
        limits={"restart_s": 5, "idle_cpu_percent": 2, "rss_mb": 250},
    ),
    Case("session-1", "1", IdleSession(1, 2_000), repeats=3),
    Case(
        "session-10000",
        "10,000",
        IdleSession(10_000, 2_000),
        limits={"fetch_cpu_us": 100},
    ),
    Case("flat-1GB", "1 KB messages", Flat(1, chunks=8), limits={"swing_percent": 10}),
)

WARM_UP_MESSAGES: Final = 500_000


def flat_cases(gigabytes: float) -> tuple[Case, ...]:
    chunks = max(8, round(gigabytes * 4))
    load = Flat(gigabytes, chunks=chunks)
    return (Case(f"flat-{gigabytes:g}GB", "1 KB messages", load, limits={"swing_percent": 10}),)
