"""The batches of a run as Prometheus metrics, on a port of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.running.reports import BatchReport

LOOPBACK: Final = "127.0.0.1"
BATCH_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
STOP_TIMEOUT_S: Final = 5.0
_FLOW: Final = ("pipeline", "flow")
_SOURCE: Final = ("pipeline", "flow", "source")


class PipelineMetrics:
    """One per run, with a registry of its own. `run(..., metrics=…)` fills it."""

    def __init__(self, pipeline: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._pipeline = pipeline
        self._rows_in = Counter(
            "ottla_pipeline_rows_in", "Rows read, good and bad", _SOURCE, registry=registry
        )
        self._rows_out = Counter(
            "ottla_pipeline_rows_out", "Rows given to the sink", _FLOW, registry=registry
        )
        self._bad = Counter(
            "ottla_pipeline_bad_records", "Records that did not parse", _SOURCE, registry=registry
        )
        self._batches = Counter("ottla_pipeline_batches", "Batches done", _FLOW, registry=registry)
        self._seconds = Histogram(
            "ottla_pipeline_batch_seconds",
            "Time of a batch, from its planning to its commit",
            _FLOW,
            buckets=BATCH_SECONDS,
            registry=registry,
        )
        self._lag = Gauge(
            "ottla_pipeline_lag_messages", "Messages still to be read", _SOURCE, registry=registry
        )
        self._state_rows = Gauge(
            "ottla_pipeline_state_rows", "Rows kept as state", _FLOW, registry=registry
        )
        self._state_bytes = Gauge(
            "ottla_pipeline_state_bytes", "Memory used for state", _FLOW, registry=registry
        )
        self._restarts = Counter(
            "ottla_pipeline_restarts", "Restarts after a failure", _FLOW, registry=registry
        )
        self._spark_restarts = Counter(
            "ottla_pipeline_spark_restarts",
            "Restarts of Spark itself, when it was of no use any more",
            ("pipeline",),
            registry=registry,
        )
        self._last_batch = Gauge(
            "ottla_pipeline_last_batch_timestamp_seconds",
            "When the last batch ended",
            _FLOW,
            registry=registry,
        )

    def flow(self, flow: str) -> None:
        """Counters are there before the first batch: a rate over nothing is no alarm."""
        for one in (self._rows_out, self._batches, self._restarts):
            one.labels(self._pipeline, flow)

    def batch(self, report: BatchReport) -> None:
        labels = (self._pipeline, report.flow)
        by_source = report.rows_in_by_source or {"": report.rows_in}
        for source, rows in by_source.items():
            self._rows_in.labels(*labels, source).inc(rows)
            self._bad.labels(*labels, source).inc(report.bad_by_source.get(source, 0))
        self._rows_out.labels(*labels).inc(report.rows_out)
        self._batches.labels(*labels).inc()
        self._seconds.labels(*labels).observe(report.batch_ms / 1000)
        self._state_rows.labels(*labels).set(report.state_rows)
        self._state_bytes.labels(*labels).set(report.state_bytes)
        began = datetime.fromisoformat(report.at).timestamp()
        self._last_batch.labels(*labels).set(began + report.batch_ms / 1000)
        self.lag(report.flow, report.lag)

    def lag(self, flow: str, messages: Mapping[str, int | None]) -> None:
        """What is not known is left out: an old number would look like a healthy one."""
        for source, count in messages.items():
            labels = (self._pipeline, flow, source)
            if count is None:
                self._lag.remove_by_labels(dict(zip(_SOURCE, labels, strict=True)))
            else:
                self._lag.labels(*labels).set(count)

    def restarted(self, flow: str) -> None:
        self._restarts.labels(self._pipeline, flow).inc()

    def spark_restarted(self, times: int = 1) -> None:
        self._spark_restarts.labels(self._pipeline).inc(times)


@contextmanager
def serving(metrics: PipelineMetrics, port: int, host: str = LOOPBACK) -> Iterator[int]:
    """Serves /metrics there (port 0: any; the port is given); PipelineFailed when it cannot."""
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PipelineFailed(
            f"metrics cannot be served on {host}:{port}: {reason}; give another port"
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(STOP_TIMEOUT_S)
