"""Typed columns out of keys and values, and beside them what did not parse.

A wrong value never stops a query: its fields are null, and the column `_error` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.columns import ARROW, spark_schema
from ottla.spark.formats import avro, json_column
from ottla.spark.formats.spark_types import BadSchema, parse_type, to_ddl

__all__ = [
    "BadSchema",
    "Format",
    "apply",
    "spark_type",
    "typed_arrow",
    "typed_batch",
    "typed_schema",
]

Kind = Literal["json", "avro", "string"]

ERROR_COLUMN: Final = "_error"


@dataclass(frozen=True)
class Format:
    """How a key or value is to be read; `schema` is DDL or JSON as the user wrote it.

    With `schema_ids` an Avro value begins with the five bytes of a registry, and has one of these.
    `writer_schemas` are theirs, in the same order, where they are not `schema` itself.
    """

    kind: Kind
    schema: str | None = None
    schema_ids: tuple[int, ...] = ()
    writer_schemas: tuple[str, ...] = ()


def spark_type(form: Format) -> str:
    """The column's type in Spark's own words; raises BadSchema."""
    return to_ddl(arrow_type(form))


def arrow_type(form: Format) -> pa.DataType:
    if form.kind == "string":
        return pa.string()
    return _parsed(form)


def apply(form: Format, column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The typed column, and beside it what did not parse (null where all is well)."""
    if form.kind == "string":
        return json_column.texts(column)
    if form.kind == "json":
        return json_column.parse_column(column, _parsed(form))
    assert form.schema is not None, "parse_format lets no other through"
    return avro.parse_column(column, form.schema, form.schema_ids, form.writer_schemas)


def typed_schema(columns: Sequence[str], key: Format | None, value: Format | None) -> str:
    """The DDL of these columns for DataSource.schema(); `_error` may be among them."""
    typed = {"key": key, "value": value}
    words: list[str] = []
    for name in columns:
        form = typed.get(name)
        if name == ERROR_COLUMN:
            words.append(f"{ERROR_COLUMN} STRING")
        elif form is not None:
            words.append(f"{name} {spark_type(form)}")
        else:
            words.append(spark_schema((name,)))
    return ", ".join(words)


def typed_arrow(columns: Sequence[str], key: Format | None, value: Format | None) -> pa.Schema:
    """The same as Arrow: what every batch of a read must look like, to the letter."""
    typed = {"key": key, "value": value}
    fields: list[pa.Field] = []
    for name in columns:
        form = typed.get(name)
        if name == ERROR_COLUMN:
            fields.append(pa.field(name, pa.string()))
        else:
            fields.append(pa.field(name, ARROW[name] if form is None else arrow_type(form)))
    return pa.schema(fields)


def typed_batch(
    batch: pa.RecordBatch, columns: Sequence[str], key: Format | None, value: Format | None
) -> pa.RecordBatch:
    """A decoded batch (kafka_columns) with its typed columns, in the order of `columns`."""
    arrays = {name: batch.column(name) for name in batch.schema.names}
    errors = pa.nulls(batch.num_rows, pa.string())
    for name, form in (("key", key), ("value", value)):
        if form is not None:
            arrays[name], wrong = apply(form, arrays[name])
            errors = _joined(errors, name, wrong)
    arrays[ERROR_COLUMN] = errors
    schema = typed_arrow(columns, key, value)
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)


def _joined(errors: pa.Array, name: str, wrong: pa.Array) -> pa.Array:
    if wrong.null_count == len(wrong):
        return errors
    named = pc.binary_join_element_wise(pa.scalar(name), wrong, ": ")
    return pc.coalesce(pc.binary_join_element_wise(errors, named, "; "), errors, named)


@lru_cache(maxsize=64)
def _parsed(form: Format) -> pa.DataType:
    if form.schema is None:
        raise BadSchema(f"{form.kind} needs a schema")
    if form.kind == "avro":
        return avro.arrow_type(form.schema)
    kind = parse_type(form.schema)
    json_column.check_type(kind)
    return kind
