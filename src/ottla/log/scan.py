"""Walking over the batches of a file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from ottla.errors import CorruptBatch
from ottla.log.index import Read
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
)
from ottla.wire.schema import Buffer

SCAN_BYTES: Final = 1024 * 1024
OFFSET_DELTA_MAX: Final = 2**31 - 1

_BATCH_LENGTH_MIN: Final = BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES
_OUTLINE: Final = struct.Struct(">qi11xi")


def batches(
    read: Read, position: int, end: int, *, whole: bool
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of each batch, up to `end` or the first that cannot be one.

    With `whole=False` the bytes may be cut short, and the bodies of large batches are not read.
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
        size = header.size
        if not _is_plausible(header) or size > end - position:
            return
        if whole and len(buffer) - at < size:
            buffer = memoryview(read(min(max(SCAN_BYTES, size), end - position), position))
            buffer_at, at = position, 0
            if len(buffer) < size:
                return
        yield position, header, buffer[at : at + size]
        position += size


def outline(buffer: Buffer, at: int) -> tuple[int, int]:
    """(last offset, size) of the batch at `at`: a third of the price of a whole header."""
    base_offset, batch_length, last_offset_delta = _OUTLINE.unpack_from(buffer, at)
    if batch_length < _BATCH_LENGTH_MIN or last_offset_delta < 0:
        raise CorruptBatch(f"length {batch_length}, last offset delta {last_offset_delta}")
    return base_offset + last_offset_delta, batch_length + BATCH_OVERHEAD_BYTES


def _is_plausible(header: BatchHeader) -> bool:
    return (
        header.magic == MAGIC
        and header.batch_length >= _BATCH_LENGTH_MIN
        and header.base_offset >= 0
        and header.last_offset_delta >= 0
    )
