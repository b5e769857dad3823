"""Messages out of the files of a test: the bytes that a broker would have given."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from ottla.pipelines.cases.given_messages import message_tables
from ottla.pipelines.cases.row_files import BadCase
from ottla.pipelines.language.model import TopicSource
from ottla.pipelines.language.problems import Place

SOURCE = TopicSource(
    name="orders", place=Place(Path("p.yaml"), 3, 5), topics=("orders", "more"), schema="id BIGINT"
)
AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ],
}
AVRO = replace(SOURCE, format="avro", schema=json.dumps(AVRO_SCHEMA))


def given(tmp_path: Path, source: TopicSource, **files: str) -> list[list[dict[str, Any]]]:
    """The messages of files written for the test; __ stands for a dot."""
    paths = []
    for name, text in files.items():
        paths.append(tmp_path / name.replace("__", "."))
        paths[-1].write_text(text)
    return [table.to_pylist() for table in message_tables(source, paths)]


def one(tmp_path: Path, source: TopicSource, message: dict[str, Any]) -> dict[str, Any]:
    [[found]] = given(tmp_path, source, a__messages__jsonl=json.dumps(message))
    return found


def problem(
    tmp_path: Path, source: TopicSource, line: str, name: str = "a__messages__jsonl"
) -> str:
    with pytest.raises(BadCase) as caught:
        given(tmp_path, source, **{name: f"\n{line}"})
    [found] = caught.value.problems
    return str(found).removeprefix(f"{tmp_path}/")


def test_a_plain_line_is_the_value_to_the_byte(tmp_path: Path) -> None:
    [messages] = given(tmp_path, SOURCE, a__jsonl='{"id":  1}\n\noops {\n')
    assert [message["value"] for message in messages] == [b'{"id":  1}', b"oops {"]
    assert [message["offset"] for message in messages] == [0, 1]
    assert messages[0]["key"] is None
    assert messages[0]["topic"] == "orders"
    assert messages[0]["timestamp"] == datetime(1970, 1, 1, tzinfo=UTC)


def test_a_byte_order_mark_is_no_part_of_a_message(tmp_path: Path) -> None:
    [messages] = given(tmp_path, SOURCE, a__jsonl="\ufeff1\r\n2\r\n")
    assert [message["value"] for message in messages] == [b"1", b"2"]


def test_offsets_go_on_in_the_next_file(tmp_path: Path) -> None:
    first, second = given(tmp_path, SOURCE, a__jsonl="1\n2", b__jsonl="3")
    assert [message["offset"] for message in first + second] == [0, 1, 2]


def test_each_partition_counts_for_itself_behind_offsets_that_are_given(tmp_path: Path) -> None:
    lines = [
        {"value": 1, "partition": 1},
        {"value": 2, "offset": 10},
        {"value": 3},
        {"value": 4, "partition": 1},
        {"value": 5, "topic": "more"},
    ]
    [messages] = given(tmp_path, SOURCE, a__messages__jsonl="\n".join(map(json.dumps, lines)))
    places = [(one["topic"], one["partition"], one["offset"]) for one in messages]
    assert places == [
        ("orders", 1, 0), ("orders", 0, 10), ("orders", 0, 11), ("orders", 1, 1), ("more", 0, 0),
    ]  # fmt: skip


def test_a_message_has_all_that_a_broker_gives(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        replace(SOURCE, headers=True),
        {
            "key": "a",
            "value": {"id": 1},
            "timestamp": "2024-01-31T10:00:00Z",
            "headers": [{"trace": "x"}, {"trace": None}],
        },
    )
    assert found == {
        "key": b"a",
        "value": b'{"id": 1}',
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": datetime(2024, 1, 31, 10, tzinfo=UTC),
        "timestampType": 0,
        "headers": [{"key": "trace", "value": b"x"}, {"key": "trace", "value": None}],
    }


def test_null_is_a_tombstone_and_a_number_is_exact(tmp_path: Path) -> None:
    assert one(tmp_path, SOURCE, {"key": "a", "value": None})["value"] is None
    [[found]] = given(tmp_path, SOURCE, a__messages__jsonl='{"value": {"x": 1.10, "y": 12e3}}')
    assert found["value"] == b'{"x": 1.10, "y": 1.2E+4}'


def test_a_time_may_be_milliseconds_as_kafka_counts(tmp_path: Path) -> None:
    found = one(tmp_path, SOURCE, {"value": 1, "timestamp": 1500})
    assert found["timestamp"] == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


def test_bytes_as_they_are(tmp_path: Path) -> None:
    assert one(tmp_path, SOURCE, {"value_text": "{oops"})["value"] == b"{oops"
    found = one(tmp_path, SOURCE, {"value_base64": "AP8=", "key_base64": "/w=="})
    assert (found["value"], found["key"]) == (b"\x00\xff", b"\xff")


def test_texts_are_values_of_string_topics(tmp_path: Path) -> None:
    source = replace(SOURCE, format="string", key_format="json")
    found = one(tmp_path, source, {"value": "a", "key": {"k": 1}})
    assert (found["value"], found["key"]) == (b"a", b'{"k": 1}')
    assert one(tmp_path, source, {"value": ""})["value"] == b""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"values": 1}', "there is no field of a message 'values' ("),
        ('{"key": "a"}', 'the field "value" is missing; null makes it a tombstone'),
        ('{"value": 1, "value_text": "1"}', "value and value_text are both there; keep one"),
        ('{"value_base64": "!"}', "value_base64 is not base64: "),
        ('{"value_text": 1}', "1 is not a text; write it in quotes"),
        ('{"value": 1, "key": 1}', "key: 1 is not a text; write it in quotes"),
        ('{"value": 1, "timestamp": "noon"}', '"noon" is not TIMESTAMP'),
        ('{"value": 1, "timestamp": 1.5}', "timestamp is 1.5; wanted: "),
        ('{"value": 1, "partition": -1}', "partition is -1; wanted: a whole number from 0"),
        ('{"value": 1, "offset": true}', "offset is true; wanted: a whole number from 0"),
        ('{"value": 1, "topic": 1}', "topic is 1; wanted: a name in quotes"),
        ('{"value": 1, "headers": ["a"]}', 'headers are written {"name": "text"}'),
        ('{"value": 1', "it is not JSON: "),
    ],
)
def test_what_is_no_message_is_told_with_its_line(tmp_path: Path, line: str, reason: str) -> None:
    found = problem(tmp_path, SOURCE, line)
    assert found.startswith("a.messages.jsonl:2:")
    assert found.split(": ", 1)[1].startswith(reason)


def avro_value(data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(AVRO_SCHEMA), None)


ORDER = {
    "id": 1, "note": None, "at": "2024-01-31T10:00:00.250Z", "price": 12.5, "tags": {"a": 1},
}  # fmt: skip
ORDER_TYPED = {
    "id": 1,
    "note": None,
    "at": datetime(2024, 1, 31, 10, 0, 0, 250_000, tzinfo=UTC),
    "price": Decimal("12.50"),
    "tags": {"a": 1},
}


def test_json_lines_become_avro_by_the_types_of_the_schema(tmp_path: Path) -> None:
    [[plain]] = given(tmp_path, AVRO, a__jsonl=json.dumps(ORDER))
    assert avro_value(plain["value"]) == ORDER_TYPED
    assert avro_value(one(tmp_path, AVRO, {"value": ORDER})["value"]) == ORDER_TYPED


def test_a_registrys_head_is_put_before_value_and_key(tmp_path: Path) -> None:
    framed = replace(
        AVRO, schema_ids=(12, 15), key_format="avro", key_schema='"long"',
        key_schema_ids=(70_000,),
    )  # fmt: skip
    found = one(tmp_path, framed, {"value": ORDER, "key": 3})
    assert found["value"][:5] == b"\x00\x00\x00\x00\x0c"
    assert avro_value(found["value"][5:]) == ORDER_TYPED
    assert found["key"] == b"\x00\x00\x01\x11\x70\x06"
    [[plain]] = given(tmp_path, framed, a__jsonl=json.dumps(ORDER))
    assert plain["value"] == found["value"]
    of_their_own = replace(framed, key_schema_ids=(7, 9), key_writer_schemas=('"string"', '"int"'))
    assert one(tmp_path, of_their_own, {"value": ORDER, "key": 3})["key"] == b"\0\0\0\0\x09\x06"


def test_an_avro_file_gives_one_message_for_each_record(tmp_path: Path) -> None:
    file = tmp_path / "orders.avro"
    with file.open("wb") as out:
        fastavro.writer(out, fastavro.parse_schema(AVRO_SCHEMA), [ORDER_TYPED, ORDER_TYPED])
    [table] = message_tables(AVRO, [file])
    assert [avro_value(value) for value in table["value"].to_pylist()] == [ORDER_TYPED] * 2
    [framed] = message_tables(replace(AVRO, schema_ids=(12,)), [file])
    assert {value[:5] for value in framed["value"].to_pylist()} == {b"\x00\x00\x00\x00\x0c"}
    with pytest.raises(BadCase, match="is an Avro file, but the format of orders is json"):
        list(message_tables(SOURCE, [file]))


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({**ORDER, "id": "one"}, 'field id: "one" is not BIGINT'),
        ({**ORDER, "idd": 1}, "there is no field 'idd'"),
        ({**ORDER, "id": None}, "it does not fit the Avro schema: "),
    ],
)
def test_what_the_avro_schema_does_not_take_is_told(
    tmp_path: Path, order: dict[str, Any], reason: str
) -> None:
    found = problem(tmp_path, AVRO, json.dumps(order), "a__jsonl")
    assert found.startswith(f"a.jsonl:2:1: {reason}")


def test_a_damaged_avro_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "orders.avro"
    file.write_bytes(b"no avro")
    with pytest.raises(BadCase, match="does not hold records of this schema"):
        list(message_tables(AVRO, [file]))
