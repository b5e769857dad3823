"""From SIGSTOP of a leader to the next acknowledged write of an unmodified client.

A stopped process keeps its connections: what was sent to it before waits for the client's own
time-out, whoever leads by then (librdkafka: socket.timeout.ms, 60 s). So two producers are looked
at: one that sends all the time, and one that begins when the leader has stopped.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import AdminClient

from bench import history, report, runner
from bench.kills import SIDES, SILENT, TITLES, TOPIC, Reports, SteadySender, settled_leader
from bench.nodes import create_topic
from bench.report import Cell, Sheet

ABOUT_S: Final = 80


class Pause(NamedTuple):
    """Seconds from the stop to the next acknowledgement."""

    of_new: float
    of_steady: float


KINDS: Final[Mapping[str, str]] = {
    "of_new": "a producer that begins then",
    "of_steady": "a producer with requests under way",
}


def measure(side: str, stops: int, tick: runner.Tick) -> list[Pause]:
    cluster = SIDES[side]()
    pauses: list[Pause] = []
    try:
        tick(f"{side}: three nodes start")
        cluster.start()
        create_topic(cluster, TOPIC, is_cached=False)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": SILENT})
        sender = SteadySender(cluster.bootstrap)
        sender.start()
        sender.reports.first_after(0.0)
        for number in range(stops):
            victim = settled_leader(admin)
            tick(f"{side}: stop {number + 1} of {stops}, node {victim}")
            pauses.append(_stopped(cluster.pid_of(victim), cluster.bootstrap, sender.reports))
        sender.stop()
    finally:
        cluster.close()
    return pauses


def _stopped(pid: int, bootstrap: str, steady: Reports) -> Pause:
    stopped_at = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        new = SteadySender(bootstrap)
        new.start()
        of_new = new.reports.first_after(stopped_at) - stopped_at
        new.stop()
        return Pause(of_new, steady.first_after(stopped_at) - stopped_at)
    finally:
        os.kill(pid, signal.SIGCONT)


def sheet(pauses: Mapping[str, Sequence[Pause]]) -> Sheet:
    lines = []
    for kind, title in KINDS.items():
        for name, figure in (("median", statistics.median), ("longest", max)):
            found = {
                side: figure([getattr(each, kind) for each in pauses[side]]) for side in pauses
            }
            cells = [Cell(f"{found[side]:.1f} s" if side in found else "") for side in SIDES]
            lines.append([Cell(f"{title}, {name}"), *cells])
    counts = [Cell(f"{len(pauses.get(side, ()))}") for side in SIDES]
    lines.append([Cell("stops"), *counts])
    return Sheet(
        "Pause after SIGSTOP of a leader",
        ("from the stop to the next acknowledged write of", *TITLES.values()),
        lines,
        "Three nodes on one machine, replication 3, `min.insync.replicas=2`, acks=all, librdkafka "
        "with its own defaults, sessions of 9 s; the stopped node may be the controller as well.",
    )


def keep(pauses: Mapping[str, Sequence[Pause]], about: Mapping[str, Any], home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    table = home / "stops.md"
    run = history.record("stops", about, {}, {})
    table.write_text(report.markdown("Pauses after SIGSTOP", run, [sheet(pauses)]))
    return table
