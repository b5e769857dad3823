"""The lean loops over records, against the ones that build them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import CorruptBatch
from ottla.log.compaction.records import (
    keys_and_deltas,
    outlines,
    with_records,
    without_records,
)
from ottla.wire.compression import Compression
from ottla.wire.records import (
    Record,
    decode_records,
    encode_batch,
    read_header,
    seal_batch,
)

BASE = 5_000_000_000
maybe_bytes = st.one_of(st.none(), st.binary(max_size=20), st.integers(60, 300).map(bytes))
# Timestamps on both sides of the first, and so far off that they take all ten bytes.
stamps = st.one_of(st.integers(-1, 300), st.integers(0, 2**61))
contents = st.tuples(
    stamps,
    maybe_bytes,
    maybe_bytes,
    st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2),
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Record], bytearray]:
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 90, 20_000]), min_size=1, max_size=6))
    offset, records = BASE - 1, []
    for gap in gaps:
        offset += gap
        records.append(Record(offset, *draw(contents)))
    codec = draw(st.sampled_from(list(Compression)))
    append_time = draw(st.sampled_from([None, None, 1234]))
    batch = encode_batch(records, base_offset=BASE, compression=codec, append_time_ms=append_time)
    return decode_records(batch), batch


@given(batches())
def test_outlines_say_what_the_records_say(made: tuple[list[Record], bytearray]) -> None:
    records, batch = made
    header = read_header(batch)
    data, found = outlines(batch, header)
    assert [BASE + record[5] for record in found] == [record.offset for record in records]
    assert [record[6] for record in found] == [record.key for record in records]
    assert [record[7] for record in found] == [record.value is not None for record in records]
    assert b"".join(data[record[0] : record[3]] for record in found) == data
    assert keys_and_deltas(batch, header) == (
        [record.key for record in records],
        [record.offset - BASE for record in records],
    )


@given(batches(), st.data(), st.sampled_from([None, 0, 1_700_000_000_000, 2**62]))
def test_what_is_kept_of_a_batch_is_unchanged(
    made: tuple[list[Record], bytearray], data: st.DataObject, horizon_ms: int | None
) -> None:
    records, batch = made
    header = read_header(batch)
    opened, found = outlines(batch, header)
    chosen = data.draw(st.sets(st.integers(0, len(found) - 1), min_size=1))
    kept = [outline for at, outline in enumerate(found) if at in chosen]
    again = with_records(header, opened, kept, horizon_ms)
    assert decode_records(again) == [r for at, r in enumerate(records) if at in chosen]
    changed = read_header(again)
    assert changed.delete_horizon_ms == horizon_ms
    assert changed.last_offset == header.last_offset
    assert changed.max_timestamp == max(record.timestamp for record in decode_records(again))


@given(batches())
def test_an_emptied_batch_still_tells_its_place(made: tuple[list[Record], bytearray]) -> None:
    header = read_header(made[1])
    emptied = without_records(header)
    assert decode_records(emptied) == []
    kept = read_header(emptied)
    assert (kept.base_offset, kept.last_offset) == (header.base_offset, header.last_offset)
    assert (kept.max_timestamp, kept.base_timestamp) == (header.max_timestamp, -1)
    assert kept.is_log_append_time == header.is_log_append_time


@given(st.binary(max_size=40), st.integers(0, 4))
def test_nonsense_in_a_batch_is_told(body: bytes, count: int) -> None:
    """Whatever the lean loops accept, the others accept as well, or it has no lies they rely on."""
    header = read_header(encode_batch([Record(0, 0, b"", b"")]))
    batch = seal_batch(header._replace(batch_length=49 + len(body), count=count), body)
    try:
        data, found = outlines(batch, read_header(batch))
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            decode_records(batch)
    else:
        assert [record[3] for record in found[-1:]] in ([], [len(data)])
