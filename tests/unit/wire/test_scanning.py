"""Searching a batch's records in steps finds what opening the batch would show."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import CorruptBatch, TooLargeToOpen
from ottla.wire.compression import Compression
from ottla.wire.records import Record, decode_records, encode_batch, read_header, seal_batch
from ottla.wire.scanning import (
    KEYLESS_NAMED_MAX,
    OPENED_RECORDS_MAX,
    QUICK_RECORDS_MAX,
    STEP_RECORDS,
    Keyless,
    all_at_once,
    first_since,
    keyless_records,
    records_to_scan,
)
from records_kit import forged

BASE_MS = 1_700_000_000_000
keys = st.one_of(st.none(), st.just(b""), st.binary(max_size=3), st.just(b"k" * 200))
records = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(-(2**40), 2**40),
        keys,
        st.one_of(st.none(), st.binary(max_size=300)),
        st.lists(st.tuples(st.text(max_size=3), st.none()), max_size=2),
    ),
    min_size=1,
    max_size=40,
)


def a_batch(parts: list[Any], **options: Any) -> bytearray:
    """With gaps between offsets, as compaction leaves them."""
    made, offset = [], 1000
    for step, time, key, value, headers in parts:
        offset += step
        made.append(Record(offset, BASE_MS + time, key, value, headers))
    return encode_batch(made, base_offset=1000, **options)


@given(records, st.sampled_from(Compression))
def test_the_keyless_are_those_without_a_key(parts: list[Any], codec: Compression) -> None:
    data = a_batch(parts, compression=codec)
    places = [place for place, record in enumerate(decode_records(data)) if record.key is None]
    found = all_at_once(keyless_records(data, read_header(data)))
    assert found == Keyless(len(places), places)


@given(records, st.data(), st.booleans())
def test_the_first_since_a_time_is_the_first_that_is_not_older(
    parts: list[Any], data: st.DataObject, is_append_time: bool
) -> None:
    batch = a_batch(parts, append_time_ms=BASE_MS if is_append_time else None)
    opened = decode_records(batch)
    times = st.sampled_from([record.timestamp for record in opened])
    timestamp = data.draw(times) + data.draw(st.integers(-1, 1))
    start = data.draw(st.integers(990, 1150))
    naive = next(
        (
            (record.offset, record.timestamp)
            for record in opened
            if record.timestamp >= timestamp and record.offset >= start
        ),
        None,
    )
    assert all_at_once(first_since(batch, read_header(batch), timestamp, start)) == naive


@given(records, st.data())
def test_no_lie_is_answered_with_anything_but_a_refusal(
    parts: list[Any], data: st.DataObject
) -> None:
    batch = a_batch(parts)
    body = bytearray(batch[61:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    del body[data.draw(st.integers(0, len(body))) :]
    header = read_header(batch)._replace(batch_length=49 + len(body))
    forgery = seal_batch(header, body)
    for steps in (keyless_records(forgery, header), first_since(forgery, header, 0, 0)):
        with suppress(CorruptBatch):
            all_at_once(steps)


@pytest.mark.parametrize("count", [1, STEP_RECORDS, STEP_RECORDS + 1, 10 * STEP_RECORDS])
def test_a_step_is_short_however_many_records_there_are(count: int) -> None:
    data = forged(b"\x0e\0\0\0\x02k\x01\0" * count, count, Compression.ZSTD)
    header = read_header(data)
    assert len(list(keyless_records(data, header))) == -(-count // STEP_RECORDS)
    assert len(list(first_since(data, header, 2**62, 0))) == -(-count // STEP_RECORDS)


def test_a_number_without_an_end_ends_the_search() -> None:
    data = forged(b"\x0e\0" + b"\x80" * 1_000_000, 1)
    with pytest.raises(CorruptBatch):
        all_at_once(keyless_records(data, read_header(data)))


def test_too_many_records_are_refused_before_anything_is_opened() -> None:
    data = forged(bytes(64 * 1024 * 1024), OPENED_RECORDS_MAX + 1, Compression.ZSTD)
    header = read_header(data)
    tracemalloc.start()
    try:
        for steps in (keyless_records(data, header), first_since(data, header, 0, 0)):
            with pytest.raises(TooLargeToOpen):
                next(steps)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_what_is_found_is_bounded_and_counted() -> None:
    count = KEYLESS_NAMED_MAX * 5
    data = forged(b"\x0c\0\0\0\x01\x01\0" * count, count)
    found = all_at_once(keyless_records(data, read_header(data)))
    assert found == Keyless(count, [*range(KEYLESS_NAMED_MAX)])


def test_what_a_look_costs_is_known_from_the_header() -> None:
    plain = encode_batch([Record(at, 0, b"k", b"v") for at in range(7)])
    packed = encode_batch([Record(0, 0, b"k", b"v")], compression=Compression.GZIP)
    assert records_to_scan(plain) == 7
    assert records_to_scan(packed) > QUICK_RECORDS_MAX
    assert records_to_scan(b"too short") == 0
    assert records_to_scan(forged(b"", -5)) == 0
