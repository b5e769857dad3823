"""Record batches: what the broker believes, what it stamps, and the records inside."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import (
    CorruptBatch,
    InvalidRecord,
    UnsupportedCompression,
    UnsupportedMessageFormat,
)
from ottla.wire.compression import Compression
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    SEQUENCE_MAX,
    Record,
    check_produced,
    crc_matches,
    decode_records,
    encode_batch,
    headers_in,
    read_header,
    recompress,
    stamp,
    stamp_append_time,
    stamp_producer,
)

NOW_MS = 1_700_000_000_000
MIB = 1024 * 1024
ALL_CODECS = pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)


def batch_of(*values: bytes, **options) -> bytearray:
    records = [Record(n, NOW_MS + n, b"k", value) for n, value in enumerate(values)]
    return encode_batch(records, **options)


def resealed(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def with_field(batch: bytearray, code: str, position: int, value: int) -> bytearray:
    """The batch with one header field changed and the CRC right again."""
    struct.pack_into(code, batch, position, value)
    return resealed(batch)


# -- the broker's belief --


@ALL_CODECS
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_an_intact_batch_is_believed(codec, kind):
    batch = batch_of(b"a", b"b", compression=codec, producer_id=9, base_sequence=3)
    header = check_produced(kind(batch))
    assert header == read_header(batch)
    assert (header.count, header.size, header.compression) == (2, len(batch), codec)
    assert (header.producer_id, header.base_sequence, header.last_sequence) == (9, 3, 4)


def test_a_flipped_bit_is_found_wherever_it_is():
    batch = batch_of(b"value")
    for position in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptBatch):
            check_produced(damaged)


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_only_magic_2_is_taken(magic):
    batch = batch_of(b"value")
    struct.pack_into(">b", batch, 16, magic)
    with pytest.raises(UnsupportedMessageFormat):
        check_produced(batch)


def test_a_short_message_of_an_old_magic_is_named_as_such():
    old = struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -1, -1)
    with pytest.raises(UnsupportedMessageFormat):
        check_produced(old)


@pytest.mark.parametrize("size", [0, 1, 16, 17, 60])
def test_less_than_a_header_is_corrupt(size):
    with pytest.raises(CorruptBatch):
        check_produced(batch_of(b"value")[:size])


def test_two_batches_for_one_partition_are_refused():
    with pytest.raises(InvalidRecord):
        check_produced(batch_of(b"one") + batch_of(b"two"))


@pytest.mark.parametrize("length", [-1, 0, 48, 10_000, 2**31 - 1])
def test_a_batch_that_lies_about_its_length_is_corrupt(length):
    with pytest.raises(CorruptBatch):
        check_produced(with_field(batch_of(b"value"), ">i", 8, length))


def test_a_cut_batch_is_corrupt():
    with pytest.raises(CorruptBatch):
        check_produced(batch_of(b"value")[:-1])


@pytest.mark.parametrize(("count", "last_delta"), [(1, 1), (3, 1), (0, -1), (-1, -2), (2, 0)])
def test_there_are_as_many_records_as_offsets_and_at_least_one(count, last_delta):
    batch = with_field(batch_of(b"a", b"b"), ">i", 57, count)
    with pytest.raises(InvalidRecord):
        check_produced(with_field(batch, ">i", 23, last_delta))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec):
    with pytest.raises(UnsupportedCompression):
        check_produced(with_field(batch_of(b"value"), ">h", 21, codec))


# -- headers --


def test_a_header_knows_its_flags():
    header = read_header(
        batch_of(b"v", is_control=True, is_transactional=True, append_time_ms=NOW_MS)
    )
    assert header.is_control
    assert header.is_transactional
    assert header.is_log_append_time
    assert not header.has_delete_horizon
    plain = read_header(batch_of(b"v"))
    assert not any([plain.is_control, plain.is_transactional, plain.is_log_append_time])
    assert read_header(with_field(batch_of(b"v"), ">h", 21, 0x40)).has_delete_horizon


def test_a_header_knows_its_offsets():
    records = [Record(100, NOW_MS, None, b"a"), Record(105, NOW_MS, None, b"b")]
    header = read_header(encode_batch(records, base_offset=100, leader_epoch=4))
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 105, 106)
    assert (header.leader_epoch, header.count) == (4, 2)


@pytest.mark.parametrize(
    ("base", "last"), [(0, 1), (SEQUENCE_MAX - 1, SEQUENCE_MAX), (SEQUENCE_MAX, 0), (-1, -1)]
)
def test_sequences_start_over_at_the_end(base, last):
    assert read_header(batch_of(b"a", b"b", base_sequence=base)).last_sequence == last


def test_whole_batches_are_found_and_a_partial_one_is_left_out():
    first, second = batch_of(b"a"), batch_of(b"b", b"c")
    data = b"junk" + first + second
    positions = [(4, read_header(first)), (4 + len(first), read_header(second))]
    assert list(headers_in(data, 4)) == positions
    for cut in (1, len(second) - BATCH_HEADER_BYTES, len(second) - 1):
        assert list(headers_in(data[:-cut], 4)) == positions[:1]
    assert list(headers_in(b"")) == []


@pytest.mark.parametrize(
    ("code", "position", "value"), [(">b", 16, 1), (">i", 8, 48), (">i", 8, -1)]
)
def test_what_is_no_batch_is_not_walked_over(code, position, value):
    data = batch_of(b"a") + with_field(batch_of(b"b"), code, position, value)
    with pytest.raises(CorruptBatch):
        list(headers_in(data))


def test_a_crc_is_checked_only_of_a_whole_batch():
    batch = batch_of(b"value")
    header = read_header(batch)
    assert crc_matches(b"xx" + batch, 2, header)
    assert crc_matches(batch + b"more", 0, header)
    assert not crc_matches(batch[:-1], 0, header)
    assert not crc_matches(batch, 0, header._replace(batch_length=10))
    batch[-1] ^= 1
    assert not crc_matches(batch, 0, header)


# -- stamping --


def test_the_broker_stamps_offset_and_epoch_outside_the_crc():
    batch = batch_of(b"a", b"b")
    before = check_produced(batch)
    stamp(memoryview(batch), 2**40, 17)
    assert check_produced(batch) == before._replace(base_offset=2**40, leader_epoch=17)
    assert [record.offset for record in decode_records(batch)] == [2**40, 2**40 + 1]


def test_a_producer_is_stamped_with_a_new_crc():
    plain = encode_batch([Record(0, NOW_MS, b"k", b"v")], base_offset=0)
    batch = bytearray(plain)
    stamp_producer(batch, 2**40, 3, 0x7FFF_FFFF)
    header = check_produced(batch)
    assert header == read_header(plain)._replace(
        producer_id=2**40, producer_epoch=3, base_sequence=0x7FFF_FFFF, crc=header.crc
    )
    assert batch[61:] == plain[61:]


@ALL_CODECS
def test_append_time_is_stamped_with_a_new_crc(codec):
    batch = batch_of(b"a", b"b", compression=codec)
    before = check_produced(batch)
    stamp_append_time(memoryview(batch), NOW_MS + 5_000)
    after = check_produced(batch)
    assert after == before._replace(
        attributes=codec | 0x08, max_timestamp=NOW_MS + 5_000, crc=after.crc
    )
    assert {record.timestamp for record in decode_records(batch)} == {NOW_MS + 5_000}


# -- records --

maybe_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=2)
timestamps = st.integers(0, 2**42)


@st.composite
def record_lists(draw, base_offset=0):
    offset = base_offset
    records = []
    for _ in range(draw(st.integers(1, 4))):
        offset += draw(st.integers(0, 300))
        records.append(
            Record(
                offset,
                draw(timestamps),
                draw(maybe_bytes),
                draw(maybe_bytes),
                draw(header_lists) or (),
            )
        )
        offset += 1
    return records


@settings(max_examples=60)
@given(record_lists(base_offset=7), st.sampled_from(Compression))
def test_records_survive(records, codec):
    batch = encode_batch(records, base_offset=7, compression=codec)
    assert decode_records(batch) == records
    assert read_header(batch).max_timestamp == max(record.timestamp for record in records)
    assert decode_records(b"before" + batch + b"after", 6) == records


@settings(max_examples=60)
@given(record_lists(), st.sampled_from(Compression))
def test_aiokafka_reads_what_we_write(records, codec):
    batch = encode_batch(records, compression=codec, producer_id=5, producer_epoch=1)
    theirs = DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    read = [Record(r.offset, r.timestamp, r.key, r.value, r.headers or ()) for r in theirs]
    assert read == records


@settings(max_examples=60)
@given(record_lists(), st.sampled_from(Compression))
def test_we_read_what_aiokafka_writes(records, codec):
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=5,
        producer_epoch=1,
        base_sequence=0,
        batch_size=1_000_000,
    )
    for number, record in enumerate(records):
        added = builder.append(
            number, record.timestamp, record.key, record.value, list(record.headers)
        )
        assert added is not None
    batch = builder.build()
    check_produced(batch)
    renumbered = [record._replace(offset=number) for number, record in enumerate(records)]
    assert decode_records(batch) == renumbered
    mine = encode_batch(
        renumbered,
        leader_epoch=read_header(batch).leader_epoch,
        producer_id=5,
        producer_epoch=1,
        base_sequence=0,
    )
    assert decode_records(mine) == renumbered
    if not read_header(batch).compression:
        assert bytes(mine) == bytes(batch)


def test_a_record_is_laid_out_as_in_the_book():
    records = [
        Record(0, NOW_MS, None, b"ab"),
        Record(2, NOW_MS - 1, b"k", None, [("h", b"v"), ("n", None)]),
    ]
    body = encode_batch(records)[BATCH_HEADER_BYTES:]
    no_key_two_bytes_of_value = "10 00 00 00 01 04 61 62 00"
    earlier_and_with_headers = "1c 00 01 04 02 6b 01 04 02 68 02 76 02 6e 01"
    assert body.hex(" ") == f"{no_key_two_bytes_of_value} {earlier_and_with_headers}"


def test_header_names_that_are_not_utf_8_keep_their_bytes():
    batch = encode_batch([Record(0, NOW_MS, None, None, [("name", b"")])])
    at = batch.index(b"name")
    batch[at : at + 4] = b"\xff\xfe\x00m"
    (record,) = decode_records(resealed(batch))
    again = encode_batch([record])
    assert again[at : at + 4] == b"\xff\xfe\x00m"


@ALL_CODECS
@pytest.mark.parametrize("target", Compression, ids=lambda codec: codec.name)
def test_recompression_changes_the_codec_and_nothing_else(codec, target):
    options = {"base_offset": 0, "leader_epoch": 3, "producer_id": 8, "is_transactional": True}
    batch = batch_of(b"a" * 500, b"b" * 500, compression=codec, **options)
    again = recompress(batch, target, MIB)
    header = check_produced(again)
    assert decode_records(again) == decode_records(batch)
    assert header == read_header(batch)._replace(
        attributes=0x10 | target, batch_length=len(again) - 12, crc=header.crc
    )


def test_offsets_must_grow():
    with pytest.raises(ValueError, match="offset"):
        encode_batch([Record(1, NOW_MS, None, None), Record(1, NOW_MS, None, None)])
    with pytest.raises(ValueError, match="offset"):
        encode_batch([Record(4, NOW_MS, None, None)], base_offset=5)
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])


# -- lies --


def with_body(body: bytes, count: int = 1) -> bytearray:
    """An intact batch around these record bytes."""
    batch = batch_of(b"v")[:BATCH_HEADER_BYTES] + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    return resealed(batch)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0e",
        bytes.fromhex("0c 00 00 00 01 01"),  # a byte is missing
        bytes.fromhex("0c 00 00 00 01 01 00 00"),  # a byte too many
        bytes.fromhex("0a 00 00 00 01 01 00"),  # the record says it is shorter
        bytes.fromhex("0c 00 00 00 03 01 00"),  # a key of -2 bytes
        bytes.fromhex("0c 00 00 00 01 7e 00"),  # a value longer than the batch
        bytes.fromhex("0c 00 00 00 01 01 01"),  # -1 headers
        bytes.fromhex("16 00 00 00 01 01 fe ff ff ff 0f"),  # two thousand million headers
        bytes.fromhex("10 00 00 00 01 01 02 01 01"),  # a header without a name
        bytes.fromhex("0b 00 00 00 01 01 00"),  # a record of -6 bytes
        b"\xff" * 20,  # a number without an end
    ],
)
def test_records_that_lie_are_corrupt(body):
    with pytest.raises(CorruptBatch):
        decode_records(with_body(body))


@pytest.mark.parametrize("count", [0, 2, -1, 2**31 - 1])
def test_a_record_count_that_lies_is_corrupt(count):
    with pytest.raises(CorruptBatch):
        decode_records(with_body(bytes.fromhex("0c 00 00 00 01 01 00"), count))


def test_the_smallest_record_is_read():
    (record,) = decode_records(with_body(bytes.fromhex("0c 00 00 00 01 01 00")))
    assert record == Record(0, NOW_MS, None, None, ())


def test_records_of_a_damaged_batch_are_not_opened():
    batch = batch_of(b"value")
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch):
        decode_records(batch)
    with pytest.raises(CorruptBatch):
        recompress(batch, Compression.ZSTD, MIB)
    with pytest.raises(CorruptBatch):
        decode_records(with_field(batch_of(b"value"), ">h", 21, 6))
    with pytest.raises(CorruptBatch):
        decode_records(b"short")


def test_a_batch_that_becomes_too_large_is_not_opened(monkeypatch):
    monkeypatch.setattr("ottla.wire.records.OPENED_BATCH_BYTES_MAX", 1_000_000)
    batch = batch_of(bytes(2_000_000), compression=Compression.ZSTD)
    assert len(batch) < 1_000
    with pytest.raises(CorruptBatch):
        decode_records(batch)
