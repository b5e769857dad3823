"""Every figure once: how it is called, in which unit, and whether more of it is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    unit: str
    digits: int
    more_is_better: bool = False

    def text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"

    @property
    def heading(self) -> str:
        return f"{self.label}, {self.unit}" if self.unit else self.label


FIGURES: Final = {
    "ready_s": Figure("ready", "s", 3),
    "ready_cpu_s": Figure("CPU until ready", "s", 2),
    "first_ack_s": Figure("first ack", "s", 3),
    "rss_mb": Figure("RSS", "MB", 1),
    "anonymous_mb": Figure("anonymous", "MB", 1),
    "anonymous_low_mb": Figure("lowest", "MB", 1),
    "anonymous_high_mb": Figure("highest", "MB", 1),
    "idle_cpu_percent": Figure("idle CPU", "%", 2),
    "peak_rss_mb": Figure("RSS under load", "MB", 1),
    "load_rss_mb": Figure("RSS after", "MB", 1),
    "package_mb": Figure("installed", "MB", 1),
    "join_s": Figure("stable after", "s", 3),
    "join_cpu_s": Figure("CPU, joining and leaving", "s", 2),
    "produce_per_s": Figure("written", "msg/s", 0, more_is_better=True),
    "produce_mb_per_s": Figure("written", "MB/s", 1, more_is_better=True),
    "produce_cpu_us": Figure("CPU written", "µs/msg", 3),
    "consume_per_s": Figure("read", "msg/s", 0, more_is_better=True),
    "consume_mb_per_s": Figure("read", "MB/s", 1, more_is_better=True),
    "consume_cpu_us": Figure("CPU read", "µs/msg", 3),
    "both_cpu_us": Figure("CPU both", "µs/msg", 3),
    "requests_per_s": Figure("requests", "/s", 0, more_is_better=True),
    "request_cpu_us": Figure("CPU", "µs/request", 1),
    "request_p50_ms": Figure("request p50", "ms", 3),
    "request_p99_ms": Figure("request p99", "ms", 3),
    "fetch_p50_ms": Figure("fetch p50", "ms", 3),
    "fetch_p99_ms": Figure("fetch p99", "ms", 3),
    "fetch_cpu_us": Figure("CPU", "µs/fetch", 1),
    "latency_p50_ms": Figure("p50", "ms", 3),
    "latency_p99_ms": Figure("p99", "ms", 3),
    "latency_p999_ms": Figure("p99.9", "ms", 3),
    "latency_cpu_us": Figure("CPU", "µs/msg", 1),
    "create_s": Figure("create", "s", 3),
    "stop_s": Figure("stop", "s", 3),
    "restart_s": Figure("restart", "s", 3),
    "passed_gb": Figure("passed", "GB", 1, more_is_better=True),
    "swing_percent": Figure("swing", "± %", 1),
    "growth_percent": Figure("last third against first", "%", 1),
}

FLOOR_FIGURES: Final = {
    "fdatasync_p50_ms": Figure("fdatasync p50", "ms", 3),
    "fdatasync_p99_ms": Figure("fdatasync p99", "ms", 3),
    "syncfs_p50_ms": Figure("syncfs p50", "ms", 3),
    "syncfs_p99_ms": Figure("syncfs p99", "ms", 3),
    "write_beside_sync_p50_ms": Figure("100 KB write beside a sync p50", "ms", 3),
    "write_beside_sync_p99_ms": Figure("100 KB write beside a sync p99", "ms", 3),
    "file_creation_ms": Figure("file or directory created", "ms", 3),
    "loopback_mb_per_s": Figure("loopback, one connection", "MB/s", 0, more_is_better=True),
    "crc_mb_per_s": Figure("CRC-32C", "MB/s", 0, more_is_better=True),
    "echo_asyncio_per_s": Figure("echo, asyncio", "round trips/s", 0, more_is_better=True),
    "echo_asyncio_cpu_us": Figure("echo, asyncio, CPU", "µs/round trip", 1),
    "echo_uvloop_per_s": Figure("echo, uvloop", "round trips/s", 0, more_is_better=True),
    "echo_uvloop_cpu_us": Figure("echo, uvloop, CPU", "µs/round trip", 1),
}

# A figure's floor, where it always has one; a case adds what only it can be held against.
FLOOR_OF: Final = {
    "produce_mb_per_s": "loopback_mb_per_s",
    "consume_mb_per_s": "loopback_mb_per_s",
    "request_cpu_us": "echo_uvloop_cpu_us",
}


def times_floor(name: str, value: float, floor: float) -> float:
    """How many times as slow, or as dear, as the machine at its best."""
    return floor / value if FIGURES[name].more_is_better else value / floor
