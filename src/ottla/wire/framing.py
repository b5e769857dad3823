"""The heads of requests and replies, as a broker reads and writes them and as a client does.

On the wire both stand after a 4-byte size. The head itself has versions: flexible requests carry
tagged fields after it, and so do their replies, except those of ApiVersions, which a client must
be able to read before it knows what the broker speaks (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.wire.codec import MalformedMessage, encode_chunks, skip_tags
from ottla.wire.schema import Buffer, Message

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
API_VERSIONS_KEY: Final = 18

# The client id keeps its int16 length even in the flexible head.
REQUEST_HEAD: Final = struct.Struct(">hhih")
_SIZE_AND_CORRELATION: Final = struct.Struct(">Ii")
_SIZE: Final = struct.Struct(">I")
_CORRELATION: Final = struct.Struct(">i")


class RequestHead(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def read_head(frame: memoryview, flexible: Callable[[int, int], bool]) -> RequestHead:
    """Reads what stands before a request's body; `flexible` knows each API's flexible versions."""
    try:
        api_key, version, correlation_id, size = REQUEST_HEAD.unpack_from(frame)
        pos = REQUEST_HEAD.size
        client_id = None
        if size >= 0:
            stop = pos + size
            if stop > len(frame):
                raise MalformedMessage("the client id ends after its frame")
            client_id = frame[pos:stop].tobytes().decode()
            pos = stop
        elif size < -1:
            raise MalformedMessage(f"a client id of {size} bytes")
        if flexible(api_key, version):
            pos = skip_tags(frame, pos)
            if pos > len(frame):
                raise MalformedMessage("a tagged field of the head ends after its frame")
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"request head: {error}") from None
    return RequestHead(api_key, version, correlation_id, client_id, pos)


def frame_reply(
    correlation_id: int, flexible_header: bool, message: Message, version: int
) -> list[Buffer]:
    """The chunks of a whole reply, size and header included; the first one is a bytearray."""
    out = bytearray(_SIZE_AND_CORRELATION.size)
    if flexible_header and message.API_KEY != API_VERSIONS_KEY:
        out.append(0)
    chunks = encode_chunks(message, version, out)
    size = sum(map(len, chunks)) - 4
    _SIZE_AND_CORRELATION.pack_into(out, 0, size, correlation_id)
    return chunks


def frame_request(
    correlation_id: int, client_id: str, message: Message, version: int
) -> list[Buffer]:
    """The chunks of a whole request, size and head included; the first one is a bytearray."""
    name = client_id.encode()
    out = bytearray(_SIZE.size)
    out += REQUEST_HEAD.pack(message.API_KEY, version, correlation_id, len(name))
    out += name
    if version in message.FLEXIBLE:
        out.append(0)
    chunks = encode_chunks(message, version, out)
    _SIZE.pack_into(out, 0, sum(map(len, chunks)) - _SIZE.size)
    return chunks


def read_reply_head(frame: memoryview, kind: type[Message], version: int) -> tuple[int, int]:
    """The correlation id of a reply of this kind and version, and where its body begins."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        pos = _CORRELATION.size
        if version in kind.FLEXIBLE and kind.API_KEY != API_VERSIONS_KEY:
            pos = skip_tags(frame, pos)
            if pos > len(frame):
                raise MalformedMessage("a tagged field of the head ends after its frame")
    except (struct.error, IndexError) as error:
        raise MalformedMessage(f"reply head: {error}") from None
    return correlation_id, pos
