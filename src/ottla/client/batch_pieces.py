"""A record batch that a leader finds too large becomes several, with the same records in order.

Here each record is opened, one by one: this is for the batch that was refused, not for every one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.wire.compression import Compression
from ottla.wire.records import SEQUENCE_MAX, Record, decode_records, encode_batch, read_header

# Lengths, deltas and attributes of a record, roughly.
RECORD_OVERHEAD_BYTES: Final = 10


class Piece(NamedTuple):
    """A whole batch, stamped and sealed as the one that it was cut from."""

    data: bytearray
    records: int
    sequence: int


def cut_batch(batch: bytearray, bytes_max: int) -> list[Piece]:
    """At least two pieces of about `bytes_max`; a record that is larger has one of its own.

    They count on from the sequence of the batch, so that what follows it keeps its sequences.
    """
    header = read_header(batch)
    records = decode_records(batch)
    if len(records) < 2:
        raise ValueError("one record cannot be cut")
    parts = max(2, -(-len(batch) // bytes_max))
    pieces, sequence = [], header.base_sequence
    for group in _grouped(records, parts):
        data = encode_batch(
            [record._replace(offset=at) for at, record in enumerate(group)],
            compression=Compression(header.compression),
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=sequence,
        )
        pieces.append(Piece(data, len(group), sequence))
        if sequence >= 0:
            sequence = (sequence + len(group)) & SEQUENCE_MAX
    return pieces


def _grouped(records: list[Record], parts: int) -> list[list[Record]]:
    """In order, none empty, each with its share of the bytes at most unless it is one record."""
    sizes = [_size(record) for record in records]
    share = sum(sizes) / parts
    groups: list[list[Record]] = []
    room = 0.0
    for record, size in zip(records, sizes, strict=True):
        if size > room:
            groups.append([])
            room = share
        groups[-1].append(record)
        room -= size
    return groups


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"") + headers
