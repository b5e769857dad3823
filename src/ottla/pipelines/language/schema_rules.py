"""Schemas of topics, parsed while there is still a line to point at; no JVM is needed for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.pipelines.language.checker import Checker, Found


def check_schemas(checker: Checker, places: Iterable[Found]) -> None:
    for found in places:
        if found.told_by not in ("topic", "topics"):
            continue
        key = found["key"]
        parts = [(found, "%v"), (key, "%k")] if isinstance(key, Found) else [(found, "%v")]
        for part, _ in parts:
            _check(checker, part)
        avro = [(part, field) for part, field in parts if part["format"] == "avro"]
        if found["framing"] == "confluent" and not avro:
            checker.note(
                f"{found.path}.framing goes only with format: avro; remove it",
                found.place_of("framing"),
            )
        for part, field in avro:
            _check_ids(checker, part, found, field)
            _check_writers(checker, part)


def _check_writers(checker: Checker, part: Found) -> None:
    """Each id with a schema of its own."""
    schemas = part["schema_ids"]
    if not isinstance(schemas, dict):
        return
    from ottla.spark.formats.avro import check_writers
    from ottla.spark.formats.typed_columns import BadSchema

    try:
        check_writers([int(one) for one in schemas], list(schemas.values()))
    except BadSchema as wrong:
        checker.note(f"{part.path}.schema_ids: {wrong}", part.place_of("schema_ids"))


def _check_ids(checker: Checker, part: Found, source: Found, field: str) -> None:
    """By a schema that does not fit, values land in other fields: which fit must be said."""
    if source["framing"] == "none" and "schema_ids" in part.nodes:
        checker.note(
            f"{part.path}.schema_ids goes only with framing: confluent; remove it, or change "
            "framing",
            part.place_of("schema_ids"),
        )
    if source["framing"] == "confluent" and "schema_ids" not in part.nodes:
        topic = source["topic"] or (source["topics"] or ["orders"])[0]
        what = "value" if part is source else "key"
        checker.note(
            f"framing: confluent in {part.path} needs the key schema_ids: the ids that the "
            "registry has given to schemas which fit this one, for example [12, 15]. "
            f"`ottla consume {topic} --from-beginning --max 1 --format {field} | "
            f"od -An -j1 -N4 -tu4 --endian=big` prints the id of the first {what}",
            part.place_of("schema"),
        )


def _check(checker: Checker, found: Found) -> None:
    kind, schema = found["format"], found["schema"]
    if schema is None or kind not in ("json", "avro"):
        return
    # Here, because pyarrow takes its time: a file without schemas needs none.
    from ottla.spark.formats.typed_columns import BadSchema, Format, spark_type

    form: Any = Format(kind, schema)
    try:
        spark_type(form)
    except BadSchema as wrong:
        checker.note(f"{found.path}.schema: {wrong}", found.place_of("schema"))
