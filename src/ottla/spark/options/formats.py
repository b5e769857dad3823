"""keyFormat, keySchema, keySchemaIds, the same of the value, and avroFraming."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

from ottla.spark.formats.avro import SCHEMA_ID_MAX, check_writers
from ottla.spark.formats.typed_columns import BadSchema, Format, Kind, spark_type
from ottla.spark.options.values import BadOption, as_choice, as_json, raise_bad_option


def parse_format(column: str, options: Mapping[str, str]) -> Format | None:
    """The format of `key` or `value`; raises BadOption."""
    kind_name, schema_name = f"{column}Format", f"{column}Schema"
    text = options.get(kind_name.lower())
    schema = options.get(schema_name.lower())
    kind = None if text is None else as_choice(kind_name, text, ("json", "avro", "string"))
    schema_ids, writers = _schema_ids(column, options, is_avro=kind == "avro")
    if kind is None:
        if schema is not None:
            raise BadOption(f"option {schema_name} is given without {kind_name}")
        return None
    if kind == "string":
        if schema is not None:
            raise BadOption(f"option {schema_name} is given, but {kind_name}=string takes none")
        return Format("string")
    if schema is None or not schema.strip():
        example = "id BIGINT, name STRING" if kind == "json" else '{"type":"record",…}'
        raise BadOption(f"option {kind_name}={kind} needs {schema_name}, for example {example}")
    form = Format(cast(Kind, kind), schema, schema_ids, writers)
    try:
        spark_type(form)
    except BadSchema as wrong:
        raise BadOption(f"option {schema_name}: {wrong}") from wrong
    return form


def _schema_ids(
    column: str, options: Mapping[str, str], *, is_avro: bool
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Needed with the framing: by a schema that does not fit, values land in other fields."""
    name = f"{column}SchemaIds"
    text = options.get(name.lower())
    framing = as_choice("avroFraming", options.get("avroframing") or "none", ("none", "confluent"))
    if not is_avro or framing == "none":
        if text is not None:
            raise BadOption(
                f"option {name} goes only with avroFraming=confluent and {column}Format=avro"
            )
        return (), ()
    if text is None or not text.strip():
        raise BadOption(
            f"option avroFraming=confluent needs {name}, the ids that the registry has given to "
            f"schemas which fit {column}Schema, for example 12,15; without {column}Format "
            f"conv(hex(substring({column}, 2, 4)), 16, 10) is a message's id"
        )
    if not text.strip().startswith("{"):
        return tuple(_schema_id(name, one.strip()) for one in text.split(",")), ()
    wanted, example = "ids, or an object of ids and their Avro schemas", '12,15 or {"12": {…}}'
    schemas = as_json(name, text, wanted, example)
    if not isinstance(schemas, dict) or not schemas:
        raise_bad_option(name, text, wanted, example)
    ids = tuple(_schema_id(name, one) for one in schemas)
    writers = tuple(json.dumps(one) for one in schemas.values())
    try:
        check_writers(ids, writers)
    except BadSchema as wrong:
        raise BadOption(f"option {name}: {wrong}") from wrong
    return ids, writers


def ids_text(form: Format) -> str:
    """The option that says these ids."""
    if not form.writer_schemas:
        return ",".join(map(str, form.schema_ids))
    writers = map(json.loads, form.writer_schemas)
    return json.dumps(dict(zip(map(str, form.schema_ids), writers, strict=True)))


def _schema_id(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > SCHEMA_ID_MAX:
        raise BadOption(f"option {name}: {text!r} is no id of a schema; it is a number such as 12")
    return int(text)
