"""JDBC sinks with a real PostgreSQL: each batch once and at once, and what people are told."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla.pipelines.language.model import JdbcSink
from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.sinks import jdbc
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.kinds import sink_problems
from spark.kit.flows import PLACE, Feed, drain, pipeline_of
from spark.kit.postgres import PASSWORD, USER, Postgres
from spark.kit.streams import forget_last_commit

NUMBERS = itertools.count()

MakeTable = Callable[..., JdbcSink]


class Crash(Exception):
    """What a test raises in the middle of something."""


@pytest.fixture
def table(postgres: Postgres) -> MakeTable:
    """Makes a table that nobody has used, and the sink that writes to it."""

    def make(columns: str, **more: Any) -> JdbcSink:
        name = f"table_{next(NUMBERS)}"
        postgres.rows(f"CREATE TABLE {name} ({columns})")
        login = {"url": postgres.url, "user": USER, "password": PASSWORD}
        named = {"name": f"sink_{name}", "place": PLACE, "input": "v", "table": name}
        return JdbcSink(**{**named, **login, **more})

    return make


def values(spark: SparkSession, text: str) -> DataFrame:
    return spark.sql(f"SELECT * FROM VALUES {text} AS rows(id, v, at)")


def write(frame: DataFrame, sink: JdbcSink, number: int, **more: Any) -> None:
    jdbc.write(frame, pipeline_of(sink), sink, Batch.of_stream("a-query", number), **more)


def left_over(postgres: Postgres) -> list[str]:
    return postgres.rows("SELECT tablename FROM pg_tables WHERE tablename LIKE 'ottla_staging%'")


def test_a_stream_is_appended_each_row_once(
    spark: SparkSession, postgres: Postgres, table: MakeTable, tmp_path: Path
) -> None:
    """The last batch runs again, as after a crash before Spark's own commit."""
    sink = table("id int, v text")
    feed = Feed(spark, tmp_path / "in", "id int, v string, _offset long")
    pipeline, checkpoint = pipeline_of(sink), tmp_path / "cp"
    feed.put({"id": 1, "v": "a"}, {"id": 1, "v": "a"})
    drain(feed.frame, sink, pipeline, checkpoint)
    forget_last_commit(checkpoint)
    feed.put({"id": 2})
    drain(feed.frame, sink, pipeline, checkpoint)
    assert postgres.rows(f"SELECT * FROM {sink.table}") == ["1|a", "1|a", "2|"]
    (noted,) = postgres.rows(
        f"SELECT pipeline, sink, batch FROM ottla_batches WHERE sink = '{sink.name}'"
    )
    assert noted == f"shop|{sink.name}|1"

    # A new checkpoint is a new query, whose batches are new although their numbers are not.
    drain(feed.frame, sink, pipeline, tmp_path / "another")
    assert len(postgres.rows(f"SELECT * FROM {sink.table}")) == 6
    assert left_over(postgres) == []


def test_upserts_keep_the_newest_row_of_each_key(
    spark: SparkSession, postgres: Postgres, table: MakeTable
) -> None:
    sink = table(
        'id int PRIMARY KEY, "V" text, at int', mode="upsert", keys=("id",), sequence_by="at",
        apply_as_deletes="V = 'gone'",
    )  # fmt: skip
    frame = values(spark, "(1, 'new', 5), (1, 'old', 3), (2, 'b', 5), (3, 'c', 5)")
    write(frame.withColumnRenamed("v", "V"), sink, 0)
    frame = values(
        spark, "(1, 'late', 4), (2, 'gone', 6), (3, 'gone', 4), (4, 'd', 1), (4, 'gone', 2)"
    )
    write(frame.withColumnRenamed("v", "V"), sink, 1)
    found = postgres.rows(f"SELECT * FROM {sink.table} ORDER BY id")
    assert found == ["1|new|5", "3|c|5"]


def test_a_crash_at_any_step_leaves_a_whole_table(
    spark: SparkSession, postgres: Postgres, table: MakeTable
) -> None:
    """Nobody sees a part of a batch, and when it comes again it counts once."""
    steps: list[str] = []
    first, second = values(spark, "(1, 'a', 1)"), values(spark, "(2, 'b', 2), (3, 'c', 2)")
    sink = table("id int, v text, at int")
    seen = []

    def look(step: str) -> None:
        steps.append(step)
        seen.append(len(postgres.rows(f"SELECT * FROM {sink.table}")))

    write(second, sink, 0, step=look)
    assert steps[-3:] == ["note", "commit", "end"]
    assert seen == [*[0] * (len(steps) - 1), 2]
    for at, crash_at in enumerate(steps):
        sink = replace(sink, name=f"crash_{at}")
        postgres.rows(f"TRUNCATE {sink.table}")

        def crash(step: str, crash_at: str = crash_at) -> None:
            if step == crash_at:
                raise Crash

        with pytest.raises(Crash):
            write(first, sink, 7, step=crash)
        done = crash_at == "end"
        assert postgres.rows(f"SELECT v FROM {sink.table}") == (["a"] if done else []), crash_at
        write(first, sink, 7)
        assert postgres.rows(f"SELECT v FROM {sink.table}") == ["a"], crash_at
        assert left_over(postgres) == [], crash_at
    with pytest.raises(PipelineFailed, match="the checkpoint is an old copy"):
        write(first, sink, 6)


@pytest.mark.parametrize(
    ("columns", "more", "wanted"),
    [
        ("id int PRIMARY KEY, v text", {}, ["2|B"]),
        (
            "id int, v text, __START_AT int, __END_AT int",
            {"stored_as_scd_type": 2},
            ["1|a|1|3", "2|B|2|", "2|b|1|2"],
        ),
    ],
    ids=["type 1", "type 2"],
)
def test_an_upsert_that_is_cut_off_is_whole_when_it_comes_again(
    spark: SparkSession,
    postgres: Postgres,
    table: MakeTable,
    columns: str,
    more: dict[str, Any],
    wanted: list[str],
) -> None:
    """Rows and sequences are of one transaction: a row that comes late is held back after it."""
    upsert = {"mode": "upsert", "keys": ("id",), "sequence_by": "_timestamp", **more}
    for crash_at in ("merge", "note", "commit", "end"):
        sink = table(columns, **upsert, apply_as_deletes="v IS NULL")

        def frame(text: str) -> DataFrame:
            return values(spark, text).withColumnRenamed("at", "_timestamp")

        def crash(step: str, crash_at: str = crash_at) -> None:
            if step == crash_at:
                raise Crash

        def found(sink: JdbcSink = sink) -> list[str]:
            return postgres.rows(f"SELECT * FROM {sink.table} ORDER BY id, v")

        write(frame("(1, 'a', 1), (2, 'b', 1)"), sink, 0)
        before = found()
        second = frame("(1, null, 3), (2, 'B', 2)")
        with pytest.raises(Crash):
            write(second, sink, 1, step=crash)
        assert found() == (wanted if crash_at == "end" else before), crash_at
        write(second, sink, 1)
        assert sorted(found()) == sorted(wanted), crash_at
        write(frame("(1, 'a', 1), (2, 'b', 1)"), sink, 2)
        assert sorted(found()) == sorted(wanted), crash_at
        assert left_over(postgres) == [], crash_at


def test_a_second_run_beside_the_first_does_not_double_its_rows(
    spark: SparkSession, postgres: Postgres, table: MakeTable
) -> None:
    """It takes the batch while the first has all rows in its staging table."""
    sink = table("id int, v text, at int")
    frame = values(spark, "(1, 'a', 1)")
    write(frame, sink, 0, step=lambda step: step == "merge" and write(frame, sink, 0))
    assert postgres.rows(f"SELECT v FROM {sink.table}") == ["a"]


def test_a_task_that_runs_twice_does_not_double_its_rows(
    spark: SparkSession, postgres: Postgres, table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Spark loses a task's answer after its rows are in the staging table."""
    sink = table("id int, v text, at int")
    once = jdbc._Write._fill

    def twice(self: Any, *rows: Any) -> None:
        once(self, *rows)
        once(self, *rows)

    monkeypatch.setattr(jdbc._Write, "_fill", twice)
    with pytest.raises(PipelineFailed, match="duplicate key value violates unique constraint"):
        write(values(spark, "(1, 'a', 1)"), sink, 0)
    assert postgres.rows(f"SELECT * FROM {sink.table}") == []


def test_columns_take_the_types_of_the_table(
    spark: SparkSession, postgres: Postgres, table: MakeTable
) -> None:
    sink = table(
        'tiny smallint, big bigint, price numeric(10,2), "on" date, at timestamptz, '
        "plain timestamp, raw bytea, tags text[], doc jsonb, code uuid, yes boolean, f float8"
    )
    frame = spark.sql(
        "SELECT 1Y AS tiny, 2L AS big, 3.25BD AS price, DATE '2026-01-02' AS `on`, "
        "TIMESTAMP '2026-01-02T03:04:05.678901Z' AS at, "
        "TIMESTAMP_NTZ '2026-01-02 03:04:05.678901' AS plain, X'00FF' AS raw, "
        "array('a', null) AS tags, '{\"x\": 1}' AS doc, "
        "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' AS Code, true AS yes, 1.5D AS f"
    )
    write(frame, sink, 0)
    (found,) = postgres.rows(f"SET TIME ZONE 'UTC'; SELECT * FROM {sink.table}")
    assert found == (
        "1|2|3.25|2026-01-02|2026-01-02 03:04:05.678901+00|2026-01-02 03:04:05.678901|"
        '\\x00ff|{a,NULL}|{"x": 1}|a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11|t|1.5'
    )


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_text_that_is_too_long_for_its_column_is_refused_and_not_cut(
    spark: SparkSession, postgres: Postgres, table: MakeTable, mode: str
) -> None:
    keys = ("id",) if mode == "upsert" else ()
    sink = table("id varchar(3) PRIMARY KEY, v char(3), at int", mode=mode, keys=keys)
    write(values(spark, "('abc', 'x', 1), ('ab', 'xyz', 1)"), sink, 0)
    assert postgres.rows(f"SELECT id, v FROM {sink.table} ORDER BY id") == ["ab|xyz", "abc|x  "]
    for number, row in enumerate(("('abcd', 'x', 1)", "('ef', 'wxyz', 1)"), 1):
        with pytest.raises(PipelineFailed, match=r"value too long for type character"):
            write(values(spark, row), sink, number)
    assert len(postgres.rows(f"SELECT * FROM {sink.table}")) == 2


@pytest.mark.parametrize("by", [None, "at"])
def test_keys_that_are_one_to_the_database_are_one_row(
    spark: SparkSession, postgres: Postgres, table: MakeTable, by: str | None
) -> None:
    sink = table("id uuid PRIMARY KEY, v text, at int", mode="upsert", keys=("id",), sequence_by=by)
    code = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    write(values(spark, f"('{code}', 'old', 1), ('{code.upper()}', 'new', 2)"), sink, 0)
    (found,) = postgres.rows(f"SELECT id, v FROM {sink.table}")
    assert found in ([f"{code}|new"] if by else [f"{code}|new", f"{code}|old"])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"password": "wr0ng-Word"}, 'authentication failed for user "ottla"; check user and pass'),
        ({"url": "jdbc:postgresql://127.0.0.1:1/shop?password=hid-den"}, "check host and port"),
        ({"table": "no.such"}, 'there is no table no.such; create it: CREATE TABLE no.such ("id" '),
        ({"mode": "upsert", "keys": ("id",)}, "has no primary key or unique index on"),
    ],
)
def test_what_the_database_refuses_is_told_in_one_line(
    spark: SparkSession, table: MakeTable, change: dict[str, Any], line: str
) -> None:
    sink = replace(table("id int, v text, at int"), **change)
    with pytest.raises(PipelineFailed) as told:
        write(values(spark, "(1, 'a', 1)"), sink, 0)
    text = str(told.value)
    assert text.startswith(f"sink {sink.name}: ")
    assert line in text
    assert len(text.splitlines()) == 1
    for secret in (PASSWORD, "wr0ng", "hid-den"):
        assert secret not in text


def test_a_column_the_table_does_not_have_is_named(spark: SparkSession, table: MakeTable) -> None:
    sink = table("id int, value text, at int")
    with pytest.raises(PipelineFailed, match=r"table_\d+ has no column valu; did you mean value\?"):
        write(values(spark, "(1, 'a', 1)").withColumnRenamed("v", "valu"), sink, 0)


def test_what_a_table_cannot_hold_is_told_before_it_starts(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS id, struct(1 AS x) AS nested")
    sink = JdbcSink(name="out", place=PLACE, input="v", url="jdbc:mysql://h/db", table="t")
    found = [problem.text for problem in sink_problems(sink, frame)]
    assert found == [
        "sink out: mysql cannot be written to; JDBC sinks are for PostgreSQL "
        "(jdbc:postgresql://host/db)",
        "sink out: nested is struct<x:int>, which has no place in a table; make it text in a view, "
        "for example by to_json",
    ]
