"""What the records of a log say, for people: control records, metadata, groups and offsets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from ottla.cluster import framing
from ottla.cluster.names import id_text
from ottla.coordinators import group_records
from ottla.coordinators.group_records import OffsetRecord
from ottla.errors import OttlaError
from ottla.types import METADATA_TOPIC, OFFSETS_TOPIC
from ottla.wire.codec import MalformedMessage, decode, read_uvarint
from ottla.wire.messages.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    VotersRecord,
)
from ottla.wire.messages.snapshot_records import SnapshotFooterRecord, SnapshotHeaderRecord
from ottla.wire.records import Record
from ottla.wire.schema import UUID, Message, Struct

Decoder = Callable[[Record], dict[str, Any] | None]

_CONTROL_KEY: Final = struct.Struct(">hh")
_TRANSACTION_MARKER: Final = struct.Struct(">hi")
_CONTROL_KINDS: Final[dict[int, tuple[str, type[Message] | None]]] = {
    0: ("ABORT", None),
    1: ("COMMIT", None),
    2: ("LEADER_CHANGE", LeaderChangeMessage),
    3: ("SNAPSHOT_HEADER", SnapshotHeaderRecord),
    4: ("SNAPSHOT_FOOTER", SnapshotFooterRecord),
    5: ("KRAFT_VERSION", KRaftVersionRecord),
    6: ("KRAFT_VOTERS", VotersRecord),
}
# Records of Kafka's metadata log that Ottla does not use; their bytes are shown.
_FOREIGN_METADATA: Final = {
    10: "DelegationTokenRecord",
    11: "UserScramCredentialRecord",
    14: "ClientQuotaRecord",
    18: "AccessControlEntryRecord",
    19: "RemoveAccessControlEntryRecord",
    21: "ZkMigrationStateRecord",
    22: "RemoveUserScramCredentialRecord",
    23: "BeginTransactionRecord",
    24: "EndTransactionRecord",
    25: "AbortTransactionRecord",
    26: "RemoveDelegationTokenRecord",
    28: "ClearElrRecord",
}


def decoder_for(topic: str | None) -> Decoder | None:
    """How to open the records of this topic beyond their bytes, if its format is known."""
    if topic == METADATA_TOPIC:
        return _open_metadata
    if topic == OFFSETS_TOPIC:
        return _open_group_record
    return None


def open_control(record: Record) -> dict[str, Any] | None:
    """Transaction markers and the quorum's own records."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        return None
    _, kind = _CONTROL_KEY.unpack_from(record.key)
    name, message = _CONTROL_KINDS.get(kind, (f"CONTROL_{kind}", None))
    value = record.value or b""
    opened: dict[str, Any] = {"is": name}
    if kind in (0, 1) and len(value) >= _TRANSACTION_MARKER.size:
        opened["coordinator_epoch"] = _TRANSACTION_MARKER.unpack_from(value)[1]
    elif message is not None and len(value) >= 2:
        version = int.from_bytes(value[:2], "big", signed=True)
        try:
            opened |= plain(decode(message, value, min(version, message.VERSIONS.last)))
        except MalformedMessage as error:
            opened["unreadable"] = str(error)
    return opened


def _open_metadata(record: Record) -> dict[str, Any] | None:
    if record.value is None:
        return None
    try:
        opened = framing.decode_record(record.value)
    except MalformedMessage as error:
        return {"unreadable": str(error)}
    if opened is not None:
        return {"is": type(opened).__name__, **plain(opened)}
    view = memoryview(record.value)
    kind, _ = read_uvarint(view, read_uvarint(view, 0)[1])
    return {"is": _FOREIGN_METADATA.get(kind, f"metadata record of type {kind}")}


def _open_group_record(record: Record) -> dict[str, Any] | None:
    try:
        opened = group_records.decode_record(record.key, record.value)
    except (OttlaError, MalformedMessage) as error:
        return {"unreadable": str(error)}
    if opened is None:
        return None
    value = {"deleted": True} if opened.value is None else plain(opened.value)
    if isinstance(opened, OffsetRecord):
        place = {"group": opened.group, "topic": opened.topic, "partition": opened.partition}
        return {"is": "offset", **place, **value}
    return {"is": "group", "group": opened.group, **value}


def plain(message: Struct) -> dict[str, Any]:
    """A message as JSON has it: ids as Kafka prints them, bytes as text where they are text."""
    return {
        declared.name: (
            _ids(getattr(message, declared.name))
            if UUID in (declared.kind, getattr(declared.kind, "item", None))
            else _plain_value(getattr(message, declared.name))
        )
        for declared in message.FIELDS
    }


def _ids(value: Any) -> Any:
    if value is None:
        return None
    return [id_text(each) for each in value] if isinstance(value, list) else id_text(value)


def _plain_value(value: Any) -> Any:
    if isinstance(value, Struct):
        return plain(value)
    if isinstance(value, list):
        return [_plain_value(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return readable(bytes(value))
    return value


def readable(data: bytes | None) -> str | dict[str, str] | None:
    """Text where the bytes are printable text, otherwise their digits."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
    return text if text.isprintable() else {"hex": data.hex()}
