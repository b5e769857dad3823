"""How a metadata record lies in the value of a log record: KRaft's frame.

Three unsigned varints (frame version, record type, version of that type), then the body. The key
is null.
"""

from __future__ import annotations

from typing import Final

from ottla.wire.codec import MalformedMessage, decode, encode_chunks, read_uvarint, write_uvarint
from ottla.wire.messages import metadata_records
from ottla.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from ottla.wire.schema import Buffer, Message

FRAME_VERSION: Final = 1

# What Kafka 4.0 writes; types not named here have only 0.
_WRITTEN_VERSIONS: Final[dict[type[Message], int]] = {
    PartitionRecord: 1,
    PartitionChangeRecord: 1,
    RegisterBrokerRecord: 3,
    BrokerRegistrationChangeRecord: 2,
}
# Only records that tell of eligible leaders: what an older node cannot read is not written to it.
_ELIGIBLE_LEADERS_VERSION: Final = 2

_KINDS: Final[dict[int, type[Message]]] = {
    kind.API_KEY: kind
    for kind in vars(metadata_records).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
}


def encode_record(record: Message) -> bytes:
    kind = type(record)
    version = _written_version(record)
    out = bytearray()
    write_uvarint(out, FRAME_VERSION)
    write_uvarint(out, kind.API_KEY)
    write_uvarint(out, version)
    return b"".join(encode_chunks(record, version, out))


def _written_version(record: Message) -> int:
    if isinstance(record, PartitionRecord | PartitionChangeRecord) and not (
        record.eligible_leader_replicas is None and record.last_known_elr is None
    ):
        return _ELIGIBLE_LEADERS_VERSION
    return _WRITTEN_VERSIONS.get(type(record), 0)


def decode_record(value: Buffer) -> Message | None:
    """None for a type that this version does not know; MalformedMessage for what is no frame."""
    view = memoryview(value)
    try:
        frame_version, pos = read_uvarint(view, 0)
        api_key, pos = read_uvarint(view, pos)
        version, pos = read_uvarint(view, pos)
    except IndexError:
        raise MalformedMessage("a metadata record ends within its frame") from None
    if frame_version != FRAME_VERSION:
        raise MalformedMessage(f"a metadata record has the unknown frame version {frame_version}")
    kind = _KINDS.get(api_key)
    if kind is None:
        return None
    if version not in kind.VERSIONS:
        raise MalformedMessage(f"{kind.__name__} has the unknown version {version}")
    return decode(kind, view, version, pos)
