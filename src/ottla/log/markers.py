"""The control batch that ends a transaction in a partition.

One record, whose key says how it ended and whose value which coordinator has decided so:

    key    int16 version, int16 type: 0 abort, 1 commit
    value  int16 version, int32 epoch of the coordinator
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ottla.errors import CorruptBatch
from ottla.wire.records import Record, decode_records, encode_batch
from ottla.wire.schema import Buffer

ABORT: Final = 0
COMMIT: Final = 1
OTHER: Final = -1

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0


class Marker(NamedTuple):
    """How a transaction ended: ABORT or COMMIT; OTHER is a control record that ends none."""

    kind: int
    coordinator_epoch: int = -1


def marker_batch(producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> bytearray:
    record = Record(
        0,
        now_ms,
        _KEY.pack(_VERSION, marker.kind),
        _VALUE.pack(_VERSION, marker.coordinator_epoch),
    )
    return encode_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_control=True,
        is_transactional=True,
    )


def read_marker(batch: Buffer) -> Marker | None:
    """Of a control batch; None when its marker has been removed by compaction."""
    records = decode_records(batch)
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch("a control record without a type")
    kind = _KEY.unpack_from(key)[1]
    if kind not in (ABORT, COMMIT):
        return Marker(OTHER)
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatch("the end of a transaction without its coordinator's epoch")
    return Marker(kind, _VALUE.unpack_from(value)[1])
