"""Metrics as Prometheus reads them."""

from __future__ import annotations

import socket
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.running.metrics import PipelineMetrics, serving
from ottla.pipelines.running.reports import BatchReport

BATCH = BatchReport(
    flow="out",
    batch=1,
    at="2026-11-16T04:15:27.500Z",
    rows_in=100,
    rows_out=90,
    bad=3,
    batch_ms=2500,
    lag={"orders": 7},
    state_rows=5,
    state_bytes=640,
    rows_in_by_source={"orders": 100},
    bad_by_source={"orders": 3},
)


def scraped(port: int) -> dict[tuple[str, str], float]:
    """By name and `flow/source`; all are of the pipeline shop."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("pipeline") == "shop"
            found[sample.name.removeprefix("ottla_pipeline_"), "/".join(labels.values())] = (
                sample.value
            )
    return found


def test_batches_are_added_up() -> None:
    metrics = PipelineMetrics("shop")
    metrics.flow("out")
    with serving(metrics, 0) as port:
        assert scraped(port)["batches_total", "out"] == 0
        metrics.batch(BATCH)
        metrics.batch(replace(BATCH, batch=2, lag={"orders": 2}, state_rows=4))
        metrics.restarted("out")
        found = scraped(port)
    assert found["rows_in_total", "out/orders"] == 200
    assert found["bad_records_total", "out/orders"] == 6
    assert found["rows_out_total", "out"] == 180
    assert found["batches_total", "out"] == 2
    assert found["batch_seconds_count", "out"] == 2
    assert found["batch_seconds_sum", "out"] == 5
    assert found["batch_seconds_bucket", "out/2.5"] == 2
    assert found["batch_seconds_bucket", "out/1.0"] == 0
    assert found["lag_messages", "out/orders"] == 2
    assert (found["state_rows", "out"], found["state_bytes", "out"]) == (4, 640)
    assert found["restarts_total", "out"] == 1
    assert found["last_batch_timestamp_seconds", "out"] == 1794802530.0


def test_unknown_lag_is_left_out() -> None:
    metrics = PipelineMetrics("shop")
    metrics.batch(BATCH)
    with serving(metrics, 0) as port:
        metrics.lag("out", {"orders": None, "shops": None})
        assert ("lag_messages", "out/orders") not in scraped(port)
        metrics.lag("out", {"orders": 12})
        assert scraped(port)["lag_messages", "out/orders"] == 12


def test_two_runs_in_one_process_do_not_share_numbers() -> None:
    one, other = PipelineMetrics("shop"), PipelineMetrics("shop")
    one.batch(BATCH)
    with serving(other, 0) as port:
        assert not scraped(port)


def test_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(PipelineFailed, match=rf"127\.0\.0\.1:{port}: Address already in use"),
            serving(PipelineMetrics("shop"), port),
        ):
            pass
