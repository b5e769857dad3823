"""Spark's types in words (DDL, or Spark's JSON) into Arrow's, and back into DDL.

No JVM is at hand where options are read, so the words are parsed here. The Arrow types are those
that PySpark makes of the same words; every field may be null, as in Spark's own from_json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NoReturn

import pyarrow as pa

DECIMAL_DIGITS_MAX: Final = 38
DEPTH_MAX: Final = 64
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")

_BY_NAME: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(), "byte": pa.int8(),
    "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(),
    "bigint": pa.int64(), "long": pa.int64(),
    "float": pa.float32(), "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(), "varchar": pa.string(), "char": pa.string(), "character": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP, "timestamp_ltz": TIMESTAMP, "timestamp_ntz": TIMESTAMP_NTZ,
}  # fmt: skip
_DECIMAL_NAMES: Final = ("decimal", "dec", "numeric")

_IN_WORDS: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT",
    pa.int64(): "BIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING",
    pa.binary(): "BINARY", pa.date32(): "DATE",
    # Plain TIMESTAMP means the other one under spark.sql.timestampType=TIMESTAMP_NTZ.
    TIMESTAMP: "TIMESTAMP_LTZ", TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
}  # fmt: skip

_TOKEN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<word>[^\W\d]\w*|\d\w*)"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<sign>[<>(),:]))",
    re.DOTALL,
)


class BadSchema(ValueError):
    """A schema that cannot be read, in one line."""


def parse_type(text: str) -> pa.DataType:
    """`id BIGINT, name STRING`, a type such as `STRUCT<…>`, or Spark's own JSON; or BadSchema."""
    stripped = text.strip()
    if stripped.startswith("{"):
        try:
            found = json.loads(stripped)
        except (ValueError, RecursionError) as wrong:
            raise BadSchema(f"it is not JSON ({wrong}); {_EXAMPLE}") from wrong
        return _from_json(found, 0)
    return _Words(stripped).schema()


def to_ddl(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        fields = (f"{quote(field.name)}: {to_ddl(field.type)}" for field in kind)
        return f"STRUCT<{', '.join(fields)}>"
    if pa.types.is_map(kind):
        return f"MAP<{to_ddl(kind.key_type)}, {to_ddl(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{to_ddl(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _IN_WORDS[kind]


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def struct_of(fields: list[tuple[str, pa.DataType]]) -> pa.DataType:
    names = [name for name, _ in fields]
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise BadSchema(f"the field {twice!r} is there twice")
    return pa.struct([pa.field(name, kind) for name, kind in fields])


def list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def map_of(key: pa.DataType, item: pa.DataType) -> pa.DataType:
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", item))


def decimal_of(precision: int, scale: int) -> pa.DataType:
    if not (1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
        raise BadSchema(
            f"decimal({precision},{scale}) is not possible: 1 to 38 digits, scale within them"
        )
    return pa.decimal128(precision, scale)


_EXAMPLE: Final = "wanted: for example id BIGINT, name STRING, tags ARRAY<STRING>"


class _Words:
    """A reader of DDL; it holds where it is."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def schema(self) -> pa.DataType:
        nested = self._peek(0) in ("struct", "array", "map") and self._peek(1) == "<"
        found = self._type() if nested else self._fields(end=None)
        if self._at < len(self._tokens):
            self._fail("the end")
        return found

    def _fields(self, end: str | None) -> pa.DataType:
        fields: list[tuple[str, pa.DataType]] = []
        while self._at < len(self._tokens) and self._peek(0) != end:
            if fields:
                self._expect(",")
            name = self._name()
            if self._peek(0) == ":":
                self._at += 1
            fields.append((name, self._type()))
            self._skip_remarks()
        if not fields and end is None:
            self._fail("a field")
        return struct_of(fields)

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadSchema(f"it is nested more than {DEPTH_MAX} deep")
        try:
            return self._type_here()
        finally:
            self._depth -= 1

    def _type_here(self) -> pa.DataType:
        word = self._peek(0)
        if word in ("struct", "array", "map"):
            self._at += 1
            self._expect("<")
            found = self._nested(word)
            self._expect(">")
            return found
        if word in _DECIMAL_NAMES:
            self._at += 1
            numbers = self._numbers()
            precision, scale = (*numbers, 0)[:2] if numbers else (10, 0)
            return decimal_of(precision, scale)
        if word is None or word not in _BY_NAME:
            self._fail("a type of Spark such as STRING, INT, BIGINT, DOUBLE, TIMESTAMP")
        self._at += 1
        if word in ("varchar", "char", "character"):
            self._numbers()
        return _BY_NAME[word]

    def _nested(self, word: str) -> pa.DataType:
        if word == "struct":
            return self._fields(end=">")
        if word == "array":
            return list_of(self._type())
        key = self._type()
        self._expect(",")
        return map_of(key, self._type())

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if self._peek(0) != "(":
            return numbers
        self._at += 1
        while True:
            word = self._peek(0) or ""
            if not word.isdecimal() or len(word) > 9:
                self._fail("a number")
            numbers.append(int(word))
            self._at += 1
            if self._peek(0) == ")":
                break
            self._expect(",")
        self._at += 1
        return numbers

    def _skip_remarks(self) -> None:
        """NOT NULL promises what nobody can keep for foreign bytes, and a comment is for people."""
        if self._peek(0) == "not" and self._peek(1) == "null":
            self._at += 2
        if self._peek(0) == "comment":
            self._at += 2

    def _name(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] not in ("quoted", "word"):
            self._fail("the name of a field")
        kind, text = self._tokens[self._at]
        self._at += 1
        return text.replace("``", "`") if kind == "quoted" else text

    def _peek(self, ahead: int) -> str | None:
        """The next word in lower case, or sign; what is quoted is never a word of the language."""
        if self._at + ahead >= len(self._tokens):
            return None
        kind, text = self._tokens[self._at + ahead]
        return text.lower() if kind in ("word", "sign") else f"`{text}`"

    def _expect(self, sign: str) -> None:
        if self._peek(0) != sign:
            self._fail(repr(sign))
        self._at += 1

    def _fail(self, wanted: str) -> NoReturn:
        rest = self._tokens[self._at : self._at + 1]
        found = repr(rest[0][1]) if rest else "its end"
        raise BadSchema(f"where {found} stands, {wanted} was expected; {_EXAMPLE}")


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise BadSchema(f"{text[at : at + 20]!r} cannot be read; {_EXAMPLE}")
        tokens.append((found.lastgroup, found[found.lastgroup]))
        at = found.end()
    return tokens


def _from_json(found: object, depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise BadSchema(f"it is nested more than {DEPTH_MAX} deep")
    if isinstance(found, str):
        return _simple_from_json(found)
    if isinstance(found, dict):
        kind = found.get("type")
        if kind == "struct" and isinstance(found.get("fields"), list):
            return struct_of([_field_from_json(field, depth) for field in found["fields"]])
        if kind == "array" and "elementType" in found:
            return list_of(_from_json(found["elementType"], depth + 1))
        if kind == "map" and "keyType" in found and "valueType" in found:
            key = _from_json(found["keyType"], depth + 1)
            return map_of(key, _from_json(found["valueType"], depth + 1))
    raise BadSchema(f"{str(found)[:60]!r} is no type of Spark's JSON (df.schema.json() writes one)")


def _field_from_json(field: object, depth: int) -> tuple[str, pa.DataType]:
    if isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field:
        return field["name"], _from_json(field["type"], depth + 1)
    raise BadSchema(f"{str(field)[:60]!r} is no field of Spark's JSON")


def _simple_from_json(name: str) -> pa.DataType:
    decimal = re.fullmatch(r"decimal(?:\((\d{1,9}),\s*(\d{1,9})\))?", name)
    if decimal is not None:
        return decimal_of(int(decimal[1]), int(decimal[2])) if decimal[1] else decimal_of(10, 0)
    plain = re.sub(r"^((?:var)?char)\(\d+\)$", r"\1", name)
    if plain not in _BY_NAME:
        raise BadSchema(f"{name!r} is a type that is not supported here")
    return _BY_NAME[plain]
