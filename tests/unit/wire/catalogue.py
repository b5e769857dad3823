"""Every declared message, and any value that one of its versions can carry."""

from __future__ import annotations

import importlib
import pkgutil
import struct
from collections.abc import Iterator, Mapping

from hypothesis import strategies as st

import ottla.wire.messages
from ottla.wire.schema import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UINT16,
    UINT32,
    UUID,
    Array,
    Field,
    Kind,
    Message,
    Scalar,
    Struct,
    StructType,
)


def all_messages() -> list[type[Message]]:
    found: set[type[Message]] = set()
    for module in pkgutil.iter_modules(ottla.wire.messages.__path__):
        declared = importlib.import_module(f"{ottla.wire.messages.__name__}.{module.name}")
        found.update(kind for kind in vars(declared).values() if is_message(kind))
    return sorted(found, key=lambda kind: kind.__name__)


def is_message(thing: object) -> bool:
    return isinstance(thing, StructType) and issubclass(thing, Message) and thing is not Message


def all_versions() -> Iterator[tuple[type[Message], int]]:
    for kind in all_messages():
        for version in range(kind.VERSIONS.first, kind.VERSIONS.last + 1):
            yield kind, version


def name_of(message_or_version: object) -> str:
    """How a parameter of a test is called in its id."""
    if isinstance(message_or_version, type):
        return message_or_version.__name__
    return f"v{message_or_version}"


class Narrow:
    """What a field may hold when the other side of a test knows fewer values than the wire."""

    def values(self, _declared: Field) -> st.SearchStrategy[object] | None:
        return None

    def part(self, _declared: Field) -> Narrow:
        return self


def structs(kind: type[Struct], version: int, narrow: Narrow) -> st.SearchStrategy[Struct]:
    """Structs of this kind; what the version does not carry keeps its default."""
    fields: Mapping[str, st.SearchStrategy[object]] = {
        declared.name: _values_of(declared, version, narrow)
        for declared in kind.FIELDS
        if version in declared.versions
    }
    return st.builds(kind, **fields)


def messages(kind: type[Message], version: int) -> st.SearchStrategy[Struct]:
    return structs(kind, version, Narrow())


def _values_of(declared: Field, version: int, narrow: Narrow) -> st.SearchStrategy[object]:
    narrowed = narrow.values(declared)
    if narrowed is not None:
        return narrowed
    values = _kind_values(declared.kind, version, narrow.part(declared))
    if version in declared.nullable:
        values = st.none() | values
    if version in declared.tagged and not declared.is_made_fresh:
        values = st.just(declared.default) | values
    return values


def _kind_values(kind: Kind, version: int, narrow: Narrow) -> st.SearchStrategy[object]:
    if isinstance(kind, StructType):
        return structs(kind, version, narrow)
    if isinstance(kind, Array):
        return st.lists(_kind_values(kind.item, version, narrow), max_size=2)
    return SCALARS[kind]


def _integers(scalar: Scalar) -> st.SearchStrategy[int]:
    bits = 8 * struct.calcsize(scalar.code)
    low = 0 if scalar.code.isupper() else -(2 ** (bits - 1))
    return st.integers(low, low + 2**bits - 1)


# Short values, and some whose length takes more than one byte as a variable-length integer.
texts = st.text(max_size=4) | st.sampled_from(["x" * 126, "x" * 127, "ß" * 64, "é" * 9000])
byte_strings = st.binary(max_size=4) | st.sampled_from([bytes(126), bytes(127), bytes(20_000)])

SCALARS: Mapping[Scalar, st.SearchStrategy[object]] = {
    **{scalar: _integers(scalar) for scalar in (INT8, INT16, UINT16, INT32, UINT32, INT64)},
    BOOL: st.booleans(),
    FLOAT64: st.floats(allow_nan=False),
    UUID: st.binary(min_size=16, max_size=16) | st.just(bytes(16)),
    STRING: texts,
    BYTES: byte_strings,
    RECORDS: byte_strings,
}
