"""Names become frames: only what is needed, in the right order, and Python goes to executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from ottla.pipelines.checks.validation import empty_frame
from ottla.pipelines.language.model import Pipeline, Source, TopicSource
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.sources.kinds import shape
from ottla.pipelines.views.graph import Opened, build
from ottla.pipelines.views.spark_errors import one_line, quiet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAD = """\
version: 1
name: shop
sources:
  orders: {topic: orders, schema: "id string, shop string, n bigint", bad_records: {topic: dead}}
  shops: {files: shops, format: json, read: table, schema: "shop string, city string"}
  unused: {topic: unused, schema: "id string", bad_records: {topic: dead}}
"""


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return spark.newSession()


def pipeline_of(directory: Path, rest: str) -> Pipeline:
    file = directory / "shop.yaml"
    file.write_text(HEAD + rest)
    return read_pipeline(file, environment={})


def empty(spark: SparkSession) -> Callable[[Source], Opened]:
    def open_one(source: Source) -> Opened:
        columns = shape(source)
        assert columns is not None
        frame = empty_frame(spark, columns, is_stream=isinstance(source, TopicSource))
        return Opened(frame)

    return open_one


def test_each_flow_knows_its_sources_whatever_the_sql_looks_like(
    session: SparkSession, tmp_path: Path
) -> None:
    pipeline = pipeline_of(
        tmp_path,
        """\
views:
  upper: SELECT * FROM ORDERS AS shops
  quoted: "WITH shops AS (SELECT * FROM `orders`) SELECT s.id FROM shops s"
  inside: SELECT id FROM upper WHERE shop IN (SELECT `shop` FROM shops)
  literal: SELECT 'FROM shops' AS text, id FROM quoted -- and not FROM shops
  joined: SELECT * FROM inside JOIN literal USING (id)
sinks:
  upper: {from: Upper, topic: t}
  literal: {from: literal, topic: t}
  joined: {from: joined, topic: t}
""",
    )
    opened: list[str] = []
    open_empty = empty(session)

    def open_one(source: Source) -> Opened:
        opened.append(source.name)
        return open_empty(source)

    # What an earlier build has left under one of the names must not be taken for it.
    session.range(1).createOrReplaceTempView("shops")
    graph = build(session, pipeline, open_one)
    assert [(flow.name, [source.name for source in flow.sources]) for flow in graph.flows] == [
        ("upper", ["orders"]),
        ("literal", ["orders"]),
        ("joined", ["orders", "shops"]),
    ]
    assert sorted(opened) == ["orders", "shops"]
    assert {table.name for table in session.catalog.listTables()} == set(graph.frames)
    assert graph.frames.keys() == {"orders", "shops"} | pipeline.views.keys()


def test_only_the_frames_that_are_wanted(session: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_of(
        tmp_path,
        """\
views:
  names: SELECT shop FROM shops
  broken: SELECT nope FROM orders
sinks:
  out: {from: broken, topic: t}
""",
    )
    graph = build(session, pipeline, empty(session), wanted=["names"])
    assert graph.frames.keys() == {"shops", "names"}
    assert graph.flows == ()


PYTHON = """\
from pyspark.sql import Row
from pyspark.sql.functions import udf
from pyspark.sql.streaming import StatefulProcessor

import prices
from prices import doubled

@udf("long")
def priced(n):
    return prices.PRICE * doubled(n)

@udf("long")
def failing(n):
    raise ValueError(f"no price for {n}")

class Counter(StatefulProcessor):
    def init(self, handle):
        self._count = handle.getValueState("n", "n bigint")

    def handleInputRows(self, key, rows, timers):
        before = self._count.get()[0] if self._count.exists() else 0
        count = before + doubled(sum(row["n"] for row in rows))
        self._count.update((count,))
        yield Row(shop=key[0], n=count)

def with_prices(orders):
    return orders.select("shop", priced("n").alias("n"))

def with_errors(orders, spark, how="unused"):
    return orders.select(failing("n").alias("n"))

def counted(with_prices):
    grouped = with_prices.groupBy("shop")
    return grouped.transformWithState(Counter(), "shop string, n bigint", "Update", "None")
"""


@pytest.fixture
def python_pipeline(tmp_path: Path) -> Pipeline:
    """A file whose views are Python modules that no executor can import."""
    (tmp_path / "rules.py").write_text(PYTHON)
    (tmp_path / "prices.py").write_text("PRICE = 10\n\ndef doubled(n):\n    return 2 * n\n")
    return pipeline_of(
        tmp_path,
        """\
views:
  with_prices: {python: "rules:with_prices"}
  with_errors: {python: "rules:with_errors"}
  counted: {python: "rules:counted"}
sinks:
  out: {from: counted, topic: t, mode: update}
""",
    )


def a_file_of_orders(spark: SparkSession, directory: Path) -> Callable[[Source], Opened]:
    directory.mkdir()
    (directory / "1.json").write_text(
        '{"shop":"a","n":1}\n{"shop":"a","n":2}\n{"shop":"b","n":5}\n'
    )
    frame = spark.readStream.schema("shop string, n bigint").json(str(directory))
    return lambda _: Opened(frame)


def rows_of(frame: DataFrame, mode: str, directory: Path) -> list[tuple[object, ...]]:
    writer = frame.writeStream.format("memory").queryName("result").outputMode(mode)
    query = writer.option("checkpointLocation", str(directory)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(240)
    finally:
        query.stop()
    return sorted(tuple(row) for row in frame.sparkSession.table("result").collect())


def test_python_beside_the_file_runs_in_executors_with_state(
    session: SparkSession, python_pipeline: Pipeline, tmp_path: Path
) -> None:
    """A UDF and a stateful processor, which use a module that is on nobody's path."""
    session.conf.set("spark.sql.shuffle.partitions", "1")
    graph = build(session, python_pipeline, a_file_of_orders(session, tmp_path / "in"))
    rows = rows_of(graph.flows[0].frame, "update", tmp_path / "checkpoint")
    assert rows == [("a", 120), ("b", 200)]


def test_an_error_in_a_worker_is_one_line_with_its_place(
    session: SparkSession, python_pipeline: Pipeline, tmp_path: Path
) -> None:
    files = a_file_of_orders(session, tmp_path / "in")
    graph = build(session, python_pipeline, files, wanted=["with_errors"])
    with quiet(), pytest.raises(PySparkException) as failed:
        rows_of(graph.frames["with_errors"], "append", tmp_path / "checkpoint")
    assert one_line(failed.value) == "ValueError: no price for 1 (rules.py line 14, in failing)"
    with quiet(), pytest.raises(PySparkException) as failed:
        session.sql("SELECT 1 / (id - 1) FROM range(2)").collect()
    assert one_line(failed.value).startswith("Division by zero. Use `try_divide` to tolerate")
