"""What the broker and its compaction process say to each other.

Frames of a length and JSON, in both directions. The broker sends a job; the process answers with
signs of life while it works, with one `cleaned` per new segment, for each of which it waits to be
told to go on, and with `done` or `failed`. When the broker's end closes, the process ends.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from typing import Any, Final

from ottla.errors import OttlaError
from ottla.log.compaction.job import CompactionJob, Source
from ottla.log.compaction.output import CleanedSegment

# A hundred thousand producers and ten thousand segments are a third of this.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
LENGTH: Final = struct.Struct(">I")

JOB: Final = "job"
GO_ON: Final = "go on"
ALIVE: Final = "alive"
CLEANED: Final = "cleaned"
DONE: Final = "done"
FAILED: Final = "failed"

Message = dict[str, Any]


class FrameTooLarge(OttlaError):
    """A message between the broker and its compaction process is above the bound."""


def encode(kind: str, **fields: Any) -> bytes:
    body = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"{kind}: {len(body)} bytes, {FRAME_BYTES_MAX} at most")
    return LENGTH.pack(len(body)) + body


def body_bytes(length: bytes) -> int:
    size = int(LENGTH.unpack(length)[0])
    if size > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"{size} bytes, {FRAME_BYTES_MAX} at most")
    return size


def decode(body: bytes) -> Message:
    message: Message = json.loads(body)
    return message


def encode_job(job: CompactionJob) -> bytes:
    fields = asdict(job)
    fields["producers"] = [[producer_id, *last] for producer_id, last in job.producers.items()]
    return encode(JOB, **fields)


def decode_job(message: Message) -> CompactionJob:
    fields = {name: value for name, value in message.items() if name != "kind"}
    fields["sources"] = [Source(*source) for source in fields["sources"]]
    fields["producers"] = {one: (offset, epoch) for one, offset, epoch in fields["producers"]}
    return CompactionJob(**fields)


def encode_cleaned(cleaned: CleanedSegment) -> bytes:
    return encode(CLEANED, **cleaned._asdict())


def decode_cleaned(message: Message) -> CleanedSegment:
    fields = {name: message[name] for name in CleanedSegment._fields}
    return CleanedSegment(**{**fields, "bases": tuple(fields["bases"])})
