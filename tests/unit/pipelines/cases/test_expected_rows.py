"""Expected rows: JSON lines, typed by the columns of the view."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.cases.expected_rows import Expected, read_expected
from ottla.pipelines.cases.row_files import FILE_BYTES_MAX, PROBLEMS_MAX, BadCase
from ottla.spark.formats.spark_types import parse_type


def read(tmp_path: Path, text: str, schema: str, optional: tuple[str, ...] = ()) -> Expected:
    file = tmp_path / "out.jsonl"
    file.write_text(text)
    return read_expected(file, parse_type(schema), optional)


def problems(tmp_path: Path, text: str, schema: str) -> list[str]:
    with pytest.raises(BadCase) as caught:
        read(tmp_path, text, schema)
    return [str(one).removeprefix(f"{tmp_path}/") for one in caught.value.problems]


def test_rows_are_typed_by_the_view(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        '{"id": 1, "price": 1.50, "at": "2024-01-31T10:00:00+02:00", "day": "2024-01-31"}\n\n'
        '{"id": null, "price": "2.5", "at": null, "day": null}\n',
        "id BIGINT, price DECIMAL(10,2), at TIMESTAMP, day DATE",
    )
    assert found.rows[0].values == {
        "id": 1,
        "price": Decimal("1.5"),
        "at": datetime(2024, 1, 31, 8, tzinfo=UTC),
        "day": date(2024, 1, 31),
    }
    assert found.rows[1].values == {"id": None, "price": Decimal("2.5"), "at": None, "day": None}
    assert [row.line for row in found.rows] == [1, 3]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ("BOOLEAN", "true", True),
        ("TINYINT", "-1", -1),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", '"-Infinity"', float("-inf")),
        ("FLOAT", "0.1", 0.10000000149011612),
        ("DECIMAL(10,2)", "1.005", Decimal("1.005")),
        ("STRING", '"1"', "1"),
        ("BINARY", '"AP8="', b"\x00\xff"),
        ("TIMESTAMP_NTZ", '"2024-01-31T10:00:00"', datetime(2024, 1, 31, 10)),
        ("ARRAY<INT>", "[1, null]", [1, None]),
        ("MAP<STRING, INT>", '{"a": 1}', {"a": 1}),
        ("MAP<INT, STRING>", '{"1": "a"}', {1: "a"}),
        ("STRUCT<a: INT, b: STRUCT<c: STRING>>", '{"a": 1, "b": {"c": "x"}}',
         {"a": 1, "b": {"c": "x"}}),
    ],
)  # fmt: skip
def test_every_type_has_its_way_to_be_written(
    tmp_path: Path, schema: str, text: str, value: Any
) -> None:
    found = read(tmp_path, f'{{"x": {text}}}', f"x {schema}")
    assert found.rows[0].values == {"x": value}


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        ("BIGINT", '"1"', 'column x: "1" is not BIGINT'),
        ("BIGINT", "1.0", "column x: 1.0 is not BIGINT"),
        ("INT", "true", "column x: true is not INT"),
        ("DOUBLE", '"1"', 'column x: "1" is not DOUBLE'),
        ("DOUBLE", "[1]", "column x: [1] is not DOUBLE"),
        ("BOOLEAN", "1", "column x: 1 is not BOOLEAN"),
        ("STRING", "1", "column x: 1 is not STRING; write it in quotes"),
        ("DECIMAL(5,2)", '"one"', 'column x: "one" is not DECIMAL(5, 2)'),
        ("DECIMAL(5,2)", '"NaN"', 'column x: "NaN" is not DECIMAL(5, 2)'),
        ("DECIMAL(5,2)", "true", "column x: true is not DECIMAL(5, 2)"),
        ("DATE", '"yesterday"', 'column x: "yesterday" is not DATE'),
        ("TIMESTAMP", "1700000000", "column x: 1700000000 is not TIMESTAMP_LTZ"),
        ("ARRAY<INT>", '["a"]', 'column x[0]: "a" is not INT'),
        ("ARRAY<INT>", "{}", "column x: {} is not ARRAY<INT>"),
        ("MAP<STRING, INT>", '{"k": "a"}', 'column x[k]: "a" is not INT'),
        ("STRUCT<a: INT>", '{"a": 1, "b": 2}', "in x there is no field 'b' (there are a)"),
        ("STRUCT<a: INT, b: INT>", '{"a": 1}', "in x the field 'b' is missing; "),
        ("STRUCT<a: INT>", '{"a": "1"}', 'column x.a: "1" is not INT'),
    ],
)
def test_what_cannot_be_equal_is_told_with_its_line(
    tmp_path: Path, schema: str, text: str, reason: str
) -> None:
    [found] = problems(tmp_path, f'\n{{"x": {text}}}\n', f"x {schema}")
    assert found.startswith(f"out.jsonl:2:1: {reason}")


def test_a_column_too_many_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    [found] = problems(tmp_path, '{"id": 1, "totl": 2}', "id INT, total INT")
    assert found == (
        "out.jsonl:1:1: there is no column 'totl' (there are id, total); did you mean total?"
    )


def test_a_column_left_out_is_an_error(tmp_path: Path) -> None:
    text = '{"id": 1, "total": 2}\n{"id": 1}\n'
    [found] = problems(tmp_path, text, "id INT, total INT")
    assert found == "out.jsonl:2:1: the column 'total' is missing; add it, perhaps with null"


def test_message_columns_are_compared_where_the_file_names_them(tmp_path: Path) -> None:
    schema = "id INT, _key STRING, _offset BIGINT"
    assert read(tmp_path, '{"id": 1}', schema).columns == ("id",)
    assert read(tmp_path, '{"id": 1, "_key": "a"}', schema).columns == ("id", "_key")
    [found] = problems(tmp_path, '{"id": 1, "_key": "a"}\n{"id": 2}', schema)
    assert "'_key' is missing" in found


def test_optional_columns_are_compared_where_the_file_names_them(tmp_path: Path) -> None:
    schema = "value STRING, reason STRING"
    assert read(tmp_path, '{"value": "x"}', schema, ("reason",)).columns == ("value",)
    both = read(tmp_path, '{"value": "x", "reason": "y"}', schema, ("reason",))
    assert both.columns == ("value", "reason")


def test_an_empty_file_expects_no_rows(tmp_path: Path) -> None:
    found = read(tmp_path, "\n", "id INT, _key STRING")
    assert (found.columns, found.rows) == (("id",), ())


@pytest.mark.parametrize(
    ("line", "place", "reason"),
    [
        ('{"id": 1,}', "1:10", "it is not JSON: "),
        ('{"id" 1}', "1:7", "it is not JSON: "),
        ("[1]", "1:1", "[1] is not an object; wanted: one {…} in each line"),
        ('{"id": 1, "id": 2}', "1:1", "'id' is there twice"),
        ('{"id": NaN}', "1:1", 'NaN is not JSON; write it as a text: "NaN"'),
        ('{"id": ' + "1" * 5000 + "}", "1:1", "it is not JSON: "),
        ('{"id": ' + "[" * 20000 + "}", "1:1", "it is not JSON: "),
    ],
)
def test_what_is_no_json_object_is_told_with_line_and_column(
    tmp_path: Path, line: str, place: str, reason: str
) -> None:
    [found] = problems(tmp_path, line, "id INT")
    assert found.startswith(f"out.jsonl:{place}: {reason}")
    assert len(found) < 300


def test_all_that_is_wrong_is_told_at_once_but_not_endlessly(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "{\n}\n[", "id INT")) == 3
    assert len(problems(tmp_path, '{"x": 1}\n' * 1000, "id INT")) == PROBLEMS_MAX


def test_a_file_that_is_not_there_or_too_large_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadCase, match=r"gone\.jsonl cannot be read: No such file"):
        read_expected(tmp_path / "gone.jsonl", parse_type("id INT"))
    large = tmp_path / "large.jsonl"
    with large.open("wb") as out:
        out.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(BadCase, match="larger than 64 MiB"):
        read_expected(large, parse_type("id INT"))


def test_bytes_that_are_no_utf8_are_told(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(b'{"id": "\xff"}')
    with pytest.raises(BadCase, match=r":1:9: it is not UTF-8"):
        read_expected(file, parse_type("id STRING"))


def test_windows_line_ends_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n{"id": 2}\r\n')
    assert [row.values["id"] for row in read_expected(file, parse_type("id INT")).rows] == [1, 2]
