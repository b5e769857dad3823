"""The records of `__consumer_offsets` and their bytes, as Kafka 4.0 writes them."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias, TypeVar

from ottla.errors import UnsupportedVersion
from ottla.wire.codec import MalformedMessage, decode, encode
from ottla.wire.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.wire.schema import Message

V = TypeVar("V", bound=Message)

OFFSET_KEY_VERSIONS: Final = (0, 1)
OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
GROUP_VALUE_VERSION: Final = 3
OFFSET_VALUE_VERSION: Final = 3
# The only version that can say when a single offset expires.
OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1

_VERSION: Final = struct.Struct(">h")


class GroupRecord(NamedTuple):
    """A generation of a group; a value of None deletes it."""

    group: str
    value: GroupMetadataValue | None


class OffsetRecord(NamedTuple):
    """A committed position; a value of None deletes it."""

    group: str
    topic: str
    partition: int
    value: OffsetCommitValue | None


Record: TypeAlias = GroupRecord | OffsetRecord


def encode_record(record: Record) -> tuple[bytes, bytes | None]:
    if isinstance(record, OffsetRecord):
        key = _versioned(
            OffsetCommitKey(group=record.group, topic=record.topic, partition=record.partition),
            OFFSET_KEY_VERSION,
        )
        if record.value is None:
            return key, None
        expires = record.value.expire_timestamp >= 0
        version = OFFSET_VALUE_VERSION_WITH_EXPIRY if expires else OFFSET_VALUE_VERSION
        return key, _versioned(record.value, version)
    key = _versioned(GroupMetadataKey(group=record.group), GROUP_KEY_VERSION)
    if record.value is None:
        return key, None
    return key, _versioned(record.value, GROUP_VALUE_VERSION)


def decode_record(key: bytes | None, value: bytes | None) -> Record | None:
    """None for what is not ours to know, which is other kinds of keys.

    MalformedMessage for bytes that are no record, UnsupportedVersion for a value of a newer one.
    """
    if key is None:
        raise MalformedMessage("a group record without a key")
    try:
        (version,) = _VERSION.unpack_from(key)
        if version in OFFSET_KEY_VERSIONS:
            position = decode(OffsetCommitKey, key, version, _VERSION.size)
            committed = None if value is None else _read_versioned(OffsetCommitValue, value)
            return OffsetRecord(position.group, position.topic, position.partition, committed)
        if version == GROUP_KEY_VERSION:
            name = decode(GroupMetadataKey, key, version, _VERSION.size).group
            metadata = None if value is None else _read_versioned(GroupMetadataValue, value)
            if metadata is not None:
                _check_members(metadata)
            return GroupRecord(name, metadata)
    except struct.error:
        raise MalformedMessage("a group record ends before its version") from None
    return None


def _check_members(metadata: GroupMetadataValue) -> None:
    """Two of one name could not be told apart, nor removed one by one."""
    ids = [member.member_id for member in metadata.members]
    instances = [member.group_instance_id for member in metadata.members]
    named = [instance for instance in instances if instance is not None]
    if len({*ids}) < len(ids) or len({*named}) < len(named):
        raise MalformedMessage("two members of a group have the same name")


def _versioned(message: Message, version: int) -> bytes:
    return _VERSION.pack(version) + encode(message, version)


def _read_versioned(kind: type[V], value: bytes) -> V:
    (version,) = _VERSION.unpack_from(value)
    if version not in kind.VERSIONS:
        raise UnsupportedVersion(f"{kind.__name__} version {version} is not known here")
    return decode(kind, value, version, _VERSION.size)
