"""Record batches of magic 2: the one format of the wire, the disk and the reply.

    base_offset        int64   ┐ stamped by the broker, outside the CRC
    batch_length       int32   │ counts what follows it
    leader_epoch       int32   ┘
    magic              int8
    crc                uint32    CRC-32C of everything after it
    attributes         int16     0-2 codec, 3 append time, 4 transactional, 5 control, 6 horizon
    last_offset_delta  int32
    base_timestamp     int64
    max_timestamp      int64
    producer_id        int64
    producer_epoch     int16
    base_sequence      int32
    count              int32
    records            one after the other, compressed as one block

The broker looks at the header and the CRC; `decode_records` is for those whose job is about single
messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.errors import (
    CorruptBatch,
    InvalidRecord,
    UnsupportedCompression,
    UnsupportedMessageFormat,
)
from ottla.wire.checksum import crc32c
from ottla.wire.codec import write_uvarint
from ottla.wire.compression import Compression, compress, decompress, give_back
from ottla.wire.schema import Buffer

MAGIC: Final = 2
BATCH_HEADER_BYTES: Final = 61
BATCH_OVERHEAD_BYTES: Final = 12
SEQUENCE_MAX: Final = 0x7FFF_FFFF

# What one compressed batch may become in memory; far above what any client puts into one.
OPENED_BATCH_BYTES_MAX: Final = 128 * 1024 * 1024

COMPRESSION_MASK: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

# Where every format of batches and messages has its number.
MAGIC_AT: Final = 16
# Of a batch without records, counted as its own field of the length does.
BATCH_LENGTH_MIN: Final = BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_LEADER_EPOCH_AT: Final = 12
_CRC_AT: Final = 17
# Everything from here on is covered by the CRC.
CRC_FROM: Final = 21
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_VARINT_BYTES_MAX: Final = 10
_CODEC_MAX: Final = max(map(int, Compression))
# Half the price of calling the class.
_new_tuple: Final = tuple.__new__


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, in wire order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + BATCH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """The codec's number, known to us or not."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the deletion markers in the batch may go; it takes the base timestamp's place."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """Sequences run from 0 to 2**31 - 1 and start over; -1 without a producer."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


class Record(NamedTuple):
    """One message. A header's name keeps bytes that are not UTF-8 as surrogate escapes."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Reads a header without believing it; CorruptBatch when the buffer is too short for one."""
    try:
        return BatchHeader._make(_HEADER.unpack_from(buf, pos))
    except struct.error:
        raise CorruptBatch(f"{len(buf) - pos} bytes are too few for a batch") from None


def crc_matches(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """False also when the batch is not whole."""
    end = pos + header.size
    if header.batch_length < BATCH_LENGTH_MIN or end > len(buf):
        return False
    return crc32c(memoryview(buf)[pos + CRC_FROM : end]) == header.crc


def check_produced(buf: Buffer) -> BatchHeader:
    """All that the broker believes about what a producer sent for one partition.

    It is exactly one intact batch of magic 2 with a codec we know and as many records as offsets.
    """
    try:
        fields = _HEADER.unpack_from(buf)
    except struct.error:
        raise _too_short(buf) from None
    # This runs for every produced batch: plain names are twice as fast as the header's attributes.
    _, batch_length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, count = fields
    if magic != MAGIC:
        raise UnsupportedMessageFormat(f"a batch of magic {magic}, only 2 is taken")
    if batch_length + BATCH_OVERHEAD_BYTES != len(buf):
        raise _wrong_length(batch_length + BATCH_OVERHEAD_BYTES, len(buf))
    if crc32c(buf[CRC_FROM:]) != crc:
        raise CorruptBatch("the CRC does not match")
    if count != last_offset_delta + 1 or count < 1:
        raise InvalidRecord(f"{count} records with a last offset delta of {last_offset_delta}")
    if attributes & COMPRESSION_MASK > _CODEC_MAX:
        raise UnsupportedCompression(f"codec {attributes & COMPRESSION_MASK}")
    return _new_tuple(BatchHeader, fields)


def _too_short(buf: Buffer) -> CorruptBatch | UnsupportedMessageFormat:
    # Messages of magic 0 and 1 may be shorter than our header; their magic has the same place.
    if len(buf) > MAGIC_AT and memoryview(buf)[MAGIC_AT] < MAGIC:
        return UnsupportedMessageFormat("a message older than magic 2")
    return CorruptBatch(f"{len(buf)} bytes are too few for a batch")


def _wrong_length(claimed: int, actual: int) -> CorruptBatch | InvalidRecord:
    if BATCH_HEADER_BYTES <= claimed < actual:
        return InvalidRecord(f"{actual - claimed} bytes after the one batch of a partition")
    return CorruptBatch(f"a batch of {actual} bytes says that it has {claimed}")


def stamp(buf: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Writes what the broker decides, in place; the CRC does not cover it."""
    _BASE_OFFSET.pack_into(buf, 0, base_offset)
    _LEADER_EPOCH.pack_into(buf, _LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(buf: memoryview, now_ms: int) -> None:
    """Makes it a batch of append time, in place; records keep their bytes and lose their times."""
    header = read_header(buf)
    stamped = header._replace(attributes=header.attributes | APPEND_TIME_BIT, max_timestamp=now_ms)
    _HEADER.pack_into(buf, 0, *stamped)
    _CRC.pack_into(buf, _CRC_AT, crc32c(memoryview(buf)[CRC_FROM : header.size]))


def stamp_producer(buf: bytearray, producer_id: int, epoch: int, base_sequence: int) -> None:
    """Writes who sends a batch, in place, and the CRC that covers it."""
    _PRODUCER.pack_into(buf, _PRODUCER_AT, producer_id, epoch, base_sequence)
    with memoryview(buf) as view:
        _CRC.pack_into(buf, _CRC_AT, crc32c(view[CRC_FROM:]))


def headers_in(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the whole batches; a partial one at the end is left out."""
    end = len(buf)
    while end - pos >= BATCH_HEADER_BYTES:
        header = BatchHeader._make(_HEADER.unpack_from(buf, pos))
        if header.magic != MAGIC or header.batch_length < BATCH_LENGTH_MIN:
            raise CorruptBatch(
                f"magic {header.magic}, length {header.batch_length} at position {pos}"
            )
        if header.size > end - pos:
            return
        yield pos, header
        pos += header.size


def decode_records(buf: Buffer, pos: int = 0) -> list[Record]:
    """Opens one batch, believing nothing: whatever does not fit raises CorruptBatch."""
    header = read_header(buf, pos)
    if header.magic != MAGIC or not crc_matches(buf, pos, header):
        raise CorruptBatch(f"no intact batch at position {pos}")
    data = bytes(open_records(buf, pos, header))
    try:
        return _read_records(data, header)
    except IndexError:
        raise CorruptBatch("a record ends after its batch") from None


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_control: bool = False,
    is_transactional: bool = False,
    append_time_ms: int | None = None,
) -> bytearray:
    """One batch with these records; their offsets are absolute and grow from `base_offset` on."""
    if not records:
        raise ValueError("a batch holds at least one record")
    base_timestamp = records[0].timestamp
    data = bytearray()
    offset_before = base_offset - 1
    for record in records:
        if record.offset <= offset_before:
            raise ValueError(f"offset {record.offset} comes after {offset_before}")
        offset_before = record.offset
        _write_record(data, record, base_offset, base_timestamp)
    attributes = int(compression)
    if is_control:
        attributes |= CONTROL_BIT
    if is_transactional:
        attributes |= TRANSACTIONAL_BIT
    if append_time_ms is None:
        max_timestamp = max(record.timestamp for record in records)
    else:
        attributes |= APPEND_TIME_BIT
        max_timestamp = append_time_ms
    body = compress(compression, data) if compression else data
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=BATCH_LENGTH_MIN + len(body),
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=records[-1].offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )
    return seal_batch(header, body)


def recompress(buf: Buffer, compression: Compression, bytes_max: int) -> bytearray:
    """The same records under another codec; of the header, only what that changes is changed.

    MessageTooLarge when the records then take more than `bytes_max`.
    """
    header = read_header(buf)
    if not crc_matches(buf, 0, header):
        raise CorruptBatch("no intact batch to compress")
    opened = open_records(buf, 0, header)
    try:
        body = compress(compression, opened, bytes_max)
    finally:
        give_back(opened)
    changed = header._replace(
        batch_length=BATCH_LENGTH_MIN + len(body),
        attributes=header.attributes & ~COMPRESSION_MASK | compression,
    )
    return seal_batch(changed, body)


def seal_batch(header: BatchHeader, body: Buffer) -> bytearray:
    """Puts header and records together, with the CRC that fits."""
    batch = bytearray(BATCH_HEADER_BYTES)
    batch += body
    _HEADER.pack_into(batch, 0, *header)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, _CRC_AT, crc32c(view[CRC_FROM:]))
    return batch


def write_header(batch: bytearray, header: BatchHeader) -> None:
    """Puts a header before records that are in their place already, with the CRC it names."""
    _HEADER.pack_into(batch, 0, *header)


def open_records(buf: Buffer, pos: int, header: BatchHeader) -> Buffer:
    """The records of a batch as they were before compression, one after the other."""
    if header.compression > _CODEC_MAX:
        raise CorruptBatch(f"codec {header.compression} is unknown")
    data = memoryview(buf)[pos + BATCH_HEADER_BYTES : pos + header.size]
    return decompress(Compression(header.compression), data, OPENED_BATCH_BYTES_MAX)


def _read_records(data: bytes, header: BatchHeader) -> list[Record]:
    """IndexError when a number or a length leads past the end of `data`."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    records: list[Record] = []
    pos = 0
    if header.count < 0:
        raise CorruptBatch(f"{header.count} records")
    for _ in range(header.count):
        size, pos = _read_varint(data, pos)
        stop = pos + size
        pos += 1  # the attributes of a record, of which none is in use
        timestamp_delta, pos = _read_varint(data, pos)
        offset_delta, pos = _read_varint(data, pos)
        key, pos = _read_bytes(data, pos)
        value, pos = _read_bytes(data, pos)
        header_count, pos = _read_varint(data, pos)
        headers: Sequence[tuple[str, bytes | None]] = ()
        if header_count:
            headers, pos = _read_headers(data, pos, header_count)
        if pos != stop or stop > len(data):
            raise CorruptBatch(f"a record of {size} bytes ends {pos - stop} bytes off")
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        records.append(Record(base_offset + offset_delta, timestamp, key, value, headers))
    if pos != len(data):
        raise CorruptBatch(f"{len(data) - pos} bytes after the last record")
    return records


def _read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """Signed integers as in protocol buffers: zigzag, seven bits a byte, the lowest first."""
    byte = data[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    value, shift = byte & 0x7F, 7
    for _ in range(_VARINT_BYTES_MAX - 1):
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise CorruptBatch(f"a variable-length integer is longer than {_VARINT_BYTES_MAX} bytes")


def _read_bytes(data: bytes, pos: int) -> tuple[bytes | None, int]:
    size, pos = _read_varint(data, pos)
    if size < 0:
        if size != -1:
            raise CorruptBatch(f"a length of {size}")
        return None, pos
    stop = pos + size
    return data[pos:stop], stop


def _read_headers(
    data: bytes, pos: int, count: int
) -> tuple[Sequence[tuple[str, bytes | None]], int]:
    if count < 0:
        raise CorruptBatch(f"{count} headers")
    headers = []
    for _ in range(count):
        name, pos = _read_bytes(data, pos)
        if name is None:
            raise CorruptBatch("a header without a name")
        value, pos = _read_bytes(data, pos)
        headers.append((name.decode("utf-8", "surrogateescape"), value))
    return headers, pos


def _write_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)
    _write_varint(body, record.timestamp - base_timestamp)
    _write_varint(body, record.offset - base_offset)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    _write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode("utf-8", "surrogateescape"))
        _write_bytes(body, value)
    _write_varint(out, len(body))
    out += body


def _write_varint(out: bytearray, value: int) -> None:
    write_uvarint(out, value << 1 if value >= 0 else ~value << 1 | 1)


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # -1 in zigzag
    else:
        _write_varint(out, len(data))
        out += data
