"""The lines and the JSON of a run."""

from __future__ import annotations

import json

import pytest

from ottla.pipelines.running.reports import BatchReport, Event, human, human_bytes, human_ms

BATCH = BatchReport(
    flow="totals",
    batch=12,
    at="2026-11-16T04:15:27.411Z",
    rows_in=12_345,
    rows_out=120,
    bad=3,
    rows_per_s=4115.0,
    batch_ms=3000,
    lag={"orders": 1_500_000, "shops": None},
    state_rows=1200,
    state_bytes=3_565_158,
    rows_in_by_source={"orders": 12_000, "shops": 345},
    bad_by_source={"orders": 3, "shops": 0},
)


def test_line_says_everything_in_three_digits() -> None:
    assert BATCH.line() == (
        "04:15:27  totals  #12      12.3k in     120 out   4.12k/s  3000 ms  "
        "lag orders 1.50M shops ?  state 1.20k rows 3.40 MiB  3 bad"
    )


def test_lines_of_different_flows_are_aligned() -> None:
    quiet = BatchReport(flow="a", batch=7, at=BATCH.at, lag={"orders": 0})
    lines = [BATCH.line(10), quiet.line(10)]
    assert len({line.index(" in ") for line in lines}) == 1
    assert len({line.index("lag ") for line in lines}) == 1
    assert lines[1].endswith("lag orders 0")


def test_json_has_the_same_keys_for_every_batch() -> None:
    told = BATCH.json()
    assert told["sources"] == {
        "orders": {"rows_in": 12_000, "bad": 3},
        "shops": {"rows_in": 345, "bad": 0},
    }
    assert told["lag"] == {"orders": 1_500_000, "shops": None}
    assert list(told) == list(BatchReport(flow="a", batch=0, at=BATCH.at).json())
    assert list(told) == [
        "type", "at", "flow", "batch", "rows_in", "rows_out", "bad", "rows_per_s", "batch_ms",
        "lag", "state_rows", "state_bytes", "sources",
    ]  # fmt: skip
    assert json.loads(json.dumps(told)) == told


def test_event_names_its_flow() -> None:
    event = Event(kind="restarting", text="restarting in 2 s because x", at=BATCH.at, flow="out")
    assert event.line(6) == "04:15:27  out     restarting in 2 s because x"
    assert event.json() == {
        "type": "restarting",
        "at": BATCH.at,
        "flow": "out",
        "text": "restarting in 2 s because x",
    }


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (7, "7"), (999, "999"), (1000, "1.00k"), (1234, "1.23k"), (12_345, "12.3k"),
        (999_400, "999k"), (999_999, "1.00M"), (1_500_000, "1.50M"), (3e12, "3.00T"),
        (5e16, "50000T"), (0.5, "0.50"), (38.46, "38.5"), (None, "?"),
    ],
)  # fmt: skip
def test_numbers_for_people(number: float | None, text: str) -> None:
    assert human(number) == text


def test_units_for_people() -> None:
    assert [human_bytes(n) for n in (0, 500, 1536, 5 * 2**30)] == [
        "0 B", "500 B", "1.50 KiB", "5.00 GiB",
    ]  # fmt: skip
    assert [human_ms(n) for n in (0, 9999, 61_000)] == ["0 ms", "9999 ms", "61.0 s"]
