"""Looking for something in the records of a batch, in short steps and without building a record.

A batch of a few kilobytes may hold millions of records. So what is searched for here is searched
for in steps, as a generator: whoever goes through them decides what happens between two of them,
which beside an event loop is a pause. What can be opened at all is bounded in bytes and records,
and the header tells the latter before anything is opened.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias, TypeVar

from ottla.errors import CorruptBatch, TooLargeToOpen
from ottla.wire.compression import give_back
from ottla.wire.records import COMPRESSION_MASK, BatchHeader, open_records
from ottla.wire.schema import Buffer

T = TypeVar("T")

# The value comes with the last step.
Steps: TypeAlias = Generator[None, None, T]

# Measured at 0.4 to 0.9 µs a record, by how busy the machine is: a step takes a fifth of a
# millisecond, and what may be looked through at once, by all batches of a request, less than one.
STEP_RECORDS: Final = 250
QUICK_RECORDS_MAX: Final = 1_000
# As many as librdkafka's batch.num.messages allows.
OPENED_RECORDS_MAX: Final = 1_000_000
# So many records without a key are named.
KEYLESS_NAMED_MAX: Final = 1_000

_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_AT: Final = 21
_COUNT: Final = struct.Struct(">i")
_COUNT_AT: Final = 57
NULL_LENGTH: Final = 1  # -1 in zigzag
_SHIFT_MAX: Final = 63


class Keyless(NamedTuple):
    """Records without a key: how many, and the first of them by their place in the batch."""

    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    places: list[int]


def all_at_once(steps: Steps[T]) -> T:
    """Goes through the steps without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


def records_to_scan(batch: Buffer) -> int:
    """How many records a look into this batch costs; one that is compressed is never quick."""
    try:
        (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
        (count,) = _COUNT.unpack_from(batch, _COUNT_AT)
    except struct.error:
        return 0
    if attributes & COMPRESSION_MASK:
        return QUICK_RECORDS_MAX + 1
    return max(0, int(count))


def keyless_records(batch: Buffer, header: BatchHeader) -> Steps[Keyless]:
    """Finds the records without a key; CorruptBatch where a record or key ends elsewhere."""
    total = 0
    found: list[int] = []
    data = _opened(batch, header)
    try:
        pos = 0
        for first in range(0, header.count, STEP_RECORDS):
            before = len(found)
            try:
                pos = _scan_keys(data, pos, first, min(first + STEP_RECORDS, header.count), found)
            except IndexError:
                raise CorruptBatch("a record ends after its batch") from None
            total += len(found) - before
            del found[KEYLESS_NAMED_MAX:]
            yield
        if pos != len(data):
            raise CorruptBatch(f"{len(data) - pos} bytes after the last record")
    finally:
        give_back(data)
    return Keyless(total, found)


def first_since(
    batch: Buffer, header: BatchHeader, timestamp: int, start_offset: int
) -> Steps[tuple[int, int] | None]:
    """Offset and time of the first record from `start_offset` on that is not older."""
    data = _opened(batch, header)
    first_delta = start_offset - header.base_offset
    wanted = timestamp - header.base_timestamp
    if header.is_log_append_time:
        wanted = -(2**63) if header.max_timestamp >= timestamp else 2**63
    try:
        pos = 0
        for first in range(0, header.count, STEP_RECORDS):
            count = min(STEP_RECORDS, header.count - first)
            try:
                pos, found = _scan_times(data, pos, count, wanted, first_delta)
            except IndexError:
                raise CorruptBatch("a record ends after its batch") from None
            if found is not None:
                offset_delta, timestamp_delta = found
                time = header.base_timestamp + timestamp_delta
                if header.is_log_append_time:
                    time = header.max_timestamp
                return header.base_offset + offset_delta, time
            yield
    finally:
        give_back(data)
    return None


def _opened(batch: Buffer, header: BatchHeader) -> memoryview:
    if header.count > OPENED_RECORDS_MAX:
        raise TooLargeToOpen(
            f"a batch of {header.count} records, {OPENED_RECORDS_MAX} are the most that is opened"
        )
    return memoryview(open_records(batch, 0, header))


def _scan_keys(data: memoryview, pos: int, first: int, stop: int, found: list[int]) -> int:
    """Varints are read inline, since a batch consists of little else."""
    for place in range(first, stop):
        size = data[pos]
        pos += 1
        if size >= 0x80:
            size, pos = rest_of_varint(data, pos, size)
        end = pos + (size >> 1)
        # Two numbers that nobody asks for here: the time and the offset, of one to three bytes.
        if data[pos + 1] < 0x80:
            pos += 2
        elif data[pos + 2] < 0x80:
            pos += 3
        else:
            _, pos = rest_of_varint(data, pos + 2, 0)
        if data[pos] < 0x80:
            pos += 1
        elif data[pos + 1] < 0x80:
            pos += 2
        elif data[pos + 2] < 0x80:
            pos += 3
        else:
            _, pos = rest_of_varint(data, pos + 1, 0)
        key_bytes = data[pos]
        pos += 1
        if key_bytes == NULL_LENGTH:
            found.append(place)
        else:
            if key_bytes >= 0x80:
                key_bytes, pos = rest_of_varint(data, pos, key_bytes)
            pos += key_bytes >> 1
            size |= key_bytes
        if size & 1 or pos >= end:
            raise CorruptBatch(f"a record of {size >> 1} bytes does not hold what it says")
        pos = end
    return pos


def _scan_times(
    data: memoryview, pos: int, count: int, wanted: int, first_delta: int
) -> tuple[int, tuple[int, int] | None]:
    for _ in range(count):
        size = data[pos]
        pos += 1
        if size >= 0x80:
            size, pos = rest_of_varint(data, pos, size)
        end = pos + (size >> 1)
        time = data[pos + 1]
        pos += 2
        if time >= 0x80:
            time, pos = rest_of_varint(data, pos, time)
        offset = data[pos]
        pos += 1
        if offset >= 0x80:
            offset, pos = rest_of_varint(data, pos, offset)
        if (size | offset) & 1 or pos >= end:
            raise CorruptBatch(f"a record of {size >> 1} bytes does not hold what it says")
        time = time >> 1 ^ -(time & 1)
        if time >= wanted and offset >> 1 >= first_delta:
            return end, (offset >> 1, time)
        pos = end
    return pos, None


def rest_of_varint(data: bytes | memoryview, pos: int, first: int) -> tuple[int, int]:
    """Still in zigzag: who calls knows whether a negative number can be meant."""
    value, shift = first & 0x7F, 7
    while shift <= _SHIFT_MAX:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
    raise CorruptBatch("a variable-length integer without an end")
