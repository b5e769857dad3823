"""Reads and writes declared messages.

For every pair of message and version that is really used, a reader or a writer is compiled once
(see `generator`). Records are never copied: a reader returns a view into the frame, a writer passes
the buffer on as a chunk of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from ottla.wire.generator import ReaderSource, WriterSource
from ottla.wire.schema import BYTES, Buffer, Message, field

M = TypeVar("M", bound=Message)

Reader = Callable[[memoryview, int, int], tuple[Any, int]]
Writer = Callable[[Any, bytearray, list[Buffer]], bytearray]

UVARINT_SHIFTS: Final = (0, 7, 14, 21, 28)


class MalformedMessage(Exception):
    """Bytes that are not the message they claim to be."""


class NotEncodable(Exception):
    """A value that its field cannot carry, or a version that its message does not have."""


class EncodedMessage(Message, versions="0+", flexible="none"):
    """A message whose bytes are known already, such as an answer that many ask for."""

    body: bytes = field(BYTES)


def decode(kind: type[M], data: Buffer, version: int, pos: int = 0) -> M:
    """Reads one message; bytes after it are an error."""
    message, stop = decode_prefix(kind, data, version, pos)
    if stop != len(data):
        raise MalformedMessage(f"{kind.__name__} v{version}: {len(data) - stop} bytes too many")
    return message


def decode_prefix(kind: type[M], data: Buffer, version: int, pos: int = 0) -> tuple[M, int]:
    """Reads one message and says where it ended."""
    reader = _READERS.get((kind, version)) or _compile_reader(kind, version)
    view = data if isinstance(data, memoryview) else memoryview(data)
    end = len(view)
    try:
        message, pos = reader(view, pos, end)
    except (struct.error, IndexError, UnicodeDecodeError, MalformedMessage) as error:
        raise MalformedMessage(f"{kind.__name__} v{version}: {error}") from None
    if pos > end:
        raise MalformedMessage(f"{kind.__name__} v{version}: {pos - end} bytes are missing")
    return message, pos


def encode(message: Message, version: int) -> bytes:
    return b"".join(encode_chunks(message, version, bytearray()))


def encode_chunks(message: Message, version: int, out: bytearray) -> list[Buffer]:
    """Writes after what is in `out`; returns the chunks to send, `out` being the first."""
    kind = type(message)
    writer = _WRITERS.get((kind, version)) or _compile_writer(kind, version)
    chunks: list[Buffer] = []
    try:
        out = writer(message, out, chunks)
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise NotEncodable(f"{kind.__name__} v{version}: {error}") from error
    if out:
        chunks.append(out)
    return chunks


def read_uvarint(buf: memoryview, pos: int) -> tuple[int, int]:
    """An unsigned integer, seven bits a byte, the lowest first; IndexError at the end of `buf`."""
    value = 0
    for shift in UVARINT_SHIFTS:
        byte = buf[pos]
        pos += 1
        if byte < 0x80:
            return value | byte << shift, pos
        value |= (byte & 0x7F) << shift
    raise MalformedMessage(f"a variable-length integer has more than {len(UVARINT_SHIFTS)} bytes")


def skip_tags(buf: memoryview, pos: int) -> int:
    """Where a section of tagged fields ends; IndexError or a place past the end of `buf`."""
    count, pos = read_uvarint(buf, pos)
    for _ in range(count):
        _, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
    return pos


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def write_tags(out: bytearray, tags: list[tuple[int, bytearray]]) -> None:
    write_uvarint(out, len(tags))
    for tag, data in tags:
        write_uvarint(out, tag)
        write_uvarint(out, len(data))
        out += data


_READERS: dict[tuple[type[Message], int], Reader] = {}
_WRITERS: dict[tuple[type[Message], int], Writer] = {}


def _compile_reader(kind: type[Message], version: int) -> Reader:
    if version not in kind.VERSIONS:
        raise MalformedMessage(f"{kind.__name__} has no version {version}")
    source = ReaderSource(kind, version)
    scope = {
        "MalformedMessage": MalformedMessage,
        "read_uvarint": read_uvarint,
        "skip_tags": skip_tags,
        **source.constants,
    }
    exec(compile(source.text, f"<reader of {kind.__name__} v{version}>", "exec"), scope)
    reader = _READERS[kind, version] = cast(Reader, scope["read"])
    return reader


def _write_encoded(message: EncodedMessage, out: bytearray, chunks: list[Buffer]) -> bytearray:
    chunks += (out, message.body)
    return bytearray()


def _compile_writer(kind: type[Message], version: int) -> Writer:
    if version not in kind.VERSIONS:
        raise NotEncodable(f"{kind.__name__} has no version {version}")
    if kind is EncodedMessage:
        _WRITERS[kind, version] = _write_encoded
        return _write_encoded
    source = WriterSource(kind, version)
    scope = {
        "NotEncodable": NotEncodable,
        "write_uvarint": write_uvarint,
        "write_tags": write_tags,
        **source.constants,
    }
    exec(compile(source.text, f"<writer of {kind.__name__} v{version}>", "exec"), scope)
    writer = _WRITERS[kind, version] = cast(Writer, scope["write"])
    return writer
