"""Every declared message, and any value that one of its versions can carry."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from hypothesis import strategies as st

import ottla.wire.messages
from ottla.wire.schema import (
    BOOL,
    BYTES,
    FLOAT64,
    RECORDS,
    STRING,
    UUID,
    Array,
    Field,
    Kind,
    Message,
    Scalar,
    Struct,
    StructType,
)

INTEGER_BITS = {"b": (8, True), "h": (16, True), "H": (16, False), "i": (32, True)}
INTEGER_BITS |= {"I": (32, False), "q": (64, True)}


def all_messages() -> list[type[Message]]:
    found: dict[str, type[Message]] = {}
    for module in pkgutil.iter_modules(ottla.wire.messages.__path__):
        declared = importlib.import_module(f"{ottla.wire.messages.__name__}.{module.name}")
        for name, kind in vars(declared).items():
            if isinstance(kind, StructType) and issubclass(kind, Message) and kind is not Message:
                found[name] = kind
    return [kind for _, kind in sorted(found.items())]


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


# Short values, and some whose length takes more than one byte as a variable-length integer.
texts = st.text(max_size=4) | st.sampled_from(["x" * 126, "x" * 127, "ß" * 64, "é" * 9000])
byte_strings = st.binary(max_size=4) | st.sampled_from([bytes(126), bytes(127), bytes(20_000)])


def _integers(code: str) -> st.SearchStrategy[int]:
    bits, signed = INTEGER_BITS[code]
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1)


SCALARS: dict[Scalar, st.SearchStrategy[object]] = {
    BOOL: st.booleans(),
    FLOAT64: st.floats(allow_nan=False),
    UUID: st.binary(min_size=16, max_size=16) | st.just(bytes(16)),
    STRING: texts,
    BYTES: byte_strings,
    RECORDS: byte_strings,
}


def _add_integers() -> None:
    from ottla.wire import schema

    for name in ("INT8", "INT16", "UINT16", "INT32", "UINT32", "INT64"):
        scalar = getattr(schema, name)
        SCALARS[scalar] = _integers(scalar.code)


_add_integers()
