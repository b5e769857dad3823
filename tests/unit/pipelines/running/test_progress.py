"""Spark's progress into reports: every batch once, idle queries are silent."""

from __future__ import annotations

from typing import Any

from ottla.pipelines.running.progress import Batches, report_of


def progress(batch: int, *, is_idle: bool = False, **more: Any) -> dict[str, Any]:
    durations = {"latestOffset": 3} if is_idle else {"addBatch": 80, "triggerExecution": 120}
    return {
        "batchId": batch,
        "timestamp": f"2026-11-16T04:15:{batch % 60:02}.{'999' if is_idle else '000'}Z",
        "batchDuration": 125,
        "durationMs": durations,
        "numInputRows": 0 if is_idle else 100,
        **more,
    }


class Query:
    """What a query keeps: the last few, the newest last."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []
        self.asked = 0

    def recent(self) -> list[dict[str, Any]]:
        self.asked += 1
        return self.kept

    def look(self, batches: Batches) -> list[int]:
        newest = self.kept[-1] if self.kept else None
        return [int(one["batchId"]) for one in batches.fresh(newest, self.recent)]


def test_batches_faster_than_the_looks_are_all_told() -> None:
    query, batches = Query(), Batches()
    assert query.look(batches) == []
    query.kept = [progress(0), progress(1), progress(2)]
    assert query.look(batches) == [0, 1, 2]
    assert query.look(batches) == []
    query.kept.append(progress(3))
    asked = query.asked
    assert query.look(batches) == [3]
    assert query.asked == asked, "the newest alone says it"
    query.kept += [progress(4), progress(5)]
    assert query.look(batches) == [4, 5]


def test_idle_query_is_silent_and_hides_no_batch() -> None:
    query, batches = Query(), Batches()
    query.kept = [progress(0), progress(1, is_idle=True)]
    assert query.look(batches) == [0]
    query.kept.append(progress(1))
    assert query.look(batches) == [1]
    query.kept += [progress(2), progress(3, is_idle=True)]
    assert query.look(batches) == [2]


def test_batches_told_before_a_restart_are_not_told_again() -> None:
    query, batches = Query(), Batches()
    query.kept = [progress(0), progress(1)]
    assert query.look(batches) == [0, 1]
    # The new query starts with what the old one did not finish.
    restarted = Query()
    assert restarted.look(batches) == []
    restarted.kept = [progress(1), progress(2)]
    assert restarted.look(batches) == [2]


def test_first_batch_after_earlier_runs() -> None:
    query, batches = Query(), Batches()
    query.kept = [progress(41)]
    assert query.look(batches) == [41]


def test_report_counts_what_was_observed() -> None:
    told = report_of(
        "out",
        progress(
            7,
            observedMetrics={
                "out": {"rows": 12},
                "source:orders": {"rows": 100, "bad": 3},
                "source:shops": {"rows": 50, "bad": None},
            },
            stateOperators=[
                {"numRowsTotal": 10, "memoryUsedBytes": 1000},
                {"numRowsTotal": 5, "memoryUsedBytes": 24},
            ],
        ),
        {"orders": 0},
    )
    assert (told.rows_in, told.rows_out, told.bad) == (150, 12, 3)
    assert told.rows_in_by_source == {"orders": 100, "shops": 50}
    assert told.bad_by_source == {"orders": 3, "shops": 0}
    assert (told.state_rows, told.state_bytes) == (15, 1024)
    assert (told.batch_ms, told.rows_per_s) == (125, 1200.0)
    assert (told.flow, told.batch, told.lag) == ("out", 7, {"orders": 0})


def test_report_without_observations_takes_what_spark_counted() -> None:
    plain = progress(0, sink={"numOutputRows": 40}, observedMetrics=None, stateOperators=[])
    told = report_of("out", plain, {})
    assert (told.rows_in, told.rows_out, told.state_rows) == (100, 40, 0)
    silent = report_of("out", progress(0, sink={"numOutputRows": -1}), {})
    assert silent.rows_out == 0
