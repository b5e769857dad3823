"""Keys and values into typed columns: every byte gives a row, and Spark's types to the letter."""

from __future__ import annotations

import io
import json
import struct
import sys
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from ottla.spark.formats import json_column
from ottla.spark.formats.spark_types import parse_type, to_ddl
from ottla.spark.formats.typed_columns import (
    BadSchema,
    Format,
    apply,
    spark_type,
    typed_arrow,
    typed_batch,
    typed_schema,
)
from unit.spark.json_kit import EVERYTHING, OBJECTS, column

SPARKS = spark.StructType(
    [
        spark.StructField("b", spark.BooleanType()),
        spark.StructField("i8", spark.ByteType()),
        spark.StructField("i16", spark.ShortType()),
        spark.StructField("i", spark.IntegerType()),
        spark.StructField("l", spark.LongType()),
        spark.StructField("f", spark.FloatType()),
        spark.StructField("d", spark.DoubleType()),
        spark.StructField("s", spark.StringType()),
        spark.StructField("x", spark.BinaryType()),
        spark.StructField("day", spark.DateType()),
        spark.StructField("t", spark.TimestampType()),
        spark.StructField("n", spark.TimestampNTZType()),
        spark.StructField("m", spark.DecimalType(10, 2)),
        spark.StructField("a", spark.ArrayType(spark.IntegerType())),
        spark.StructField(
            "o",
            spark.StructType(
                [
                    spark.StructField("p", spark.StringType()),
                    spark.StructField("q", spark.ArrayType(spark.DateType())),
                ]
            ),
        ),
    ]
)


def typed(ddl: str, *values: bytes | str | None) -> tuple[list[Any], list[str | None]]:
    values_, errors = apply(Format("json", ddl), column(*values))
    values_.validate(full=True)
    assert values_.type == parse_type(ddl)
    assert len(values_) == len(errors) == len(values)
    return values_.to_pylist(), errors.to_pylist()


def one(ddl: str, value: bytes | str) -> tuple[Any, str | None]:
    values, errors = typed(ddl, value)
    return values[0], errors[0]


# ── types ──────────────────────────────────────────────────────────────────────────────────────


def test_types_are_pysparks_to_the_letter() -> None:
    ours = parse_type(EVERYTHING)
    theirs = to_arrow_type(SPARKS, timezone="UTC")
    assert ours.equals(theirs, check_metadata=True)
    assert str(ours) == str(theirs)


def test_sparks_json_says_the_same() -> None:
    assert parse_type(SPARKS.json()) == parse_type(EVERYTHING)
    mapped = spark.MapType(spark.StringType(), spark.LongType())
    assert parse_type("MAP<STRING, BIGINT>") == parse_type(mapped.json())
    assert parse_type("MAP<STRING, BIGINT>") == to_arrow_type(mapped)


@pytest.mark.parametrize("ddl", [EVERYTHING, "MAP<STRING, ARRAY<INT>>", "`a b` INT, `c``d` STRING"])
def test_words_survive_a_round_trip(ddl: str) -> None:
    assert parse_type(to_ddl(parse_type(ddl))) == parse_type(ddl)


@pytest.mark.parametrize(
    ("ddl", "same"),
    [
        ("a int, b string", "STRUCT<a: INT, b: STRING>"),
        ("a: long", "a BIGINT"),
        ("a INT NOT NULL COMMENT 'it''s', b DATE COMMENT \"x\"", "a INT, b DATE"),
        ("a decimal", "a DECIMAL(10,0)"),
        ("a numeric(5)", "a DECIMAL(5,0)"),
        ("a varchar(10), date date", "a STRING, `date` DATE"),
        ("struct STRING", "`struct` STRING"),
        ("a STRUCT<>", "a struct < >"),
        ("a ARRAY<ARRAY<INT>>", "a array<array<integer>>"),
    ],
)
def test_ddl_is_read_as_spark_reads_it(ddl: str, same: str) -> None:
    if "''" in ddl:
        ddl = ddl.replace("''", "\\'")
    assert parse_type(ddl) == parse_type(same)


@pytest.mark.parametrize(
    "schema",
    [
        "", "a", "a INT,", "a INT b INT", "a FOO", "a ARRAY<INT", "a MAP<INT>", "a DECIMAL(99,1)",
        "a DECIMAL(5,6)", "a INT, a INT", "INT", "a VARIANT", "a INTERVAL", ";", "`a INT",
        "{", "{}", '{"type":"struct"}', '{"type":"struct","fields":[1]}',
        '{"type":"struct","fields":[{"name":"a","type":"foo"}]}',
        "a " + "ARRAY<" * 100 + "INT" + ">" * 100, "{" * 3 + '"a":' * 9,
    ],
)  # fmt: skip
def test_other_schemas_are_refused_in_one_line(schema: str) -> None:
    with pytest.raises(BadSchema) as caught:
        parse_type(schema)
    assert "\n" not in str(caught.value)


@given(some.text(alphabet="ab INTSRUC<>(),:`'1\\{\"}", max_size=30))
def test_any_schema_is_read_or_refused(schema: str) -> None:
    with suppress(BadSchema):
        assert parse_type(to_ddl(parse_type(schema))) == parse_type(schema)


# ── JSON ───────────────────────────────────────────────────────────────────────────────────────


def test_every_type_is_read() -> None:
    text = (
        '{"b":true,"i8":-128,"i16":7,"i":5,"l":9007199254740993,"f":1.5,"d":2,"s":"ä\\n","x":"AQI=",'
        '"day":"2024-02-29","t":"2024-01-02T03:04:05.123456+01:00","n":"2024-01-02 03:04:05",'
        '"m":12.3,"a":[1,null],"o":{"p":"q","q":["2024-01-02",null]},"extra":{"no":1}}'
    )
    value, error = one(EVERYTHING, text)
    assert error is None
    assert value == {
        "b": True, "i8": -128, "i16": 7, "i": 5, "l": 9007199254740993, "f": 1.5, "d": 2.0,
        "s": "ä\n", "x": b"\x01\x02", "day": date(2024, 2, 29),
        "t": datetime(2024, 1, 2, 2, 4, 5, 123456, UTC), "n": datetime(2024, 1, 2, 3, 4, 5),
        "m": Decimal("12.30"), "a": [1, None], "o": {"p": "q", "q": [date(2024, 1, 2), None]},
    }  # fmt: skip


def test_what_is_missing_is_null_what_is_too_much_is_ignored() -> None:
    assert one("a INT, b STRING", '{"b":null,"c":1}') == ({"a": None, "b": None}, None)
    assert one("a INT", "{}") == ({"a": None}, None)


def test_null_stays_null_without_an_error() -> None:
    values, errors = typed("a INT", None, '{"a":1}', None, '{"a":2}', "null")
    # A text that says null is a row of nulls, as in Spark.
    assert values == [None, {"a": 1}, None, {"a": 2}, {"a": None}]
    assert errors == [None] * 5
    assert typed("a INT", None, None) == ([None, None], [None, None])
    assert typed("a INT") == ([], [])


def test_nulls_among_many_keep_their_places() -> None:
    values, errors = typed("a INT", *(None if i % 3 else f'{{"a":{i}}}' for i in range(1000)))
    assert values == [None if i % 3 else {"a": i} for i in range(1000)]
    assert set(errors) == {None}


def test_a_wrong_field_is_null_and_told_and_the_others_stay() -> None:
    value, error = one("a INT, b STRING", '{"a":"x","b":"y"}')
    assert value == {"a": None, "b": "y"}
    assert error == 'field a: "x" is not INT'
    value, error = one("o STRUCT<l: ARRAY<STRUCT<n: INT>>>", '{"o":{"l":[{"n":1},{"n":1.5}]}}')
    assert value == {"o": {"l": [{"n": 1}, {"n": None}]}}
    assert error == "field o.l[].n: 1.5 is not INT"


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (b"{", "it is not JSON"),
        (b"\xff", "it is not UTF-8"),
        (b'{"a":1}\x00', "it is not JSON"),
        (b'{"a":1}{"a":2}', "it is not JSON"),
        (b'{"a":1}\n{"a":2}', "it is not JSON"),
        (b"[1]", "[1] is not STRUCT"),
        (b"1", "1 is not STRUCT"),
        (b'{"a":' + b"[" * 100_000, "it is not JSON"),
    ],
)
def test_what_is_no_json_of_ours_is_a_row_of_nulls_with_an_error(value: bytes, part: str) -> None:
    found, error = one("a INT", value)
    assert found == {"a": None}
    assert error is not None
    assert part in error
    assert len(error) < 300


def test_an_empty_value_is_null_with_an_error() -> None:
    assert one("a INT", b"") == (None, "it is empty, which is not JSON")
    assert one("a INT", b" \n") == (None, "it is empty, which is not JSON")


def test_two_objects_in_one_value_never_shift_the_others() -> None:
    """Rows would stay as many as values: one holds two, another hides its rest behind a zero."""
    values, errors = typed(
        "a INT",
        '{"a":1}{"a":2}',
        b'{"a":3}\x00{"a":4}',
        '{"a":5}',
        '{"a":6} {"a":7}',
        "",
        '{"a":8}',
    )
    assert values == [{"a": None}, {"a": None}, {"a": 5}, {"a": None}, None, {"a": 8}]
    assert [error is None for error in errors] == [False, False, True, False, False, True]


@pytest.mark.parametrize(
    "values",
    [
        ['{"a":1}{"a":2}', '{"a":3}\0{"a":4}', '{"a":5}'],
        ['{"a":1', "}", '{"a":5}{"a":6}'],
        ['{"a":1}', "", '{"a":5}{"a":6}'],
        ['{"a":1}', '{"a":2},', '{"a":5}{"a":6}'],
        ['{"b":"', '"}', '{"a":5}{"a":6}'],
        ['{"b":[{}', "{}]}", '{"a":5}{"a":6}'],
    ],
)
def test_as_many_rows_as_values_are_not_taken_for_one_each(values: list[str]) -> None:
    found, errors = typed("a INT", *values)
    good = [at for at, value in enumerate(values) if value == '{"a":1}' or value == '{"a":5}']
    assert [at for at, error in enumerate(errors) if error is None] == good
    assert [found[at] for at in good] == [json.loads(values[at]) for at in good]


def test_pretty_printed_and_padded_values_are_read() -> None:
    values, errors = typed("a INT", '\n{\n  "a": 1\n}\n', '{"a":\r\n2}')
    assert values == [{"a": 1}, {"a": 2}]
    assert errors == [None, None]


@pytest.mark.parametrize(
    ("ddl", "text", "wanted"),
    [
        ("a STRING", '{"a":1.50}', "1.50"),
        ("a STRING", '{"a":{"x":[1,"y",true,null]}}', '{"x":[1,"y",true,null]}'),
        ("a STRING", '{"a":false}', "false"),
        ("a STRING", '{"a":"\\ud800"}', "?"),
        ("a DOUBLE", '{"a":"NaN"}', "nan"),
        ("a DOUBLE", '{"a":"-INF"}', "-inf"),
        ("a FLOAT", '{"a":1e40}', "inf"),
        ("a DECIMAL(4,1)", '{"a":1.25}', "1.3"),
        ("a DECIMAL(4,1)", '{"a":"7"}', "7.0"),
        ("a DATE", '{"a":"2024-01-02T03:04:05Z"}', "2024-01-02"),
        ("a TIMESTAMP", '{"a":1704164645}', "2024-01-02 03:04:05+00:00"),
        (
            "a TIMESTAMP",
            '{"a":"2024-01-02T03:04:05.123456789Z"}',
            "2024-01-02 03:04:05.123456+00:00",
        ),
        (
            "a TIMESTAMP",
            '{"a":"2024-01-02T03:04:05.123456789+01:30"}',
            "2024-01-02 01:34:05.123456+00:00",
        ),
        ("a TIMESTAMP", '{"a":"2024-01-02"}', "2024-01-02 00:00:00+00:00"),
        ("a TIMESTAMP", '{"a":"2024-01-02T03:04-0230"}', "2024-01-02 05:34:00+00:00"),
        ("a MAP<STRING,INT>", '{"a":{"x":1,"y":null}}', "[('x', 1), ('y', None)]"),
    ],
)
def test_values_are_taken_as_spark_takes_them(ddl: str, text: str, wanted: str) -> None:
    value, error = one(ddl, text)
    assert error is None
    assert str(value["a"]) == wanted


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("INT", "1.0"), ("INT", "2147483648"), ("INT", '"1"'), ("INT", "true"), ("INT", "1e2"),
        ("TINYINT", "128"), ("BIGINT", "9223372036854775808"), ("BIGINT", "1" * 5000),
        ("BOOLEAN", "1"), ("BOOLEAN", '"true"'), ("DOUBLE", '"1.5"'), ("DOUBLE", "{}"),
        ("DECIMAL(3,1)", "100"), ("DECIMAL(3,1)", "1e999999999"), ("DECIMAL(3,1)", '"x"'),
        ("DATE", '"2024-02-30"'), ("DATE", "5"), ("DATE", '"2024-1-2-3"'),
        ("TIMESTAMP", '"now"'), ("TIMESTAMP", '"2024-01-02T25:00:00Z"'), ("TIMESTAMP", "1.5"),
        ("TIMESTAMP", "9223372036854775807"), ("TIMESTAMP_NTZ", '"2024-01-02T03:04:05Z"'),
        ("BINARY", '"?"'), ("ARRAY<INT>", "{}"), ("STRUCT<x: INT>", "[]"),
        ("MAP<STRING,INT>", "[]"),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused(kind: str, text: str) -> None:
    value, error = one(f"a {kind}", f'{{"a":{text}}}')
    assert value == {"a": None}
    assert error is not None
    assert error.startswith("field a: ")


@settings(deadline=None)
@given(some.lists(some.one_of(some.none(), OBJECTS), min_size=1, max_size=4))
def test_in_bulk_and_row_by_row_are_the_same(values: list[bytes | None]) -> None:
    kind = parse_type(EVERYTHING)
    together, errors = json_column.parse_column(column(*values), kind)
    together.validate(full=True)
    singly, errors_singly = json_column._singly(column(*values), kind)
    assert str(together.to_pylist()) == str(singly.to_pylist())
    assert errors.equals(errors_singly)


@settings(deadline=None)
@given(some.lists(some.one_of(some.none(), some.binary(max_size=12), OBJECTS), max_size=6))
def test_any_bytes_give_a_row_each(values: list[bytes | None]) -> None:
    for form in (Format("json", EVERYTHING), Format("json", "ARRAY<INT>"), Format("string")):
        found, errors = apply(form, column(*values))
        found.validate(full=True)
        assert len(found) == len(errors) == len(values)
        for value, was, error in zip(found, values, errors, strict=True):
            assert was is not None or (not value.is_valid and not error.is_valid)


def test_slices_are_read_from_where_they_begin() -> None:
    whole = column('{"a":0}', '{"a":1}', None, '{"a":3}', '{"a":4}')
    found, _ = apply(Format("json", "a INT"), whole.slice(1, 3))
    assert found.to_pylist() == [{"a": 1}, None, {"a": 3}]


# ── strings, and the whole batch ───────────────────────────────────────────────────────────────


def test_strings_are_utf8_or_null_with_an_error() -> None:
    found, errors = apply(Format("string"), column("ä", None, b"a\xff", ""))
    assert found.to_pylist() == ["ä", None, None, ""]
    assert errors.to_pylist() == [None, None, "it is not UTF-8: invalid start byte at byte 1", None]


def test_a_batch_gets_its_typed_columns_in_the_order_asked_for() -> None:
    batch = pa.RecordBatch.from_arrays(
        [column(b"k", b"\xff", b"\xff"), column('{"a":1}', '{"a":2}', "{"), pa.array([5, 6, 7])],
        names=["key", "value", "offset"],
    )
    key, value = Format("string"), Format("json", "a INT")
    columns = ("offset", "_error", "value", "key")
    found = typed_batch(batch, columns, key, value)
    assert found.schema.equals(typed_arrow(columns, key, value), check_metadata=True)
    assert found.column("offset").to_pylist() == [5, 6, 7]
    assert found.column("value").to_pylist() == [{"a": 1}, {"a": 2}, {"a": None}]
    errors = found.column("_error").to_pylist()
    assert errors[:2] == [None, "key: it is not UTF-8: invalid start byte at byte 0"]
    assert errors[2].startswith("key: it is not UTF-8: invalid start byte at byte 0; value: it is")
    assert (
        typed_schema(columns, key, value)
        == "offset BIGINT, _error STRING, value STRUCT<`a`: INT>, key STRING"
    )


# ── Avro ───────────────────────────────────────────────────────────────────────────────────────

RECORD = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8,
                                   "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "Kind"},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "times", "type": {"type": "map", "values": ["null", {
            "type": "long", "logicalType": "timestamp-millis"}]}},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [
            {"name": "wide", "type": ["int", "long"]}]}},
    ],
}  # fmt: skip
ORDER = {
    "id": 7, "name": None, "at": 1704164645123, "us": 5, "day": 1, "price": Decimal("1.50"),
    "kind": "A", "again": "B", "raw": b"xy", "tags": ["a"], "times": {"k": 1000, "n": None},
    "inner": {"wide": 9},
}  # fmt: skip


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def test_avro_records_become_spark_structs() -> None:
    form = Format("avro", json.dumps(RECORD))
    found, errors = apply(form, column(encoded(RECORD, ORDER), None))
    found.validate(full=True)
    assert errors.to_pylist() == [None, None]
    assert found.to_pylist() == [
        {
            **ORDER,
            "at": datetime(2024, 1, 2, 3, 4, 5, 123000, UTC),
            "us": datetime(1970, 1, 1, 0, 0, 0, 5),
            "day": date(1970, 1, 2),
            "times": [("k", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)), ("n", None)],
        },
        None,
    ]
    assert spark_type(form) == (
        "STRUCT<`id`: BIGINT, `name`: STRING, `at`: TIMESTAMP_LTZ, `us`: TIMESTAMP_NTZ,"
        " `day`: DATE, `price`: DECIMAL(8, 2), `kind`: STRING, `again`: STRING, `raw`: BINARY,"
        " `tags`: ARRAY<STRING>, `times`: MAP<STRING, TIMESTAMP_LTZ>,"
        " `inner`: STRUCT<`wide`: BIGINT>>"
    )


def test_the_head_of_a_schema_registry_is_taken_off() -> None:
    form = Format("avro", '"long"', (5,))
    framed = b"\0\0\0\0\x05" + encoded("long", 3)
    found, errors = apply(form, column(framed, b"\x01\0\0\0\x05\x06", b"\0\0", b"\0\0\0\0\x05"))
    assert found.to_pylist() == [3, None, None, None]
    assert [error is None for error in errors.to_pylist()] == [True, False, False, False]


def test_a_value_of_another_schema_is_an_error_and_never_read_by_this_one() -> None:
    """Two versions with the same types in another order: read by the wrong one, they swap."""
    names = ("buyer", "seller")
    first, second = (
        {"type": "record", "name": "r", "fields": [{"name": n, "type": "string"} for n in order]}
        for order in (names, names[::-1])
    )
    trade = {"buyer": "Anna", "seller": "Bert"}
    values = [
        struct.pack(">bI", 0, number) + encoded(schema, trade)
        for number, schema in ((12, first), (70_000, second), (15, first))
    ]
    found, errors = apply(Format("avro", json.dumps(first), (12, 15)), column(*values))
    assert found.to_pylist() == [trade, None, trade]
    assert errors.to_pylist() == [
        None,
        "it was written by schema 70000 of the registry, and the ids named are 12, 15: name 70000 "
        "too if that schema has the same fields in the same order",
        None,
    ]


def test_a_value_is_read_by_the_schema_of_its_id_and_given_as_the_one_declared() -> None:
    """Fields in another order, one that was added with a default, one that is gone, an int."""
    old = {
        "type": "record", "name": "shop.Trade", "fields": [
            {"name": "seller", "type": "string"},
            {"name": "buyer", "type": "string"},
            {"name": "price", "type": "int"},
            {"name": "gone", "type": ["null", "long"]},
        ],
    }  # fmt: skip
    new = {
        "type": "record", "name": "shop.Trade", "fields": [
            {"name": "buyer", "type": "string"},
            {"name": "seller", "type": "string"},
            {"name": "price", "type": "long"},
            {"name": "place", "type": "string", "default": "here"},
        ],
    }  # fmt: skip
    trade = {"buyer": "Anna", "seller": "Bert", "price": 7}
    other = {"type": "record", "name": "shop.Other", "fields": [{"name": "x", "type": "bytes"}]}
    values = (
        struct.pack(">bI", 0, 12) + encoded(old, {**trade, "gone": 5}),
        struct.pack(">bI", 0, 15) + encoded(new, {**trade, "place": "there"}),
        struct.pack(">bI", 0, 16) + encoded(other, {"x": b"1"}),
        struct.pack(">bI", 0, 17),
        struct.pack(">bI", 0, 12) + b"\x02",
        None,
    )
    writers = tuple(map(json.dumps, (old, new, other)))
    form = Format("avro", json.dumps(new), (12, 15, 16), writers)
    found, errors = apply(form, column(*values))
    assert found.to_pylist() == [
        {**trade, "place": "here"}, {**trade, "place": "there"}, None, None, None, None,
    ]  # fmt: skip
    told = errors.to_pylist()
    assert told[:2] == [None, None]
    assert told[2].startswith("schema 16 of the registry does not become this one: ")
    assert told[3].endswith("name 17 too, with its schema")
    assert told[4].startswith("it is not Avro of its schema 12: ")
    assert told[5] is None


def test_times_are_counted_as_in_the_schema_of_their_id() -> None:
    """Both are longs to Avro, whose rules let one become the other a thousand times off."""

    def schema(unit: str) -> dict[str, Any]:
        at = {"type": "long", "logicalType": f"timestamp-{unit}"}
        local = {"type": "long", "logicalType": f"local-timestamp-{unit}"}
        inner = {"type": "record", "name": "i", "fields": [{"name": "at", "type": at}]}
        fields = [
            {"name": "at", "type": ["null", at]},
            {"name": "all", "type": {"type": "array", "items": inner}},
            {"name": "by", "type": {"type": "map", "values": local}},
        ]
        return {"type": "record", "name": "r", "fields": fields}

    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000)
    utc = moment.replace(tzinfo=UTC)
    row = {"at": utc, "all": [{"at": utc}], "by": {"x": moment}}
    ids = {12: schema("millis"), 15: schema("micros")}
    values = [struct.pack(">bI", 0, one) + encoded(ids[one], row) for one in ids]
    for declared in ids.values():
        form = Format("avro", json.dumps(declared), (*ids,), tuple(map(json.dumps, ids.values())))
        found, errors = apply(form, column(*values))
        assert errors.null_count == 2
        assert found.to_pylist(maps_as_pydicts="strict") == [row, row]


def test_bytes_that_are_left_over_mean_another_schema() -> None:
    found, errors = apply(Format("avro", '"int"'), column(b"\x02\x02"))
    assert found.to_pylist() == [None]
    assert errors.to_pylist() == ["it is not Avro of this schema: 1 bytes are left after the value"]


def test_a_number_too_large_for_its_schema_is_an_error_and_not_the_end() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}
    large = encoded("bytes", (12345).to_bytes(4, "big"))
    found, errors = apply(Format("avro", json.dumps(decimal)), column(b"\x02\x05", large))
    assert found.to_pylist() == [Decimal(5), None]
    assert errors[0].as_py() is None
    assert "does not fit" in errors[1].as_py()
    among_many = [large if at in (0, 300, 599) else b"\x02\x05" for at in range(600)]
    found, errors = apply(Format("avro", json.dumps(decimal)), column(*among_many))
    assert [at for at, one in enumerate(found) if not one.is_valid] == [0, 300, 599]
    assert [at for at, one in enumerate(errors) if one.is_valid] == [0, 300, 599]


@settings(deadline=None)
@given(some.lists(some.binary(max_size=60), min_size=1, max_size=5))
def test_any_bytes_are_an_avro_record_or_an_error(values: list[bytes]) -> None:
    found, errors = apply(Format("avro", json.dumps(RECORD)), column(*values))
    found.validate(full=True)
    assert [v.is_valid for v in found] == [not error.is_valid for error in errors]


@settings(deadline=None)
@given(some.integers(0, 70), some.binary(min_size=1, max_size=3))
def test_damaged_records_are_errors_or_other_records(at: int, patch: bytes) -> None:
    whole = bytearray(encoded(RECORD, ORDER))
    whole[at : at + len(patch)] = patch
    found, errors = apply(Format("avro", json.dumps(RECORD)), column(bytes(whole)))
    found.validate(full=True)
    assert found[0].is_valid != errors[0].is_valid


@pytest.mark.parametrize(
    "schema",
    [
        "", "{", '"foo"', '["int","string"]', '{"type":"record","name":"r"}', "[]", "1",
        '{"type":"record","name":"r","fields":[{"name":"next","type":["null","r"]}]}',
        '{"type":"bytes","logicalType":"decimal","precision":99}',
    ],
)  # fmt: skip
def test_avro_schemas_without_a_spark_type_are_refused(schema: str) -> None:
    with pytest.raises(BadSchema) as caught:
        spark_type(Format("avro", schema))
    assert "\n" not in str(caught.value)


def test_without_fastavro_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(BadSchema, match=r"pip install \"ottla\[avro\]\""):
        spark_type(Format("avro", '{"type":"int","unique":"to this test"}'))
