"""keyFormat, keySchema, valueFormat, valueSchema and avroFraming."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ottla.spark.formats import BadSchema, Format, Framing, Kind, spark_type
from ottla.spark.option_values import BadOption, as_choice


def parse_format(column: str, options: Mapping[str, str]) -> Format | None:
    """The format of `key` or `value`; raises BadOption."""
    kind_name, schema_name = f"{column}Format", f"{column}Schema"
    text = options.get(kind_name.lower())
    schema = options.get(schema_name.lower())
    framing_text = options.get("avroframing")
    framing = as_choice("avroFraming", framing_text or "none", ("none", "confluent"))
    if text is None:
        if schema is not None:
            raise BadOption(f"option {schema_name} is given without {kind_name}")
        return None
    kind = cast(Kind, as_choice(kind_name, text, ("json", "avro", "string")))
    if kind == "string":
        if schema is not None:
            raise BadOption(f"option {schema_name} is given, but {kind_name}=string takes none")
        return Format(kind)
    if schema is None or not schema.strip():
        example = "id BIGINT, name STRING" if kind == "json" else '{"type":"record",…}'
        raise BadOption(f"option {kind_name}={kind} needs {schema_name}, for example {example}")
    form = Format(kind, schema, cast(Framing, framing) if kind == "avro" else "none")
    try:
        spark_type(form)
    except BadSchema as wrong:
        raise BadOption(f"option {schema_name}: {wrong}") from wrong
    return form
