"""Taking records out of a batch without building a single one of them.

The loop over a batch's records finds where each begins and ends, its key, and whether it has a
value. What stays is copied as it lies there; only a delete horizon, which takes the place of the
base timestamp, makes a record's own time be written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ottla.errors import CorruptBatch
from ottla.log.values import NO_TIMESTAMP
from ottla.wire.codec import write_uvarint
from ottla.wire.compression import Compression, compress
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_MIN,
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    BatchHeader,
    open_records,
    seal_batch,
)
from ottla.wire.scanning import NULL_LENGTH, rest_of_varint
from ottla.wire.schema import Buffer

HORIZON_MS_MAX: Final = 2**63 - 1


# Where a record lies in its opened batch, and what compaction asks of it: start, where its body
# begins, where its offset does, stop, timestamp delta, offset delta, key, whether it has a value.
# A plain tuple, as one is made per message.
Outline = tuple[int, int, int, int, int, int, bytes | None, bool]


def keys_and_deltas(batch: Buffer, header: BatchHeader) -> tuple[list[bytes | None], list[int]]:
    """The key and the offset delta of each record; CorruptBatch on any lie."""
    data = _opened(batch, header)
    keys: list[bytes | None] = []
    deltas: list[int] = []
    try:
        end = _collect_keys(data, header.count, keys.append, deltas.append)
    except IndexError:
        raise CorruptBatch("a record ends after its batch") from None
    if end != len(data):
        raise CorruptBatch(f"{len(data) - end} bytes after the last record")
    return keys, deltas


def _collect_keys(
    data: bytes,
    count: int,
    add_key: Callable[[bytes | None], None],
    add_delta: Callable[[int], None],
) -> int:
    """The same walk as in `_outlines`, for who asks for less."""
    pos = 0
    for _ in range(count):
        size = data[pos]
        pos += 1
        if size >= 0x80:
            byte = data[pos]
            pos += 1
            if byte < 0x80:
                size = size & 0x7F | byte << 7
            else:
                size, pos = rest_of_varint(data, pos - 1, size)
        stop = pos + (size >> 1)
        pos += 1
        while data[pos] >= 0x80:
            pos += 1
        offset = data[pos + 1]
        pos += 2
        if offset >= 0x80:
            offset, pos = rest_of_varint(data, pos, offset)
        key_bytes = data[pos]
        pos += 1
        if key_bytes == NULL_LENGTH:
            add_key(None)
        else:
            if key_bytes >= 0x80:
                key_bytes, pos = rest_of_varint(data, pos, key_bytes)
            key_end = pos + (key_bytes >> 1)
            add_key(data[pos:key_end])
            pos = key_end
            size |= key_bytes
        if (size | offset) & 1 or pos >= stop:
            raise CorruptBatch(f"a record of {size >> 1} bytes does not hold what it says")
        add_delta(offset >> 1)
        pos = stop
    return pos


def _opened(batch: Buffer, header: BatchHeader) -> bytes:
    if header.attributes & COMPRESSION_MASK:
        return bytes(open_records(batch, 0, header))
    return bytes(memoryview(batch)[BATCH_HEADER_BYTES:])


def outlines(batch: Buffer, header: BatchHeader) -> tuple[bytes, list[Outline]]:
    """The opened records as one piece, and where each of them is; CorruptBatch on any lie."""
    data = _opened(batch, header)
    try:
        found, end = _outlines(data, header.count)
    except IndexError:
        raise CorruptBatch("a record ends after its batch") from None
    if end != len(data):
        raise CorruptBatch(f"{len(data) - end} bytes after the last record")
    return data, found


def _outlines(data: bytes, count: int) -> tuple[list[Outline], int]:
    """Varints are read where they are met: this loop sees every message of a log, twice."""
    found: list[Outline] = []
    add = found.append
    pos = 0
    for _ in range(count):
        start = pos
        size = data[pos]
        pos += 1
        if size >= 0x80:
            byte = data[pos]
            pos += 1
            if byte < 0x80:
                size = size & 0x7F | byte << 7
            else:
                size, pos = rest_of_varint(data, pos - 1, size)
        body_at = pos
        stop = pos + (size >> 1)
        delta = data[pos + 1]
        pos += 2
        if delta >= 0x80:
            delta, pos = rest_of_varint(data, pos, delta)
        offset_at = pos
        offset = data[pos]
        pos += 1
        if offset >= 0x80:
            offset, pos = rest_of_varint(data, pos, offset)
        key_bytes = data[pos]
        pos += 1
        if key_bytes >= 0x80:
            key_bytes, pos = rest_of_varint(data, pos, key_bytes)
        if key_bytes == NULL_LENGTH:
            key = None
            is_odd = size | offset
        else:
            key_end = pos + (key_bytes >> 1)
            key = data[pos:key_end]
            pos = key_end
            is_odd = size | offset | key_bytes
        if is_odd & 1 or pos >= stop:
            raise CorruptBatch(f"a record of {size >> 1} bytes does not hold what it says")
        delta = delta >> 1 ^ -(delta & 1)
        has_value = data[pos] != NULL_LENGTH
        add((start, body_at, offset_at, stop, delta, offset >> 1, key, has_value))
        pos = stop
    return found, pos


def without_records(header: BatchHeader) -> bytearray:
    """The header alone: offsets, producer and epoch are still told when all records are gone."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    emptied = header._replace(
        batch_length=BATCH_LENGTH_MIN, attributes=attributes, base_timestamp=NO_TIMESTAMP, count=0
    )
    return seal_batch(emptied, b"")


def with_records(
    header: BatchHeader, data: bytes, kept: Sequence[Outline], horizon_ms: int | None
) -> bytearray:
    """The batch with the kept records only, under its own codec, and with a new delete horizon.

    Offsets, sequences, producer and epoch stay. The base timestamp stays as well, unless there is
    a horizon: then the records' times count from that.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if header.is_log_append_time:
        max_timestamp = header.max_timestamp
    else:
        max_timestamp = base_timestamp + max([record[4] for record in kept])
    if horizon_ms is None:
        body: Buffer = b"".join([data[record[0] : record[3]] for record in kept])
    else:
        shift = base_timestamp - horizon_ms
        body = _moved(data, kept, shift)
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = horizon_ms
    codec = Compression(header.compression)
    if codec is not Compression.NONE:
        body = compress(codec, body)
    changed = header._replace(
        batch_length=BATCH_LENGTH_MIN + len(body),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        count=len(kept),
    )
    return seal_batch(changed, body)


def _moved(data: bytes, kept: Sequence[Outline], shift: int) -> bytearray:
    """The records with other timestamp deltas; everything else of them is copied."""
    out = bytearray()
    for _, body_at, offset_at, stop, timestamp_delta, _, _, _ in kept:
        delta = timestamp_delta + shift
        body = bytearray(data[body_at : body_at + 1])
        write_uvarint(body, delta << 1 if delta >= 0 else ~delta << 1 | 1)
        body += data[offset_at:stop]
        write_uvarint(out, len(body) << 1)
        out += body
    return out
