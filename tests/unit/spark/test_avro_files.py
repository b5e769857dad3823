"""Avro's own files: read by the schema that is wanted, whole or not at all."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from ottla.spark.formats.avro import BadFile, arrow_type, file_schema, parse_file

WRITTEN = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "gone", "type": "string"},
    ],
}
WANTED = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "new", "type": ["null", "string"], "default": None},
    ],
}


def file_of(count: int, codec: str = "null", schema: Any = WRITTEN) -> bytes:
    rows = [{"id": at, "at": at * 1000, "gone": "x" * 50} for at in range(count)]
    target = io.BytesIO()
    # Small blocks, so that there are several.
    fastavro.writer(target, fastavro.parse_schema(schema), rows, codec=codec, sync_interval=500)
    return target.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy"])
def test_a_file_is_read_by_its_own_schema(codec: str) -> None:
    content = file_of(100, codec)
    schema = file_schema(content)
    blocks = list(parse_file(content, schema))
    assert len(blocks) > 1
    whole = pa.concat_arrays(blocks)
    assert whole.type == arrow_type(schema)
    assert whole.field("id").to_pylist() == list(range(100))
    assert whole.field("at").cast(pa.int64()).to_pylist() == [at * 1_000_000 for at in range(100)]


def test_a_wanted_schema_may_leave_out_and_add() -> None:
    whole = pa.concat_arrays(list(parse_file(file_of(3), json.dumps(WANTED))))
    assert [field.name for field in whole.type] == ["id", "at", "new"]
    assert whole.field("id").to_pylist() == [0, 1, 2]
    assert whole.field("new").null_count == 3


def test_times_are_counted_as_the_file_says() -> None:
    wanted = json.dumps(WANTED).replace("timestamp-millis", "timestamp-micros")
    whole = pa.concat_arrays(list(parse_file(file_of(3), wanted)))
    assert whole.field("at").cast(pa.int64()).to_pylist() == [0, 1_000_000, 2_000_000]


def test_a_file_without_records_has_none() -> None:
    assert list(parse_file(file_of(0), json.dumps(WANTED))) == []


def test_what_is_no_avro_is_one_line() -> None:
    good = file_of(100)
    other = json.dumps(
        {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]}
    )
    for content, schema in [
        (b"", json.dumps(WANTED)),
        (b"junk" * 10, json.dumps(WANTED)),
        (good[:-20], json.dumps(WANTED)),
        (good[:-9] + b"x" * 9, json.dumps(WANTED)),
        (good, other),
        (file_of(100, "deflate")[:-30] + b"x" * 30, json.dumps(WANTED)),
    ]:
        with pytest.raises(BadFile, match="it is no Avro file of this schema: ") as caught:
            list(parse_file(content, schema))
        assert "\n" not in str(caught.value)
    with pytest.raises(BadFile, match="it is no Avro file: "):
        file_schema(b"junk")
