"""Messages for a test out of its files: the bytes that a broker would have given.

Three kinds of files, told by their names:

- `*.messages.jsonl`: each line is a message, an object with value, key, timestamp, headers,
  partition, offset, topic. `value: null` is a tombstone; `value_text` and `value_base64` are bytes
  as they are, for values that are wrong or not JSON.
- `*.avro` (format avro): each record of the container is a message's value.
- any other: each line is the value of a message, which has neither key nor headers.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ottla.pipelines.cases.row_files import (
    BadCase,
    BadLine,
    Line,
    Wrong,
    bytes_of,
    check_names,
    cut,
    json_text,
    lines_of,
    object_in,
    value_in,
)
from ottla.pipelines.language.model import TopicFormat, TopicSource
from ottla.pipelines.language.problems import Problem
from ottla.spark.columns import DEFAULT_COLUMNS, HEADERS, arrow_schema
from ottla.spark.formats.avro import arrow_type as avro_arrow_type
from ottla.spark.formats.json_row import row_parser
from ottla.spark.formats.spark_types import TIMESTAMP, BadSchema

ENVELOPES: Final = ".messages.jsonl"
ENVELOPE_FIELDS: Final = (
    "value", "value_text", "value_base64", "key", "key_text", "key_base64", "timestamp", "headers",
    "partition", "offset", "topic",
)  # fmt: skip
US_PER_MS: Final = 1000
LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1

Message = dict[str, Any]
Encode = Callable[[Any], bytes]


def message_schema(source: TopicSource) -> pa.Schema:
    """The columns of the broker's messages, as `format("ottla")` has them without formats."""
    return arrow_schema((*DEFAULT_COLUMNS, HEADERS) if source.headers else DEFAULT_COLUMNS)


def message_tables(source: TopicSource, files: Sequence[Path]) -> Iterator[pa.Table]:
    """The messages of each file; offsets go on from file to file, in each partition."""
    ends: dict[tuple[str, int], int] = {}
    schema = message_schema(source)
    for file in files:
        messages = _messages(source, file)
        for message in messages:
            place = (message["topic"], message["partition"])
            message.setdefault("offset", ends.get(place, 0))
            ends[place] = max(ends.get(place, 0), message["offset"] + 1)
        columns = (
            pa.array([message.get(field.name) for message in messages], field.type)
            for field in schema
        )
        yield pa.table(list(columns), schema=schema)


def encoder(
    format: TopicFormat, schema: str | None, ids: Sequence[int] = (), writers: Sequence[str] = ()
) -> Encode:
    """JSON as a person writes it in a test into a message's bytes; they raise BadLine."""
    if format == "json":
        return lambda value: json_text(value).encode()
    if format == "avro":
        return _avro_encoder(*_written_by(schema, ids, writers))
    return _text_bytes


def _messages(source: TopicSource, file: Path) -> list[Message]:
    if file.suffix == ".avro":
        return [_message(source, value=value) for value in _avro_values(source, file)]
    read = _envelope_reader(source) if file.name.endswith(ENVELOPES) else _value_reader(source)
    messages: list[Message] = []
    wrong = Wrong()
    for line in lines_of(file):
        try:
            messages.append(read(line))
        except BadLine as found:
            wrong.add(line, found)
    wrong.check()
    return messages


def _message(source: TopicSource, **fields: Any) -> Message:
    # Nothing in a test may depend on when it runs: without a time it is the first there is.
    return {"topic": source.topics[0], "partition": 0, "timestamp": 0, "timestampType": 0} | fields


def _value_reader(source: TopicSource) -> Callable[[Line], Message]:
    """A line is the value, to the byte; so a line that does not parse is a bad record."""
    if source.format != "avro":
        return lambda line: _message(source, value=line.data)
    encode = encoder("avro", source.schema, source.schema_ids, source.writer_schemas)
    return lambda line: _message(source, value=encode(object_in(line)))


def _envelope_reader(source: TopicSource) -> Callable[[Line], Message]:
    value_bytes = encoder(source.format, source.schema, source.schema_ids, source.writer_schemas)
    key_bytes = encoder(
        source.key_format, source.key_schema, source.key_schema_ids, source.key_writer_schemas
    )

    def read(line: Line) -> Message:
        found = object_in(line)
        check_names(found, ENVELOPE_FIELDS, "field of a message")
        if not any(name in found for name in ("value", "value_text", "value_base64")):
            raise BadLine('the field "value" is missing; null makes it a tombstone')
        fields: dict[str, Any] = {
            "value": _part(found, "value", value_bytes),
            "key": _part(found, "key", key_bytes),
            "headers": _headers(found.get("headers")),
        }
        if "timestamp" in found:
            fields["timestamp"] = _time_us(found["timestamp"])
        for name, most in (("partition", INT_MAX), ("offset", LONG_MAX)):
            if name in found:
                fields[name] = _count(name, found[name], most)
        if "topic" in found:
            if not isinstance(found["topic"], str):
                raise BadLine(
                    f"topic is {cut(json_text(found['topic']))}; wanted: a name in quotes"
                )
            fields["topic"] = found["topic"]
        return _message(source, **fields)

    return read


def _part(found: dict[str, Any], name: str, encode: Encode) -> bytes | None:
    """The value or the key, in the one way that it is given."""
    given = [one for one in (name, f"{name}_text", f"{name}_base64") if one in found]
    if len(given) > 1:
        raise BadLine(f"{given[0]} and {given[1]} are both there; keep one")
    if not given or found[given[0]] is None:
        return None
    content = found[given[0]]
    if given[0] == name:
        try:
            return encode(content)
        except BadLine as wrong:
            raise BadLine(f"{name}: {wrong}") from wrong
    data = _text_bytes(content)
    if given[0].endswith("_text"):
        return data
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as wrong:
        raise BadLine(f"{given[0]} is not base64: {wrong}") from wrong


def _text_bytes(content: Any) -> bytes:
    if not isinstance(content, str):
        raise BadLine(f"{cut(json_text(content))} is not a text; write it in quotes")
    return content.encode("utf-8", "surrogatepass")


def _headers(found: Any) -> list[dict[str, Any]] | None:
    """`{"name": "text"}`, or a list of them where a name comes twice."""
    if found is None:
        return None
    objects = found if isinstance(found, list) else [found]
    if not all(isinstance(one, dict) for one in objects):
        raise BadLine('headers are written {"name": "text"}, or as a list of such objects')
    return [
        {"key": name, "value": None if text is None else _text_bytes(text)}
        for one in objects
        for name, text in one.items()
    ]


def _time_us(found: Any) -> int:
    """ISO with or without a zone (then UTC), or milliseconds since 1970 as Kafka counts."""
    if (
        isinstance(found, int)
        and not isinstance(found, bool)
        and abs(found) < LONG_MAX // US_PER_MS
    ):
        return found * US_PER_MS
    if not isinstance(found, str):
        raise BadLine(f'timestamp is {cut(json_text(found))}; wanted: "2024-01-31T10:00:00Z"')
    return int(value_in(row_parser(TIMESTAMP)(json.dumps(found).encode())))


def _count(name: str, found: Any, most: int) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
        raise BadLine(f"{name} is {cut(json_text(found))}; wanted: a whole number from 0")
    return found


def _written_by(
    schema: str | None, ids: Sequence[int], writers: Sequence[str]
) -> tuple[str, bytes]:
    """The schema by which a test's messages are written, and a registry's bytes before them.

    Of ids with schemas of their own it is the last one, which mostly is the newest.
    """
    if not ids:
        return schema or "", b""
    written_by = (ids[-1], writers[-1]) if writers else (ids[0], schema or "")
    return written_by[1], b"\x00" + written_by[0].to_bytes(4, "big")


def _avro_encoder(schema: str, head: bytes) -> Encode:
    """JSON as people write it (times as texts, bytes as base64), by the types of the schema."""
    import fastavro

    try:
        kind = avro_arrow_type(schema)
    except BadSchema as wrong:
        raise BadCase([Problem(f"its schema cannot be used for a test: {wrong}")]) from wrong
    parse = row_parser(kind)
    parsed = fastavro.parse_schema(json.loads(schema))
    names = [field.name for field in kind] if pa.types.is_struct(kind) else None

    def encode(value: Any) -> bytes:
        if names is not None and isinstance(value, dict):
            check_names(value, names, "field")
        row = value_in(parse(json_text(value).encode()))
        try:
            typed = pa.array([row], kind).to_pylist(maps_as_pydicts="strict")[0]
            return head + _avro_bytes(parsed, typed)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as wrong:
            raise BadLine(f"it does not fit the Avro schema: {cut(str(wrong))}") from wrong

    return encode


def _avro_bytes(parsed: Any, value: Any) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, value)
    return out.getvalue()


def _avro_values(source: TopicSource, file: Path) -> list[bytes]:
    """The records of a container, each encoded by the source's schema."""
    import fastavro

    if source.format != "avro":
        raise BadCase([Problem(f"{file} is an Avro file, but the format of {source.name} is "
                               f"{source.format}; give it JSON lines", source.place)])  # fmt: skip
    schema, head = _written_by(source.schema, source.schema_ids, source.writer_schemas)
    parsed = fastavro.parse_schema(json.loads(schema))
    try:
        records = list(fastavro.reader(io.BytesIO(bytes_of(file)), parsed))
        return [head + _avro_bytes(parsed, record) for record in records]
    except (ValueError, TypeError, KeyError, EOFError, fastavro.schema.SchemaParseException) as bad:
        reason = cut(str(bad)) or type(bad).__name__
        problem = Problem(f"{file} does not hold records of this schema: {reason}", source.place)
        raise BadCase([problem]) from bad
