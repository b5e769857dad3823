"""The JSON Schema of a pipeline file, for editors; drawn from the same table as the checks.

Where a value is no plain text, `${VARIABLE}` is allowed too. What only the whole file can tell (a
name that is no source) is left to `ottla pipeline validate`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ottla.pipelines.language.keys import (
    DURATION,
    PIPELINE,
    Choice,
    Duration,
    Either,
    Fields,
    Flag,
    Key,
    Kind,
    Named,
    Settings,
    Start,
    Text,
    Texts,
    Variants,
    Version,
    When,
    Whole,
)

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
ID: Final = "urn:ottla:pipeline:1"

Schema = dict[str, Any]

# YAML makes numbers of 42 and booleans of true; to us they are text like any other.
_ANY_TEXT: Final = ["string", "number", "boolean"]


def json_schema() -> Schema:
    return {
        "$schema": DRAFT,
        "$id": ID,
        "title": "Ottla pipeline",
        "description": "What is read, what is made of it, and what is written; run on Spark.",
        **_fields(PIPELINE),
    }


def schema_text() -> str:
    """As it is shipped in pipeline.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _of(kind: Kind) -> Schema:
    return _BY_KIND[type(kind)](kind)


def _text(kind: Text) -> Schema:
    schema: Schema = {"type": "string" if kind.is_sql else _ANY_TEXT}
    if kind.pattern is not None:
        schema["pattern"] = rf"^\s*({kind.pattern})\s*$|\$\{{"
    if not kind.may_be_empty:
        schema["minLength"] = 1
    if kind.example is not None:
        schema["examples"] = [kind.example]
    return schema


def _or_text(schema: Schema, pattern: str = "") -> Schema:
    """Also in quotes, as the pattern says, or from a variable."""
    text = rf"^({pattern})$|\$\{{" if pattern else r"\$\{"
    return {"anyOf": [schema, {"type": "string", "pattern": text}]}


def _whole(kind: Whole) -> Schema:
    number = {"type": "integer", "minimum": kind.least, "maximum": kind.most}
    return _or_text(number, "[0-9]+")


def _patterned(pattern: str, example: str) -> Schema:
    return {"type": "string", "pattern": rf"^({pattern})$|\$\{{", "examples": [example]}


def _texts(kind: Texts) -> Schema:
    item = _of(kind.item)
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": kind.least}]}


def _settings(_: Settings) -> Schema:
    return {"type": "object", "additionalProperties": {"type": _ANY_TEXT}}


def _named(kind: Named) -> Schema:
    return {
        "type": "object",
        "propertyNames": {"pattern": f"^{kind.pattern}$"},
        "additionalProperties": _of(kind.item),
        "minProperties": 1,
    }


def _variants(kind: Variants) -> Schema:
    shapes = []
    for variant in kind.variants:
        for told_by in variant.told_by:
            others = [name for name in variant.told_by if name != told_by]
            keys = tuple(key for key in variant.fields if key.name not in others)
            shapes.append({"title": told_by, **_fields(Fields(keys), told_by)})
    return {"anyOf": shapes}


def _either(kind: Either) -> Schema:
    return {"anyOf": [_of(kind.short), _of(kind.long)]}


def _fields(fields: Fields, told_by: str | None = None) -> Schema:
    required = [key.name for key in fields if key.required or key.name == told_by]
    schema: Schema = {
        "type": "object",
        "properties": {key.name: _property(key) for key in fields},
        "additionalProperties": False,
    }
    if required:
        schema["required"] = required
    conditions = list(_conditions(fields))
    if conditions:
        schema["allOf"] = conditions
    return schema


def _property(key: Key) -> Schema:
    schema = {"description": key.doc, **_of(key.kind)}
    if key.default is not None:
        schema["default"] = _json_default(key)
    return schema


def _json_default(key: Key) -> Any:
    assert key.default is not None
    return json.loads(key.default) if isinstance(key.kind, Flag | Whole) else key.default


def _conditions(fields: Fields) -> Iterator[Schema]:
    """`format: json` needs a schema; `sequence_by` goes only with `mode: upsert`."""
    known = {key.name: key for key in fields}
    for key in fields:
        if key.needed_when is not None:
            yield {
                "if": _when(key.needed_when, known[key.needed_when.key], key.needed_when.values),
                "then": {"required": [key.name]},
            }
        if key.allowed_when is not None:
            other = known[key.allowed_when.key]
            assert isinstance(other.kind, Choice)
            forbidding = tuple(v for v in other.kind.values if v not in key.allowed_when.values)
            yield {
                "if": _when(key.allowed_when, other, forbidding),
                "then": {"properties": {key.name: False}},
            }


def _when(when: When, other: Key, values: tuple[str, ...]) -> Schema:
    condition: Schema = {"properties": {when.key: {"enum": list(values)}}}
    if other.default not in values:
        condition["required"] = [when.key]
    return condition


_BY_KIND: Final[Mapping[type, Callable[[Any], Schema]]] = {
    Text: _text,
    Whole: _whole,
    Version: lambda kind: {"const": kind.number},
    Flag: lambda _: _or_text({"type": "boolean"}, "true|false"),
    Choice: lambda kind: _or_text({"enum": list(kind.values)}),
    Duration: lambda _: _patterned(DURATION, "10 seconds"),
    Start: lambda _: {
        "anyOf": [
            {"enum": ["earliest", "latest"]},
            {"type": "string", "pattern": r"^\d{4}-?(\d\d|W)|\$\{"},
        ]
    },
    Texts: _texts,
    Settings: _settings,
    Fields: _fields,
    Variants: _variants,
    Either: _either,
    Named: _named,
}
