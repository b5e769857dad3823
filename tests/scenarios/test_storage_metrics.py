"""Usage and pressure of storage as a scraper sees them, and the alert rules that watch them."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from ottla.testing import Broker
from ottla.wire.records import headers_in

ROOT = Path(__file__).parent.parent.parent
ALERTS = ROOT / "docs" / "alerts.yml"
TIMEOUT_S = 30
SEVERITIES = {"critical", "warning", "info"}
DURATION = re.compile(r"[0-9]+(s|m|h|d)")
# What Prometheus itself knows of every target.
FROM_PROMETHEUS = {"up"}
WORDS_OF_PROMQL = {
    *("and", "or", "by", "max", "sum", "rate", "increase", "time", "predict_linear"),
    *("histogram_quantile", "le", "instance", "job", "directory", "group", "topic"),
    *("node", "kind"),
}


class Page:
    """One scrape."""

    def __init__(self, broker: Broker) -> None:
        with urllib.request.urlopen(f"{broker.http}/metrics", timeout=TIMEOUT_S) as reply:
            self.text = reply.read().decode()
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self._values[name, frozenset(labels.items())]

    def has(self, name: str, **labels: str) -> bool:
        return (name, frozenset(labels.items())) in self._values

    @property
    def families(self) -> set[str]:
        return {line.split()[2] for line in self.text.splitlines() if line.startswith("# TYPE ")}

    @property
    def names(self) -> set[str]:
        """Of series: a histogram has three."""
        parts = {f"{name}_{part}" for name in self.families for part in ("bucket", "sum", "count")}
        return self.families | parts


def wait(broker: Broker, is_true: Callable[[Page], bool]) -> Page:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_true(page := Page(broker)):
        assert time.monotonic() < deadline, page.text
        time.sleep(0.05)
    return page


def produce(broker: Broker, topic: str, count: int, *, keys: int = 1) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1})
    for number in range(count):
        producer.produce(topic, b"v" * 1000, b"%d" % (number % keys), partition=0)
    assert producer.flush(TIMEOUT_S) == 0


# -------------------------------------------------------------------------------------- alerts


def parse_rules(text: str) -> list[dict[str, Any]]:
    """The rules, from as much of YAML as the file needs; anything else fails the test."""
    rules: list[dict[str, Any]] = []
    section: dict[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"( *)(- )?([a-z]+):(?: (.+))?", line)
        assert match, f"line {number}: {line}"
        indent, dash, key, value = len(match[1]), match[2], match[3], match[4]
        if indent == 0:
            assert (key, value) == ("groups", None)
        elif indent == 2:
            assert dash
            assert key == "name"
        elif indent == 4:
            assert (key, value) == ("rules", None)
        elif indent == 6:
            assert dash
            assert key == "alert"
            rules.append({"alert": value})
        elif indent == 8:
            assert not dash
            section = None if value else {}
            rules[-1][key] = value or section
        else:
            assert indent == 10
            assert section is not None
            section[key] = _unquoted(value)
    return rules


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        assert not re.search(r"[:#{}\[\]&*!|>'\"%@`]", value), value
        return value
    assert value.endswith('"')
    assert not re.search(r'["\\]', value[1:-1]), value
    return value[1:-1]


RULES = parse_rules(ALERTS.read_text())


def test_there_is_a_rule_for_everything_that_can_go_wrong_with_storage() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    assert set(names) >= {
        *("OttlaBrokerDown", "OttlaLoopDelay", "OttlaGroupLag"),
        *("OttlaDirectoryOffline", "OttlaDiskAlmostFull", "OttlaDiskFilling"),
        *("OttlaSyncSlow", "OttlaSyncFailed", "OttlaPartitionCorrupt", "OttlaPartitionsFailing"),
        *("OttlaPartitionsOffline", "OttlaPartitionsUnderMinIsr", "OttlaPartitionsUnderReplicated"),
        *("OttlaScrubOverdue", "OttlaRetentionNotRun", "OttlaCompactionStuck"),
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_has_all_that_a_person_woken_by_it_needs(rule: dict[str, Any]) -> None:
    assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
    assert DURATION.fullmatch(rule["for"])
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"].keys() == {"summary", "description", "action"}
    expression = rule["expr"]
    # A plain scalar of YAML ends at ": " or " #".
    assert not re.search(r": | #|^[{\[]", expression)
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_every_metric_of_the_rules_and_of_the_reference_is_on_the_page(
    ottla_broker: Broker,
) -> None:
    page = Page(ottla_broker)
    for rule in RULES:
        expression = re.sub(r'"[^"]*"', "", rule["expr"])
        words = set(re.findall(r"[a-z_]{2,}", expression)) - WORDS_OF_PROMQL - FROM_PROMETHEUS
        assert words <= page.names, rule["alert"]
        assert words or "up" in expression
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert set(re.findall(r"^\| `([a-z_]+)` \|", reference, re.MULTILINE)) == page.families


# ------------------------------------------------------------------------------- usage, pressure


def test_retention_compaction_and_scrub_tell_what_they_did() -> None:
    settings = {
        "log.retention.check.interval.ms": 100,
        "log.cleaner.backoff.ms": 100,
        "log.scrub.interval.ms": 1,
    }
    began_s = time.time()
    with Broker(settings) as broker:
        broker.create_topic("old", 1, {"segment.bytes": 10_000, "retention.bytes": 20_000})
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.9}
        broker.create_topic("kept", 1, {**compacted, "segment.bytes": 10_000})
        produce(broker, "old", 60)
        produce(broker, "kept", 60, keys=3)
        page = wait(
            broker,
            lambda page: (
                page("ottla_retention_deleted_segments_total") > 0
                and page("ottla_compaction_logs_total") > 0
                and page("ottla_scrub_last_pass_timestamp_seconds") > 0
                and page("ottla_scrub_read_bytes_total") > 0
            ),
        )
        for chore in ("retention_last_run", "compaction_last_run", "scrub_last_pass"):
            assert page(f"ottla_{chore}_timestamp_seconds") >= began_s - 1
        assert page("ottla_retention_deleted_bytes_total") >= 10_000
        page = wait(broker, lambda page: page("ottla_log_size_bytes", topic="old") <= 30_000)
        assert page("ottla_log_offsets", topic="old") < 60
        assert page("ottla_compaction_freed_bytes_total") > 30_000
        assert page("ottla_compaction_cleaned_bytes_total") > 30_000
        assert 0 <= page("ottla_log_dirty_ratio", topic="kept") <= 1
        assert not page.has("ottla_log_dirty_ratio", topic="old")
        assert 0 <= page("ottla_scrub_progress_ratio") <= 1
        assert page("ottla_partitions_corrupt") == 0


def test_disks_syncs_and_the_start_are_on_the_page(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    with Broker({"log.dirs": f"{first},{second}"}, data_dir=first) as broker:
        broker.create_topic("orders", 2)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for partition in (0, 1):
            producer.produce("orders", b"x", partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        page = Page(broker)
        for directory in (first, second):
            assert page("ottla_directory_online", directory=directory) == 1
            free = page("ottla_disk_free_bytes", directory=directory)
            assert 0 < free <= page("ottla_disk_total_bytes", directory=directory)
            assert page("ottla_log_sync_seconds_count", directory=directory) >= 1
            assert page("ottla_log_sync_failures_total", directory=directory) == 0
            assert page("ottla_disk_waiting_bytes", directory=directory) == 0
        assert page("ottla_clean_start") == 1
        assert page("ottla_log_open_files") >= 2
        assert page("ottla_log_offsets", topic="orders") == 2
        broker.kill()
        broker.start()
        page = Page(broker)
        assert page("ottla_clean_start") == 0
        assert page("ottla_recovery_seconds") > 0


def test_a_damaged_partition_is_counted_once_it_is_found(tmp_path: Path) -> None:
    with Broker({"log.scrub.interval.ms": 1}, data_dir=tmp_path / "data") as broker:
        broker.create_topic("orders", 1)
        produce(broker, "orders", 5)
        assert Page(broker)("ottla_partitions_corrupt") == 0
        (log,) = (broker.data_dir / "orders-0").glob("*.log")
        data = bytearray(log.read_bytes())
        _, (at, _), *_ = headers_in(bytes(data))
        with log.open("r+b") as file:
            file.seek(at + 500)
            file.write(bytes([data[at + 500] ^ 1]))
        page = wait(broker, lambda page: page("ottla_partitions_corrupt") == 1)
        assert page("ottla_scrub_corruptions_total") == 1
