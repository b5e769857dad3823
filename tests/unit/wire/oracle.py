"""kio, another implementation of Kafka's protocol, as the judge of our own.

kio has a class per version and Python's own types (timedelta, UUID, an enum of errors); fields are
matched by their order, and their names are checked.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import re
import typing
import uuid
from types import NoneType
from typing import Any

from hypothesis import strategies as st
from kio.index import UnknownEntity, _get_entity_path, _resolve
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from ottla.wire.schema import INT64, UUID, Array, Field, Kind, Message, Struct, StructType
from unit.wire.catalogue import Narrow

TIMESTAMP_MS_MAX = 253_402_300_799_000


def schema_name(kind: type[Message]) -> tuple[str, EntityType]:
    """Under which name kio keeps the message, if it does."""
    if kind.__name__.endswith("Request"):
        return api_key_map[kind.API_KEY], EntityType.request
    if kind.__name__.endswith("Response"):
        return api_key_map[kind.API_KEY], EntityType.response
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=^K)(?=Raft)", "_", kind.__name__)
    return name.lower(), EntityType.data


def versions_of(kind: type[Message]) -> set[int]:
    name, entity_type = schema_name(kind)
    known = schema_name_map.get(name, {})
    return {version for version, types in known.items() if entity_type in types}


def counterpart(kind: type[Message], version: int) -> type[Any]:
    """kio's class for one version of a message."""
    name, entity_type = schema_name(kind)
    try:
        return typing.cast(type[Any], _resolve(_get_entity_path(name, version, entity_type)))
    except UnknownEntity as error:
        raise AssertionError(f"kio has no {kind.__name__} v{version}") from error


def read(theirs: type[Any], data: bytes) -> Any:
    entity, size = entity_reader(theirs)(data, 0)
    assert size == len(data)
    return entity


def write(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def paired_fields(
    kind: type[Struct], theirs: type[Any], version: int
) -> list[tuple[Field, dataclasses.Field[Any]]]:
    ours = [declared for declared in kind.FIELDS if version in declared.versions]
    pairs = list(zip(ours, dataclasses.fields(theirs), strict=True))
    for our, their in pairs:
        assert our.name in (their.name.rstrip("_"), their.name + "_ms"), (kind, version)
    return pairs


def part_type(theirs: type[Any], field_name: str) -> type[Any]:
    """The class inside `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    found = typing.get_type_hints(theirs)[field_name]
    while typing.get_origin(found) is not None or not isinstance(found, type):
        found = next(
            argument
            for argument in typing.get_args(found)
            if argument is not NoneType and argument is not Ellipsis
        )
    return typing.cast(type[Any], found)


def is_nullable(theirs: type[Any], field_name: str) -> bool:
    return NoneType in typing.get_args(typing.get_type_hints(theirs)[field_name])


class KioValues(Narrow):
    """Keeps to the values that kio can represent."""

    def __init__(self, kind: type[Struct], theirs: type[Any], version: int) -> None:
        self.theirs = theirs
        self.version = version
        self.pairs = {our.name: their for our, their in paired_fields(kind, theirs, version)}

    def values(self, declared: Field) -> st.SearchStrategy[object] | None:
        their = self.pairs[declared.name]
        match their.metadata.get("kafka_type"):
            case "error_code":
                return st.sampled_from([int(code) for code in ErrorCode])
            case "timedelta_i64":
                return st.integers(-(2**40), 2**40)
            case "datetime_i64":
                seconds = st.integers(0, TIMESTAMP_MS_MAX // 1000)
                timestamps = seconds.map(lambda value: value * 1000)
                if is_nullable(self.theirs, their.name):
                    return st.just(-1) | timestamps
                return timestamps
        return None

    def part(self, declared: Field) -> Narrow:
        kind = declared.kind.item if isinstance(declared.kind, Array) else declared.kind
        if not isinstance(kind, StructType):
            return Narrow()
        theirs = part_type(self.theirs, self.pairs[declared.name].name)
        return KioValues(typing.cast(type[Struct], kind), theirs, self.version)


def to_ours(kind: Kind, value: Any, version: int) -> Any:
    """kio's value as ours, to be compared field by field."""
    if isinstance(kind, Array):
        return None if value is None else [to_ours(kind.item, item, version) for item in value]
    if isinstance(kind, StructType):
        if value is None:
            return None
        pairs = paired_fields(typing.cast(type[Struct], kind), type(value), version)
        return kind(
            **{
                our.name: to_ours(our.kind, getattr(value, their.name), version)
                for our, their in pairs
            }
        )
    if kind is UUID:
        return bytes(16) if value is None else typing.cast(uuid.UUID, value).bytes
    if value is None and kind is INT64:
        return -1  # a time that is not given
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
        return (value - epoch) // datetime.timedelta(milliseconds=1)
    return value
