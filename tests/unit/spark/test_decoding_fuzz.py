"""Arbitrary batches against other readers, and arbitrary bytes against a wall of memory."""

from __future__ import annotations

import subprocess
import sys
import warnings
from contextlib import suppress
from itertools import pairwise

import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.errors import CorruptBatch, InvalidTimestamp, OttlaError
from ottla.spark.columns import READ_COLUMNS
from ottla.wire.compression import Compression
from ottla.wire.records import Record, encode_batch, read_header, seal_batch
from unit.spark.decoding_kit import DECODERS, arrow_batches, expected, plain, rows

with warnings.catch_warnings():
    # It reads its own files in a way that Python 3.11 is rid of soon.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords as KafkaPythonRecords

FEW = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MANY = settings(FEW, max_examples=200)

PARTS = st.none() | st.binary(max_size=20) | st.integers(0, 300).map(bytes)
NAMES = st.text(max_size=5) | st.binary(max_size=4).map(
    lambda data: data.decode("utf-8", "surrogateescape")
)
TIMES = st.integers(-1, 2**41) | st.sampled_from([-1, 0, -(2**50), 2**50])


@st.composite
def batches(draw, names=NAMES):
    """Some batches with gaps inside and between them, of any codec and either kind of time."""
    data, offset = bytearray(), draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 4))):
        base = offset = offset + draw(st.integers(0, 3))
        records = []
        for _ in range(draw(st.integers(1, 6))):
            headers = draw(st.lists(st.tuples(names, PARTS), max_size=3))
            records.append(Record(offset, draw(TIMES), draw(PARTS), draw(PARTS), headers))
            offset += draw(st.integers(1, 200))
        data += encode_batch(
            records,
            base_offset=base,
            compression=draw(st.sampled_from(Compression)),
            append_time_ms=draw(st.none() | st.integers(0, 2**41)),
        )
        offset = records[-1].offset + 1
    return data


@FEW
@given(batches(), st.data())
def test_both_decoders_read_what_the_simple_reader_reads(data, choices):
    known = [row["offset"] for row in expected(data)]
    start = choices.draw(st.sampled_from([0, *known]))
    end = choices.draw(st.sampled_from([2**62, *known]))
    columns = choices.draw(
        st.lists(st.sampled_from(READ_COLUMNS), min_size=1, unique=True), label="columns"
    )
    wanted = [{name: row[name] for name in columns} for row in expected(data, start, end)]
    for make_rows in DECODERS.values():
        assert rows(make_rows, data, start=start, end=end, columns=columns) == wanted


@FEW
@given(st.lists(batches(), min_size=1, max_size=4))
def test_fetches_are_cut_anywhere_between_batches(fetches):
    """Offsets of later fetches may lie before: those rows have been given already."""
    for make_rows in DECODERS.values():
        found = [row for each in arrow_batches(make_rows, *fetches) for row in plain(each)]
        assert all(one["offset"] < next_["offset"] for one, next_ in pairwise(found))
        assert found == rows(make_rows, b"".join(fetches))


@pytest.mark.parametrize("reader", [KafkaPythonRecords, AiokafkaRecords])
@FEW
@given(batches(names=st.text(max_size=5)))
def test_both_decoders_read_what_other_clients_read(reader, data):
    found = []
    records = reader(bytes(data))
    while (each := records.next_batch()) is not None:
        for record in each:
            headers = [{"key": key, "value": value} for key, value in record.headers]
            found.append(
                (
                    record.offset,
                    record.timestamp * 1000,
                    record.timestamp_type,
                    None if record.key is None else bytes(record.key),
                    None if record.value is None else bytes(record.value),
                    headers or None,
                )
            )
    columns = ["offset", "timestamp", "timestampType", "key", "value", "headers"]
    for make_rows in DECODERS.values():
        mine = [tuple(row.values()) for row in rows(make_rows, data, columns=columns)]
        assert mine == found


def outcome(make_rows, data):
    try:
        return rows(make_rows, data)
    except (CorruptBatch, InvalidTimestamp) as error:
        return str(error)


def simple_outcome(data):
    """None where Java's reader, and with it ours, is stricter than the simple one may be."""
    try:
        return expected(data)
    except CorruptBatch:
        return None


RECORD = encode_batch([Record(0, 5, b"key", b"value", [("a", b"1"), ("b", None)])])[61:]
BYTES = st.sampled_from([0, 1, 2, 3, 7, 8, 14, 16, 0x7E, 0x7F, 0x80, 0xFE, 0xFF])
BODIES = st.one_of(
    st.binary(max_size=60),
    st.lists(BYTES, max_size=40).map(bytes),
    st.tuples(st.integers(0, len(RECORD) - 1), BYTES).map(
        lambda change: RECORD[: change[0]] + bytes([change[1]]) + RECORD[change[0] + 1 :]
    ),
    st.lists(st.tuples(st.integers(0, 3 * len(RECORD) - 1), BYTES), min_size=1, max_size=3).map(
        lambda changes: with_changes(RECORD * 3, changes)
    ),
)


def with_changes(body, changes):
    body = bytearray(body)
    for at, byte in changes:
        body[at] = byte
    return bytes(body)


@MANY
@given(
    BODIES, st.sampled_from([0, 1, 2, 3, 4, 1000, 2**31 - 1]), st.sampled_from([0, 3, 2**31 - 1])
)
def test_whatever_the_bytes_say_both_decoders_say_the_same(body, count, last_delta):
    header = read_header(encode_batch([Record(0, 0, None, None)]))._replace(
        count=count, last_offset_delta=last_delta, batch_length=49 + len(body)
    )
    data = seal_batch(header, body)
    compiled, plain_numpy = (outcome(make_rows, data) for make_rows in DECODERS.values())
    if isinstance(compiled, str) or isinstance(plain_numpy, str):
        assert isinstance(compiled, str)
        assert isinstance(plain_numpy, str)
    else:
        assert compiled == plain_numpy
        assert compiled == simple_outcome(data)


@FEW
@given(st.binary(max_size=200) | batches().map(bytes), st.data())
def test_any_bytes_as_a_fetch_are_rows_or_one_error(data, choices):
    data = bytearray(data)
    if data:
        for _ in range(choices.draw(st.integers(0, 3))):
            data[choices.draw(st.integers(0, len(data) - 1))] = choices.draw(BYTES)
    for make_rows in DECODERS.values():
        with suppress(OttlaError):
            rows(make_rows, data)


WALL = """
import ctypes, mmap, random, sys
from array import array
import numpy as np
from ottla.spark.columns import READ_COLUMNS, arrow_schema
from ottla.spark.decoding.arrow_buffers import CompiledRows
from ottla.spark.decoding.contract import DamagedRecord, TimestampTooLarge, Wanted
from ottla.types import TopicPartition
from ottla.wire.records import Record, encode_batch

PAGE = mmap.PAGESIZE
room = mmap.mmap(-1, 3 * PAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(room))
libc = ctypes.CDLL(None, use_errno=True)
for page in (0, 2):
    assert libc.mprotect(ctypes.c_void_p(address + page * PAGE), PAGE, 0) == 0
middle = np.frombuffer(room, np.uint8)[PAGE : 2 * PAGE]

random = random.Random(int(sys.argv[1]))
headers = [("name", b"value"), ("", None)]
good = bytes(encode_batch([Record(at, at, b"key", b"value" * 9, headers) for at in range(5)])[61:])
wanted = Wanted(TopicPartition("t", 0), arrow_schema(READ_COLUMNS), 0, 2**62)
rows = damaged = 0
for turn in range(int(sys.argv[2])):
    if turn % 3:
        body = bytearray(good if turn % 2 else good[: random.randint(0, len(good))])
        for _ in range(random.randint(0, 2)):
            if body:
                body[random.randrange(len(body))] = random.choice([0, 1, 126, 127, 128, 254, 255])
    else:
        body = bytes(random.choices([0, 1, 2, 14, 128, 255, 254, 30], k=random.randint(0, 40)))
    size = len(body)
    begin = random.choice([0, PAGE - size])
    middle[begin : begin + size] = np.frombuffer(body, np.uint8)
    view = middle[begin : begin + size]
    span = array("q", [0, size, random.choice([1, 5, 5, 2**31 - 1]), 0, 2**31 - 1, 0, 1, 0])
    decoder = CompiledRows(wanted)
    try:
        found = [*decoder.add(view, span), *decoder.finish()]
        rows += sum(batch.num_rows for batch in found)
    except (DamagedRecord, TimestampTooLarge):
        damaged += 1
print(rows, damaged)
"""


def test_the_kernel_reads_nothing_beside_its_data():
    """The data lies against pages that nobody may touch: one byte too far ends the process."""
    done = subprocess.run(
        [sys.executable, "-c", WALL, "11", "6000"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
    found, damaged = map(int, done.stdout.split())
    assert found > 100
    assert damaged > 2000
