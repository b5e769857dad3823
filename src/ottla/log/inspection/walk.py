"""Walking over a file whose bytes are not believed: batch after batch, and over what is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from ottla.log.index import Read
from ottla.log.inspection.findings import Trouble
from ottla.log.scan import OFFSET_DELTA_MAX, SCAN_BYTES, is_intact
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_MIN,
    BATCH_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    read_header,
)
from ottla.wire.schema import Buffer

# A message of magic 0 without key and value: CRC, magic, attributes and two lengths.
_OLD_LENGTH_MIN: Final = 14


class ReadableFile(Protocol):
    def size(self) -> int: ...

    def read(self, count: int, position: int) -> Buffer: ...

    def close(self) -> None: ...


class ReadableDisk(Protocol):
    """As much of a disk as an inspection touches: nothing here can write, create or lock."""

    def open(self, path: str) -> ReadableFile: ...

    def list(self, directory: str) -> list[str]: ...

    def exists(self, path: str) -> bool: ...

    def read_file(self, path: str) -> bytes: ...


class Piece(NamedTuple):
    """Bytes of a file: an intact batch, or what is none and why (`trouble` and `what`)."""

    position: int
    size: int
    header: BatchHeader | None
    data: memoryview
    trouble: Trouble | None = None
    what: str = ""


def walk(read: Read, size: int, base_offset: int, position: int = 0) -> Iterator[Piece]:
    """Every byte from `position` to `size` is in one of the pieces.

    `data` may be cut short when a batch is large. After damage the next intact batch whose
    offset may stand in this file is searched for.
    """
    window = _Window(read, size)
    while position < size:
        piece = _piece_at(window, position, base_offset)
        yield piece
        position += piece.size


class _Window:
    """The file in large pieces, one at a time."""

    def __init__(self, read: Read, size: int) -> None:
        self.read = read
        self.size = size
        self._data = memoryview(b"")
        self._at = 0

    def view(self, position: int, wanted: int) -> memoryview:
        """From `position` on, at least `wanted` bytes unless the file ends before."""
        at = position - self._at
        if at < 0 or len(self._data) - at < min(wanted, self.size - position):
            count = min(SCAN_BYTES, self.size - position)
            self._data, self._at, at = memoryview(self.read(count, position)), position, 0
        return self._data[at:]


def _piece_at(window: _Window, position: int, base_offset: int) -> Piece:
    left = window.size - position
    view = window.view(position, BATCH_HEADER_BYTES)
    old_bytes = _old_message_bytes(view, left)
    if old_bytes:
        return _old_run(window, position, old_bytes)
    if len(view) < BATCH_HEADER_BYTES:
        what = f"{left} bytes are too few for a batch"
        return Piece(position, left, None, view, Trouble.LENGTH, what)
    header = read_header(view)
    trouble, what = _judge(header, left)
    if trouble is None:
        data = window.view(position, min(header.size, SCAN_BYTES))[: header.size]
        if is_intact(window.read, position, header, data):
            return Piece(position, header.size, header, data)
        trouble, what = Trouble.CRC, "the CRC of the batch does not match its bytes"
        # The length is outside the CRC: it is believed only if something whole follows it.
        following = window.view(position + header.size, BATCH_HEADER_BYTES)
        if not following or _may_start(following, left - header.size, base_offset):
            return Piece(position, header.size, header, data, trouble, what)
    found = _find_batch(window, position + 1, base_offset)
    length = (window.size if found is None else found) - position
    if not header.magic and _is_zero(window, position, length):
        trouble, what = Trouble.ZEROS, f"{length} bytes are zeros"
    return Piece(position, length, header, view[:BATCH_HEADER_BYTES], trouble, what)


def _judge(header: BatchHeader, left: int) -> tuple[Trouble | None, str]:
    """What of a header cannot be, before any CRC is asked."""
    if header.magic != MAGIC:
        return Trouble.HEADER, f"no batch begins here (magic {header.magic})"
    if header.batch_length < BATCH_LENGTH_MIN:
        return Trouble.LENGTH, f"a batch says that it has {header.size} bytes"
    if header.size > left:
        return Trouble.LENGTH, f"a batch of {header.size} bytes has only {left}"
    if header.base_offset < 0 or header.last_offset_delta < 0:
        return (
            Trouble.HEADER,
            f"a batch from offset {header.base_offset} to {header.last_offset}",
        )
    return None, ""


def _may_start(view: memoryview, left: int, base_offset: int) -> bool:
    if len(view) < BATCH_HEADER_BYTES:
        return False
    header = read_header(view)
    return _judge(header, left)[0] is None and _belongs(header, base_offset)


def _belongs(header: BatchHeader, base_offset: int) -> bool:
    return base_offset <= header.base_offset <= header.last_offset <= base_offset + OFFSET_DELTA_MAX


def _find_batch(window: _Window, position: int, base_offset: int) -> int | None:
    """Where the next intact batch begins."""
    while window.size - position >= BATCH_HEADER_BYTES:
        data = bytes(window.read(min(SCAN_BYTES, window.size - position), position))
        last = len(data) - BATCH_HEADER_BYTES
        at = data.find(MAGIC, MAGIC_AT) - MAGIC_AT
        while 0 <= at <= last:
            header = read_header(data, at)
            left = window.size - position - at
            if _judge(header, left)[0] is None and _belongs(header, base_offset):
                batch = memoryview(data)[at : at + header.size]
                if is_intact(window.read, position + at, header, batch):
                    return position + at
            at = data.find(MAGIC, at + MAGIC_AT + 1) - MAGIC_AT
        if last < 0:
            return None
        position += last + 1
    return None


def _is_zero(window: _Window, position: int, length: int) -> bool:
    end = position + length
    while position < end:
        data = bytes(window.read(min(SCAN_BYTES, end - position), position))
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
    return True


def _old_message_bytes(view: memoryview, left: int) -> int:
    """How long the message of magic 0 or 1 is that lies here; 0 when none does."""
    if len(view) <= MAGIC_AT + 1 or view[MAGIC_AT] >= MAGIC:
        return 0
    length = int.from_bytes(view[8:12], "big", signed=True)
    # Attributes of those days: three bits of codec and one of the kind of timestamp.
    is_message = length >= _OLD_LENGTH_MIN and view[MAGIC_AT + 1] < 16
    size = length + BATCH_OVERHEAD_BYTES
    return size if is_message and size <= left else 0


def _old_run(window: _Window, position: int, size: int) -> Piece:
    """All old messages in a row are told of once."""
    magic, count, end = window.view(position, BATCH_HEADER_BYTES)[MAGIC_AT], 1, position + size
    data = window.view(position, BATCH_HEADER_BYTES)[:BATCH_HEADER_BYTES]
    while end < window.size:
        size = _old_message_bytes(window.view(end, BATCH_HEADER_BYTES), window.size - end)
        if not size:
            break
        count, end = count + 1, end + size
    what = f"{count} messages of magic {magic}, the format before Kafka 0.11, cannot be read"
    return Piece(position, end - position, None, data, Trouble.OLD_FORMAT, what)
