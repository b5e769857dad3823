"""The commonest request of all, read and answered without building messages.

A produce request with one batch for one partition differs from the one before it on the same
connection in its correlation id and its batch. What stands between the two is read once, becomes a
`ProduceShape`, and is afterwards only compared. The reply is cut from what the general writer
wrote for the same topic and version, so its bytes cannot differ.

Whatever has another shape, tagged fields included, is None here: the general reader takes it, and
it alone says what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from ottla.wire.codec import MalformedMessage, read_uvarint
from ottla.wire.framing import REQUEST_HEAD, frame_reply
from ottla.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

# Before version 7 a batch may not be compressed with zstd, which only the general path looks at.
FIRST_VERSION: Final = 7
LAST_VERSION: Final = 12
FLEXIBLE_VERSION: Final = 9
TEMPLATES_MAX: Final = 1024
PRODUCE_KEY: Final = bytes(2)

# After API key, version and correlation id, of which the first two are compared on their own.
PREFIX_AT: Final = 8
# In replies, too, where the size stands before it.
CORRELATION_AT: Final = 4
# Of a reply without tags in its header.
REPLY_BODY_AT: Final = 8

_SIZE: Final = struct.Struct(">i")
_FLEXIBLE_START: Final = struct.Struct(">BBhiB")
_PLAIN_START: Final = struct.Struct(">hhii")
_FLEXIBLE_PARTITION: Final = struct.Struct(">Bi")
_PLAIN_PARTITION: Final = struct.Struct(">ii")
_NAME_SIZE: Final = struct.Struct(">h")
# After a partition's index and error code: base offset, append time, start of the log.
_INDEX_AND_ERROR: Final = struct.Struct(">ih")
_PLACE_BYTES: Final = 24
_NO_TAGS: Final = b"\0\0\0"


class ReplyTemplate(NamedTuple):
    """A reply's bytes around what differs from one partition and request to the next."""

    size: int
    before: bytes
    after: bytes
    pack: Callable[..., bytes]


@lru_cache(TEMPLATES_MAX)
def reply_template(version: int, topic: str) -> ReplyTemplate:
    zeros, ones = (_encoded(version, topic, number) for number in (0, -1))
    index_at = next(at for at, byte in enumerate(zeros) if byte != ones[at])
    before = zeros[REPLY_BODY_AT:index_at]
    after = zeros[index_at + _INDEX_AND_ERROR.size + _PLACE_BYTES :]
    before_bytes = len(before) + _INDEX_AND_ERROR.size
    pack = struct.Struct(f">ii{before_bytes}sqqq{len(after)}s").pack
    return ReplyTemplate(len(zeros) - 4, before, after, pack)


def _encoded(version: int, topic: str, number: int) -> bytes:
    answer = PartitionProduceResponse(
        number, base_offset=number, log_append_time_ms=number, log_start_offset=number
    )
    response = ProduceResponse([TopicProduceResponse(topic, [answer])])
    return b"".join(frame_reply(0, version >= FLEXIBLE_VERSION, response, version))


class ProduceShape:
    """What the requests of a connection for one partition have in common.

    The reply to one of them is `pack(size, correlation_id, before, base_offset, append_time_ms,
    log_start_offset, after)`.
    """

    __slots__ = (
        "acks",
        "after",
        "before",
        "head",
        "index",
        "pack",
        "prefix",
        "records_at",
        "size",
        "timeout_ms",
        "topic",
        "version",
    )

    def __init__(
        self, version: int, acks: int, timeout_ms: int, topic: str, index: int, prefix: bytes
    ) -> None:
        self.version = version
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topic = topic
        self.index = index
        self.head = prefix[:CORRELATION_AT]
        self.prefix = prefix[PREFIX_AT:]
        self.records_at = len(prefix)
        template = reply_template(version, topic)
        self.size = template.size
        self.before = template.before + _INDEX_AND_ERROR.pack(index, 0)
        self.after = template.after
        self.pack = template.pack


def read_shape(frame: bytearray) -> ProduceShape | None:
    """The shape of a whole frame, if it has one; `records_in` must still agree."""
    try:
        api_key, version, _, size = REQUEST_HEAD.unpack_from(frame)
        if api_key != 0 or not FIRST_VERSION <= version <= LAST_VERSION or size < -1:
            return None
        pos = REQUEST_HEAD.size + max(size, 0)
        frame[REQUEST_HEAD.size : pos].decode()
        if version >= FLEXIBLE_VERSION:
            tags, transactional_id, acks, timeout_ms, topics = _FLEXIBLE_START.unpack_from(
                frame, pos
            )
            if tags or transactional_id or topics != 1 + 1:
                return None
            name_size, pos = read_uvarint(memoryview(frame), pos + _FLEXIBLE_START.size)
            name_size -= 1
        else:
            transactional_id, acks, timeout_ms, topics = _PLAIN_START.unpack_from(frame, pos)
            if transactional_id != -1 or topics != 1:
                return None
            (name_size,) = _NAME_SIZE.unpack_from(frame, pos + _PLAIN_START.size)
            pos += _PLAIN_START.size + _NAME_SIZE.size
        if name_size < 0:
            return None
        topic = frame[pos : pos + name_size].decode()
        pos += name_size
        if version >= FLEXIBLE_VERSION:
            partitions, index = _FLEXIBLE_PARTITION.unpack_from(frame, pos)
            partitions -= 1
            pos += _FLEXIBLE_PARTITION.size
        else:
            partitions, index = _PLAIN_PARTITION.unpack_from(frame, pos)
            pos += _PLAIN_PARTITION.size
    except (struct.error, IndexError, UnicodeDecodeError, MalformedMessage):
        return None
    if partitions != 1:
        return None
    return ProduceShape(version, acks, timeout_ms, topic, index, bytes(frame[:pos]))


def records_in(frame: bytearray, shape: ProduceShape) -> memoryview | None:
    """The records of a frame with this shape's prefix, if they fill it to its end."""
    pos = shape.records_at
    end = len(frame)
    try:
        if shape.version >= FLEXIBLE_VERSION:
            size = frame[pos]
            pos += 1
            if size > 0x7F:
                high = frame[pos]
                if high > 0x7F:
                    size, pos = read_uvarint(memoryview(frame), pos - 1)
                else:
                    size = size & 0x7F | high << 7
                    pos += 1
            end -= len(_NO_TAGS)
            if size == 0 or pos + size - 1 != end or not frame.endswith(_NO_TAGS):
                return None
        else:
            (size,) = _SIZE.unpack_from(frame, pos)
            pos += _SIZE.size
            if pos + size != end:
                return None
    except (struct.error, IndexError, MalformedMessage):
        return None
    return memoryview(frame)[pos:end]
