"""A batch in pieces: the same records, in order, under the same sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.batch_pieces import cut_batch
from ottla.wire.compression import Compression
from ottla.wire.records import (
    SEQUENCE_MAX,
    Record,
    check_produced,
    decode_records,
    encode_batch,
    read_header,
)

BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3)
RECORDS = st.lists(st.tuples(st.integers(0, 2**41), BYTES, BYTES, HEADERS), min_size=2, max_size=50)


def without_offset(records: list[Record]) -> list[Record]:
    return [record._replace(offset=0, headers=list(record.headers)) for record in records]


@given(RECORDS, st.sampled_from(Compression), st.integers(1, 5000), st.integers(-1, SEQUENCE_MAX))
def test_pieces_have_the_records_of_the_batch(
    rows: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    compression: Compression,
    bytes_max: int,
    sequence: int,
) -> None:
    records = [Record(at, *row) for at, row in enumerate(rows)]
    who = (-1, -1) if sequence < 0 else (4711, 3)
    batch = encode_batch(
        records,
        compression=compression,
        producer_id=who[0],
        producer_epoch=who[1],
        base_sequence=sequence,
    )
    pieces = cut_batch(batch, bytes_max)
    assert len(pieces) >= 2
    found = [record for piece in pieces for record in decode_records(piece.data)]
    assert without_offset(found) == without_offset(records)
    for piece in pieces:
        header = check_produced(piece.data)
        assert header.compression == compression
        assert (header.producer_id, header.producer_epoch) == who
        assert (header.count, header.base_sequence) == (piece.records, piece.sequence)
        assert piece.sequence == sequence
        if sequence >= 0:
            sequence = (sequence + piece.records) & SEQUENCE_MAX


def test_pieces_are_as_large_as_they_may_be() -> None:
    records = [Record(at, 1000, None, b"x" * 1000) for at in range(100)]
    batch = encode_batch(records)
    pieces = cut_batch(batch, 25_000)
    assert len(pieces) == 5
    assert all(len(piece.data) <= 25_000 for piece in pieces)


def test_a_record_larger_than_a_piece_has_one_of_its_own() -> None:
    sizes = [10, 50_000, 10, 10]
    batch = encode_batch([Record(at, 0, None, b"x" * size) for at, size in enumerate(sizes)])
    pieces = cut_batch(batch, 1000)
    assert [piece.records for piece in pieces] == [1, 1, 2]
    assert read_header(pieces[1].data).count == 1


def test_one_record_is_not_cut() -> None:
    with pytest.raises(ValueError, match="one record"):
        cut_batch(encode_batch([Record(0, 0, None, b"x" * 5000)]), 100)
