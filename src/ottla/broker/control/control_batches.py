"""Batches that the quorum itself writes to the metadata log."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from ottla.wire.codec import encode
from ottla.wire.messages.control_records import LeaderChangeMessage, Voter
from ottla.wire.records import Record, encode_batch

LEADER_CHANGE: Final = 2
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
    key = _KEY.pack(_KEY_VERSION, LEADER_CHANGE)
    record = Record(0, now_ms, key, encode(message, LEADER_CHANGE_VERSION))
    return encode_batch([record], is_control=True)
