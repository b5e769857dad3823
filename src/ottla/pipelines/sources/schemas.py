"""Schemas of the file as Spark's types, read without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ottla.pipelines.language.model import MESSAGE_COLUMNS, FileSource, Source, TopicSource
from ottla.pipelines.language.problems import BadPipeline, Problem
from ottla.spark.formats.spark_types import TIMESTAMP, TIMESTAMP_NTZ
from ottla.spark.formats.typed_columns import BadSchema, Format, arrow_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS_COLUMN: Final = "_headers"

# Arrow's types by the names that Spark's JSON has for them.
_NAMES: Final = {
    pa.bool_(): "boolean", pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer",
    pa.int64(): "long", pa.float32(): "float", pa.float64(): "double", pa.string(): "string",
    pa.binary(): "binary", pa.date32(): "date",
    TIMESTAMP: "timestamp", TIMESTAMP_NTZ: "timestamp_ntz",
}  # fmt: skip

_MESSAGE_TYPES: Final = {
    "_topic": "string", "_partition": "integer", "_offset": "long", "_timestamp": "timestamp",
    "_tombstone": "boolean",
}  # fmt: skip
_HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)


def value_format(source: TopicSource | FileSource) -> Format | None:
    """How a value is read; None for bytes. The schema is checked: raises BadPipeline."""
    if source.format == "parquet":
        return None
    if isinstance(source, FileSource):
        kind = "avro" if source.format == "avro" else "json"
        return _checked(source, "", kind, source.schema)
    ids, writers = source.schema_ids, source.writer_schemas
    return _checked(source, "", source.format, source.schema, ids, writers)


def key_format(source: TopicSource) -> Format | None:
    ids, writers = source.key_schema_ids, source.key_writer_schemas
    return _checked(source, "key ", source.key_format, source.key_schema, ids, writers)


def table_shape(source: Source) -> StructType | None:
    """Of Parquet and JDBC: what the file says about them, if it does."""
    if source.schema is None:
        return None
    form = _checked(source, "", "json", source.schema)
    assert form is not None
    return fields_of(form)


def topic_shape(source: TopicSource) -> StructType:
    """The fields of the value, and beside them those of the message."""
    from pyspark.sql.types import StructType

    form, key = value_format(source), key_format(source)
    fields = _fields(pa.binary() if form is None else arrow_type(form))
    _check_names(source, [field["name"] for field in fields])
    fields.append(_field("_key", _described(pa.binary() if key is None else arrow_type(key))))
    fields += [_field(name, kind) for name, kind in _MESSAGE_TYPES.items()]
    if source.headers:
        fields.append(_field(HEADERS_COLUMN, _described(_HEADERS_TYPE)))
    return StructType.fromJson({"type": "struct", "fields": fields})


def fields_of(form: Format) -> StructType:
    """The columns of a value: the fields of a struct, or one named `value`."""
    from pyspark.sql.types import StructType

    return StructType.fromJson({"type": "struct", "fields": _fields(arrow_type(form))})


def _checked(
    source: Source,
    what: str,
    kind: str,
    schema: str | None,
    schema_ids: tuple[int, ...] = (),
    writers: tuple[str, ...] = (),
) -> Format | None:
    if kind == "bytes":
        return None
    if kind == "string":
        return Format("string")
    if schema is None or not schema.strip():
        example = "id BIGINT, name STRING" if kind == "json" else '{"type": "record", …}'
        raise bad_source(
            source, f"the {what}schema is missing: {kind} needs one, for example {example}"
        )
    form = Format("avro" if kind == "avro" else "json", schema, schema_ids, writers)
    try:
        arrow_type(form)
    except BadSchema as wrong:
        raise bad_source(source, f"the {what}schema cannot be read: {wrong}") from wrong
    return form


def _check_names(source: TopicSource, names: list[str]) -> None:
    """SQL does not tell upper from lower case, and a column must have one meaning."""
    taken = {*MESSAGE_COLUMNS, *([HEADERS_COLUMN] if source.headers else [])}
    for name in names:
        if name.lower() in taken:
            raise bad_source(
                source,
                f"the schema has a field {name}, which is a column of every message: "
                f"choose the format string and take the value apart in SQL",
            )


def bad_source(source: Source, text: str) -> BadPipeline:
    return BadPipeline([Problem(f"{source.subject}: {text}", source.place)])


def _fields(kind: pa.DataType) -> list[dict[str, Any]]:
    if pa.types.is_struct(kind):
        return [_field(field.name, _described(field.type)) for field in kind]
    return [_field("value", _described(kind))]


def _field(name: str, described: Any) -> dict[str, Any]:
    return {"name": name, "type": described, "nullable": True, "metadata": {}}


def _described(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": _fields(kind)}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _described(kind.key_type),
            "valueType": _described(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(kind):
        return {
            "type": "array",
            "elementType": _described(kind.value_type),
            "containsNull": True,
        }
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES[kind]
