"""A follower that was away while others wrote: how fast it is back, and what producers feel.

One node of three is killed, gigabytes are written to the other two, and it comes back while a
producer writes on steadily. Before it and after it the lag of all followers is looked at: what
they lack, divided by the rate of what is written, is how far they are behind in time.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import AdminClient

from bench import history, plots, report, runner
from bench.clusters import NODES, OttlaCluster
from bench.kills import SILENT
from bench.librdkafka import LoadFailed
from bench.loads import CURVE_PERCENTS, Backlog, steadily
from bench.nodes import bootstrap, create_topic
from bench.report import Cell, Sheet
from bench.spread import Figures, percentile

TOPIC: Final = "returns"
PARTITIONS: Final = 12
MESSAGE_BYTES: Final = 1000
GB: Final = 1_000_000_000
STEADY_PER_S: Final = 2000
STEADY_S: Final = 8.0
LOOK_EVERY_S: Final = 0.05
AWAY: Final = 3
IN_SYNC_S_MAX: Final = 900.0
STEPS: Final = 5
FOLLOWER_LAG: Final = re.compile(r'^ottla_follower_lag\{node="\d+"\} (\S+)$', re.MULTILINE)


class Returned(NamedTuple):
    gb: float
    figures: Figures
    # How long writes took, with all in sync and while one caught up.
    usual_ms: Sequence[float]
    meanwhile_ms: Sequence[float]


class SteadyWrites(threading.Thread):
    """So many messages per second, one request each partition at a time; how long each took."""

    def __init__(self, cluster: OttlaCluster, while_: Callable[[], bool]) -> None:
        super().__init__(name="steady", daemon=True)
        self._cluster = cluster
        self._goes_on = while_
        self.took_ms: list[float] = []

    def run(self) -> None:
        from confluent_kafka import Producer as Client

        settings = {"bootstrap.servers": bootstrap(self._cluster), "log_level": SILENT}
        client = Client({**settings, "acks": "all"})
        payload = bytes(MESSAGE_BYTES)
        for turn in steadily(10**9, STEADY_PER_S):
            if not self._goes_on():
                break
            sent = time.monotonic()
            client.produce(
                TOPIC,
                payload,
                partition=turn % PARTITIONS,
                on_delivery=lambda error, _, sent=sent: self._took(error, sent),
            )
            client.poll(0)
        client.flush(60)

    def _took(self, error: object, sent: float) -> None:
        if error is None:
            self.took_ms.append((time.monotonic() - sent) * 1000)


def measure(gb: float, tick: runner.Tick) -> Returned:
    cluster = OttlaCluster()
    try:
        tick("three nodes start")
        cluster.start()
        create_topic(cluster, TOPIC, PARTITIONS, is_cached=False)
        tick("steady load, all in sync")
        usual_ms, lags_ms = _steady_for(cluster, STEADY_S)
        tick(f"node {AWAY} is away while {gb:g} GB are written")
        cluster.kill(AWAY)
        count = int(gb * GB / MESSAGE_BYTES)
        away = Backlog(MESSAGE_BYTES, count, "all", is_cached=False, partitions=PARTITIONS)
        written = away.produce(cluster, TOPIC)
        tick("it comes back, and catches up under a steady load")
        seconds, meanwhile_ms = _return(cluster)
    finally:
        tick("three nodes stop")
        cluster.close()
    figures = {
        "written_mb_per_s": written["produce_mb_per_s"],
        "returned_mb_per_s": gb * 1000 / seconds,
        "returned_s": seconds,
        "usual_p50_ms": percentile(usual_ms, 50),
        "usual_p99_ms": percentile(usual_ms, 99),
        "meanwhile_p50_ms": percentile(meanwhile_ms, 50),
        "meanwhile_p99_ms": percentile(meanwhile_ms, 99),
        "lag_p50_ms": percentile(lags_ms, 50),
        "lag_p99_ms": percentile(lags_ms, 99),
    }
    return Returned(gb, figures, usual_ms, meanwhile_ms)


def _steady_for(cluster: OttlaCluster, seconds: float) -> tuple[list[float], list[float]]:
    """How long writes took, and how far the followers were behind, both in milliseconds."""
    until = time.monotonic() + seconds
    writes = SteadyWrites(cluster, lambda: time.monotonic() < until)
    writes.start()
    lags: list[float] = []
    while writes.is_alive():
        lags.append(_largest_lag(cluster) / STEADY_PER_S * 1000)
        time.sleep(LOOK_EVERY_S)
    writes.join()
    return writes.took_ms, lags


def _largest_lag(cluster: OttlaCluster) -> float:
    """Of all pairs of leader and follower."""
    found = [0.0]
    for node_id in range(1, NODES + 1):
        with urllib.request.urlopen(f"{cluster.http(node_id)}/metrics", timeout=10) as page:
            found += map(float, FOLLOWER_LAG.findall(page.read().decode()))
    return max(found)


def _return(cluster: OttlaCluster) -> tuple[float, list[float]]:
    is_back = threading.Event()
    writes = SteadyWrites(cluster, lambda: not is_back.is_set())
    writes.start()
    started = time.monotonic()
    try:
        cluster.start_again(AWAY)
        _await_in_sync(cluster)
        return time.monotonic() - started, writes.took_ms
    finally:
        is_back.set()
        writes.join()


def _await_in_sync(cluster: OttlaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": SILENT})
    deadline = time.monotonic() + IN_SYNC_S_MAX
    while time.monotonic() < deadline:
        partitions = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions.values()
        if all(len(each.isrs) == NODES for each in partitions):
            return
        time.sleep(LOOK_EVERY_S)
    raise LoadFailed(f"the follower was not back in sync in {IN_SYNC_S_MAX:g} s")


def sheet(returned: Returned) -> Sheet:
    figures = returned.figures
    lines = [
        ("written while it was away, MB/s", "written_mb_per_s", None),
        ("it caught up with, MB/s", "returned_mb_per_s", None),
        ("from its start until in sync, s", "returned_s", None),
        ("a write with all in sync, p50, ms", "usual_p50_ms", None),
        ("… p99, ms", "usual_p99_ms", None),
        ("a write while it caught up, p50, ms", "meanwhile_p50_ms", None),
        ("… p99, ms", "meanwhile_p99_ms", None),
        ("replication lag with all in sync, p50, ms", "lag_p50_ms", None),
        ("… p99, ms", "lag_p99_ms", 100.0),
    ]
    rows = [
        [
            Cell(title),
            Cell(f"{figures[name]:,.1f}", None if limit is None else figures[name] <= limit),
            Cell("" if limit is None else f"≤ {limit:g}"),
        ]
        for title, name, limit in lines
    ]
    note = (
        f"Three nodes on one machine, replication 3, acks=all, synced, {PARTITIONS} partitions, "
        f"1 KB messages, {returned.gb:g} GB of them while one node was away; the steady load is "
        f"{STEADY_PER_S:,}/s. It catches up from the start of its process on."
    )
    return Sheet("A follower that was away", ("", "Ottla", "goal"), rows, note)


def keep(returned: Returned, about: Mapping[str, Any], home: Path) -> list[Path]:
    home.mkdir(parents=True, exist_ok=True)
    table, samples, picture = (home / f"returns.{ending}" for ending in ("md", "json", "svg"))
    run = history.record("returns", about, {}, {})
    table.write_text(report.markdown("A follower comes back", run, [sheet(returned)]))
    curves = {
        "with all in sync": _curve(returned.usual_ms),
        "while one catches up": _curve(returned.meanwhile_ms),
    }
    stored = {**about, "gb": returned.gb, "figures": returned.figures, "curves_ms": curves}
    samples.write_text(json.dumps(stored, indent=1) + "\n")
    _draw(curves, picture)
    return [table, samples, picture]


def _curve(took_ms: Sequence[float]) -> list[tuple[float, float]]:
    return [(percent, percentile(took_ms, percent)) for percent in CURVE_PERCENTS]


def _draw(curves: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """What producers feel: the share of writes that took longer, by how long."""
    pyplot = plots.pyplot_to_svg()
    figure, axis = pyplot.subplots(figsize=(9, 3.5))
    for (title, curve), colour in zip(curves.items(), ("#8a8a8a", "#14435f"), strict=True):
        longer = [100 - percent for percent, _ in curve]
        axis.plot([ms for _, ms in curve], longer, color=colour, label=title)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("milliseconds until a write is acknowledged", fontsize=8)
    axis.set_ylabel("% that took longer", fontsize=8)
    axis.legend(fontsize=8)
    axis.grid(color="#dddddd", linewidth=0.6)
    plots.save(figure, path)
