"""keyFormat, keySchema, keySchemaIds, the same of the value, and avroFraming."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from ottla.spark.formats import BadSchema, Format, Kind, spark_type
from ottla.spark.formats_avro import SCHEMA_ID_MAX
from ottla.spark.option_values import BadOption, as_choice


def parse_format(column: str, options: Mapping[str, str]) -> Format | None:
    """The format of `key` or `value`; raises BadOption."""
    kind_name, schema_name = f"{column}Format", f"{column}Schema"
    text = options.get(kind_name.lower())
    schema = options.get(schema_name.lower())
    kind = None if text is None else as_choice(kind_name, text, ("json", "avro", "string"))
    schema_ids = _schema_ids(column, options, is_avro=kind == "avro")
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
    form = Format(cast(Kind, kind), schema, schema_ids)
    try:
        spark_type(form)
    except BadSchema as wrong:
        raise BadOption(f"option {schema_name}: {wrong}") from wrong
    return form


def _schema_ids(column: str, options: Mapping[str, str], *, is_avro: bool) -> tuple[int, ...]:
    """Needed with the framing: by a schema that does not fit, values land in other fields."""
    name = f"{column}SchemaIds"
    text = options.get(name.lower())
    framing = as_choice("avroFraming", options.get("avroframing") or "none", ("none", "confluent"))
    if not is_avro or framing == "none":
        if text is not None:
            raise BadOption(
                f"option {name} goes only with avroFraming=confluent and {column}Format=avro"
            )
        return ()
    if text is None or not text.strip():
        raise BadOption(
            f"option avroFraming=confluent needs {name}, the ids that the registry has given to "
            f"schemas which fit {column}Schema, for example 12,15; without {column}Format "
            f"conv(hex(substring({column}, 2, 4)), 16, 10) is a message's id"
        )
    return tuple(_schema_id(name, one.strip()) for one in text.split(","))


def _schema_id(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or int(text) > SCHEMA_ID_MAX:
        raise BadOption(f"option {name}: {text!r} is no id of a schema; it is a number such as 12")
    return int(text)
