"""From SIGSTOP of a leader to the next acknowledged write of an unmodified client.

A stopped process keeps its connections, and its kernel takes new ones: what was sent to it waits
for the client's own time-out, whoever leads by then. librdkafka gives up a request after 60 s
(socket.timeout.ms), and a connection whose first request is not answered after 10 s
(api.version.request.timeout.ms). So three things are looked at: when another node leads, a producer
that begins when the leader has stopped, and one that sends all the time.
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
from bench.clusters import Nodes
from bench.kills import (
    PAUSE_S_MAX,
    POLL_S,
    SIDES,
    SILENT,
    TITLES,
    TOPIC,
    Reports,
    SteadySender,
    settled_leader,
)
from bench.librdkafka import LoadFailed
from bench.nodes import create_topic
from bench.report import Cell, Sheet

ABOUT_S: Final = 80
NO_LEADER: Final = -1


class Pause(NamedTuple):
    """Seconds from the stop until another leads, and to the next acknowledgement."""

    of_cluster: float
    of_new: float
    of_steady: float


KINDS: Final[Mapping[str, str]] = {
    "of_cluster": "another leader, as the other nodes tell it",
    "of_new": "the next write of a producer that begins then",
    "of_steady": "the next write of a producer with requests under way",
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
            pauses.append(_stopped(cluster, victim, sender.reports))
        sender.stop()
    finally:
        cluster.close()
    return pauses


def _stopped(cluster: Nodes, victim: int, steady: Reports) -> Pause:
    pid = cluster.pid_of(victim)
    stopped_at = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        new = SteadySender(cluster.bootstrap)
        new.start()
        of_cluster = _replaced_at(cluster.bootstrap, victim) - stopped_at
        of_new = new.reports.first_after(stopped_at) - stopped_at
        new.stop()
        return Pause(of_cluster, of_new, steady.first_after(stopped_at) - stopped_at)
    finally:
        os.kill(pid, signal.SIGCONT)


def _replaced_at(bootstrap: str, victim: int) -> float:
    """When the others said that another node leads."""
    servers = enumerate(bootstrap.split(","), start=1)
    others = [
        AdminClient({"bootstrap.servers": server, "log_level": SILENT})
        for node_id, server in servers
        if node_id != victim
    ]
    deadline = time.monotonic() + PAUSE_S_MAX
    while time.monotonic() < deadline:
        found = {
            each.list_topics(TOPIC, timeout=PAUSE_S_MAX).topics[TOPIC].partitions[0].leader
            for each in others
        }
        if not found & {victim, NO_LEADER}:
            return time.monotonic()
        time.sleep(POLL_S)
    raise LoadFailed(f"nobody leads {PAUSE_S_MAX:g} s after a stop")


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
        ("from the stop to", *TITLES.values()),
        lines,
        "Three nodes on one machine, replication 3, `min.insync.replicas=2`, acks=all, librdkafka "
        "with its own defaults, sessions of 9 s; the stopped node may be the controller as well. "
        "librdkafka waits 10 s for the first answer on a connection and 60 s for any other.",
    )


def keep(pauses: Mapping[str, Sequence[Pause]], about: Mapping[str, Any], home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    table = home / "stops.md"
    run = history.record("stops", about, {}, {})
    table.write_text(report.markdown("Pauses after SIGSTOP", run, [sheet(pauses)]))
    return table
