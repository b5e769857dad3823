"""Typed columns in a real Spark: the same as its own from_json, and errors beside them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.types import StructType

from ottla.spark.formats.spark_types import parse_type, to_ddl
from ottla.spark.formats.typed_columns import Format, spark_type
from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.filling import put, record
from spark.kit.pipeline_sources import Message, send
from spark.kit.streams import OTTLA, drain, read, read_stream

DDL = (
    "b BOOLEAN, i8 TINYINT, i16 SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, x BINARY, "
    "day DATE, t TIMESTAMP, m DECIMAL(10, 2), a ARRAY<INT>, o STRUCT<p: STRING, q: ARRAY<DATE>>, "
    "k MAP<STRING, INT>"
)

GOOD = [
    '{"b":true,"i8":-128,"i16":7,"i":5,"l":9007199254740993,"f":1.5,"d":2,"s":"ä\\n","x":"AQI="}',
    '{"day":"2024-02-29","t":"2024-01-02T03:04:05.123456+01:00","m":12.3,"a":[1,null]}',
    '{"o":{"p":"q","q":["2024-01-02",null]},"k":{"x":1,"y":null},"extra":{"no":1}}',
    '{"s":1.5}',
    '{"s":{"x":[1,"y",true,null]}}',
    '{"s":false,"d":"NaN","f":"-INF"}',
    '{"f":1e40,"d":1e-5,"l":-9223372036854775808}',
    '{"m":1.255}',
    '{"m":"7"}',
    '{"t":1704164645}',
    '{"t":"2024-01-02"}',
    '{"t":"2024-01-02T03"}',
    '{"t":"2024-01-02 03:04:05.123456789Z"}',
    '{"day":"2024-1-2"}',
    '{"i":1,"i":2}',
    '{"o":null,"a":[],"k":{}}',
    "{}",
    " {\n } ",
    "null",
]
# What Spark makes of these is all null; here an error is told besides.
BAD = ["{", "nonsense", "[", '"text"', "17", '[{"i":1}]', '\x0b{"i":1}']
WRONG = [
    ("i", "1.0"), ("i", '"1"'), ("i", "2147483648"), ("b", "1"), ("d", "{}"), ("day", "true"),
    ("a", "{}"), ("o", "[]"), ("x", "1"), ("m", '"x"'), ("t", '"soon"'),
    ("t", '"2024-01-02T03:04:05+19:00"'), ("t", '"2024-01-02T03Z"'),
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_utc(spark: SparkSession) -> Any:
    """Times without a zone are UTC here, and the session's own in Spark."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield
    spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def put_values(broker: Broker, topic: str, values: list[str]) -> None:
    put(broker.bootstrap, topic, [record(value.encode()) for value in values])


def both(spark: SparkSession, broker: Broker, topic: str) -> tuple[DataFrame, DataFrame]:
    plain = read(spark, OTTLA, broker.bootstrap, subscribe=topic)
    theirs = plain.select("offset", from_json(col("value").cast("string"), DDL).alias("value"))
    ours = read(
        spark, OTTLA, broker.bootstrap, subscribe=topic, valueFormat="json", valueSchema=DDL
    )
    return ours, theirs


def by_offset(frame: DataFrame, *columns: str) -> list[Any]:
    # As text, since NaN is not equal to itself.
    return [str(row) for row in frame.select("offset", *columns).orderBy("offset").collect()]


def assert_same(ours: list[str], theirs: list[str]) -> None:
    differ = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
    assert not differ, "\n".join(f"ours   {one}\ntheirs {other}" for one, other in differ)


def test_json_is_what_from_json_makes_of_it(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_values(broker, name, GOOD)
    ours, theirs = both(spark, broker, name)
    assert ours.schema["value"].dataType == theirs.schema["value"].dataType
    assert_same(by_offset(ours, "value"), by_offset(theirs, "value"))
    assert ours.where("_error is not null").count() == 0


def test_what_is_no_json_is_null_as_in_from_json_and_told(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_values(broker, name, BAD)
    ours, theirs = both(spark, broker, name)
    assert_same(by_offset(ours, "value"), by_offset(theirs, "value"))
    assert ours.where("_error like 'value: %'").count() == len(BAD)


def test_what_from_json_reads_only_in_part_is_an_error_here(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    """Spark takes the first of two objects, and half of one that breaks off, without a word."""
    name = topic(1)
    put_values(broker, name, ['{"i":1}{"i":2}', '{"i":1', '{"i":1,'])
    ours, theirs = both(spark, broker, name)
    assert [row.value.i for row in theirs.orderBy("offset").collect()] == [1, None, None]
    rows = ours.orderBy("offset").collect()
    assert [row.value.i for row in rows] == [None, None, None]
    assert all(row["_error"].startswith("value: it is not JSON: ") for row in rows)


def test_a_wrong_field_is_null_as_in_from_json_and_named(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_values(broker, name, [f'{{"s":"stays","{field}":{text}}}' for field, text in WRONG])
    ours, theirs = both(spark, broker, name)
    assert_same(by_offset(ours, "value"), by_offset(theirs, "value"))
    errors = [row["_error"] for row in ours.orderBy("offset").collect()]
    assert [error.split(":")[1] for error in errors] == [f" field {field}" for field, _ in WRONG]


@pytest.mark.parametrize(
    "ddl",
    [
        DDL,
        "a INT NOT NULL COMMENT 'x', `b c` STRING, `d``e`: DATE",
        "n TIMESTAMP_NTZ, l TIMESTAMP_LTZ, c VARCHAR(5), r REAL, e DEC(5), date DATE, struct INT",
        "s STRUCT<>, z ARRAY<ARRAY<MAP<STRING, STRUCT<y: BIGINT>>>>",
    ],
)
def test_words_mean_here_what_they_mean_to_spark(spark: SparkSession, ddl: str) -> None:
    ours = StructType.fromDDL(f"value {to_ddl(parse_type(ddl))}")["value"].dataType
    theirs = StructType.fromDDL(ddl)
    plain = theirs.simpleString().replace("varchar(5)", "string")
    assert ours.simpleString() == plain
    assert parse_type(theirs.json()) == parse_type(ddl)


def test_keys_and_values_have_formats_of_their_own(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    rows = [record(b'{"a":1}', b"k"), record(b"{", b"\xff"), record(None, None)]
    put(broker.bootstrap, name, rows)
    frame = read_stream(
        spark, OTTLA, broker.bootstrap, subscribe=name, startingOffsets="earliest",
        keyFormat="string", valueFormat="json", valueSchema="a INT", columns="_error,value,key",
    )  # fmt: skip
    rows_ = drain(frame, tmp_path / "checkpoint").rows
    assert [row.key for row in rows_] == ["k", None, None]
    assert [None if row.value is None else row.value.a for row in rows_] == [1, None, None]
    assert [row["_error"] for row in rows_][::2] == [None, None]
    assert rows_[1]["_error"].startswith("key: it is not UTF-8: ")
    assert "; value: it is not JSON: " in rows_[1]["_error"]


def test_avro_with_and_without_the_head_of_a_registry(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
            {"name": "tags", "type": {"type": "map", "values": "string"}},
        ],
    }
    out = io.BytesIO()
    value = {"id": 7, "at": 1_704_164_645_000_001, "tags": {"a": "b"}}
    parsed = fastavro.parse_schema({**schema})
    fastavro.schemaless_writer(out, parsed, value)
    plain, framed = topic(1), topic(1)
    put(broker.bootstrap, plain, [record(out.getvalue()), record(b"?")])
    heads = (b"\0\0\0\0\x09", b"\0\0\0\0\x0a")
    send(broker.bootstrap, framed, *(Message(head + out.getvalue()) for head in heads))
    named = {"avroFraming": "confluent", "valueSchemaIds": "9"}
    for name, framing in ((plain, {}), (framed, named)):
        frame = read(
            spark, OTTLA, broker.bootstrap, subscribe=name, valueFormat="avro",
            valueSchema=json.dumps(schema), columns="value,_error", **framing,
        )  # fmt: skip
        first, second = frame.selectExpr("value.*", "unix_micros(value.at) us", "_error").collect()
        assert (first.id, first.us, first.tags) == (7, 1_704_164_645_000_001, {"a": "b"})
        assert first["_error"] is None
        assert second.id is None
        assert second["_error"].startswith("value: it ")
    assert "written by schema 10 of the registry" in second["_error"]


def test_avro_types_can_be_said_in_ddl(spark: SparkSession) -> None:
    schema = (
        '{"type":"record","name":"r","fields":[{"name":"a","type":{"type":"array","items":"int"}}]}'
    )
    words = spark_type(Format("avro", schema))
    assert StructType.fromDDL(f"v {words}").simpleString() == "struct<v:struct<a:array<int>>>"
