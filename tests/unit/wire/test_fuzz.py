"""Whatever comes in, the readers end with the message or with the protocol's own errors."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import OttlaError
from ottla.wire.codec import MalformedMessage, decode, encode
from ottla.wire.compression import Compression
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    Record,
    check_produced,
    decode_records,
    encode_batch,
    headers_in,
)
from unit.wire.catalogue import all_versions, messages, name_of

REQUESTS = [
    (kind, version) for kind, version in all_versions() if kind.__name__.endswith("Request")
]


def changed(draw, data: bytes) -> bytes:
    """Some bytes of valid data replaced, removed or put in."""
    copy = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(copy) - 1)))
        piece = draw(st.sampled_from([b"", b"\x00", b"\xff", b"\x7f", b"\x80\xff\xff\xff\x7f"]))
        copy[at : at + draw(st.integers(0, 2))] = piece
    return bytes(copy)


@pytest.mark.parametrize(("kind", "version"), REQUESTS, ids=name_of)
def test_a_request_is_whole_or_malformed(kind, version):
    @settings(max_examples=4)
    @given(messages(kind, version), st.data())
    def check(message, data):
        valid = encode(message, version)
        stop = data.draw(st.integers(0, max(0, len(valid) - 1)))
        if stop < len(valid):
            with pytest.raises(MalformedMessage):
                decode(kind, valid[:stop], version)
        for garbage in (changed(data.draw, valid), data.draw(st.binary(max_size=60))):
            try:
                decode(kind, garbage, version)
            except MalformedMessage:
                continue

    check()


@pytest.mark.parametrize("lie", [b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\x00\xff\xff\xff"])
def test_no_small_request_asks_for_much_memory(lie):
    data = lie * 20
    for kind, version in REQUESTS:
        read_garbage(kind, data, version)
    tracemalloc.start()
    try:
        for kind, version in REQUESTS:
            read_garbage(kind, data, version)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200_000


def read_garbage(kind, data, version):
    try:
        decode(kind, data, version)
    except MalformedMessage:
        return


BATCHES = [
    bytes(
        encode_batch(
            [
                Record(0, 1_000, b"key", b"value" * 40, [("name", b"x"), ("none", None)]),
                Record(1, 1_001, None, b"second"),
                Record(4, 999, b"", None),
            ],
            compression=codec,
            producer_id=7,
            producer_epoch=0,
            base_sequence=5,
        )
    )
    for codec in Compression
]


@settings(max_examples=200)
@given(st.sampled_from(BATCHES), st.data())
def test_a_batch_is_intact_or_refused(batch, data):
    garbage = changed(data.draw, batch)
    for read in (check_produced, decode_records, lambda buf: list(headers_in(buf))):
        try:
            read(garbage)
        except OttlaError:
            continue


def resealed(batch: bytes) -> bytes:
    """Length and CRC made to fit again."""
    sealed = bytearray(batch)
    struct.pack_into(">i", sealed, 8, len(batch) - 12)
    struct.pack_into(">I", sealed, 17, crc32c(bytes(sealed[21:])))
    return bytes(sealed)


@settings(max_examples=200)
@given(st.sampled_from(BATCHES), st.data())
def test_a_batch_with_a_good_crc_and_bad_records_is_refused(batch, data):
    """The CRC is right again after the change, as a hostile client would send it."""
    body = changed(data.draw, batch[BATCH_HEADER_BYTES:])
    try:
        decode_records(resealed(batch[:BATCH_HEADER_BYTES] + body))
    except OttlaError:
        return


@settings(max_examples=100)
@given(st.binary(max_size=120))
def test_random_bytes_are_no_batch(data):
    for read in (check_produced, decode_records):
        with pytest.raises(OttlaError):
            read(data)
