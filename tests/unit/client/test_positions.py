"""Where a reader is, from the headers of what it has read."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.range_reader import last_whole_batch
from ottla.errors import CorruptBatch, UnsupportedMessageFormat
from ottla.wire.records import Record, encode_batch


def batch(*values: bytes, base_offset: int = 0, **options: Any) -> bytearray:
    records = [Record(base_offset + at, 1000, None, value) for at, value in enumerate(values)]
    return encode_batch(records, base_offset=base_offset, **options)


def position_after(records: bytes | bytearray) -> int | None:
    last = last_whole_batch(records, "t-0")
    return None if last is None else last.next_offset


def test_the_position_is_after_the_last_whole_batch():
    first, second = batch(b"a", b"b", base_offset=10), batch(b"c", base_offset=20)
    assert position_after(first + second) == 21
    for cut in range(1, len(second) + 1):
        assert position_after(first + second[:-cut]) == 12


def test_there_may_be_no_whole_batch():
    whole = batch(b"a", base_offset=7)
    for size in range(len(whole)):
        assert position_after(whole[:size]) is None


def test_gaps_and_markers_count_as_offsets():
    marker = batch(b"m", base_offset=30, is_control=True, is_transactional=True)
    assert position_after(batch(b"a", base_offset=4) + marker) == 31


def test_old_formats_and_rubbish_are_refused_by_name():
    old = batch(b"a")
    old[16] = 1
    with pytest.raises(UnsupportedMessageFormat, match="t-0: a batch of magic 1"):
        position_after(old)
    broken = batch(b"a")
    broken[8:12] = bytes(4)
    with pytest.raises(CorruptBatch, match="t-0: a batch of length 0"):
        position_after(broken)
