"""Walking over the batches of a file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from ottla.errors import CorruptBatch
from ottla.log.index import Read
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_MIN,
    BATCH_OVERHEAD_BYTES,
    CRC_FROM,
    MAGIC,
    BatchHeader,
    crc_matches,
    read_header,
)
from ottla.wire.schema import Buffer

SCAN_BYTES: Final = 1024 * 1024
OFFSET_DELTA_MAX: Final = 2**31 - 1

_OUTLINE: Final = struct.Struct(">qi11xi")


def batches(read: Read, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of each batch, up to `end` or the first that cannot be one.

    The bytes may be cut short: of a large batch only the beginning is read.
    """
    buffer, buffer_at = memoryview(b""), position
    while end - position >= BATCH_HEADER_BYTES:
        at = position - buffer_at
        if len(buffer) - at < BATCH_HEADER_BYTES:
            buffer = memoryview(read(min(SCAN_BYTES, end - position), position))
            buffer_at, at = position, 0
            if len(buffer) < BATCH_HEADER_BYTES:
                return
        header = read_header(buffer, at)
        if not is_plausible(header) or header.size > end - position:
            return
        yield position, header, buffer[at : at + header.size]
        position += header.size


def whole(read: Read, position: int, header: BatchHeader, batch: memoryview) -> Buffer:
    """All of a batch that `batches` may have cut short: for those that are known to be small."""
    return batch if len(batch) == header.size else read(header.size, position)


def is_intact(read: Read, position: int, header: BatchHeader, batch: memoryview) -> bool:
    """Whether the CRC matches; what `batch` lacks is read piece by piece, as lengths may lie."""
    if len(batch) == header.size:
        return crc_matches(batch, 0, header)
    at, end, crc = position + CRC_FROM, position + header.size, 0
    while at < end:
        data = read(min(SCAN_BYTES, end - at), at)
        if not data:
            return False
        crc = crc32c(data, crc)
        at += len(data)
    return crc == header.crc


def outline(buffer: Buffer, at: int) -> tuple[int, int]:
    """(last offset, size) of the batch at `at`: a third of the price of a whole header."""
    base_offset, batch_length, last_offset_delta = _OUTLINE.unpack_from(buffer, at)
    if batch_length < BATCH_LENGTH_MIN or last_offset_delta < 0:
        raise CorruptBatch(f"length {batch_length}, last offset delta {last_offset_delta}")
    return base_offset + last_offset_delta, batch_length + BATCH_OVERHEAD_BYTES


def is_plausible(header: BatchHeader) -> bool:
    return (
        header.magic == MAGIC
        and header.batch_length >= BATCH_LENGTH_MIN
        and header.base_offset >= 0
        and header.last_offset_delta >= 0
    )
