"""Arrow batches become record batches: the same for both kernels, and byte for byte the codec's."""

from __future__ import annotations

import warnings
from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.spark.encoding import rows_numba, rows_numpy
from ottla.spark.encoding.encoder import (
    GROUP_BYTES_MAX,
    WINDOW_BYTES,
    ArrowEncoder,
    CannotEncode,
    Encoded,
)
from ottla.spark.encoding.partitioner import partition_of
from ottla.types import TopicPartition
from ottla.wire.compression import Compression
from ottla.wire.records import (
    BATCH_HEADER_BYTES,
    Record,
    check_produced,
    decode_records,
    encode_batch,
    read_header,
    seal_batch,
)

# kafka-python reads its schemas by a function that Python has deprecated.
with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    from kafka.record.memory_records import MemoryRecords

NOW_MS = 1_790_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PARTITIONS = {"t": 12, "one": 1, "three": 3}
BOTH = pytest.mark.parametrize("kernels", [rows_numba, rows_numpy], ids=["numba", "numpy"])


class Row(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    topic: str = "t"
    partition: int | None = None


def encoder(schema: pa.Schema, kernels: Any, **options: Any) -> ArrowEncoder:
    options = {"topic": "t", "compression": Compression.NONE} | options
    return ArrowEncoder(
        schema,
        partitions_of=PARTITIONS.__getitem__,
        now_ms=lambda: NOW_MS,
        kernels=kernels,
        **options,
    )


def encode(rows: pa.RecordBatch, kernels: Any, **options: Any) -> list[Encoded]:
    return list(encoder(rows.schema, kernels, **options).encode(rows))


def sealed(encoded: Encoded) -> bytearray:
    """With the CRC that the producer will put in; it must then be what a broker takes."""
    batch = seal_batch(read_header(encoded.batch), encoded.batch[BATCH_HEADER_BYTES:])
    check_produced(memoryview(batch))
    return batch


def opened(encoded: list[Encoded]) -> dict[TopicPartition, list[Record]]:
    """All records per partition, in order; every batch counts its offsets from 0."""
    found = defaultdict(list)
    for one in encoded:
        records = decode_records(sealed(one))
        assert [record.offset for record in records] == list(range(one.count))
        found[one.partition] += [record._replace(offset=0) for record in records]
    return dict(found)


def table(rows: list[Row], text: Any = None, **types: Any) -> pa.RecordBatch:
    kinds = {"value": pa.binary(), "key": pa.binary(), "topic": pa.string()} | types
    headers = [
        None
        if row.headers is None
        else [{"key": key, "value": value} for key, value in row.headers]
        for row in rows
    ]
    return pa.record_batch(
        {
            "value": pa.array([row.value for row in rows], kinds["value"]),
            "key": pa.array([row.key for row in rows], kinds["key"]),
            "headers": pa.array(headers, kinds.get("headers", HEADERS)),
            "topic": pa.array([row.topic for row in rows], kinds["topic"]),
            "partition": pa.array([row.partition for row in rows], pa.int32()),
        }
    )


def model(rows: list[Row], sticky: dict[str, int]) -> dict[TopicPartition, list[Record]]:
    expected = defaultdict(list)
    for row in rows:
        if row.partition is not None:
            partition = row.partition
        elif row.key is not None:
            partition = partition_of(row.key, PARTITIONS[row.topic])
        else:
            partition = sticky[row.topic]
        record = Record(0, NOW_MS, row.key, row.value, row.headers or ())
        expected[TopicPartition(row.topic, partition)].append(record)
    return dict(expected)


def rows_of_topics() -> st.SearchStrategy[list[Row]]:
    small = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=60, max_size=200))
    headers = st.lists(st.tuples(st.text("aé€😀", max_size=3), small), max_size=3)
    row = st.sampled_from(sorted(PARTITIONS)).flatmap(
        lambda topic: st.builds(
            Row,
            value=small,
            key=small,
            headers=st.one_of(st.none(), headers),
            topic=st.just(topic),
            partition=st.one_of(st.none(), st.integers(0, PARTITIONS[topic] - 1)),
        )
    )
    return st.lists(row, max_size=40)


@BOTH
@settings(max_examples=80, deadline=None)
@given(
    rows=rows_of_topics(),
    skipped=st.integers(0, 9),
    after=st.integers(0, 3),
    batch_bytes=st.sampled_from([1, 100, 300, 1_000, 1_000_000]),
    large=st.booleans(),
    start=st.integers(0, 20),
    window_bytes=st.sampled_from([1, 500, WINDOW_BYTES]),
    group_bytes=st.sampled_from([1, 1_000, GROUP_BYTES_MAX]),
)
def test_any_rows_arrive_whole_and_in_order(
    kernels, rows, skipped, after, batch_bytes, large, start, window_bytes, group_bytes
) -> None:
    kind = pa.large_binary() if large else pa.binary()
    text = pa.large_string() if large else pa.string()
    listed = pa.large_list if large else pa.list_
    headers = listed(pa.struct([("key", text), ("value", kind)]))
    noise = [Row(b"noise", b"noise", [("noise", None)], "t", 1)]
    whole = table(
        noise * skipped + rows + noise * after, value=kind, key=kind, topic=text, headers=headers
    )
    given_rows = whole.slice(skipped, len(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ottla.spark.encoding.encoder.WINDOW_BYTES", window_bytes)
        patch.setattr("ottla.spark.encoding.encoder.WINDOW_ROWS_PER_BATCH", 1)
        patch.setattr("ottla.spark.encoding.encoder.GROUP_BYTES_MAX", group_bytes)
        options = {"topic": None, "batch_bytes": batch_bytes, "sticky_start": start}
        found = encode(given_rows, kernels, **options)
    sticky = {topic: start % count for topic, count in PARTITIONS.items()}
    assert opened(found) == model(rows, sticky)
    for one in found:
        assert len(one.batch) <= batch_bytes or one.count == 1
        records = decode_records(sealed(one))
        assert sealed(one) == encode_batch(records)
    check_cuts(found, batch_bytes)


def check_cuts(found: list[Encoded], batch_bytes: int) -> None:
    """No batch ends while its partition's next row would have had room."""
    for one, after in pairwise(found):
        if one.partition == after.partition:
            records = decode_records(sealed(one))
            following = decode_records(sealed(after))[0]._replace(offset=one.count)
            assert len(encode_batch([*records, following])) > batch_bytes


@settings(max_examples=40, deadline=None)
@given(rows=rows_of_topics(), batch_bytes=st.sampled_from([200, 1_000_000]))
def test_both_kernels_make_the_same_bytes(rows, batch_bytes) -> None:
    batch = table(rows)
    one, other = (
        encode(batch, kernels, topic=None, batch_bytes=batch_bytes)
        for kernels in (rows_numba, rows_numpy)
    )
    assert one == other


@BOTH
@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)
def test_other_clients_read_every_compression(kernels, codec) -> None:
    rows = [Row(b"v%d" % n * 40, b"k%d" % n, [("h", None), ("h", b"2")]) for n in range(50)]
    for one in encode(table(rows), kernels, compression=codec):
        data = bytes(sealed(one))
        header = read_header(data)
        assert header.compression == codec
        assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS)
        assert header.last_offset_delta == header.count - 1 == one.count - 1
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        ours = [tuple(record) for record in decode_records(data)]
        by_kafka_python = MemoryRecords(data).next_batch()
        assert by_kafka_python is not None
        assert [
            (found.offset, found.timestamp, found.key, found.value, list(found.headers))
            for found in by_kafka_python
        ] == ours
        by_aiokafka = DefaultRecordBatch(data)
        assert by_aiokafka.validate_crc()
        assert [
            (found.offset, found.timestamp, found.key, found.value, list(found.headers))
            for found in by_aiokafka
        ] == ours


@BOTH
def test_text_is_written_as_utf_8(kernels) -> None:
    rows = pa.record_batch({"value": ["é", None, ""], "key": pa.array(["k", "k", "k"])})
    (records,) = opened(encode(rows, kernels)).values()
    assert [record.value for record in records] == ["é".encode(), None, b""]


@BOTH
@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.large_string()])
def test_views_and_large_types_are_taken(kernels, kind) -> None:
    values = pa.array(["short", None, "longer than the twelve bytes in a view"]).cast(kind)
    rows = pa.record_batch({"value": values}).slice(1)
    (records,) = opened(encode(rows, kernels)).values()
    assert [record.value for record in records] == [None, b"longer than the twelve bytes in a view"]


@BOTH
def test_topics_may_be_a_dictionary(kernels) -> None:
    topics = pa.array(["t", "one", "t"]).dictionary_encode()
    rows = pa.record_batch({"value": ["a", "b", "c"], "topic": topics})
    found = opened(encode(rows.slice(1), kernels, topic=None))
    assert {str(partition): len(records) for partition, records in found.items()} == {
        "one-0": 1,
        "t-0": 1,
    }


@BOTH
def test_the_option_wins_over_the_column_topic(kernels) -> None:
    rows = pa.record_batch({"value": ["a"], "topic": pa.array([None], pa.string())})
    assert [str(one.partition) for one in encode(rows, kernels, topic="one")] == ["one-0"]


@BOTH
def test_rows_without_a_key_stay_together_and_take_turns(kernels) -> None:
    rows = pa.record_batch({"value": ["a", "b", "c"]})
    writer = encoder(rows.schema, kernels, topic="three", sticky_start=7)
    turns = [[one.partition.partition for one in writer.encode(rows)] for _ in range(6)]
    assert turns == [[1], [2], [0], [1], [2], [0]]


@BOTH
def test_rows_without_a_key_are_spread_by_their_bytes(kernels) -> None:
    large, small = (pa.record_batch({"value": [b"x" * size]}) for size in (1_000, 10))
    writer = encoder(large.schema, kernels, topic="three")
    got = defaultdict(int)
    last = None
    for turn in range(300):
        (one,) = writer.encode(small if turn % 3 else large)
        assert one.partition != last
        last = one.partition
        got[last] += len(one.batch) - BATCH_HEADER_BYTES
    assert max(got.values()) - min(got.values()) <= 2_000


@BOTH
def test_an_empty_key_is_a_key(kernels) -> None:
    rows = pa.record_batch({"value": ["a", "b"], "key": pa.array([b"", None], pa.binary())})
    found = opened(encode(rows, kernels, sticky_start=3))
    assert {str(partition): records[0].key for partition, records in found.items()} == {
        "t-9": b"",
        "t-3": None,
    }


@BOTH
def test_a_null_partition_leaves_it_to_the_key(kernels) -> None:
    wanted = pa.array([5, None, 11], pa.int32())
    rows = pa.record_batch({"value": ["a", "b", "c"], "key": ["abc"] * 3, "partition": wanted})
    assert sorted(opened(encode(rows, kernels))) == [("t", 3), ("t", 5), ("t", 11)]


@BOTH
@pytest.mark.parametrize("wanted", [12, -1, -2, 2**31 - 1, -(2**31)])
def test_a_partition_that_is_not_there_is_refused(kernels, wanted) -> None:
    partitions = pa.array([99, 0, wanted], pa.int32())
    rows = pa.record_batch({"value": ["a", "b", "c"], "partition": partitions}).slice(1)
    with pytest.raises(CannotEncode) as refused:
        encode(rows, kernels)
    assert str(refused.value) == (
        f"row 1 asks for partition {wanted} of 't', which has the partitions 0 to 11"
    )


@BOTH
def test_a_row_without_a_topic_is_refused(kernels) -> None:
    topics = pa.array([None, "t", None])
    rows = pa.record_batch({"value": ["a", "b", "c"], "topic": topics}).slice(1)
    with pytest.raises(CannotEncode, match="row 1 has no topic: fill the column 'topic', or set"):
        encode(rows, kernels, topic=None)


@BOTH
@pytest.mark.parametrize("header", [None, {"key": None, "value": b"v"}])
def test_a_header_without_a_name_is_refused(kernels, header) -> None:
    good = {"key": "h", "value": None}
    headers = pa.array([[header], [good], None, [good, header]], HEADERS)
    rows = pa.record_batch({"value": ["skipped", "a", "b", "c"], "headers": headers}).slice(1)
    with pytest.raises(CannotEncode, match="row 2 has a header without a key"):
        encode(rows, kernels)
    assert len(encode(rows.slice(0, 2), kernels)) == 1


@BOTH
def test_headers_after_a_null_list_do_not_appear(kernels) -> None:
    struct = pa.StructArray.from_arrays(
        [pa.array(["a", None, "c"]), pa.array([b"1", b"2", b"3"])], ["key", "value"]
    )
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), struct, mask=pa.array([False, True, False])
    )
    rows = pa.record_batch({"value": ["x", "y", "z"], "headers": hidden})
    (records,) = opened(encode(rows, kernels)).values()
    assert [list(record.headers) for record in records] == [[("a", b"1")], [], [("c", b"3")]]


@BOTH
def test_ten_megabytes_are_a_batch_of_their_own(kernels) -> None:
    values = [b"a", b"x" * 10_000_000, b"b"]
    rows = pa.record_batch({"value": pa.array(values, pa.binary())})
    found = encode(rows, kernels)
    assert [one.count for one in found] == [1, 1, 1]
    assert [decode_records(sealed(one))[0].value for one in found] == values


@BOTH
def test_a_batch_may_be_full_to_the_last_byte(kernels) -> None:
    rows = pa.record_batch({"value": [b"x" * 100] * 130})
    wanted = len(encode_batch([Record(n, 0, None, b"x" * 100) for n in range(65)]))
    for batch_bytes, counts in ((wanted, [65, 65]), (wanted - 1, [64, 64, 2])):
        found = encode(rows, kernels, batch_bytes=batch_bytes)
        assert [one.count for one in found] == counts
        assert len(found[0].batch) <= batch_bytes


@BOTH
@pytest.mark.parametrize("size", [0, 1, 63, 64, 511, 512, 513, 8191, 8192])
def test_values_of_any_length_are_whole(kernels, size) -> None:
    values = [bytes(n % 251 for n in range(at, at + size)) for at in range(3)]
    rows = pa.record_batch({"value": pa.array(values, pa.binary())})
    (records,) = opened(encode(rows, kernels)).values()
    assert [record.value for record in records] == values


@BOTH
def test_no_rows_make_no_batch_and_no_turn(kernels) -> None:
    rows = pa.record_batch({"value": ["a"]})
    writer = encoder(rows.schema, kernels)
    assert list(writer.encode(rows.slice(0, 0))) == []
    assert [one.partition.partition for one in writer.encode(rows)] == [0]


@BOTH
def test_the_clock_is_read_once_per_arrow_batch(kernels) -> None:
    times = iter(range(5, 100))
    rows = pa.record_batch({"value": ["a", "b"], "key": ["a", "abc"]})
    writer = ArrowEncoder(
        rows.schema,
        topic="t",
        compression=Compression.NONE,
        partitions_of=PARTITIONS.__getitem__,
        now_ms=lambda: next(times),
        kernels=kernels,
    )
    stamps = [[read_header(one.batch).base_timestamp for one in writer.encode(rows)] for _ in "ab"]
    assert stamps == [[5, 5], [6, 6]]


@BOTH
def test_a_topic_without_partitions_is_refused(kernels) -> None:
    rows = pa.record_batch({"value": ["a"]})
    writer = ArrowEncoder(
        rows.schema,
        topic="t",
        compression=Compression.NONE,
        partitions_of=lambda _: 0,
        now_ms=lambda: 0,
        kernels=kernels,
    )
    with pytest.raises(CannotEncode, match="the topic 't' has no partitions"):
        list(writer.encode(rows))


@BOTH
def test_a_schema_that_changes_is_looked_at_anew(kernels) -> None:
    before = pa.record_batch({"value": ["a"]})
    writer = encoder(before.schema, kernels)
    after = pa.record_batch({"key": ["abc"], "value": ["b"]})
    found = [opened(list(writer.encode(rows))) for rows in (before, after)]
    assert [sorted(one) for one in found] == [[("t", 0)], [("t", 3)]]
