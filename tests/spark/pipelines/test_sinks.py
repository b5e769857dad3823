"""Sinks with a real Spark: what lands where, and what a batch that comes twice does."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from ottla.pipelines.language.model import CurrentTableSink, FileSink, TopicSink
from ottla.pipelines.language.problems import BadPipeline, PipelineFailed
from ottla.pipelines.sinks import current_table, files
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.kinds import sink_problems
from ottla.testing import Broker
from scenarios import polling
from spark.kit.flows import PLACE, Feed, drain, pipeline_of, write_once
from spark.kit.messages import messages_in
from spark.kit.streams import forget_last_commit

MakeTopic = Callable[..., str]

MESSAGE = "_timestamp timestamp, _partition int, _offset long, _tombstone boolean"
SHOP = "id int, shop string, amount decimal(10,2), at timestamp"


class Crash(Exception):
    """What a test raises in the middle of something."""


def topic_sink(topic: str, **more: Any) -> TopicSink:
    return TopicSink(name="out", place=PLACE, input="v", topic=topic, **more)


def file_sink(path: Path, **more: Any) -> FileSink:
    return FileSink(name="out", place=PLACE, input="v", path=str(path), **more)


def table_sink(path: Path, **more: Any) -> CurrentTableSink:
    more = {"keys": ("id",), "mode": "upsert", **more}
    return CurrentTableSink(name="out", place=PLACE, input="v", path=str(path), **more)


# ----------------------------------------------------------------------------------------- topics


def test_rows_become_json_messages_with_keys_in_order(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(2)
    feed = Feed(spark, tmp_path / "in", SHOP)
    rows = [
        {"id": number, "shop": shop, "amount": 1.5, "at": "2026-01-02T03:04:05.678901Z"}
        for number in range(20)
        for shop in ("a", "b")
    ]
    feed.put(*rows, {"id": 99})
    frame = feed.frame.selectExpr("*", "1 AS _offset", "'t' AS _topic")
    sink = topic_sink(name, key=("shop",))
    drain(frame, sink, pipeline_of(sink, bootstrap=broker.bootstrap), tmp_path / "cp")

    found = messages_in(broker.bootstrap, name)
    for key in (b"a", b"b"):
        values = [json.loads(one.value or b"") for one in found if one.key == key]
        assert [value["id"] for value in values] == list(range(20))
    whole = {"id": 0, "shop": "a", "amount": 1.5, "at": "2026-01-02T03:04:05.678901Z"}
    assert whole in [json.loads(one.value or b"") for one in found]
    nulls = b'{"id":99,"shop":null,"amount":null,"at":null}'
    assert [one.value for one in found if one.key is None] == [nulls]


def test_keys_values_and_headers_of_every_format(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    pipeline = pipeline_of(bootstrap=broker.bootstrap)
    frame = spark.sql(
        "SELECT 7 AS id, 'é' AS shop, X'00FF' AS value, "
        "array(struct('h' AS key, X'01' AS value)) AS tags"
    )

    def written(frame: DataFrame, **more: Any) -> list[Any]:
        sink = topic_sink(topic(), **more)
        write_once(frame, sink, pipeline)
        return [one[2:] for one in messages_in(broker.bootstrap, sink.topic)]

    assert written(frame, format="bytes", key=("id",), headers="tags") == [
        (b"7", b"\x00\xff", [("h", b"\x01")])
    ]
    assert written(frame.drop("value", "tags"), format="string", key=("id",)) == [
        (b"7", "é".encode(), [])
    ]
    assert written(frame.select("id", "shop"), key=("shop", "id")) == [
        ('{"shop":"é","id":7}'.encode(), '{"id":7,"shop":"é"}'.encode(), [])
    ]


def test_avro_messages_are_of_the_given_schema(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    schema = {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
            {"name": "note", "type": "string", "default": "none"},
        ],
    }
    sink = topic_sink(topic(), format="avro", schema=json.dumps(schema), key=("id",))
    pipeline = pipeline_of(sink, bootstrap=broker.bootstrap)
    frame = spark.sql(
        "SELECT 7 AS id, map('a', 'b') AS tags, TIMESTAMP '2026-01-02T03:04:05.678901Z' AS at"
    )
    write_once(frame, sink, pipeline)

    (found,) = messages_in(broker.bootstrap, sink.topic)
    read = fastavro.schemaless_reader(io.BytesIO(found.value or b""), schema, None)
    assert found.key == b"7"
    assert (read["id"], read["tags"], read["note"]) == (7, {"a": "b"}, "none")
    assert read["at"].isoformat() == "2026-01-02T03:04:05.678901+00:00"
    with pytest.raises(Exception, match=r"sink out: a row does not fit the Avro schema: .*id"):
        write_once(frame.selectExpr("int(null) AS id", "tags", "at"), sink, pipeline)


# ------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("format", ["parquet", "json", "avro"])
def test_files_hold_each_row_once(spark: SparkSession, tmp_path: Path, format: Any) -> None:
    """The last batch runs again, as after a crash before Spark's own commit."""
    feed = Feed(spark, tmp_path / "in", SHOP)
    sink = file_sink(tmp_path / "out", format=format, partition_by=("shop",))
    pipeline, checkpoint = pipeline_of(sink), tmp_path / "cp"
    feed.put({"id": 1, "shop": "a", "amount": 1.25, "at": "2026-01-02T03:04:05.678901Z"})
    feed.put({"id": 2, "shop": "b/c"}, {"id": 3})
    drain(feed.frame, sink, pipeline, checkpoint)
    forget_last_commit(checkpoint)
    feed.put({"id": 4, "shop": "a"})
    drain(feed.frame, sink, pipeline, checkpoint)

    found = read_back(spark, sink)
    assert [row["id"] for row in found] == [1, 2, 3, 4]
    assert [row["shop"] for row in found] == ["a", "b/c", None, "a"]
    assert str(found[0]["amount"]) == "1.25"
    assert found[0]["at"].isoformat()[:26] == "2026-01-02T03:04:05.678901"


def read_back(spark: SparkSession, sink: FileSink) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    if sink.format == "avro":
        for path in Path(sink.path).glob("[!.]*/**/*.avro"):
            with path.open("rb") as file:
                rows += [dict(row) for row in fastavro.reader(file)]  # type: ignore[arg-type]
    else:
        reader = spark.read.schema(SHOP).format(sink.format)
        rows = [row.asDict() for row in reader.load(sink.path).collect()]
    return sorted(rows, key=lambda row: row["id"])


def test_avro_files_of_a_batch_appear_together(spark: SparkSession, tmp_path: Path) -> None:
    """A task fails after another has written its file; then the batch comes again."""
    out = tmp_path / "out"
    sink = file_sink(out, format="avro")
    batch = Batch.of_stream("0a1b2c3d-query", 5)
    rest = (pipeline_of(sink), sink, batch)
    frame = spark.range(10, numPartitions=2)

    def fail_beside_a_file(batches: Iterator[Any]) -> Iterator[Any]:
        for rows in batches:
            if 7 in rows.column(0).to_pylist():
                polling.until(lambda: list(out.rglob("*.avro")), "the other task's file", 60)
                raise Crash
            yield rows

    with pytest.raises(Exception, match="Crash"):
        files.write_avro(frame.mapInArrow(fail_beside_a_file, frame.schema), *rest)
    assert read_back(spark, sink) == []

    staging = out / files.STAGING / "shop.out" / batch.name

    def leave_half_a_file(batches: Iterator[Any]) -> Iterator[Any]:
        (staging / "part-00000-9-0.avro").write_bytes(b"of an attempt that failed")
        yield from batches

    files.write_avro(frame.mapInArrow(leave_half_a_file, frame.schema), *rest)
    files.write_avro(frame, *rest)
    assert [row["id"] for row in read_back(spark, sink)] == list(range(10))
    assert [path.name for path in out.glob("[!.]*")] == ["batch=00000005-0a1b2c3d"]
    files.write_avro(frame, *rest[:2], Batch.of_stream("another-query", 5))
    assert len(read_back(spark, sink)) == 20


def test_tables_are_written_once_per_run(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(3).selectExpr("int(id) AS id", "'a' AS shop", "null AS amount")
    for format in ("csv", "avro"):
        sink = file_sink(tmp_path / format, format=format, options={"header": "true"})
        if format == "avro":
            sink = replace(sink, options={})
        shown = frame.drop("amount")
        write_once(shown, sink, pipeline_of(sink), "run-1")
        write_once(shown, sink, pipeline_of(sink), "run-2")
        if format == "avro":
            write_once(shown, sink, pipeline_of(sink), "run-2")
            assert len(read_back(spark, sink)) == 6
        else:
            assert spark.read.csv(sink.path, header=True).count() == 6


# ---------------------------------------------------------------------------------- current table


def rows_of(sink: CurrentTableSink) -> list[Row]:
    found = pq.read_table(f"{sink.path}/current").to_pylist()
    return sorted((Row(**row) for row in found), key=lambda row: row.id)


def test_a_keyed_stream_becomes_a_table_of_latest_rows(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path / "in", f"id int, v string, {MESSAGE}")
    sink = table_sink(tmp_path / "table")
    pipeline, checkpoint = pipeline_of(sink), tmp_path / "cp"
    place = {"_partition": 0, "_timestamp": "2026-01-02T03:04:05Z"}
    feed.put(
        {"id": 1, "v": "new", "_offset": 5, **place},
        {"id": 1, "v": "old", "_offset": 3, **place},
        {"id": 2, "v": "gone soon", "_offset": 4, **place},
        {"id": 3, "v": "stays", "_offset": 6, **place},
    )
    feed.put(
        {"id": 2, "_offset": 7, "_tombstone": True, **place},
        {"id": 1, "v": "newer", "_offset": 10, **place},
        {"id": 4, "v": "came and went", "_offset": 8, **place},
        {"id": 4, "_offset": 9, "_tombstone": True, **place},
    )
    drain(feed.frame, sink, pipeline, checkpoint)
    assert rows_of(sink) == [Row(id=1, v="newer"), Row(id=3, v="stays")]

    before = current_table.current_version(Path(sink.path))
    forget_last_commit(checkpoint)
    drain(feed.frame, sink, pipeline, checkpoint)
    assert current_table.current_version(Path(sink.path)) == before


def test_a_row_that_comes_late_does_not_replace_a_newer_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An order that is stored with the row also holds between batches."""
    sink = table_sink(tmp_path / "table", sequence_by="at", apply_as_deletes="v = 'gone'")
    merge = merger(spark, sink)
    merge(0, "(1, 'a', 5), (2, 'b', 5)")
    merge(1, "(1, 'late', 4), (2, 'gone', 4), (3, 'c', 1)")
    assert [row.v for row in rows_of(sink)] == ["a", "b", "c"]
    merge(2, "(1, 'same time', 5), (2, 'gone', 6)")
    assert [row.v for row in rows_of(sink)] == ["same time", "c"]


def merger(spark: SparkSession, sink: CurrentTableSink) -> Callable[..., None]:
    def merge(number: int, values: str, **more: Any) -> None:
        frame = spark.sql(f"SELECT * FROM VALUES {values} AS rows(id, v, at)")
        batch = Batch.of_stream("a-query", number)
        current_table.merge(frame, sink, batch, **more)

    return merge


def test_a_crash_at_any_step_leaves_a_whole_table(spark: SparkSession, tmp_path: Path) -> None:
    steps: list[str] = []
    sink = table_sink(tmp_path / "all", sequence_by="at")
    merger(spark, sink)(0, "(1, 'a', 1), (2, 'b', 1)", step=steps.append)
    assert len(set(steps)) == len(steps) > 6
    second = "(2, 'B', 2), (3, 'c', 2)"
    for at, crash_at in enumerate(steps):
        directory = shutil.copytree(tmp_path / "all", tmp_path / f"crash-{at}", symlinks=True)
        sink = table_sink(directory, sequence_by="at")
        merge = merger(spark, sink)

        def crash(step: str, crash_at: str = crash_at) -> None:
            if step == crash_at:
                raise Crash

        with pytest.raises(Crash):
            merge(1, second, step=crash)
        switched = at > steps.index("switch")
        seen = [row.v for row in rows_of(sink)]
        assert seen == (["a", "B", "c"] if switched else ["a", "b"]), crash_at
        versions = directory / "versions"
        before: list[int] = []
        merge(1, second, step=lambda _, at=versions, to=before: to.append(len(list(at.iterdir()))))
        # What the crash has left is gone before as much is written again.
        assert before[2:3] == ([] if switched else [1]), crash_at
        assert [row.v for row in rows_of(sink)] == ["a", "B", "c"], crash_at
        names = sorted(path.name[:10] for path in versions.iterdir())
        assert names == ["v-00000001", "v-00000002"], crash_at


def test_the_version_before_the_last_stays_for_its_readers(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = table_sink(tmp_path / "table", sequence_by="at")
    merge = merger(spark, sink)
    merge(0, "(1, 'a', 1)")
    version = current_table.current_version(Path(sink.path))
    reader = spark.read.parquet(str(version))
    merge(1, "(1, 'b', 2)")
    assert [row.v for row in reader.collect()] == ["a"]
    with pytest.raises(PipelineFailed, match="the checkpoint is an old copy; give --checkpoint"):
        merge(0, "(1, 'c', 3)")
    assert [row.v for row in rows_of(sink)] == ["b"]


def test_an_aggregation_upserts_its_changed_rows(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path / "in", SHOP)
    sink = table_sink(tmp_path / "table")
    totals = feed.frame.groupBy("id").count()
    feed.put({"id": 1}, {"id": 1}, {"id": 2})
    feed.put({"id": 1})
    drain(totals, sink, pipeline_of(sink), tmp_path / "cp")
    assert rows_of(sink) == [Row(id=1, count=3), Row(id=2, count=1)]


def test_a_row_without_a_key_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    merge = merger(spark, table_sink(tmp_path / "table", sequence_by="at"))
    with pytest.raises(Exception, match=r"sink out: a row has no key \(id is null\); leave such"):
        merge(0, "(1, 'a', 1), (int(null), 'b', 1)")


# --------------------------------------------------------------------------------------- problems


@pytest.mark.parametrize(
    ("sink", "line"),
    [
        (topic_sink("t", key=("shp",)), "key: v has no column shp; did you mean shop?"),
        (topic_sink("t", format="string"), "format string writes one column, v has id, shop, "),
        (topic_sink("t", headers="shop"), "headers: shop is string; CAST it to array<struct<key:"),
        (topic_sink("t", format="avro", schema="{"), "schema: no Avro record: "),
        (
            topic_sink("t", format="avro", schema='{"type":"record","name":"x","fields":[]}'),
            "schema: it has no field id; add it",
        ),
        (file_sink(Path("o"), format="csv"), "nested is struct, which has no place in CSV"),
        (
            file_sink(Path("o"), format="json", partition_by=("day",)),
            "partition_by: v has no column day; there are id, shop, nested, _offset",
        ),
        (
            replace(file_sink(Path("o"), format="json"), path="s3://bucket/x"),
            "s3: is no file system this sink can write to; give a path",
        ),
        (table_sink(Path("o"), keys=()), "upserts need keys"),
        (
            table_sink(Path("o"), sequence_by="shp"),
            "sequence_by: v has no column shp; did you mean",
        ),
        (
            table_sink(Path("o"), apply_as_deletes="gone"),
            "apply_as_deletes: 'gone' is no condition: ",
        ),
    ],
)
def test_what_a_sink_cannot_do_is_told_before_it_starts(
    spark: SparkSession, sink: Any, line: str
) -> None:
    frame = spark.sql("SELECT 1 AS id, 'a' AS shop, struct(1 AS x) AS nested, 7L AS _offset")
    found = sink_problems(sink, frame)
    assert any(f"sink out: {line}" in one.text for one in found), found
    with pytest.raises(BadPipeline, match=r"pipeline\.yaml:1:1: sink out: "):
        write_once(frame, sink, pipeline_of(sink))
