"""Delta sinks, where there is a Delta for the Spark at hand, and what is told where not."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from ottla.pipelines.checks.missing_jars import missing_jars
from ottla.pipelines.jars import delta_advice
from ottla.pipelines.language.model import DeltaSink
from ottla.pipelines.sinks import delta
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.kinds import sink_problems
from ottla.pipelines.sinks.upserts import DELETED_AT, SEQUENCE
from spark.kit.flows import PLACE, Feed, drain, pipeline_of, write_once
from spark.kit.streams import forget_last_commit
from spark.kit.toolchain import HERE, delta_jars, require

HAS_DELTA = bool(list(HERE.glob(f"delta-{'.'.join(pyspark.__version__.split('.')[:2])}.pom.xml")))

needs_delta = pytest.mark.skipif(
    not HAS_DELTA, reason=f"no release of Delta runs on Spark {pyspark.__version__}: see make delta"
)


@pytest.fixture
def lake(spark: SparkSession) -> SparkSession:
    if not delta_jars(pyspark.__version__):
        require("java", "mvn")
    return spark


def delta_sink(path: Path, **more: Any) -> DeltaSink:
    return DeltaSink(name="out", place=PLACE, input="v", path=str(path), **more)


def rows_of(spark: SparkSession, sink: DeltaSink) -> list[Row]:
    return spark.read.format("delta").load(sink.path).orderBy("id").collect()


def test_missing_jars_are_named_with_their_coordinates(spark: SparkSession) -> None:
    assert delta_advice("4.2.1") == "io.delta:delta-spark_4.2_2.13:4.4.0"
    assert delta_advice("4.3.0").startswith("io.delta:delta-spark_4.2_2.13:4.4.0, which does not")
    if not HAS_DELTA:
        sink = delta_sink(Path("x"))
        (found,) = missing_jars(spark, pipeline_of(sink))
        assert "--packages io.delta:delta-spark_4.2_2.13:4.4.0, which does not run" in found.text


def test_unknown_columns_are_told_before_it_starts(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS id")
    sink = delta_sink(Path("x"), mode="upsert", keys=("idd",), partition_by=("day",))
    assert [problem.text for problem in sink_problems(sink, frame)] == [
        "sink out: keys: v has no column idd; did you mean id?",
        "sink out: partition_by: v has no column day; there are id",
    ]


def test_the_statements_are_such_as_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Its parser knows MERGE without Delta."""
    sink = delta_sink(tmp_path / "it's", mode="upsert", keys=("id", "the `day`"))
    parser = spark._jsparkSession.sessionState().sqlParser()
    for text in (
        delta._merge(sink, "changes", ["id", "the `day`", "v"]),
        delta._merge_sequences(sink, "changes"),
    ):
        assert "MergeIntoTable" in parser.parsePlan(text).toString()


@needs_delta
def test_a_stream_is_appended_each_row_once(lake: SparkSession, tmp_path: Path) -> None:
    feed = Feed(lake, tmp_path / "in", "id int, v string")
    sink = delta_sink(tmp_path / "table", partition_by=("v",))
    pipeline, checkpoint = pipeline_of(sink), tmp_path / "cp"
    feed.put({"id": 1, "v": "a"})
    drain(feed.frame, sink, pipeline, checkpoint)
    forget_last_commit(checkpoint)
    feed.put({"id": 2, "v": "b"})
    drain(feed.frame, sink, pipeline, checkpoint)
    assert rows_of(lake, sink) == [Row(id=1, v="a"), Row(id=2, v="b")]
    assert (tmp_path / "table" / "v=a").is_dir()


@needs_delta
def test_complete_replaces_the_table(lake: SparkSession, tmp_path: Path) -> None:
    feed = Feed(lake, tmp_path / "in", "id int")
    sink = delta_sink(tmp_path / "table", mode="complete")
    feed.put({"id": 1}, {"id": 1})
    feed.put({"id": 1}, {"id": 2})
    drain(feed.frame.groupBy("id").count(), sink, pipeline_of(sink), tmp_path / "cp")
    assert rows_of(lake, sink) == [Row(id=1, count=3), Row(id=2, count=1)]


@needs_delta
def test_upserts_keep_the_newest_row_of_each_key(lake: SparkSession, tmp_path: Path) -> None:
    sink = delta_sink(
        tmp_path / "table",
        mode="upsert",
        keys=("id",),
        sequence_by="at",
        apply_as_deletes="v = 'gone'",
    )

    def values(text: str) -> DataFrame:
        return lake.sql(f"SELECT * FROM VALUES {text} AS rows(id, v, at)")

    def write(text: str, number: int) -> None:
        delta.write(values(text), pipeline_of(sink), sink, Batch.of_stream("a-query", number))

    write("(1, 'new', 5), (1, 'old', 3), (2, 'b', 5), (3, 'c', 5)", 0)
    write("(1, 'late', 4), (2, 'gone', 6), (3, 'gone', 4), (4, 'd', 1), (4, 'gone', 2)", 1)
    kept = [Row(id=1, v="new", at=5), Row(id=3, v="c", at=5)]
    assert rows_of(lake, sink) == kept
    # A number that was taken is not taken again, whatever the rows are.
    write("(9, 'again', 9)", 1)
    assert rows_of(lake, sink) == kept
    write_once(values("(9, 'once', 9)"), sink, pipeline_of(sink))
    assert [row.v for row in rows_of(lake, sink)] == ["new", "c", "once"]
    # What is older than the removal of its key does not bring it back.
    write("(2, 'late', 5), (4, 'late', 1), (4, 'anew', 3)", 2)
    assert [row.v for row in rows_of(lake, sink)] == ["new", "c", "anew", "once"]


def test_a_batch_is_read_once_also_where_it_is_held_against_what_is_stored(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each read of it writes its dead letters."""
    sink = delta_sink(tmp_path / "table", mode="upsert", keys=("id",), sequence_by="at")
    reads = tmp_path / "reads"
    reads.mkdir()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (reads / uuid.uuid4().hex).touch()
        yield from batches

    values = spark.sql("SELECT * FROM VALUES (1, 'new', 5), (2, 'late', 3) AS rows(id, v, at)")
    frame = values.coalesce(1).mapInArrow(read, values.schema)
    stored = spark.sql(
        f"SELECT id, named_struct('at', at) AS {SEQUENCE}, CAST(NULL AS TIMESTAMP) AS {DELETED_AT} "
        "FROM VALUES (1, 4), (2, 4) AS rows(id, at)"
    )
    with delta.changed(frame, stored, sink, ("at",)) as rows:
        for _ in range(2):
            assert [row.v for row in rows.collect()] == ["new"]
    assert len(list(reads.iterdir())) == 1


@needs_delta
def test_rows_of_two_partitions_are_compared_by_time(lake: SparkSession, tmp_path: Path) -> None:
    sink = delta_sink(tmp_path / "table", mode="upsert", keys=("id",))

    def write(text: str, number: int) -> list[str]:
        frame = lake.sql(
            "SELECT id, v, timestamp_seconds(s) AS _timestamp, _partition, _offset, "
            f"v = 'gone' AS _tombstone FROM VALUES {text} AS rows(id, v, s, _partition, _offset)"
        )
        delta.write(frame, pipeline_of(sink), sink, Batch.of_stream("a-query", number))
        return [row.v for row in rows_of(lake, sink)]

    assert write("(1, 'old', 10, 0, 500), (1, 'new', 20, 1, 3), (2, 'b', 1, 0, 1)", 0) == [
        "new",
        "b",
    ]
    assert write("(1, 'late', 15, 2, 900), (2, 'gone', 5, 1, 1)", 1) == ["new"]
    assert write("(2, 'late', 4, 0, 2), (1, 'newer', 1, 1, 4)", 2) == ["newer"]


@needs_delta
def test_a_crash_between_table_and_sequences_is_mended_when_the_batch_comes_again(
    lake: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = delta_sink(tmp_path / "table", mode="upsert", keys=("id",), sequence_by="at")

    def write(text: str, number: int) -> None:
        frame = lake.sql(f"SELECT * FROM VALUES {text} AS rows(id, v, at)")
        delta.write(frame, pipeline_of(sink), sink, Batch.of_stream("a-query", number))

    write("(1, 'a', 1)", 0)
    with monkeypatch.context() as patched:
        patched.setattr(delta, "_merge_sequences", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write("(1, 'b', 5)", 1)
    write("(1, 'b', 5)", 1)
    write("(1, 'late', 4)", 2)
    assert [row.v for row in rows_of(lake, sink)] == ["b"]
