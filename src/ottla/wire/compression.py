"""The four codecs of record batches, in the framing that Kafka's clients read and write.

Whoever sends a batch also chooses how large it becomes, so opening one is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from mmap import mmap
from typing import Final

import cramjam

from ottla.errors import CorruptBatch
from ottla.wire.schema import Buffer

# The Java library around snappy writes blocks behind this header: its magic, its version and the
# oldest version that can read it.
XERIAL_HEADER: Final = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_MAGIC: Final = XERIAL_HEADER[:8]
XERIAL_BLOCK_BYTES: Final = 32 * 1024

GUESS_BYTES_MIN: Final = 16 * 1024
GUESS_RATIO: Final = 8

_INT32: Final = struct.Struct(">i")


class Compression(IntEnum):
    """The lowest three attribute bits of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Compression, data: Buffer) -> bytes:
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec is Compression.SNAPPY:
        return _compress_xerial(data)
    if codec is Compression.LZ4:
        return _compress_lz4(data)
    return bytes(cramjam.zstd.compress(data, level=3))


def decompress(codec: Compression, data: Buffer, bytes_max: int) -> Buffer:
    """Raises CorruptBatch when the data is damaged or would grow past `bytes_max`."""
    if codec is Compression.NONE:
        return data
    if codec is Compression.SNAPPY:
        return _decompress_snappy(data, bytes_max)
    return _decompress_bounded(_OPENERS[codec], data, bytes_max)


_OPENERS: Final[dict[Compression, Callable[[Buffer, bytearray | mmap], int]]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_bounded(
    decompress_into: Callable[[Buffer, bytearray | mmap], int], data: Buffer, bytes_max: int
) -> Buffer:
    """These formats need not say how much will come out: a guess first, then all the room."""
    out = bytearray(min(max(GUESS_BYTES_MIN, GUESS_RATIO * len(data)), bytes_max))
    try:
        return memoryview(out)[: decompress_into(data, out)]
    except cramjam.DecompressionError:
        del out
    # A map takes memory only where it is written, so damaged data costs next to nothing.
    with mmap(-1, bytes_max) as room:
        try:
            return room[: decompress_into(data, room)]
        except cramjam.DecompressionError as error:
            raise CorruptBatch(f"not to be opened within {bytes_max} bytes: {error}") from None


def _compress_lz4(data: Buffer) -> bytes:
    # Kafka's Java reader refuses frames whose blocks refer to each other. Level 1 is the fast way,
    # as Kafka's default is; cramjam's own is the thorough one, which takes five times as long.
    compressor = cramjam.lz4.Compressor(level=1, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, bytes_max: int) -> Buffer:
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _open_snappy_block(view, bytes_max)
    out = bytearray()
    pos = len(XERIAL_HEADER)
    while pos < len(view):
        if len(view) - pos < _INT32.size:
            raise CorruptBatch("snappy: a block length is cut off")
        (size,) = _INT32.unpack_from(view, pos)
        pos += _INT32.size
        if not 0 < size <= len(view) - pos:
            raise CorruptBatch(f"snappy: a block of {size} bytes where {len(view) - pos} are left")
        out += _open_snappy_block(view[pos : pos + size], bytes_max - len(out))
        pos += size
    return out


def _open_snappy_block(block: memoryview, bytes_max: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > bytes_max:
            raise CorruptBatch(f"snappy: {size} bytes where at most {bytes_max} may come out")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(str(error)) from None
