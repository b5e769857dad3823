"""The transaction index of a segment: which transactions were aborted by markers in it.

    .txnindex   int16 version, int64 producer id, int64 first offset of the transaction,
                int64 offset of its marker, int64 last stable offset after the marker

Entries are in the order of their markers. A segment without any has no file. What is appended is
written and synced together with the batches, so that up to the recovery point the file is right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.log.index import Read
from ottla.wire.schema import Buffer

VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = _ENTRY.size
_READ_ENTRIES: Final = 120


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return _ENTRY.pack(VERSION, *self)


def decode_entries(data: Buffer) -> Iterator[AbortedTransaction]:
    """Those that are whole, believed as they are."""
    end = len(data) - len(data) % ENTRY_BYTES
    for fields in _ENTRY.iter_unpack(memoryview(data)[:end]):
        yield AbortedTransaction._make(fields[1:])


def entries_before(data: Buffer, base_offset: int, offset: int) -> bytes:
    """Of the contents of a file, what is right and tells of markers before `offset`.

    After a crash there may be anything where entries had not been synced.
    """
    kept, marker_before = 0, base_offset - 1
    for entry in decode_entries(data):
        is_right = (
            data[kept] == data[kept + 1] == VERSION
            and entry.producer_id >= 0
            and 0 <= entry.first_offset < entry.marker_offset
            and marker_before < entry.marker_offset < offset
            and entry.last_stable_offset <= entry.marker_offset + 1
        )
        if not is_right:
            break
        kept, marker_before = kept + ENTRY_BYTES, entry.marker_offset
    return bytes(data[:kept])


def collect(
    read: Read, size: int, offset: int, end_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Those that touch offsets from `offset` to before `end_offset`; and whether that is all.

    Where it is not, later segments may have the ends of transactions that began before it.
    """
    found: list[AbortedTransaction] = []
    for entry in _entries_from(read, size, offset):
        if entry.first_offset < end_offset:
            found.append(entry)
        if entry.last_stable_offset >= end_offset:
            return found, True
    return found, False


def _entries_from(read: Read, size: int, offset: int) -> Iterator[AbortedTransaction]:
    """From the first one on whose marker is at `offset` or after it."""
    first, count = 0, size // ENTRY_BYTES
    end = count
    while first < end:
        middle = (first + end) // 2
        data = read(ENTRY_BYTES, middle * ENTRY_BYTES)
        if len(data) < ENTRY_BYTES or _ENTRY.unpack(data)[3] >= offset:
            end = middle
        else:
            first = middle + 1
    while first < count:
        wanted = min(_READ_ENTRIES, count - first)
        data = read(wanted * ENTRY_BYTES, first * ENTRY_BYTES)
        yield from decode_entries(data)
        if len(data) < wanted * ENTRY_BYTES:
            return
        first += wanted
