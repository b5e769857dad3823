"""Rows into Avro, with fastavro: values of messages, and files."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import Sink
from ottla.pipelines.language.problems import PipelineFailed, Problem
from ottla.pipelines.sinks.written_columns import problem
from ottla.pipelines.views.columns import quote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

INSTALL: Final = 'Avro needs fastavro: pip install "ottla[avro]"'
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE: Final[dict[str, Any]] = {
    "boolean": "boolean", "tinyint": "int", "smallint": "int", "int": "int", "bigint": "long",
    "float": "float", "double": "double", "string": "string", "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}  # fmt: skip
# What fastavro raises for a value that its schema has no place for.
_MISFITS: Final = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError)


class NotInAvro(ValueError):
    """A column that Avro has no type for, in one line."""


def schema_of(fields: StructType, name: str = "row") -> dict[str, Any]:
    """The Avro record with these columns, each of which may be null."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": _named(field.name), "type": _or_null(field.dataType, f"{name}_{field.name}")}
            for field in fields
        ],
    }


def _named(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise NotInAvro(
            f"{name!r} is no name in Avro; give the column another one in a view (AS …)"
        )
    return name


def _or_null(kind: DataType, name: str) -> list[Any]:
    return ["null", _type_of(kind, name)]


def _type_of(kind: DataType, name: str) -> Any:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        return schema_of(kind, name)
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": _or_null(kind.elementType, f"{name}_item")}
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return {"type": "map", "values": _or_null(kind.valueType, f"{name}_value")}
    if isinstance(kind, DecimalType):
        logical = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **logical}
    found = _SIMPLE.get(kind.simpleString())
    if found is None:
        text = f"{name} is {kind.simpleString()}, for which Avro has no type; CAST it in a view"
        raise NotInAvro(text)
    return found


def schema_problems(sink: Sink, schema: str | None, fields: StructType) -> list[Problem]:
    """Each column must have its field, and each field its column or a default."""
    try:
        import fastavro
    except ImportError:
        return [problem(sink, INSTALL)]
    if schema is None:
        try:
            schema_of(fields)
        except NotInAvro as wrong:
            return [problem(sink, str(wrong))]
        return []
    try:
        parsed: Any = fastavro.parse_schema(json.loads(schema))
        known = {field["name"]: field for field in parsed["fields"]}
    except (*_MISFITS, fastavro.schema.SchemaParseException, RecursionError) as wrong:
        reason = " ".join(str(wrong).split()) or type(wrong).__name__
        return [problem(sink, f"schema: no Avro record: {reason}; correct it")]
    found = []
    for name in fields.names:
        if name not in known:
            text = f"schema: it has no field {name}; add it, or leave the column out in a view"
            found.append(problem(sink, text))
    for name, field in known.items():
        if name not in fields.names and "default" not in field:
            text = f"schema: the field {name} has no column and no default; select it in a view"
            found.append(problem(sink, text))
    return found


def with_values(
    frame: DataFrame, names: Sequence[str], beside: Sequence[Column], schema: str | None, who: str
) -> DataFrame:
    """`value` in Avro out of the columns of these names, and the other columns as they are."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = frame.select(F.struct(*map(quote, names)).alias("value"), *beside)
    fields = rows.schema["value"].dataType
    text = schema or json.dumps(schema_of(fields))  # type: ignore[arg-type]
    kinds = [f"{field.name} {field.dataType.simpleString()}" for field in rows.schema.fields[1:]]
    return rows.mapInArrow(_Values(text, who), ", ".join(["value binary", *kinds]))


class _Values:
    """Turns the structs of the column `value` into Avro; goes to the executors."""

    def __init__(self, schema: str, who: str) -> None:
        self._schema = schema
        self._who = who

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import fastavro
        import pyarrow as pa

        parsed = fastavro.parse_schema(json.loads(self._schema))
        for batch in batches:
            values = []
            for row in rows_of(batch.column(0)):
                out = io.BytesIO()
                try:
                    fastavro.schemaless_writer(out, parsed, row)
                except _MISFITS as wrong:
                    raise misfit(self._who, wrong) from None
                values.append(out.getvalue())
            arrays = [pa.array(values, pa.binary()), *batch.columns[1:]]
            yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def write_file(path: str, schema: dict[str, Any], rows: Iterable[Any], who: str) -> None:
    import fastavro

    with open(path, "wb") as out:
        try:
            fastavro.writer(out, fastavro.parse_schema(schema), rows, codec="deflate")
        except _MISFITS as wrong:
            raise misfit(who, wrong) from None


def misfit(who: str, wrong: Exception) -> PipelineFailed:
    reason = " ".join(str(wrong).split()) or type(wrong).__name__
    return PipelineFailed(
        f"{who}: a row does not fit the Avro schema: {reason}; CAST the column in a view, or "
        "correct the schema"
    )


def rows_of(column: pa.Array) -> list[Any]:
    """Python's values for fastavro, whose maps are dicts."""
    convert = _converter(column.type)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [convert(value) for value in values]


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What is left to do after Arrow's own conversion; None for nothing."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        inner = _converter(kind.item_type) or _same
        return lambda pairs: None if pairs is None else {key: inner(item) for key, item in pairs}
    if pa.types.is_list(kind):
        each = _converter(kind.value_type)
        return each and (lambda items: None if items is None else [each(item) for item in items])
    if pa.types.is_struct(kind):
        inside = {field.name: _converter(field.type) for field in kind}
        todo = {name: one for name, one in inside.items() if one is not None}
        return _of_struct(todo) if todo else None
    return None


def _of_struct(todo: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def convert(row: Any) -> Any:
        if row is None:
            return None
        return {name: todo[name](value) if name in todo else value for name, value in row.items()}

    return convert


def _same(value: Any) -> Any:
    return value
