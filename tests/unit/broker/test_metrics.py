"""The metrics page, read by prometheus-client's own parser."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import psutil
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from ottla.broker import counters as metrics_module
from ottla.broker.counters import LATENCY_BOUNDS_S, Histogram, LoopDelayProbe, Metrics


def scrape(metrics: Metrics) -> dict[str, Metric]:
    text = metrics.render().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], sample_name: str, **labels: str) -> float:
    (found,) = (
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == sample_name and sample.labels == labels
    )
    return found


def test_requests_of_an_api_are_counted_with_their_latency() -> None:
    metrics = Metrics()
    produce = metrics.api(0, "Produce")
    metrics.api(1, "Fetch")
    for seconds in (0.00005, 0.0001, 0.003, 99.0):
        produce.count += 1
        produce.observe(seconds)
    produce.errors += 1

    page = scrape(metrics)

    assert value(page, "ottla_requests_total", api="Produce") == 4
    assert value(page, "ottla_request_errors_total", api="Produce") == 1
    assert value(page, "ottla_request_seconds_bucket", api="Produce", le="0.0001") == 2
    assert value(page, "ottla_request_seconds_bucket", api="Produce", le="0.005") == 3
    assert value(page, "ottla_request_seconds_bucket", api="Produce", le="10.0") == 3
    assert value(page, "ottla_request_seconds_bucket", api="Produce", le="+Inf") == 4
    assert value(page, "ottla_request_seconds_count", api="Produce") == 4
    assert value(page, "ottla_request_seconds_sum", api="Produce") == pytest.approx(99.00315)
    assert not any(
        sample.labels.get("api") == "Fetch" for f in page.values() for sample in f.samples
    )


def test_the_same_api_and_topic_give_the_same_counters() -> None:
    metrics = Metrics()
    assert metrics.api(0, "Produce") is metrics.api(0, "Produce")
    assert metrics.topic("a") is metrics.topic("a")
    assert metrics.topic("a") is not metrics.topic("b")


def test_a_topics_traffic_is_on_the_page_until_it_is_deleted() -> None:
    metrics = Metrics()
    orders = metrics.topic("orders")
    orders.messages_in += 10
    orders.bytes_in += 1000
    orders.bytes_out += 500

    page = scrape(metrics)
    assert value(page, "ottla_topic_messages_in_total", topic="orders") == 10
    assert value(page, "ottla_topic_bytes_in_total", topic="orders") == 1000
    assert value(page, "ottla_topic_bytes_out_total", topic="orders") == 500

    metrics.forget_topic("orders")
    assert "orders" not in metrics.render().decode()


def test_each_data_directory_has_its_own_times_of_syncs() -> None:
    metrics = Metrics()
    metrics.sync_latency("/a").observe(0.002)
    metrics.sync_latency("/a").observe(0.2)
    metrics.sync_latency("/b")

    page = scrape(metrics)

    assert value(page, "ottla_log_sync_seconds_count", directory="/a") == 2
    assert value(page, "ottla_log_sync_seconds_bucket", directory="/a", le="0.0025") == 1
    assert value(page, "ottla_log_sync_seconds_count", directory="/b") == 0


def test_gauges_are_read_at_every_scrape() -> None:
    metrics = Metrics()
    lag = {("billing", "orders"): 3}
    metrics.gauge("ottla_group_lag", "Lag.", lag.items, ("group", "topic"))
    metrics.value("ottla_connections_open", "Open.", lambda: len(lag))

    assert value(scrape(metrics), "ottla_group_lag", group="billing", topic="orders") == 3
    lag["billing", "orders"] = 4
    lag["other", "orders"] = 0
    page = scrape(metrics)
    assert value(page, "ottla_group_lag", group="billing", topic="orders") == 4
    assert value(page, "ottla_connections_open") == 2


def test_group_names_may_hold_anything() -> None:
    metrics = Metrics()
    name = 'quote " backslash \\ line\nend, {comma}'
    metrics.gauge("ottla_group_lag", "One\nline \\ only.", lambda: [((name,), 1)], ("group",))
    assert value(scrape(metrics), "ottla_group_lag", group=name) == 1


def test_too_many_topics_share_one_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "TOPICS_MAX", 3)
    metrics = Metrics()
    for number in range(10):
        metrics.topic(f"topic-{number}").bytes_in += 1
    page = scrape(metrics)
    assert value(page, "ottla_topic_bytes_in_total", topic="topic-2") == 1
    assert value(page, "ottla_topic_bytes_in_total", topic="__other__") == 7


def test_a_gauge_with_too_many_series_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "SERIES_PER_FAMILY_MAX", 5)
    metrics = Metrics()

    def lag() -> Iterable[tuple[tuple[str, ...], int]]:
        return (((f"group-{number}",), 0) for number in range(12))

    metrics.gauge("ottla_group_lag", "Lag.", lag, ("group",))
    page = scrape(metrics)
    assert len(page["ottla_group_lag"].samples) == 5
    assert value(page, "ottla_metrics_series_left_out") == 7
    assert value(scrape(metrics), "ottla_metrics_series_left_out") == 7


def test_names_keep_to_the_conventions_of_prometheus() -> None:
    metrics = Metrics()
    metrics.api(0, "Produce").count += 1
    metrics.topic("orders")
    for line in metrics.render().decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name.startswith(("ottla_", "process_"))
            assert name.endswith("_total") == (kind == "counter")
            assert kind != "histogram" or name.endswith("_seconds")


def test_the_process_is_on_the_page() -> None:
    page = scrape(Metrics())
    assert value(page, "process_resident_memory_bytes") > 1_000_000
    assert value(page, "process_open_fds") > 2
    assert value(page, "process_cpu_seconds_total") > 0
    assert abs(value(page, "process_start_time_seconds") - psutil.Process().create_time()) < 2


def test_an_observation_on_a_bound_belongs_to_its_bucket() -> None:
    for place, bound in enumerate(LATENCY_BOUNDS_S):
        histogram = Histogram()
        histogram.observe(bound)
        assert histogram.counts.index(1) == place


def test_the_probe_sees_a_loop_that_was_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "LOOP_DELAY_INTERVAL_S", 0.0)
    delay = Histogram()

    async def run() -> None:
        probe = LoopDelayProbe(asyncio.get_running_loop(), delay)
        probe.start()
        while sum(delay.counts) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        probe.stop()
        seen = sum(delay.counts)
        for _ in range(5):
            await asyncio.sleep(0)
        assert sum(delay.counts) == seen

    asyncio.run(asyncio.wait_for(run(), 20))
