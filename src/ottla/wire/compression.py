"""The four codecs of record batches, in the framing that Kafka's clients read and write.

Whoever sends a batch also chooses how large it becomes, so opening one is bounded. And it may be
opened beside an event loop: the codecs let go of the interpreter's lock, and nothing else here may
hold it for long. So large results lie in a map of their own, are never copied, and are handed back
to the system piece by piece (`give_back`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final, TypeAlias

import cramjam

from ottla.errors import CorruptBatch, MessageTooLarge, TooLargeToOpen
from ottla.wire.schema import Buffer

# The Java library around snappy writes blocks after this header: its magic, its version and the
# oldest version that can read it.
XERIAL_HEADER: Final = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_MAGIC: Final = XERIAL_HEADER[:8]
XERIAL_BLOCK_BYTES: Final = 32 * 1024

GUESS_BYTES_MIN: Final = 16 * 1024
GUESS_BYTES_MAX: Final = 1024 * 1024
GUESS_RATIO: Final = 8
# What the system takes back at a time: a third of a millisecond each, and 128 MB at once take nine.
RETURNED_BYTES: Final = 4 * 1024 * 1024
LZ4_PIECE_BYTES: Final = 1024 * 1024

# How all of cramjam's codecs say that there was no room for what came out.
_NO_ROOM: Final = "failed to write whole buffer"
Packed: TypeAlias = "Buffer | cramjam.Buffer"

_INT32: Final = struct.Struct(">i")


class Compression(IntEnum):
    """The lowest three attribute bits of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Compression, data: Buffer, bytes_max: int | None = None) -> bytes:
    """Raises MessageTooLarge when more than `bytes_max` comes out."""
    if codec is Compression.NONE:
        return bytes(_within(data, bytes_max))
    if codec is Compression.GZIP:
        return bytes(_within(cramjam.gzip.compress(data), bytes_max))
    if codec is Compression.SNAPPY:
        return _compress_xerial(data, bytes_max)
    if codec is Compression.LZ4:
        return bytes(_within(_compress_lz4(data), bytes_max))
    return bytes(_within(cramjam.zstd.compress(data, level=3), bytes_max))


def _within(data: Packed, bytes_max: int | None) -> Packed:
    if bytes_max is not None and len(data) > bytes_max:
        raise MessageTooLarge(f"{len(data)} bytes of records where {bytes_max} are the limit")
    return data


def decompress(codec: Compression, data: Buffer, bytes_max: int) -> Buffer:
    """Raises CorruptBatch when the data is damaged, TooLargeToOpen when it grows too large."""
    if codec is Compression.NONE:
        return data
    if codec is Compression.SNAPPY:
        return _decompress_snappy(memoryview(data), bytes_max)
    return _decompress_bounded(_OPENERS[codec], data, bytes_max)


def give_back(opened: Buffer) -> None:
    """Returns the memory of what was opened, if that is much; nobody may look at it any more."""
    room = opened.obj if isinstance(opened, memoryview) else None
    if isinstance(room, mmap):
        for start in range(0, len(room), RETURNED_BYTES):
            room.madvise(MADV_DONTNEED, start, min(RETURNED_BYTES, len(room) - start))


def _new_room(byte_count: int) -> bytearray | mmap:
    """A map takes memory only where it is written, so damaged data costs next to nothing."""
    if byte_count <= GUESS_BYTES_MAX:
        return bytearray(byte_count)
    return mmap(-1, byte_count, flags=MAP_PRIVATE | MAP_ANONYMOUS)


_OPENERS: Final[dict[Compression, Callable[[Buffer, bytearray | mmap], int]]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_bounded(
    decompress_into: Callable[[Buffer, bytearray | mmap], int], data: Buffer, bytes_max: int
) -> Buffer:
    """These formats need not say how much will come out: a guess first, then all the room."""
    guess = max(GUESS_BYTES_MIN, GUESS_RATIO * len(data))
    for byte_count in (min(guess, bytes_max), bytes_max):
        if byte_count > GUESS_BYTES_MAX:
            byte_count = bytes_max
        room = _new_room(byte_count)
        try:
            return memoryview(room)[: decompress_into(data, room)]
        except cramjam.DecompressionError as error:
            give_back(memoryview(room))
            if str(error) != _NO_ROOM:
                raise CorruptBatch(str(error)) from None
            if byte_count == bytes_max:
                break
    raise TooLargeToOpen(f"more than {bytes_max} bytes come out of {len(data)}")


def _compress_lz4(data: Buffer) -> cramjam.Buffer:
    # Kafka's Java reader refuses frames whose blocks refer to each other. Level 1 is the fast way,
    # as Kafka's default is; cramjam's own is the thorough one, which takes five times as long.
    compressor = cramjam.lz4.Compressor(level=1, block_linked=False)
    view = memoryview(data)
    for start in range(0, len(view), LZ4_PIECE_BYTES):
        compressor.compress(bytes(view[start : start + LZ4_PIECE_BYTES]))
    return compressor.finish()


def _compress_xerial(data: Buffer, bytes_max: int | None) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    if bytes_max is not None and sum(map(len, parts)) > bytes_max:
        raise MessageTooLarge(f"more than {bytes_max} bytes of records")
    return b"".join(parts)


def _decompress_snappy(view: memoryview, bytes_max: int) -> Buffer:
    """Snappy says how much will come out; blocks of the Java library say it one by one."""
    blocks = [view]
    if view[: len(XERIAL_MAGIC)] == XERIAL_MAGIC:
        blocks = _xerial_blocks(view)
    room, filled = None, 0
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        if sum(sizes) > bytes_max:
            raise TooLargeToOpen(f"more than {bytes_max} bytes come out of {len(view)}")
        room = memoryview(_new_room(sum(sizes)))
        for block, size in zip(blocks, sizes, strict=True):
            cramjam.snappy.decompress_raw_into(block, room[filled : filled + size])
            filled += size
    except cramjam.DecompressionError as error:
        if room is not None:
            give_back(room)
        raise CorruptBatch(str(error)) from None
    return room


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    pos = len(XERIAL_HEADER)
    while pos < len(view):
        if len(view) - pos < _INT32.size:
            raise CorruptBatch("snappy: a block length is cut off")
        (size,) = _INT32.unpack_from(view, pos)
        pos += _INT32.size
        if not 0 < size <= len(view) - pos:
            raise CorruptBatch(f"snappy: a block of {size} bytes where {len(view) - pos} are left")
        blocks.append(view[pos : pos + size])
        pos += size
    return blocks
