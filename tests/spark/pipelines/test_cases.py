"""The tests in a pipeline's own file, run as `ottla pipeline test` runs them, without a broker."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from ottla.pipelines.cases.suite import run_tests
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.language.problems import BadPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Nobody listens there: whoever asks a broker fails.
HEAD = "version: 1\nname: p\nbootstrap: 127.0.0.1:1\n"

# Whether all passed, and what was reported without the seconds.
Outcome = tuple[bool, list[str]]
Run = Callable[..., Outcome]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Writes a pipeline and its files, and runs its tests."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def run(pipeline: str, files: Mapping[str, Any], only: str | None = None) -> Outcome:
        file = tmp_path / "p.yaml"
        file.write_text(HEAD + pipeline)
        for name, content in files.items():
            if isinstance(content, bytes):
                (tmp_path / name).write_bytes(content)
            elif isinstance(content, str):
                (tmp_path / name).write_text(content)
            else:
                (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in content))
        lines: list[str] = []
        passed = run_tests(spark, read_pipeline(file), only=only, report=lines.append)
        assert not list(scratch.iterdir()), "a test leaves nothing behind"
        return passed, [line.replace(f"{tmp_path}/", "") for line in lines]

    return run


def verdicts(lines: list[str]) -> list[str]:
    """`ok first`, `FAILED second`."""
    words = (line.split() for line in lines if not line.startswith(" "))
    return [" ".join(word[:2]) for word in words if word[0] in ("ok", "FAILED")]


def at(time: str) -> str:
    return f"2024-01-31T{time}Z"


def order(id: int, shop: str, amount: float, time: str) -> dict[str, Any]:
    return {"id": id, "shop": shop, "amount": amount, "at": at(time)}


ORDERS = """
sources:
  orders:
    topic: orders
    format: json
    schema: id BIGINT, shop STRING, amount DECIMAL(10,2), at TIMESTAMP
"""


def test_windows_close_behind_the_watermark_and_late_rows_are_lost(run: Run) -> None:
    pipeline = f"""{ORDERS}
    watermark: {{column: at, delay: 2 minutes}}
    deduplicate: [id]
    bad_records: {{topic: orders.dead}}
views:
  totals: |
    SELECT window.start AS minute, shop, sum(amount) AS total
    FROM orders GROUP BY window(at, '1 minute'), shop
sinks:
  out: {{from: totals, topic: totals, key: shop, mode: append}}
tests:
  in_order:
    given: {{orders: [first.jsonl, second.jsonl]}}
    expect: {{totals: totals.jsonl, orders.bad: bad.jsonl}}
  swapped: {{given: {{orders: [second.jsonl, first.jsonl]}}, expect: {{totals: totals.jsonl}}}}
"""
    passed, lines = run(
        pipeline,
        {
            "first.jsonl": "\n".join(
                [
                    json.dumps(order(1, "a", 10.10, "10:00:10")),
                    json.dumps(order(2, "a", 2.40, "10:00:50")),
                    json.dumps(order(1, "a", 10.10, "10:00:10")),
                    '{"id": "one"}',
                    json.dumps(order(3, "b", 1, "10:05:00")),
                ]
            ),
            # The first is late by 13 s, and the last opens a window that nothing closes.
            "second.jsonl": [order(4, "a", 100, "10:00:30"), order(5, "b", 7, "10:20:00")],
            "totals.jsonl": [
                {"minute": at("10:05:00"), "shop": "b", "total": 1},
                {"minute": at("10:00:00"), "shop": "a", "total": 12.5},
            ],
            "bad.jsonl": [
                {"value": '{"id": "one"}', "reason": 'value: field id: "one" is not BIGINT'}
            ],
        },
    )
    assert verdicts(lines) == ["ok in_order", "FAILED swapped"], lines
    assert not passed
    # With the rows of 10:20 first all that comes behind them is late.
    assert lines[2:5] == [
        "  totals is not as in totals.jsonl: 2 rows expected, 1 found",
        '    ~ differs   line 2 {"minute": "2024-01-31T10:00:00Z", "shop": "a"}: '
        "total is 100.00, expected 12.5",
        '    - missing   line 1 {"minute": "2024-01-31T10:05:00Z", "shop": "b", "total": 1}',
    ]
    assert lines[-2] == (
        "    the watermark ended at 2024-01-31T10:18:00.000Z; rows that wait for a later one are "
        "not out yet (give one more row with a later time)"
    )
    assert lines[-1].startswith("2 tests: 1 ok, 1 FAILED, ")


def test_a_view_gives_what_the_mode_of_its_sink_lets_through(run: Run, tmp_path: Path) -> None:
    pipeline = f"""{ORDERS}
views:
  changed: SELECT shop, sum(amount) AS total FROM orders GROUP BY shop
  whole: SELECT shop, count(*) AS orders FROM orders GROUP BY shop
  latest: SELECT shop, max(id) AS id FROM orders GROUP BY shop
  current: |
    SELECT id, shop, amount, _tombstone AS gone, _timestamp, _partition, _offset FROM orders
  inner: SELECT count(*) AS n FROM orders
sinks:
  changed: {{from: changed, topic: t, mode: update}}
  whole: {{from: whole, topic: t, mode: complete}}
  latest: {{from: latest, current_table: out/latest, keys: shop}}
  current:
    {{from: current, current_table: out/current, keys: shop, apply_as_deletes: amount > 50}}
tests:
  modes:
    given: {{orders: [first.jsonl, second.jsonl]}}
    expect:
      changed: changed.jsonl
      whole: whole.jsonl
      latest: latest.jsonl
      current: current.jsonl
      inner: inner.jsonl
"""
    passed, lines = run(
        pipeline,
        {
            "first.jsonl": [
                order(1, "a", 1, "10:00:00"),
                order(2, "a", 2, "10:00:00"),
                order(3, "b", 3, "10:00:00"),
                order(4, "c", 4, "10:00:00"),
            ],
            "second.jsonl": [order(5, "a", 5, "10:00:00"), order(6, "b", 60, "10:00:00")],
            "changed.jsonl": [
                {"shop": "a", "total": 3},
                {"shop": "b", "total": 3},
                {"shop": "c", "total": 4},
                {"shop": "a", "total": 8},
                {"shop": "b", "total": 63},
            ],
            "whole.jsonl": [
                {"shop": "a", "orders": 3},
                {"shop": "b", "orders": 2},
                {"shop": "c", "orders": 1},
            ],
            "latest.jsonl": [
                {"shop": "a", "id": 5},
                {"shop": "b", "id": 6},
                {"shop": "c", "id": 4},
            ],
            "current.jsonl": [
                {"id": 5, "shop": "a", "gone": False, "amount": 5},
                {"id": 4, "shop": "c", "gone": False, "amount": 4},
            ],
            "inner.jsonl": [{"n": 6}],
        },
    )
    assert passed, lines
    assert not (tmp_path / "out").exists()


def test_sources_advance_together_and_tables_are_there_from_the_beginning(run: Run) -> None:
    pipeline = """
sources:
  clicks:
    topic: clicks
    schema: user STRING, at TIMESTAMP
    watermark: {column: at, delay: 1 minute}
  buys:
    topic: buys
    schema: user STRING, at TIMESTAMP
    watermark: {column: at, delay: 1 minute}
  drops: {files: in/*.csv, format: csv, schema: "user STRING, n INT", options: {header: "true"}}
  users: {jdbc: "jdbc:postgresql://nowhere/db", table: users, schema: "user STRING, name STRING"}
  unused: {delta: /nowhere}
views:
  together: |
    SELECT 'all' AS who, count(*) AS rows FROM
    (SELECT user FROM clicks UNION ALL SELECT user FROM buys UNION ALL SELECT user FROM drops)
    GROUP BY 1
  bought: |
    SELECT c.user, b.at IS NOT NULL AS bought FROM clicks c LEFT JOIN buys b
    ON c.user = b.user AND b.at BETWEEN c.at AND c.at + INTERVAL 1 MINUTE
  named: SELECT d.n, u.name FROM drops d LEFT JOIN users u USING (user)
sinks:
  together: {from: together, topic: t, mode: update}
  named: {from: named, files: out, format: json}
tests:
  steps:
    given:
      clicks: [clicks1.jsonl, clicks2.jsonl, clicks3.jsonl]
      buys: [buys1.jsonl, buys2.jsonl]
      drops: [drops1.csv, drops2.csv]
      users: [users.jsonl]
    expect: {together: together.jsonl, bought: bought.jsonl, named: named.jsonl}
"""
    passed, lines = run(
        pipeline,
        {
            "clicks1.jsonl": [{"user": "a", "at": at("10:00:00")}],
            "clicks2.jsonl": [{"user": "b", "at": at("10:00:10")}],
            "clicks3.jsonl": [{"user": "c", "at": at("11:00:00")}],
            "buys1.jsonl": [{"user": "a", "at": at("10:00:30")}],
            "buys2.jsonl": [{"user": "z", "at": at("11:00:00")}],
            "drops1.csv": "user,n\na,1\nq,2\n",
            "drops2.csv": "user,n\na,3\n",
            "users.jsonl": [{"user": "a", "name": "Anna"}],
            # One of each, then one of each, then what is left of the longest; pauses are silent.
            "together.jsonl": [{"who": "all", "rows": rows} for rows in (4, 7, 8)],
            "bought.jsonl": [{"user": "a", "bought": True}, {"user": "b", "bought": False}],
            "named.jsonl": [
                {"n": 1, "name": "Anna"},
                {"n": 2, "name": None},
                {"n": 3, "name": "Anna"},
            ],
        },
    )
    assert passed, lines


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Reading",
        "fields": [
            {"name": "sensor", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
)


def test_messages_come_with_all_that_a_broker_gives(run: Run) -> None:
    pipeline = f"""
sources:
  users: {{topic: users, schema: "name STRING", headers: true, bad_records: drop}}
  lines: {{topic: lines, format: string}}
  readings: {{topic: readings, format: avro, schema: '{AVRO}', framing: confluent, schema_ids: 7}}
  parts: {{files: in, format: parquet, schema: "id INT, price DECIMAL(5,2)"}}
  boxes: {{files: in, format: avro, schema: '{AVRO}'}}
  ticks: {{rate: 5}}
views:
  even: {{python: "own:even"}}
  headers: SELECT name, _headers[0].key AS header FROM users WHERE NOT _tombstone
sinks:
  out: {{from: headers, topic: t}}
tests:
  messages:
    given:
      users: [users.messages.jsonl]
      lines: [lines.txt]
      readings: [readings.jsonl]
      parts: [parts.jsonl]
      boxes: [boxes.avro]
      ticks: [ticks.jsonl]
    expect:
      even: even.jsonl
      users: users.jsonl
      users.bad: bad.jsonl
      headers: headers.jsonl
      lines: lines.jsonl
      readings: seen.jsonl
      parts: parts.jsonl
      boxes: seen.jsonl
"""
    reading = {"sensor": "x", "at": at("10:00:00.250")}
    passed, lines = run(
        pipeline,
        {
            "own.py": "def even(ticks):\n    return ticks.where('value % 2 = 0').select('value')\n",
            "ticks.jsonl": [{"timestamp": at("10:00:00"), "value": n} for n in range(4)],
            "even.jsonl": [{"value": 0}, {"value": 2}],
            "users.messages.jsonl": [
                {"key": "1", "value": {"name": "Anna"}, "headers": {"trace": "t"}, "partition": 2},
                {"key": "2", "value": None, "timestamp": at("10:00:00")},
                {"key": "3", "value_text": "{oops"},
            ],
            "users.jsonl": [
                {"name": "Anna", "_key": "1", "_partition": 2, "_offset": 0, "_tombstone": False,
                 "_timestamp": "1970-01-01T00:00:00Z"},
                {"name": None, "_key": "2", "_partition": 0, "_offset": 0, "_tombstone": True,
                 "_timestamp": at("10:00:00")},
            ],
            "bad.jsonl": [{"value": "{oops"}],
            "headers.jsonl": [{"name": "Anna", "header": "trace"}],
            "lines.txt": "one\ntwo\none\n",
            "lines.jsonl": [{"value": "one"}, {"value": "one"}, {"value": "two"}],
            "readings.jsonl": [reading],
            "boxes.avro": container([{"sensor": "x", "at": 1706695200250}]),
            "seen.jsonl": [reading],
            "parts.jsonl": [{"id": 1, "price": 9.99}, {"id": None, "price": None}],
        },
    )  # fmt: skip
    assert passed, lines


def container(rows: list[dict[str, Any]]) -> bytes:
    import io

    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(json.loads(AVRO)), rows)
    return out.getvalue()


def test_what_is_wrong_is_told_and_the_next_test_runs(run: Run) -> None:
    pipeline = f"""{ORDERS}
  tables: {{jdbc: "jdbc:postgresql://nowhere/db", table: users}}
views:
  sums: SELECT shop, amount, id FROM orders
  joined: SELECT o.id FROM orders o JOIN tables USING (id)
  broken: SELECT assert_true(id < 2, concat('too large ', 'by far')) AS x FROM orders
sinks:
  out: {{from: sums, topic: t}}
tests:
  differs: {{given: {{orders: [orders.jsonl]}}, expect: {{sums: differs.jsonl}}}}
  wrong_given: {{given: {{orders: [broken.messages.jsonl]}}, expect: {{sums: fine.jsonl}}}}
  wrong_expected: {{given: {{orders: [orders.jsonl]}}, expect: {{sums: wrong.jsonl}}}}
  bad_record: {{given: {{orders: [wrong.jsonl]}}, expect: {{sums: fine.jsonl}}}}
  no_columns: {{given: {{orders: [orders.jsonl]}}, expect: {{joined: fine.jsonl}}}}
  no_bad: {{given: {{orders: [orders.jsonl]}}, expect: {{tables.bad: fine.jsonl}}}}
  query: {{given: {{orders: [orders.jsonl]}}, expect: {{broken: fine.jsonl}}}}
  fine: {{given: {{orders: [orders.jsonl]}}, expect: {{sums: fine.jsonl}}}}
"""
    files = {
        "orders.jsonl": [order(1, "a", 1, "10:00:00"), order(2, "b", 2, "10:00:00")],
        "fine.jsonl": [{"shop": "b", "amount": 2, "id": 2}, {"shop": "a", "amount": 1.0, "id": 1}],
        "differs.jsonl": [
            {"shop": "a", "amount": 1.5, "id": 1},
            {"shop": "c", "amount": 9, "id": 9},
        ],
        "broken.messages.jsonl": '{"value": {"id": 1}, "kee": "a"}\n{"value"',
        "wrong.jsonl": '{"shop": "a", "amount": 1, "id": "1"}\n{"shop": "a", "amount": 1}\n',
    }
    passed, lines = run(pipeline, files)
    assert not passed
    assert verdicts(lines)[-1] == "ok fine"
    assert {line.split()[0] for line in verdicts(lines)[:-1]} == {"FAILED"}
    told = {
        verdict.split()[1]: [line.strip() for line in lines[place + 1 :]]
        for place, verdict in enumerate(lines)
        if verdict.startswith("FAILED")
    }
    assert told["differs"][:4] == [
        "sums is not as in differs.jsonl: 2 rows expected, 2 found",
        '~ differs   line 1 {"shop": "a", "id": 1}: amount is 1.00, expected 1.5',
        '- missing   line 2 {"shop": "c", "amount": 9, "id": 9}',
        '+ unexpected     {"shop": "b", "amount": 2.00, "id": 2}',
    ]
    assert told["wrong_given"][0].startswith(
        "broken.messages.jsonl:1:1: there is no field of a message 'kee' ("
    )
    assert told["wrong_given"][0].endswith("; did you mean key?")
    assert told["wrong_given"][1].startswith("broken.messages.jsonl:2:9: it is not JSON: ")
    assert told["wrong_expected"][:2] == [
        'wrong.jsonl:1:1: column id: "1" is not BIGINT',
        "wrong.jsonl:2:1: the column 'id' is missing; add it, perhaps with null",
    ]
    assert "topic orders partition 0 offset 0: value: field id" in told["bad_record"][0]
    assert told["no_columns"][0].startswith("p.yaml:")
    assert told["no_columns"][0].endswith(
        "source tables needs its columns for tests: add schema: id BIGINT, …"
    )
    assert "source tables has no bad records to expect" in told["no_bad"][0]
    assert "too large by far" in told["query"][0]
    assert told["query"][1].startswith("ok"), "one line"


def test_only_one_test_is_run_where_it_is_named(run: Run) -> None:
    pipeline = f"""{ORDERS}
sinks:
  out: {{from: orders, topic: t}}
tests:
  first: {{given: {{orders: [orders.jsonl]}}, expect: {{orders: orders.jsonl}}}}
  second: {{given: {{orders: [orders.jsonl]}}, expect: {{orders: nothing.jsonl}}}}
"""
    files = {"orders.jsonl": [order(1, "a", 1, "10:00:00")], "nothing.jsonl": ""}
    passed, lines = run(pipeline, files, only="second")
    assert verdicts(lines) == ["FAILED second"]
    assert not passed
    with pytest.raises(BadPipeline, match=r"there is no test 'secnd' .*; did you mean second\?"):
        run(pipeline, files, only="secnd")
    without = pipeline[: pipeline.index("tests:")]
    with pytest.raises(BadPipeline, match=r"p\.yaml:1:1: there are no tests in this file"):
        run(without, files)
