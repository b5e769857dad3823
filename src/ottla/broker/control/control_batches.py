"""Batches that the quorum itself writes to the metadata log."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from ottla.wire.codec import encode
from ottla.wire.messages.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    Voter,
    VotersRecord,
)
from ottla.wire.records import Record, encode_batch
from ottla.wire.schema import Message

LEADER_CHANGE: Final = 2
KRAFT_VERSION: Final = 5
KRAFT_VOTERS: Final = 6
# As Kafka writes it where the voters are a setting: with ids alone.
LEADER_CHANGE_VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")
_KEY_VERSION: Final = 0


def leader_change_batch(
    leader_id: int, voters: Sequence[int], granting: Sequence[int], now_ms: int
) -> bytearray:
    """What opens each epoch (KIP-595)."""
    message = LeaderChangeMessage(
        LEADER_CHANGE_VERSION,
        leader_id,
        [Voter(voter) for voter in voters],
        [Voter(voter) for voter in granting],
    )
    return _batch([(LEADER_CHANGE, message)], now_ms)


def voters_batch(voters: VotersRecord, now_ms: int, *, is_first: bool) -> bytearray:
    """Who votes from here on; the first one in a log says that they are records (KIP-853)."""
    messages: list[tuple[int, Message]] = [(KRAFT_VOTERS, voters)]
    if is_first:
        messages.insert(0, (KRAFT_VERSION, KRaftVersionRecord(0, 1)))
    return _batch(messages, now_ms)


def control_kind(record: Record) -> int | None:
    """What a control record is; None where it does not say."""
    if record.key is None or len(record.key) < _KEY.size:
        return None
    kind: int = _KEY.unpack_from(record.key)[1]
    return kind


def _batch(messages: Sequence[tuple[int, Message]], now_ms: int) -> bytearray:
    """All of version 0, the only one that is written."""
    records = [
        Record(at, now_ms, _KEY.pack(_KEY_VERSION, kind), encode(message, 0))
        for at, (kind, message) in enumerate(messages)
    ]
    return encode_batch(records, is_control=True)
