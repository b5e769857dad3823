"""Records that do not parse: no query passes over them by chance, and letters keep all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla.pipelines.bad_records import reason_of
from ottla.pipelines.model import BadRecords, FileFormat, FileSource, Pipeline, TopicSource
from ottla.pipelines.problems import BadPipeline
from ottla.pipelines.sources import decoded, open_source, opened
from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.messages import messages_in
from spark.kit.pipeline_sources import PLACE, Message, drain, pipeline_of, send
from spark.kit.streams import finish

LETTERS = BadRecords("dead_letter", "orders.dead")
RAW = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return pipeline_of(tmp_path, "unused:1")


def orders(**given: Any) -> TopicSource:
    given = {"schema": "id INT, shop STRING", **given}
    return TopicSource(name="orders", place=PLACE, topics=("orders",), **given)


def files(format: FileFormat, **given: Any) -> FileSource:
    return FileSource(name="drop", place=PLACE, path="in", format=format, read="table", **given)


def raw(spark: SparkSession, *values: bytes | None, key: bytes | None = None) -> DataFrame:
    """Messages of a topic as a table, without a broker."""
    now = datetime(2026, 1, 31)
    rows = [(key, value, "orders", 0, at, now) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, RAW)


def failure(act: Callable[[], object]) -> str:
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION") as caught:
        act()
    line = reason_of(caught.value)
    assert line is not None
    assert "\n" not in line
    return line


def letters(frame: DataFrame | None) -> list[tuple[bytes | None, dict[str, str]]]:
    assert frame is not None
    return [
        (row.value, {one.key: one.value.decode() for one in row.headers})
        for row in frame.collect()
    ]  # fmt: skip


@pytest.mark.parametrize(
    "use",
    [
        # A bad record's fields are null, so each of these would leave it out.
        lambda frame: frame.where("shop = 'elsewhere'"),
        lambda frame: frame.where("id > 0").select("shop"),
        lambda frame: frame.where("_offset < 1").selectExpr("count(*)"),
        lambda frame: frame.join(frame.selectExpr("id AS other"), frame.id == frame.id),
        lambda frame: frame.selectExpr("count(*)"),
        lambda frame: frame.select("_partition").distinct(),
    ],
)
def test_no_query_passes_over_a_bad_record(
    spark: SparkSession, pipeline: Pipeline, use: Callable[[DataFrame], DataFrame]
) -> None:
    source = orders()
    frame = opened(decoded(raw(spark, b'{"id": 1}', b"{\n"), source), pipeline, source).frame
    line = failure(lambda: use(frame).collect())
    assert line.startswith("topic orders partition 0 offset 1: value: it is not JSON: ")


def test_without_bad_records_nothing_fails(spark: SparkSession, pipeline: Pipeline) -> None:
    source = orders()
    found = opened(decoded(raw(spark, b'{"id": 1}', None), source), pipeline, source)
    assert found.dead is None
    rows = [(row.id, row["_tombstone"]) for row in found.frame.orderBy("_offset").collect()]
    assert rows == [(1, False), (None, True)]


def test_a_stream_fails_at_a_bad_record_that_a_filter_would_hide(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    send(broker.bootstrap, name, Message(b'{"id": 1}'), Message(b'{"id": "one"}'))
    source = TopicSource(name="orders", place=PLACE, topics=(name,), schema="id INT")
    frame = open_source(spark, pipeline_of(tmp_path, broker.bootstrap, source), source).frame
    line = failure(lambda: drain(frame.where("id > 0").select("_key"), tmp_path / "checkpoint"))
    assert line == f'topic {name} partition 0 offset 1: value: field id: "one" is not INT'


def test_letters_keep_the_message_and_say_where_it_came_from(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name, dead = topic(1), topic(1)
    own = [("trace", b"\x00\xff"), ("none", None), ("trace", b"2")]
    send(
        broker.bootstrap,
        name,
        Message(b'{"id": 1}', b"k"),
        Message(b"\xff{", b"k\x00", own, 1_769_860_800_250),
        Message(None, b"tombstone"),
        Message(b'{"id": 4}', b"\xfe", (), 1_000),
    )
    source = TopicSource(
        name="orders", place=PLACE, topics=(name,), schema="id INT",
        bad_records=BadRecords("dead_letter", dead),
    )  # fmt: skip
    found = open_source(spark, pipeline_of(tmp_path, broker.bootstrap, source), source)
    assert found.dead is not None
    query = finish(
        found.dead.writeStream.format("ottla")
        .options(bootstrap=broker.bootstrap, topic=dead, checkpointLocation=str(tmp_path / "dead"))
        .trigger(availableNow=True)
        .start()
    )
    counts = [one.observedMetrics["source:orders"] for one in query.recentProgress]
    assert (sum(one.rows for one in counts), sum(one.bad for one in counts)) == (2, 0)

    def told(offset: int, time: str, reason: str) -> list[tuple[str, bytes | None]]:
        return [
            ("ottla.topic", name.encode()),
            ("ottla.partition", b"0"),
            ("ottla.offset", b"%d" % offset),
            ("ottla.timestamp", time.encode()),
            ("ottla.reason", reason.encode()),
            ("ottla.pipeline", b"shop"),
            ("ottla.source", b"orders"),
        ]

    utf8 = "it is not UTF-8: invalid start byte at byte 0"
    assert [(one.key, one.value, one.headers) for one in messages_in(broker.bootstrap, dead)] == [
        (b"k\x00", b"\xff{", [*own, *told(1, "2026-01-31T12:00:00.250Z", f"value: {utf8}")]),
        (b"\xfe", b'{"id": 4}', told(3, "1970-01-01T00:00:01.000Z", f"key: {utf8}")),
    ]


def test_a_decoded_table_gives_letters_too(spark: SparkSession, pipeline: Pipeline) -> None:
    """So the tests of a pipeline's own file see them without a broker."""
    source = orders(bad_records=LETTERS)
    messages = raw(spark, b'{"id": 1}', b"{", b'{"id": 3}')
    found = opened(decoded(messages, source), pipeline, source)
    assert [row.id for row in found.frame.orderBy("id").collect()] == [1, 3]
    ((value, headers),) = letters(found.dead)
    assert value == b"{"
    assert headers["ottla.offset"] == "1"


@pytest.mark.parametrize(
    ("format", "content", "good", "bad"),
    [
        ("json", b'{"id": 1}\n{"id": "x"}\n\xff\n{"id": 4}', [1, 4], [b'{"id": "x"}', b"\xff"]),
        ("csv", b"1,a\nx,b\n3\n4,d,e\n5,f\n", [1, 5], [b"x,b", b"3", b"4,d,e"]),
    ],
)
def test_lines_of_files(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path, format: FileFormat,
    content: bytes, good: list[int], bad: list[bytes],
) -> None:  # fmt: skip
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / f"a.{format}"
    file.write_bytes(content)
    source = files(format, schema="id INT, name STRING", bad_records=LETTERS)
    found = open_source(spark, pipeline, source)
    # Only the name is asked for: what is wrong with another field counts as well.
    assert found.frame.select("name").count() == len(good)
    assert sorted(row.id for row in found.frame.collect()) == good
    told = letters(found.dead)
    assert sorted(value or b"" for value, _ in told) == sorted(bad)
    for _, headers in told:
        assert list(headers) == ["ottla.file", "ottla.reason", "ottla.pipeline", "ottla.source"]
        assert headers["ottla.file"].endswith(f"/in/a.{format}")
        assert headers["ottla.reason"].startswith("value: ")

    failing = open_source(spark, pipeline, files(format, schema="id INT, name STRING")).frame
    line = failure(lambda: failing.where("name = 'elsewhere'").collect())
    assert f"/in/a.{format}: value: " in line
    assert line.startswith("file file:/")


def test_an_avro_file_is_good_or_bad_as_a_whole(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    (tmp_path / "in").mkdir()
    for name in ("good", "cut"):
        with (tmp_path / "in" / f"{name}.avro").open("wb") as out:
            fastavro.writer(out, schema, [{"id": one} for one in range(100)], sync_interval=20)
    cut = tmp_path / "in" / "cut.avro"
    cut.write_bytes(cut.read_bytes()[:-5])
    text = json.dumps(schema)
    found = open_source(spark, pipeline, files("avro", schema=text, bad_records=LETTERS))
    assert found.frame.count() == 100
    ((value, headers),) = letters(found.dead)
    assert value is None
    assert headers["ottla.file"].endswith("/in/cut.avro")
    failing = open_source(spark, pipeline, files("avro", schema=text)).frame
    line = failure(lambda: failing.where("id < 0").collect())
    assert "/in/cut.avro: it is no Avro file of this schema: " in line


def test_parquet_has_no_bad_records_to_send(spark: SparkSession, pipeline: Pipeline) -> None:
    with pytest.raises(BadPipeline, match="choose fail or drop"):
        open_source(spark, pipeline, files("parquet", schema="id INT", bad_records=LETTERS))
