"""Avro values into a typed column, with fastavro; the types are those of Spark's from_avro."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import ModuleType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ottla.spark.formats.spark_types import (
    TIMESTAMP,
    TIMESTAMP_NTZ,
    BadSchema,
    decimal_of,
    list_of,
    map_of,
    struct_of,
)

# A registry's head: a zero byte and the schema's number. The schema itself comes from the option.
CONFLUENT_BYTES: Final = 5
SCHEMA_ID_MAX: Final = 2**31 - 1
SHOWN_CHARS: Final = 80
ROWS_TOGETHER: Final = 256

_PRIMITIVES: Final = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP, ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): TIMESTAMP_NTZ,
    ("long", "local-timestamp-micros"): TIMESTAMP_NTZ,
}  # fmt: skip
_MILLIS: Final = ("timestamp-millis", "local-timestamp-millis")

# What decoding foreign bytes was seen to raise; each becomes the row's error.
_DAMAGE: Final = (
    EOFError, ValueError, TypeError, IndexError, KeyError, ArithmeticError, StopIteration,
    RecursionError, MemoryError, AttributeError,
)  # fmt: skip

Convert = Callable[[Any], Any]


class BadFile(ValueError):
    """A file that is not Avro to its end, or not of the wanted schema, in one line."""


class _Plan(NamedTuple):
    """How a value of some Avro type is seen by Arrow, and made out of what fastavro reads."""

    kind: pa.DataType
    convert: Convert | None = None


class _Schema(NamedTuple):
    parsed: Any
    plan: _Plan


class _Written(NamedTuple):
    """The schema of whoever wrote, and how what is read by it becomes what is declared."""

    parsed: Any
    # The declared one, where it is another.
    wanted: Any
    convert: Convert | None


def arrow_type(schema: str) -> pa.DataType:
    """Raises BadSchema when the schema cannot be read, or fastavro is missing."""
    return _prepared(schema).plan.kind


def check_writers(schema_ids: Sequence[int], writer_schemas: Sequence[str]) -> None:
    """Raises BadSchema for the first that cannot be read."""
    for schema_id, schema in zip(schema_ids, writer_schemas, strict=False):
        try:
            _parsed(schema)
        except BadSchema as wrong:
            raise BadSchema(f"schema {schema_id}: {wrong}") from wrong


def parse_column(
    column: pa.Array,
    schema: str,
    schema_ids: Sequence[int] = (),
    writer_schemas: Sequence[str] = (),
) -> tuple[pa.Array, pa.Array]:
    """The values, which with `schema_ids` come with a registry's head and one of these ids."""
    prepared = _prepared(schema)
    parse = _RowParser(prepared, schema_ids, [_written(one, schema) for one in writer_schemas])
    values: list[Any] = []
    errors: list[str | None] = []
    for data in column.to_pylist():
        value, error = parse(data)
        values.append(value)
        errors.append(error)
    try:
        typed = pa.array(values, prepared.plan.kind)
    except _DAMAGE:
        typed = _array_of_those_that_fit(values, errors, prepared.plan.kind)
    return typed, pa.array(errors, pa.string())


def file_schema(content: bytes) -> str:
    """The schema by which a file was written."""
    try:
        return str(_fastavro().block_reader(io.BytesIO(content)).metadata["avro.schema"])
    except _DAMAGE as wrong:
        raise BadFile(f"it is no Avro file: {_readable(wrong)}") from wrong


def parse_file(content: bytes, schema: str) -> Iterator[pa.Array]:
    """The records of a file, block by block, as `schema` wants them; raises BadFile."""
    prepared = _prepared(schema)
    fastavro = _fastavro()
    read = fastavro.schemaless_reader
    foreign = (*_DAMAGE, zlib.error, OSError, BadSchema, fastavro.read.SchemaResolutionError)
    try:
        blocks = fastavro.block_reader(io.BytesIO(content))
        written, wanted, convert = _written(blocks.metadata["avro.schema"], schema)
        for block in blocks:
            data = block.bytes_
            found = (read(data, written, wanted) for _ in range(block.num_records))
            values = [one if convert is None else convert(one) for one in found]
            yield pa.array(values, prepared.plan.kind)
    except foreign as wrong:
        raise BadFile(f"it is no Avro file of this schema: {_readable(wrong)}") from wrong


def _array_of_those_that_fit(
    values: list[Any], errors: list[str | None], kind: pa.DataType
) -> pa.Array:
    """Avro lets a decimal or a time be larger than its own schema says."""
    for begin in range(0, len(values), ROWS_TOGETHER):
        part = values[begin : begin + ROWS_TOGETHER]
        # One that does not fit is looked for only among its neighbours.
        with suppress(*_DAMAGE):
            pa.array(part, kind)
            continue
        for at, value in enumerate(part, begin):
            try:
                pa.scalar(value, kind)
            except _DAMAGE as wrong:
                values[at], errors[at] = None, f"it does not fit: {_readable(wrong)}"
    return pa.array(values, kind)


def _readable(wrong: BaseException) -> str:
    text = f"{type(wrong).__name__} {wrong}".encode("utf-8", "replace").decode()
    return text[:SHOWN_CHARS]


class _RowParser:
    """Bytes into a value and its error; by the schema of its id, if it has one."""

    def __init__(
        self, schema: _Schema, schema_ids: Sequence[int], writers: Sequence[_Written]
    ) -> None:
        fastavro = _fastavro()
        self._read = fastavro.schemaless_reader
        self._unresolved = fastavro.read.SchemaResolutionError
        self._own = _Written(schema.parsed, None, schema.plan.convert)
        self._schema_ids = schema_ids
        self._writers = dict(zip(schema_ids, writers, strict=False))

    def __call__(self, data: bytes | None) -> tuple[Any, str | None]:
        if data is None:
            return None, None
        if not self._schema_ids:
            return self._value(data, 0, self._own, "this schema")
        if len(data) < CONFLUENT_BYTES or data[0] != 0:
            return None, "it does not begin with the five bytes of a schema registry"
        schema_id = int.from_bytes(data[1:CONFLUENT_BYTES], "big")
        if schema_id not in self._schema_ids:
            return None, self._not_named(schema_id)
        if schema_id not in self._writers:
            return self._value(data, CONFLUENT_BYTES, self._own, "this schema")
        writer = self._writers[schema_id]
        try:
            return self._value(data, CONFLUENT_BYTES, writer, f"its schema {schema_id}")
        except self._unresolved as wrong:
            reason = _readable(wrong)
            return None, f"schema {schema_id} of the registry does not become this one: {reason}"

    def _value(
        self, data: bytes, begin: int, writer: _Written, of_schema: str
    ) -> tuple[Any, str | None]:
        source = io.BytesIO(data)
        source.seek(begin)
        written, wanted, convert = writer
        try:
            found = self._read(source, written, wanted)
            value = found if convert is None else convert(found)
        except _DAMAGE as wrong:
            return None, f"it is not Avro of {of_schema}: {_readable(wrong)}"
        left = len(data) - source.tell()
        if left:
            return None, f"it is not Avro of {of_schema}: {left} bytes are left after the value"
        return value, None

    def _not_named(self, schema_id: int) -> str:
        """By another schema the bytes may well read, with each value in another field."""
        named = ", ".join(map(str, self._schema_ids))
        fitting = " if that schema has the same fields in the same order"
        return (
            f"it was written by schema {schema_id} of the registry, and the ids named are {named}: "
            f"name {schema_id} too{', with its schema' if self._writers else fitting}"
        )


def _fastavro() -> ModuleType:
    try:
        import fastavro
    except ModuleNotFoundError as missing:
        raise BadSchema('avro needs the package fastavro: pip install "ottla[avro]"') from missing
    return fastavro


@lru_cache(maxsize=64)
def _prepared(schema: str) -> _Schema:
    parsed = _parsed(schema)
    with _readable_schema():
        return _Schema(parsed, _plan(json.loads(schema), {}, ""))


@lru_cache(maxsize=64)
def _written(writer: str, schema: str) -> _Written:
    """Times are converted as the writer counts them: to Avro's rules they are but numbers."""
    parsed = _parsed(writer)
    with _readable_schema():
        declared = json.loads(schema)
        counted = {path: one["logicalType"] for path, one in _times(json.loads(writer))}
        for path, one in _times(declared):
            unit = counted.get(path, one["logicalType"]).rpartition("-")[2]
            one["logicalType"] = one["logicalType"].rpartition("-")[0] + f"-{unit}"
        wanted = _parsed(schema)
        convert = _plan(declared, {}, "").convert
        return _Written(parsed, None if parsed == wanted else wanted, convert)


def _times(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Where a schema has times, and the mapping that says how they are counted."""
    if isinstance(schema, list):
        for one in schema:
            yield from _times(one, path)
    elif isinstance(schema, dict):
        if str(schema.get("logicalType")).endswith(("timestamp-millis", "timestamp-micros")):
            yield path, schema
        for field in schema.get("fields", ()):
            yield from _times(field["type"], f"{path}.{field['name']}")
        for key, inside in (("type", ""), ("items", "[]"), ("values", "[]")):
            yield from _times(schema.get(key), path + inside)


@lru_cache(maxsize=64)
def _parsed(schema: str) -> Any:
    """Without what is said of times, which are wanted as numbers: Python's end before Avro's."""
    with _readable_schema():
        return _fastavro().parse_schema(_without_times(json.loads(schema)))


@contextmanager
def _readable_schema() -> Iterator[None]:
    unparsed = _fastavro().schema.SchemaParseException
    try:
        yield
    except BadSchema:
        raise
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, unparsed) as wrong:
        raise BadSchema(f"it is no Avro schema: {str(wrong)[:SHOWN_CHARS]}") from wrong


def _without_times(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = dict(schema)
    if kept.get("logicalType") != "decimal":
        kept.pop("logicalType", None)
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = _without_times(kept[key])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_without_times(field) for field in kept["fields"]]
    return kept


def _plan(schema: Any, named: dict[str, _Plan | None], space: str) -> _Plan:
    if isinstance(schema, list):
        return _union(schema, named, space)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _Plan(_PRIMITIVES[schema])
        return _named(schema, named, space)
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _plan(kind, named, space)
    if schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        plan = _Plan(decimal_of(int(schema["precision"]), int(schema.get("scale", 0))))
        return _keep(schema, plan, named, space) if kind == "fixed" else plan
    if kind in ("record", "error"):
        return _record(schema, named, space)
    if kind == "enum":
        return _keep(schema, _Plan(pa.string()), named, space)
    if kind == "fixed":
        return _keep(schema, _Plan(pa.binary()), named, space)
    if kind == "array":
        return _array(_plan(schema["items"], named, space))
    if kind == "map":
        return _map(_plan(schema["values"], named, space))
    logical = schema.get("logicalType")
    if (kind, logical) in _LOGICAL:
        times = (lambda ms: ms * 1000) if logical in _MILLIS else None
        return _Plan(_LOGICAL[kind, logical], times)
    return _plan(kind, named, space)


def _full_name(schema: Any, space: str) -> tuple[str, str]:
    name = str(schema["name"])
    if "." in name:
        return name, name.rpartition(".")[0]
    inner = str(schema.get("namespace", space))
    return (f"{inner}.{name}" if inner else name), inner


def _keep(schema: Any, plan: _Plan, named: dict[str, _Plan | None], space: str) -> _Plan:
    named[_full_name(schema, space)[0]] = plan
    return plan


def _named(name: str, named: dict[str, _Plan | None], space: str) -> _Plan:
    full = name if "." in name or not space else f"{space}.{name}"
    key = full if full in named else name
    if key not in named:
        raise BadSchema(f"the type {name!r} is not declared in it")
    plan = named[key]
    if plan is None:
        raise BadSchema(f"the type {name!r} contains itself, which Spark has no type for")
    return plan


def _record(schema: Any, named: dict[str, _Plan | None], space: str) -> _Plan:
    full, inner = _full_name(schema, space)
    named[full] = None
    plans = [(str(field["name"]), _plan(field["type"], named, inner)) for field in schema["fields"]]
    converts = [(name, plan.convert) for name, plan in plans if plan.convert is not None]

    def convert(record: Any) -> Any:
        for name, one in converts:
            if record[name] is not None:
                record[name] = one(record[name])
        return record

    kind = struct_of([(name, plan.kind) for name, plan in plans])
    named[full] = _Plan(kind, convert if converts else None)
    return _keep(schema, _Plan(kind, convert if converts else None), named, space)


def _array(item: _Plan) -> _Plan:
    one = item.convert
    kind = list_of(item.kind)
    if one is None:
        return _Plan(kind)
    return _Plan(kind, lambda found: [None if v is None else one(v) for v in found])


def _map(item: _Plan) -> _Plan:
    one = item.convert or (lambda value: value)
    kind = map_of(pa.string(), item.kind)
    return _Plan(kind, lambda found: [(k, None if v is None else one(v)) for k, v in found.items()])


def _union(schemas: list[Any], named: dict[str, _Plan | None], space: str) -> _Plan:
    """With null it is the other; numbers widen; more are a wish that Spark's types cannot grant."""
    others = [one for one in schemas if one != "null" and one != {"type": "null"}]
    if len(others) == 1:
        return _plan(others[0], named, space)
    if set(map(str, others)) == {"int", "long"}:
        return _Plan(pa.int64())
    if set(map(str, others)) == {"float", "double"}:
        return _Plan(pa.float64())
    raise BadSchema("a union of several types is not supported; one type and null is")
