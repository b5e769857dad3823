"""The codecs, in the framings that Kafka's clients use."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import CorruptBatch, MessageTooLarge, TooLargeToOpen
from ottla.wire.compression import XERIAL_HEADER, Compression, compress, decompress, give_back

MIB = 1024 * 1024
CODECS = [codec for codec in Compression if codec is not Compression.NONE]


@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)
def test_what_is_compressed_is_opened_again(codec):
    @given(st.binary(max_size=200), st.sampled_from([1, 3, 1000]))
    def check(data, times):
        data *= times
        assert bytes(decompress(codec, compress(codec, data), MIB)) == data

    check()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(codec, kind):
    packed = compress(codec, kind(b"hello" * 50))
    assert bytes(decompress(codec, kind(packed), MIB)) == b"hello" * 50


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_grows_to_the_bound_is_opened_and_one_byte_more_is_refused(codec):
    data = bytes(3 * MIB)
    packed = compress(codec, data)
    assert len(packed) < MIB / 4
    assert bytes(decompress(codec, packed, 3 * MIB)) == data
    with pytest.raises(CorruptBatch):
        decompress(codec, packed, 3 * MIB - 1)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_bomb_is_refused_before_it_has_grown(codec):
    bomb = compress(codec, bytes(16 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(codec, bomb, 2 * MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * MIB


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_damage_is_refused(codec):
    packed = compress(codec, b"some text that is worth keeping" * 20)
    for damaged in (b"", b"garbage", packed[:-5], packed[: len(packed) // 2]):
        with pytest.raises(CorruptBatch):
            decompress(codec, damaged, MIB)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_too_large_and_damaged_are_told_apart(codec):
    packed = compress(codec, bytes(3 * MIB))
    for bytes_max in (100, 3 * MIB - 1):
        with pytest.raises(TooLargeToOpen):
            decompress(codec, packed, bytes_max)
    for damaged in (b"garbage", packed[: len(packed) // 2]):
        with pytest.raises(CorruptBatch) as refused:
            decompress(codec, damaged, 3 * MIB)
        assert not isinstance(refused.value, TooLargeToOpen)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_the_memory_of_what_was_opened_is_given_back_before_it_is_forgotten(codec):
    opened = decompress(codec, compress(codec, b"much" * 5 * MIB), 32 * MIB)
    assert bytes(opened[:4]) == bytes(opened[-4:]) == b"much"
    give_back(opened)
    assert not any(opened[at] for at in range(0, len(opened), 4096))


def test_what_is_small_or_was_never_packed_is_left_alone():
    for codec, data in ((Compression.ZSTD, b"little"), (Compression.NONE, b"much" * MIB)):
        opened = decompress(codec, compress(codec, data), 32 * MIB)
        give_back(opened)
        assert bytes(opened) == data


@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)
def test_more_than_wanted_is_not_handed_out(codec):
    data = random.Random(1).randbytes(MIB)
    size = len(compress(codec, data))
    assert len(compress(codec, data, size)) == size
    with pytest.raises(MessageTooLarge):
        compress(codec, data, size - 1)


def test_gzip_is_what_everybody_calls_gzip():
    assert gzip.decompress(compress(Compression.GZIP, b"abc")) == b"abc"
    assert bytes(decompress(Compression.GZIP, gzip.compress(b"abc"), MIB)) == b"abc"


def test_snappy_is_written_in_the_blocks_of_the_java_library():
    data = bytes(range(256)) * 300
    packed = compress(Compression.SNAPPY, data)
    assert packed.startswith(XERIAL_HEADER)
    first_size = int.from_bytes(packed[16:20], "big")
    first = packed[20 : 20 + first_size]
    assert bytes(cramjam.snappy.decompress_raw(first)) == data[: 32 * 1024]


def test_snappy_is_read_with_and_without_blocks():
    raw = bytes(cramjam.snappy.compress_raw(b"hello hello hello"))
    assert bytes(decompress(Compression.SNAPPY, raw, MIB)) == b"hello hello hello"
    block = len(raw).to_bytes(4, "big") + raw
    twice = decompress(Compression.SNAPPY, XERIAL_HEADER + block + block, MIB)
    assert bytes(twice) == b"hello hello hello" * 2


@pytest.mark.parametrize("tail", [b"\x00", b"\x00\x00\x00\x09ab", b"\xff\xff\xff\xffab", bytes(4)])
def test_snappy_blocks_that_lie_are_refused(tail):
    with pytest.raises(CorruptBatch):
        decompress(Compression.SNAPPY, XERIAL_HEADER + tail, MIB)


def test_snappy_blocks_are_bounded_together():
    raw = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    block = len(raw).to_bytes(4, "big") + raw
    assert len(decompress(Compression.SNAPPY, XERIAL_HEADER + block * 3, 3000)) == 3000
    with pytest.raises(CorruptBatch):
        decompress(Compression.SNAPPY, XERIAL_HEADER + block * 3, 2999)


def test_lz4_is_a_frame_of_independent_blocks_as_java_demands():
    packed = compress(Compression.LZ4, bytes(200_000))
    assert packed.startswith(b"\x04\x22\x4d\x18")
    assert packed[4] & 0x20


def test_lz4_with_dependent_blocks_is_read_too():
    linked = bytes(cramjam.lz4.compress(b"linked blocks " * 30_000))
    assert not linked[4] & 0x20
    assert bytes(decompress(Compression.LZ4, linked, MIB)) == b"linked blocks " * 30_000
