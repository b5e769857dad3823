"""Records that do not parse: no query passes over them by chance, and letters keep all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla.pipelines.language.model import BadRecords, FileFormat, FileSource, Pipeline, TopicSource
from ottla.pipelines.language.problems import BadPipeline
from ottla.pipelines.sources.contract import Letters
from ottla.pipelines.sources.kinds import open_source
from ottla.pipelines.sources.topic import opened_bytes
from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.messages import messages_in
from spark.kit.pipeline_sources import PLACE, Message, drain, pipeline_of, send

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
    found = re.search(
        r"\[USER_RAISED_EXCEPTION\] (.*?) SQLSTATE: P0001", str(caught.value), re.DOTALL
    )
    assert found
    assert "\n" not in found[1]
    return found[1]


def bad_of(frame: DataFrame | None) -> list[tuple[bytes | None, str]]:
    assert frame is not None
    return [(row.value, row.reason) for row in frame.collect()]


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
    frame = opened_bytes(raw(spark, b'{"id": 1}', b"{\n"), source).frame
    line = failure(lambda: use(frame).collect())
    assert line.startswith("topic orders partition 0 offset 1: value: it is not JSON: ")


def test_without_bad_records_nothing_fails(spark: SparkSession, pipeline: Pipeline) -> None:
    source = orders()
    found = opened_bytes(raw(spark, b'{"id": 1}', None), source)
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
    pipeline = pipeline_of(tmp_path, broker.bootstrap, source)
    # Whatever becomes of the rows.
    frame = open_source(spark, pipeline, source, Letters()).frame.where("id > 7").select("_key")
    read = drain(frame, tmp_path / "checkpoint")
    assert (read.rows, read.rows_in, read.bad) == ([], {"orders": 4}, {"orders": 2})

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


def test_a_decoded_table_gives_its_bad_records_too(spark: SparkSession, pipeline: Pipeline) -> None:
    """So the tests of a pipeline's own file see them without a broker."""
    source = orders(bad_records=LETTERS)
    messages = raw(spark, b'{"id": 1}', b"{", b'{"id": 3}')
    found = opened_bytes(messages, source)
    assert [row.id for row in found.frame.orderBy("id").collect()] == [1, 3]
    ((value, reason),) = bad_of(found.bad)
    assert value == b"{"
    assert reason.startswith("value: it is not JSON")


@pytest.mark.parametrize(
    ("format", "content", "good", "bad"),
    [
        ("json", b'{"id": 1}\n{"id": "x"}\n\xff\n{"id": 4}', [1, 4], [b'{"id": "x"}', b"\xff"]),
        ("csv", b"1,a\nx,b\n3\n4,d,e\n5,f\n", [1, 5], [b"x,b", b"3", b"4,d,e"]),
    ],
)
def test_lines_of_files(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path, format: FileFormat,
    content: bytes, good: list[int], bad: list[bytes],
) -> None:  # fmt: skip
    pipeline, dead = pipeline_of(tmp_path, broker.bootstrap), topic(1)
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / f"a.{format}"
    file.write_bytes(content)
    source = files(
        format, schema="id INT, name STRING", bad_records=BadRecords("dead_letter", dead)
    )
    found = open_source(spark, pipeline, source)
    # Only the name is asked for: what is wrong with another field counts as well.
    assert found.frame.select("name").count() == len(good)
    assert sorted(row.id for row in found.frame.collect()) == good
    assert sorted(value or b"" for value, _ in bad_of(found.bad)) == sorted(bad)
    assert not messages_in(broker.bootstrap, dead)

    with_letters = open_source(spark, pipeline, source, Letters()).frame
    assert with_letters.where("name = 'elsewhere'").collect() == []
    told = messages_in(broker.bootstrap, dead)
    assert sorted(one.value or b"" for one in told) == sorted(bad)
    for one in told:
        headers = {name: (value or b"").decode() for name, value in one.headers}
        assert list(headers) == ["ottla.file", "ottla.reason", "ottla.pipeline", "ottla.source"]
        assert headers["ottla.file"].endswith(f"/in/a.{format}")
        assert headers["ottla.reason"].startswith("value: ")
        assert (headers["ottla.pipeline"], headers["ottla.source"]) == ("shop", "drop")

    failing = open_source(spark, pipeline, files(format, schema="id INT, name STRING")).frame
    line = failure(lambda: failing.where("name = 'elsewhere'").collect())
    assert f"/in/a.{format}: value: " in line
    assert line.startswith("file file:/")


def test_an_avro_file_is_good_or_bad_as_a_whole(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    pipeline, dead = pipeline_of(tmp_path, broker.bootstrap), topic(1)
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
    assert [value for value, _ in bad_of(found.bad)] == [None]
    with_letters = open_source(
        spark, pipeline, files("avro", schema=text, bad_records=BadRecords("dead_letter", dead)),
        Letters(),
    ).frame  # fmt: skip
    assert with_letters.count() == 100
    (letter,) = messages_in(broker.bootstrap, dead)
    assert letter.value is None
    assert (dict(letter.headers)["ottla.file"] or b"").endswith(b"/in/cut.avro")
    failing = open_source(spark, pipeline, files("avro", schema=text)).frame
    line = failure(lambda: failing.where("id < 0").collect())
    assert "/in/cut.avro: it is no Avro file of this schema: " in line


def test_parquet_has_no_bad_records_to_send(spark: SparkSession, pipeline: Pipeline) -> None:
    with pytest.raises(BadPipeline, match="choose fail or drop"):
        open_source(spark, pipeline, files("parquet", schema="id INT", bad_records=LETTERS))
