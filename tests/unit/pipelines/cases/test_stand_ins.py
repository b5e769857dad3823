"""What is dropped for a test, and when there are pauses; the streams are in tests/spark."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ottla.pipelines.cases.row_files import BadCase, typed_table
from ottla.pipelines.cases.stand_ins import empty_file, file_data, has_watermark
from ottla.pipelines.language.model import (
    FileFormat,
    FileSource,
    Pipeline,
    PythonFunction,
    RateSource,
    Sql,
    View,
    Watermark,
)
from ottla.pipelines.language.problems import Place
from ottla.spark.formats.spark_types import parse_type

HERE = Place(Path("p.yaml"), 1, 1)
AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "id", "type": "long"}],
}


def files(format: FileFormat, schema: str | None) -> FileSource:
    return FileSource(name="drops", place=HERE, path="in", format=format, schema=schema)


def pipeline(source: RateSource, view: View | None = None) -> Pipeline:
    return Pipeline(
        name="p",
        file=Path("p.yaml"),
        bootstrap="",
        sources={"ticks": source},
        views={} if view is None else {"v": view},
        sinks={},
        tests={},
    )


def test_json_lines_become_parquet_of_the_sources_schema(tmp_path: Path) -> None:
    source = files("parquet", "id BIGINT, price DECIMAL(5,2)")
    (tmp_path / "a.jsonl").write_text('{"id": 1, "price": 1.5}\n{"id": 2}\n')
    table = pq.read_table(pa.BufferReader(file_data(source, tmp_path / "a.jsonl")))
    assert table.schema.field("price").type == pa.decimal128(5, 2)
    assert table.column("id").to_pylist() == [1, 2]
    empty = pq.read_table(pa.BufferReader(empty_file(source, [tmp_path / "a.jsonl"])))
    assert (empty.num_rows, empty.schema) == (0, table.schema)


def test_json_lines_become_avro_of_the_sources_schema(tmp_path: Path) -> None:
    source = files("avro", json.dumps(AVRO_SCHEMA))
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    data = file_data(source, tmp_path / "a.jsonl")
    assert list(fastavro.reader(io.BytesIO(data))) == [{"id": 1}]
    empty = fastavro.reader(io.BytesIO(empty_file(source, [tmp_path / "a.jsonl"])))
    assert list(empty) == []
    assert empty.writer_schema == fastavro.reader(io.BytesIO(data)).writer_schema


def test_files_of_the_sources_own_format_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id\r\n1\r\n")
    source = files("csv", "id INT")
    assert file_data(source, tmp_path / "a.csv") == b"id\r\n1\r\n"
    assert empty_file(source, [tmp_path / "a.csv"]) == b""


def test_json_lines_without_a_schema_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(BadCase, match=r"needs a schema for tests, or a \.parquet file"):
        file_data(files("parquet", None), tmp_path / "a.jsonl")


def test_rows_of_a_table_are_typed_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "users.jsonl"
    file.write_text('{"id": 1}\n{"idd": 2}\n{"id": "x"}\n')
    with pytest.raises(BadCase) as caught:
        typed_table(file, parse_type("id INT, name STRING"))
    assert [str(one) for one in caught.value.problems] == [
        f"{file}:2:1: there is no column 'idd' (there are id, name); did you mean id?",
        f'{file}:3:1: field id: "x" is not INT',
    ]
    file.write_text('{"id": 1}\n')
    rows = typed_table(file, parse_type("id INT, name STRING")).to_pylist()
    assert rows == [{"id": 1, "name": None}]


def test_a_pipeline_pauses_wherever_there_may_be_a_watermark() -> None:
    ticks = RateSource(name="ticks", place=HERE)
    plain = View(name="v", place=HERE, body=Sql("SELECT * FROM ticks", HERE))
    late = Watermark("timestamp", "1 minute")
    assert not has_watermark(pipeline(ticks, plain))
    assert has_watermark(pipeline(replace(ticks, watermark=late), plain))
    assert has_watermark(pipeline(ticks, replace(plain, watermark=late)))
    assert has_watermark(pipeline(ticks, replace(plain, body=PythonFunction("m", "f", HERE))))
    own = Sql("SELECT * FROM ticks WATERMARK timestamp DELAY OF INTERVAL 1 MINUTE", HERE)
    assert has_watermark(pipeline(ticks, replace(plain, body=own)))
