"""Spark's progress of a query, as reports: one per batch, none lost, none twice.

Spark keeps the last hundred or so. Among them are some of no batch: an idle query says so now and
then under the number of the batch that is still to come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ottla.pipelines.running.reports import BatchReport

# As StreamingQueryProgress.json says it.
Progress: TypeAlias = Mapping[str, Any]

OUT: Final = "out"
SOURCE: Final = "source:"


class Batches:
    """Which of a flow's batches have been seen; lives longer than a query that is restarted."""

    def __init__(self) -> None:
        self._last_batch = -1
        self._last_look: tuple[int, str] | None = None

    def fresh(
        self, newest: Progress | None, recent: Callable[[], Sequence[Progress]]
    ) -> list[Progress]:
        """The batches that have ended since the last call; `recent` is asked only if need be."""
        if newest is None:
            return []
        look = (int(newest["batchId"]), str(newest["timestamp"]))
        if look == self._last_look:
            return []
        self._last_look = look
        is_next = self._last_batch >= 0 and look[0] == self._last_batch + 1 and is_batch(newest)
        found = [newest] if is_next else [one for one in recent() if is_batch(one)]
        new = [one for one in found if int(one["batchId"]) > self._last_batch]
        if new:
            self._last_batch = int(new[-1]["batchId"])
        return new


def is_batch(progress: Progress) -> bool:
    """Only what was executed has been written somewhere."""
    return "addBatch" in progress.get("durationMs", {})


def report_of(flow: str, progress: Progress, lag: Mapping[str, int | None]) -> BatchReport:
    """The batch in our words; rows are those that the flow's own observations have counted."""
    observed: Mapping[str, Mapping[str, Any]] = progress.get("observedMetrics") or {}
    rows = _by_source(observed, "rows")
    bad = _by_source(observed, "bad")
    rows_in = sum(rows.values()) if rows else _number(progress.get("numInputRows"))
    batch_ms = _number(progress.get("batchDuration"))
    if not batch_ms:
        batch_ms = _number(progress.get("durationMs", {}).get("triggerExecution"))
    operators = progress.get("stateOperators") or []
    return BatchReport(
        flow=flow,
        batch=int(progress["batchId"]),
        at=str(progress["timestamp"]),
        rows_in=rows_in,
        rows_out=_rows_out(progress, observed),
        bad=sum(bad.values()),
        rows_per_s=rows_in * 1000 / batch_ms if batch_ms else 0.0,
        batch_ms=batch_ms,
        lag=lag,
        state_rows=sum(_number(one.get("numRowsTotal")) for one in operators),
        state_bytes=sum(_number(one.get("memoryUsedBytes")) for one in operators),
        rows_in_by_source=rows,
        bad_by_source=bad,
    )


def _by_source(observed: Mapping[str, Mapping[str, Any]], what: str) -> dict[str, int]:
    return {
        name.removeprefix(SOURCE): _number(values.get(what))
        for name, values in observed.items()
        if name.startswith(SOURCE)
    }


def _rows_out(progress: Progress, observed: Mapping[str, Mapping[str, Any]]) -> int:
    if OUT in observed:
        return _number(observed[OUT].get("rows"))
    # Sinks that do not count say -1.
    return max(_number((progress.get("sink") or {}).get("numOutputRows")), 0)


def _number(value: Any) -> int:
    return int(value) if value is not None else 0
