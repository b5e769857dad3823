"""Sources in a real Spark: what of topics, files and tables SQL sees."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla.pipelines.language.model import (
    BadRecords,
    DeltaSource,
    FileFormat,
    FileSource,
    JdbcSource,
    RateSource,
    TopicSource,
    Watermark,
)
from ottla.pipelines.language.problems import BadPipeline, PipelineFailed
from ottla.pipelines.sources.kinds import open_source, shape
from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.pipeline_sources import PLACE, Message, drain, pipeline_of, send

DROP = BadRecords("drop")
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}],
    }
)
# The same fields, the other way round.
OLD = json.dumps({**json.loads(AVRO), "fields": json.loads(AVRO)["fields"][::-1]})
SCHEMAS: dict[FileFormat, str | None] = {
    "json": "id INT, name STRING",
    "csv": "id INT, name STRING",
    "parquet": None,
    "avro": None,
}


def topic_source(name: str, *topics: str, **given: Any) -> TopicSource:
    return TopicSource(name=name, place=PLACE, topics=topics, **given)


def file_source(format: FileFormat, path: str, **given: Any) -> FileSource:
    return FileSource(name=format, place=PLACE, path=path, format=format, **given)


def avro(row: dict[str, Any], schema: str = AVRO) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, json.loads(schema), row)
    return out.getvalue()


def write_file(directory: Path, format: FileFormat, ids: list[int]) -> None:
    """Complete under a name that Spark passes over, then under its own."""
    directory.mkdir(exist_ok=True)
    rows = [{"id": one, "name": f"{format}-{one}"} for one in ids]
    hidden = directory / ".being-written"
    match format:
        case "json":
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case "csv":
            hidden.write_text("id,name\n" + "".join(f"{one},csv-{one}\n" for one in ids))
        case "parquet":
            pq.write_table(pa.Table.from_pylist(rows), hidden)
        case "avro":
            with hidden.open("wb") as out:
                fastavro.writer(out, json.loads(AVRO), rows, codec="deflate")
    hidden.rename(directory / f"{min(ids)}.{format}")


def test_messages_as_sql_sees_them_and_a_restart_goes_on(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    at_ms = 1_769_860_800_250
    send(
        broker.bootstrap,
        name,
        Message(b'{"id": 1, "shop": "a"}', b"k1", [("trace", b"x"), ("none", None)], at_ms),
        Message(b"{", b"k2"),
        Message(None, b"k1"),
        Message(b'{"id": 4}', b"\xff\xfe"),
        Message(b"{}"),
    )
    source = topic_source("orders", name, schema="id INT, shop STRING", headers=True,
                          bad_records=DROP)  # fmt: skip
    pipeline = pipeline_of(tmp_path, broker.bootstrap, source)
    frame = open_source(spark, pipeline, source).frame
    wanted = shape(source)
    assert wanted is not None
    assert frame.schema.simpleString() == wanted.simpleString()

    first = drain(frame, tmp_path / "checkpoint")
    assert (first.rows_in, first.bad) == ({"orders": 5}, {"orders": 2})
    whole, tombstone, empty = sorted(first.rows, key=lambda row: row["_offset"])
    assert whole.asDict(recursive=True) == {
        "id": 1,
        "shop": "a",
        "_key": "k1",
        "_topic": name,
        "_partition": 0,
        "_offset": 0,
        "_timestamp": datetime.fromtimestamp(at_ms / 1000),
        "_tombstone": False,
        "_headers": [{"key": "trace", "value": b"x"}, {"key": "none", "value": None}],
    }
    assert (tombstone.id, tombstone["_key"], tombstone["_offset"]) == (None, "k1", 2)
    assert tombstone["_tombstone"] is True
    assert (empty.id, empty["_key"], empty["_tombstone"]) == (None, None, False)

    send(broker.bootstrap, name, Message(b'{"id": 6}'))
    again = drain(open_source(spark, pipeline, source).frame, tmp_path / "checkpoint")
    assert [row.id for row in again.rows] == [6]


def test_formats_topics_and_starts_in_one_query(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    framed, one, other = topic(1), topic(1), topic(2)
    begin = datetime(2026, 1, 31, 12, tzinfo=UTC)
    begin_ms = int(begin.timestamp() * 1000)
    head, old_head, other_head = (b"\x00\x00\x00\x00" + id_ for id_ in (b"\x07", b"\x06", b"\x08"))
    send(
        broker.bootstrap,
        framed,
        Message(head + avro({"id": 1, "name": "old"}), b'{"shop": "a"}', (), begin_ms - 1),
        Message(head + avro({"id": 2, "name": "new"}), b'{"shop": "b"}', (), begin_ms),
        Message(old_head + avro({"id": 5, "name": "turned"}, OLD), b'{"shop": "b"}', (), begin_ms),
        Message(other_head + avro({"id": 4, "name": "alien"}), b'{"shop": "b"}', (), begin_ms),
        Message(avro({"id": 3, "name": "bare"}), b'{"shop": "b"}', (), begin_ms),
    )
    send(broker.bootstrap, one, Message(b"text", b"\xff"), Message("ü".encode(), None))
    send(broker.bootstrap, other, Message(b"\xff no text", b"k", partition=1))
    records = topic_source(
        "records", framed, format="avro", schema=AVRO, schema_ids=(7, 6),
        writer_schemas=(AVRO, OLD), key_format="json", key_schema="shop STRING",
        start="2026-01-31T12:00:00Z", bad_records=DROP,
    )  # fmt: skip
    texts = topic_source("texts", one, other, format="string", key_format="bytes",
                         bad_records=DROP)  # fmt: skip
    late = topic_source("late", one, format="bytes", key_format="bytes", start="latest",
                        max_rows_per_batch=1)  # fmt: skip
    pipeline = pipeline_of(tmp_path, broker.bootstrap, records, texts, late)

    def words(source: TopicSource, *columns: str) -> DataFrame:
        return open_source(spark, pipeline, source).frame.selectExpr(
            f"concat_ws('|', {', '.join(columns)}) AS word"
        )

    # One query for all three, since each takes its time to start.
    frame = (
        words(records, "id", "name", "_key.shop")
        .union(words(texts, "value", "hex(_key)", "_topic", "_partition"))
        .union(words(late, "'late'", "value", "_offset"))
    )
    read = drain(frame, tmp_path / "checkpoint")
    assert sorted(row.word for row in read.rows) == [
        "2|new|b",
        "5|turned|b",
        f"text|FF|{one}|0",
        f"ü|{one}|0",
    ]
    assert read.rows_in == {"records": 4, "texts": 3, "late": 0}
    assert read.bad == {"records": 2, "texts": 1, "late": 0}


def test_new_files_of_every_format_come_once(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, "unused:1")

    def frame() -> DataFrame:
        frames = [
            open_source(
                spark,
                pipeline,
                file_source(format, f"{format}/*.{format}", schema=schema, bad_records=DROP,
                            options={"header": "true"} if format == "csv" else {}),
            ).frame
            for format, schema in SCHEMAS.items()
        ]  # fmt: skip
        whole = frames[0]
        for one in frames[1:]:
            whole = whole.unionByName(one.selectExpr("cast(id AS INT) AS id", "name"))
        return whole

    for format in SCHEMAS:
        write_file(tmp_path / format, format, [1, 2])
    (tmp_path / "json" / "9.json").write_text('\n  \n{"id": 9, "name": "json-9"}\n{"id": "no"}\n')
    (tmp_path / "avro" / "0.avro").write_bytes(b"cut off" * 9)
    # Schemas are taken from the first file, which must be one.
    (tmp_path / "avro" / "0.avro").rename(tmp_path / "avro" / "zz.avro")
    first = drain(frame(), tmp_path / "checkpoint")
    assert sorted(row.name for row in first.rows) == sorted(
        [f"{format}-{one}" for format in SCHEMAS for one in (1, 2)] + ["json-9"]
    )
    assert first.rows_in == {"json": 4, "csv": 2, "parquet": 2, "avro": 3}
    assert first.bad == {"json": 1, "csv": 0, "parquet": 0, "avro": 1}

    for format in SCHEMAS:
        write_file(tmp_path / format, format, [3])
    second = drain(frame(), tmp_path / "checkpoint")
    assert sorted(row.name for row in second.rows) == sorted(f"{one}-3" for one in SCHEMAS)


@pytest.mark.parametrize("format", list(SCHEMAS))
def test_files_as_a_table(spark: SparkSession, tmp_path: Path, format: FileFormat) -> None:
    write_file(tmp_path / "in", format, [2, 1])
    source = file_source(format, "in", schema=SCHEMAS[format], read="table", deduplicate=("id",),
                         options={"header": "true"} if format == "csv" else {})  # fmt: skip
    frame = open_source(spark, pipeline_of(tmp_path, "unused:1"), source).frame
    assert not frame.isStreaming
    assert sorted((row.id, row.name) for row in frame.collect()) == [
        (1, f"{format}-1"),
        (2, f"{format}-2"),
    ]


@pytest.mark.parametrize("format", list(SCHEMAS))
@pytest.mark.parametrize("read", ["stream", "table"])
def test_a_path_that_is_not_there_is_one_line(
    spark: SparkSession, tmp_path: Path, format: FileFormat, read: Any
) -> None:
    for path in ("nowhere", "nowhere/*.x"):
        source = file_source(format, path, schema=SCHEMAS[format], read=read)
        with pytest.raises(BadPipeline) as caught:
            open_source(spark, pipeline_of(tmp_path, "unused:1"), source)
        assert str(caught.value) == (
            f"shop.yaml:7:3: source {format}: nothing is found at {tmp_path}/{path}: "
            "make the directory, or correct the path"
        )


@pytest.mark.parametrize("format", ["parquet", "avro"])
def test_a_schema_cannot_be_taken_from_no_file(
    spark: SparkSession, tmp_path: Path, format: FileFormat
) -> None:
    (tmp_path / "in").mkdir()
    pipeline = pipeline_of(tmp_path, "unused:1")
    with pytest.raises(BadPipeline, match=f"there is no {format} file in .*/in to take the schema"):
        open_source(spark, pipeline, file_source(format, "in"))
    schema = AVRO if format == "avro" else "id INT"
    assert open_source(spark, pipeline, file_source(format, "in", schema=schema)).frame.isStreaming


def test_a_csv_whose_header_has_other_names_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """By their places alone the columns would be mixed up without a word."""
    (tmp_path / "in.csv").write_text("name,id\nx,1\n")
    source = file_source("csv", "in.csv", schema="id INT, name STRING", read="table",
                         options={"header": "true"})  # fmt: skip
    frame = open_source(spark, pipeline_of(tmp_path, "unused:1"), source).frame
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        frame.collect()


def test_a_table_of_a_database(spark: SparkSession, tmp_path: Path) -> None:
    """Derby comes with Spark; PostgreSQL is in test_jdbc.py."""
    url = "jdbc:derby:memory:customers;create=true"
    rows = spark.createDataFrame([(1, "Ada"), (2, "Emmy")], "ID INT, NAME STRING")
    rows.coalesce(1).write.format("jdbc").options(url=url, dbtable="APP.CUSTOMERS").save()
    pipeline = pipeline_of(tmp_path, "unused:1")

    def source(table: str) -> JdbcSource:
        return JdbcSource(
            name="customers", place=PLACE, url=url, table=table, user="u", password="hu-sh"
        )

    frame = open_source(spark, pipeline, source("APP.CUSTOMERS")).frame
    assert sorted((row.ID, row.NAME) for row in frame.collect()) == [(1, "Ada"), (2, "Emmy")]
    with pytest.raises(PipelineFailed) as caught:
        open_source(spark, pipeline, source("APP.NOBODY"))
    line = str(caught.value)
    assert line.startswith("source customers: cannot read table APP.NOBODY: ")
    assert "does not exist" in line
    assert "\n" not in line
    assert "hu-sh" not in line


def test_delta_without_its_jars_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    for read in ("stream", "table"):
        source = DeltaSource(name="d", place=PLACE, path="t", read=read)  # type: ignore[arg-type]
        with pytest.raises(PipelineFailed, match=r"source d: cannot read .*/t: ") as caught:
            open_source(spark, pipeline_of(tmp_path, "unused:1"), source)
        assert "\n" not in str(caught.value)


def test_rows_come_once_within_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    lines = [{"id": one, "at": "2026-01-31T12:00:00Z"} for one in (1, 2, 1, 2, 3)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("\n".join(map(json.dumps, lines)))
    source = file_source("json", "in", schema="id INT, at TIMESTAMP", deduplicate=("id",),
                         watermark=Watermark("at", "1 minute"))  # fmt: skip
    frame = open_source(spark, pipeline_of(tmp_path, "unused:1"), source).frame
    assert sorted(row.id for row in drain(frame, tmp_path / "checkpoint").rows) == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"deduplicate": ("value",)}, "deduplicate needs a watermark"),
        ({"watermark": Watermark("when", "1 minute")}, "watermark: there is no column when"),
        ({"watermark": Watermark("value", "1 minute")}, "watermark: value is bigint; it must be"),
        ({"watermark": Watermark("timestamp", "soon")}, "watermark or deduplicate: "),
    ],
)
def test_what_is_wrong_with_times_is_one_line(
    spark: SparkSession, tmp_path: Path, given: dict[str, Any], line: str
) -> None:
    source = RateSource(name="ticks", place=PLACE, **given)
    with pytest.raises(BadPipeline) as caught:
        open_source(spark, pipeline_of(tmp_path, "unused:1"), source)
    assert str(caught.value).startswith(f"shop.yaml:7:3: source ticks: {line}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"start": "yesterday"}, "start is 'yesterday'; wanted: earliest, latest or a time"),
        ({"options": {"kafka.acls": "1", "maxOffsetPerTrigger": "1"}}, "option maxoffsetper"),
        ({"schema": "id INTT"}, "the schema cannot be read: "),
    ],
)
def test_what_is_wrong_with_a_topic_is_told_before_a_broker_is_asked(
    spark: SparkSession, tmp_path: Path, given: dict[str, Any], line: str
) -> None:
    source = topic_source("orders", "orders", **{"schema": "id INT", **given})
    with pytest.raises(BadPipeline) as caught:
        open_source(spark, pipeline_of(tmp_path, "unused:1"), source)
    assert str(caught.value).startswith(f"shop.yaml:7:3: source orders: {line}")
