"""From kill -9 of a leader to the next acknowledged write of an unmodified client (row 8).

One partition with three replicas; librdkafka as it comes, but for acks=all, sends a message every
few milliseconds. The pause runs from just before the kill to the report of the first message that
was sent after it. Then the killed node comes back, and when all are in sync the next leader goes.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from bench import history, plots, report, runner
from bench.clusters import KafkaCluster, Nodes, OttlaCluster
from bench.librdkafka import LoadFailed
from bench.nodes import create_topic
from bench.report import Cell, Sheet
from bench.spread import percentile

TOPIC: Final = "killed"
SEND_EVERY_S: Final = 0.005
PAUSE_S_MAX: Final = 120.0
IN_SYNC_S_MAX: Final = 120.0
POLL_S: Final = 0.05
SETTLE_S: Final = 0.5
# That a node is away is what it is about.
SILENT: Final = 0
OTTLA_ABOUT_S: Final = 4
KAFKA_ABOUT_S: Final = 25
SIDES: Final[Mapping[str, Callable[[], Nodes]]] = {"ottla": OttlaCluster, "kafka": KafkaCluster}
TITLES: Final = {"ottla": "Ottla", "kafka": "Kafka"}


@dataclass
class Reports:
    """What the producer was told: when it sent, and when it heard of it, in order."""

    failures: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    sent_acknowledged: float = 0.0
    heard: float = 0.0

    def take(self, error: KafkaError | None, message: Message) -> None:
        with self.changed:
            if error is not None:
                self.failures.append(str(error))
            else:
                self.sent_acknowledged = max(self.sent_acknowledged, float(message.value()))
                self.heard = time.monotonic()
            self.changed.notify_all()

    def first_after(self, since: float) -> float:
        """When the first message that was sent after `since` was acknowledged."""
        with self.changed:
            is_there = self.changed.wait_for(
                lambda: self.sent_acknowledged > since or self.failures, PAUSE_S_MAX
            )
            if self.failures:
                raise LoadFailed(f"a message was given up: {self.failures[0]}")
            if not is_there:
                raise LoadFailed(f"nothing is acknowledged {PAUSE_S_MAX:g} s after a kill")
            return self.heard


class SteadySender(threading.Thread):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="sender", daemon=True)
        self.reports = Reports()
        self._is_stopping = False
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "log_level": SILENT}
        )

    def run(self) -> None:
        while not self._is_stopping:
            value = str(time.monotonic())
            self._producer.produce(TOPIC, value, partition=0, on_delivery=self.reports.take)
            self._producer.poll(SEND_EVERY_S)
        self._producer.flush(PAUSE_S_MAX)

    def stop(self) -> None:
        self._is_stopping = True
        self.join()


def measure(side: str, kills: int, tick: runner.Tick) -> list[float]:
    """The pause after each kill, in seconds."""
    cluster = SIDES[side]()
    pauses: list[float] = []
    try:
        tick(f"{side}: three nodes start")
        cluster.start()
        create_topic(cluster, TOPIC, is_cached=False)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": SILENT})
        sender = SteadySender(cluster.bootstrap)
        sender.start()
        sender.reports.first_after(0.0)
        for number in range(kills):
            victim = settled_leader(admin)
            tick(f"{side}: kill {number + 1} of {kills}, node {victim}")
            killed_at = time.monotonic()
            cluster.kill(victim)
            pauses.append(sender.reports.first_after(killed_at) - killed_at)
            cluster.start_again(victim)
        sender.stop()
    finally:
        cluster.close()
    return pauses


def settled_leader(admin: AdminClient) -> int:
    """The leader, once all replicas are in sync."""
    deadline = time.monotonic() + IN_SYNC_S_MAX
    while time.monotonic() < deadline:
        found = admin.list_topics(TOPIC, timeout=PAUSE_S_MAX).topics[TOPIC].partitions.get(0)
        if found is not None and found.leader >= 0 and len(found.isrs) == len(found.replicas):
            time.sleep(SETTLE_S)
            return int(found.leader)
        time.sleep(POLL_S)
    raise LoadFailed(f"not all replicas were in sync {IN_SYNC_S_MAX:g} s after a kill")


def sheet(pauses: Mapping[str, Sequence[float]]) -> Sheet:
    figures: dict[str, Callable[[Sequence[float]], float]] = {
        "p50": statistics.median,
        "p99": lambda values: percentile(values, 99),
        "longest": max,
    }
    lines = []
    for title, figure in figures.items():
        values = {side: figure(found) for side, found in pauses.items() if found}
        cells = [Cell(f"{values[side]:.2f} s" if side in values else "") for side in SIDES]
        ratio, verdict = "", None
        if len(values) == len(SIDES):
            quotient = values["ottla"] / values["kafka"]
            ratio, verdict = f"{quotient:.2f}", quotient <= 1
        lines.append([Cell(title), *cells, Cell(ratio, verdict), Cell("≤ 1")])
    counts = [Cell(f"{len(pauses.get(side, ()))}") for side in SIDES]
    lines.append([Cell("kills"), *counts, Cell(""), Cell("")])
    return Sheet(
        "8 · Pause after kill -9 of a leader",
        ("from the kill to the next acknowledged write", *TITLES.values(), "ratio", "goal"),
        lines,
        "Three nodes on one machine, replication 3, `min.insync.replicas=2`, acks=all, librdkafka "
        "with its own defaults; the killed node may be the controller as well.",
    )


def keep(pauses: Mapping[str, Sequence[float]], about: Mapping[str, Any], home: Path) -> list[Path]:
    home.mkdir(parents=True, exist_ok=True)
    table, samples, picture = (home / f"kills.{ending}" for ending in ("md", "json", "svg"))
    run = history.record("kills", about, {}, {})
    table.write_text(report.markdown("Pauses after kill -9", run, [sheet(pauses)]))
    samples.write_text(json.dumps({**about, "pauses_s": pauses}, indent=1) + "\n")
    _draw(pauses, picture)
    return [table, samples, picture]


def _draw(pauses: Mapping[str, Sequence[float]], path: Path) -> None:
    """Each kill in its order; the longest pause is what a client must be ready for."""
    pyplot = plots.pyplot_to_svg()
    figure, axis = pyplot.subplots(figsize=(9, 3.5))
    styles = {"ottla": ("#14435f", "o"), "kafka": ("#8a8a8a", "s")}
    for side, values in pauses.items():
        colour, mark = styles[side]
        places = range(1, len(values) + 1)
        axis.plot(places, values, mark, color=colour, markersize=4, label=TITLES[side])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("kill", fontsize=8)
    axis.set_ylabel("seconds until the next acknowledged write", fontsize=8)
    axis.legend(fontsize=8)
    axis.grid(color="#dddddd", linewidth=0.6)
    plots.save(figure, path)
