"""A real Prometheus that scrapes a cluster in trouble: what it stores, and which rules wake it."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.testing import Cluster
from ottla.testing.ports import free_ports
from scenarios.polling import until

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 90.0
PARTITIONS = 6
# All that an operator is to watch, as queries that have an answer on a cluster that is well.
WATCHED = {
    "under-replicated partitions": "ottla_partitions_under_replicated",
    "partitions under min ISR": "ottla_partitions_under_min_isr",
    "offline partitions": "ottla_partitions_offline",
    "in-sync replicas that go": "ottla_topic_isr_shrinks_total",
    "in-sync replicas that come": "ottla_topic_isr_expansions_total",
    "clean elections": 'ottla_leader_elections_total{kind="clean"}',
    "unclean elections": 'ottla_leader_elections_total{kind="unclean"}',
    "lag in records": "ottla_follower_lag",
    "lag in seconds": "ottla_follower_lag_seconds",
    "controller changes": "ottla_controller_changes_total",
    "controller queue": "ottla_controller_queue",
    "quorum lag": "ottla_metadata_follower_lag",
    "own lag of metadata": "ottla_metadata_lag",
    "fenced nodes": "ottla_brokers_fenced",
    "bytes moved here": "ottla_newcomers_bytes_in_total",
    "bytes moved away": "ottla_newcomers_bytes_out_total",
}
GROUPS = ("ottla-replication", "ottla-cluster")
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: ottla
    file_sd_configs:
      - {{files: [{targets}], refresh_interval: 1s}}
"""


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=PATIENCE_S) as reply:
            return json.load(reply)["data"]

    def is_up(self) -> bool:
        try:
            return bool(self._get("status/buildinfo"))
        except OSError:
            return False

    def ask(self, query: str) -> list[float]:
        found = self._get("query?" + urllib.parse.urlencode({"query": query}))
        return [float(each["value"][1]) for each in found["result"]]

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def awake(self) -> set[str]:
        """The alerts about nodes and replicas whose expression holds.

        For however long it has to hold before somebody is told. Those about disks and loops are
        left out: a machine that is busy or full may well wake them.
        """
        return {
            rule["name"]
            for group in self._get("rules")["groups"]
            for rule in group["rules"]
            if rule["state"] != "inactive"
            and (group["name"] in GROUPS or rule["name"] == "OttlaBrokerDown")
        }


def name_targets(cluster: Cluster, path: Path) -> None:
    """A node that is started again has its pages at another port."""
    pages = [node.http.removeprefix("http://") for node in cluster.nodes.values()]
    (path / "new.json").write_text(json.dumps([{"targets": pages}]))
    (path / "new.json").rename(path / "targets.json")


@contextmanager
def watching(cluster: Cluster, path: Path) -> Iterator[Prometheus]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (package prometheus)")
    (port,) = free_ports(1)
    rules, targets = ROOT / "docs" / "alerts.yml", path / "targets.json"
    (path / "prometheus.yml").write_text(CONFIG.format(rules=rules, targets=targets))
    name_targets(cluster, path)
    command = [
        *("prometheus", f"--config.file={path / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={path / 'series'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with (
        (path / "prometheus.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            made = Prometheus(port)
            until(made.is_up, "Prometheus does not start", PATIENCE_S)
            yield made
        finally:
            process.kill()


def send(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for number in range(60):
        producer.produce("t", b"x" * 100, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def test_a_real_prometheus_stores_all_that_is_watched_and_wakes_for_nodes_that_go(
    tmp_path: Path,
) -> None:
    settings = {"min.insync.replicas": 2, "default.replication.factor": 3}
    with Cluster(settings) as cluster, watching(cluster, tmp_path) as prometheus:
        cluster.create_topic("t", PARTITIONS, replication_factor=3)
        send(cluster.bootstrap)
        until(lambda: prometheus.ask('sum(up{job="ottla"})') == [3], "all are up", PATIENCE_S)
        for what, query in WATCHED.items():
            until(lambda query=query: prometheus.ask(query), f"{what}: {query}", PATIENCE_S)
        assert {rule["health"] for rule in prometheus.rules()} <= {"ok", "unknown"}
        until(lambda: not prometheus.awake(), "a cluster that is well wakes nobody", PATIENCE_S)

        (leads,) = (node_id for node_id, node in cluster.nodes.items() if is_controller(node.http))
        gone, left = (node_id for node_id in cluster.nodes if node_id != leads)
        cluster[gone].kill()
        one_gone = {"OttlaBrokerDown", "OttlaBrokersFenced", "OttlaPartitionsUnderReplicated"}
        until(lambda: prometheus.awake() >= one_gone, "one node is gone", PATIENCE_S)
        assert not prometheus.awake() & {"OttlaNoController", "OttlaPartitionsUnderMinIsr"}
        send(cluster[left].bootstrap)

        cluster[leads].kill()
        until(lambda: "OttlaNoController" in prometheus.awake(), "nobody decides", PATIENCE_S)
        cluster[leads].start()
        cluster[gone].start()
        name_targets(cluster, tmp_path)
        ended = {*one_gone, "OttlaNoController"}
        until(lambda: not prometheus.awake() & ended, "all is well again", PATIENCE_S)
        for query in (
            'sum(ottla_leader_elections_total{kind="clean"})',
            "max(ottla_newcomers_bytes_in_total)",
            "max(ottla_newcomers_bytes_out_total)",
            "sum(ottla_topic_isr_expansions_total)",
        ):
            until(lambda query=query: prometheus.ask(query)[0] > 0, f"{query} > 0", PATIENCE_S)
        assert prometheus.ask('sum(ottla_leader_elections_total{kind="unclean"})') == [0]


def is_controller(http: str) -> bool:
    with urllib.request.urlopen(f"{http}/metrics", timeout=PATIENCE_S) as page:
        return b"\nottla_is_controller 1" in page.read()
