"""Schemas of topics, parsed while there is still a line to point at; no JVM is needed for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.pipelines.checking import Checker, Found


def check_schemas(checker: Checker, places: Iterable[Found]) -> None:
    for found in places:
        if found.told_by not in ("topic", "topics"):
            continue
        key = found["key"]
        uses_avro = found["format"] == "avro"
        _check(checker, found)
        if isinstance(key, Found):
            uses_avro = uses_avro or key["format"] == "avro"
            _check(checker, key)
        if found["framing"] == "confluent" and not uses_avro:
            checker.note(
                f"{found.path}.framing goes only with format: avro; remove it",
                found.place_of("framing"),
            )


def _check(checker: Checker, found: Found) -> None:
    kind, schema = found["format"], found["schema"]
    if schema is None or kind not in ("json", "avro"):
        return
    # Here, because pyarrow takes its time: a file without schemas needs none.
    from ottla.spark.formats import BadSchema, Format, spark_type

    form: Any = Format(kind, schema)
    try:
        spark_type(form)
    except BadSchema as wrong:
        checker.note(f"{found.path}.schema: {wrong}", found.place_of("schema"))
