"""The columns that SQL sees, without Spark, broker or files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.language.model import (
    BadRecords,
    DeltaSource,
    FileFormat,
    FileSource,
    JdbcSource,
    Pipeline,
    RateSource,
    Source,
    TopicSource,
)
from ottla.pipelines.language.problems import BadPipeline, Place
from ottla.pipelines.sources.files import located
from ottla.pipelines.sources.kinds import shape

PLACE = Place(Path("shop.yaml"), 4, 5)
MESSAGE = "_topic:string,_partition:int,_offset:bigint,_timestamp:timestamp,_tombstone:boolean"
PAID = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "paid", "type": PAID},
    ],
}


def topic(**given: Any) -> TopicSource:
    return TopicSource(name="orders", place=PLACE, topics=("orders",), **given)


def files(format: FileFormat, schema: str | None = None) -> FileSource:
    return FileSource(name="drop", place=PLACE, path="in", format=format, schema=schema)


def columns(source: Source) -> str:
    found = shape(source)
    assert found is not None
    return found.simpleString().removeprefix("struct<").removesuffix(">")


def problem_of(source: Source) -> str:
    with pytest.raises(BadPipeline) as caught:
        shape(source)
    (problem,) = caught.value.problems
    return str(problem)


def test_a_topic_has_the_fields_of_its_values_and_those_of_messages() -> None:
    assert columns(topic(schema="id BIGINT, tags ARRAY<STRING>, m MAP<STRING, DECIMAL(5,1)>")) == (
        f"id:bigint,tags:array<string>,m:map<string,decimal(5,1)>,_key:string,{MESSAGE}"
    )


@pytest.mark.parametrize(("format", "kind"), [("string", "string"), ("bytes", "binary")])
def test_what_has_no_fields_is_one_column(format: Any, kind: str) -> None:
    assert columns(topic(format=format, key_format=format)) == f"value:{kind},_key:{kind},{MESSAGE}"


def test_json_that_is_no_object_is_one_column() -> None:
    assert columns(topic(schema="ARRAY<INT>")).startswith("value:array<int>,_key")


def test_avro_and_headers_and_a_typed_key() -> None:
    source = topic(
        format="avro",
        schema=json.dumps(AVRO),
        key_format="json",
        key_schema="shop STRING",
        headers=True,
    )
    assert columns(source) == (
        f"id:bigint,at:timestamp,paid:decimal(9,2),_key:struct<shop:string>,{MESSAGE},"
        "_headers:array<struct<key:string,value:binary>>"
    )


def test_every_field_may_be_null() -> None:
    found = shape(topic(schema="id BIGINT NOT NULL, inner STRUCT<a: INT>"))
    assert found is not None
    assert all(field.nullable for field in found)


def test_files_and_tables() -> None:
    assert columns(files("json", "id INT")) == "id:int"
    assert columns(files("csv", "id INT, at DATE")) == "id:int,at:date"
    assert columns(files("parquet", "t TIMESTAMP_NTZ")) == "t:timestamp_ntz"
    assert columns(files("avro", json.dumps(AVRO))).startswith("id:bigint,at:timestamp")
    assert columns(RateSource(name="r", place=PLACE)) == "timestamp:timestamp,value:bigint"
    jdbc = JdbcSource(name="c", place=PLACE, url="jdbc:h2:x", table="t", schema="id INT")
    assert columns(jdbc) == "id:int"


def test_some_only_know_it_themselves() -> None:
    unknown = [
        files("parquet"),
        files("avro"),
        DeltaSource(name="d", place=PLACE, path="t"),
        JdbcSource(name="c", place=PLACE, url="jdbc:h2:x", table="t"),
    ]
    assert [shape(one) for one in unknown] == [None] * len(unknown)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (topic(), "source orders: the schema is missing: json needs one"),
        (topic(schema="id BIGIN"), "source orders: the schema cannot be read: "),
        (topic(format="avro", schema="{}"), "source orders: the schema cannot be read: "),
        (topic(schema="id INT", key_format="json"), "source orders: the key schema is missing"),
        (topic(schema="_Offset INT"), "source orders: the schema has a field _Offset"),
        (topic(schema="_headers INT", headers=True), "source orders: the schema has a field _h"),
        (files("csv"), "source drop: the schema is missing"),
        (files("json"), "source drop: the schema is missing"),
    ],
)
def test_what_is_wrong_with_a_schema_is_one_line(source: Source, line: str) -> None:
    found = problem_of(source)
    assert found.startswith(f"shop.yaml:4:5: {line}")
    assert "\n" not in found


def test_a_field_may_be_called_headers_where_none_are_asked_for() -> None:
    assert columns(topic(schema="_headers INT")).startswith("_headers:int,_key")


def test_paths_are_seen_from_the_file(tmp_path: Path) -> None:
    pipeline = Pipeline(
        name="p", file=tmp_path / "p.yaml", bootstrap="", sources={}, views={}, sinks={}, tests={}
    )
    assert located(pipeline, "in/*.csv") == str(tmp_path / "in/*.csv")
    assert located(pipeline, "/data/in") == "/data/in"
    assert located(pipeline, "s3a://bucket/in") == "s3a://bucket/in"


def test_a_password_is_not_shown() -> None:
    source = JdbcSource(name="c", place=PLACE, url="jdbc:h2:x", table="t", password="hush")
    assert "hush" not in repr(source)
    assert source.bad_records == BadRecords("fail")
