"""What the sink's columns may be, what is said of others, and buffers that lie."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ottla.spark.encoding import rows_numba, rows_numpy
from ottla.spark.encoding.sink_columns import (
    CannotEncode,
    Places,
    binary_column,
    explicit_partitions,
    find_columns,
    header_column,
)

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


def test_columns_are_found_wherever_they_are_and_others_ignored() -> None:
    schema = pa.schema(
        [
            ("offset", pa.int64()),
            ("headers", pa.list_(HEADER)),
            ("value", pa.string()),
            ("partition", pa.int32()),
            ("topic", pa.string()),
            ("VALUE", pa.int8()),
            ("key", pa.binary()),
        ]
    )
    assert find_columns(schema, None) == Places(2, 6, 4, 3, 1)
    assert find_columns(schema, "t") == Places(2, 6, -1, 3, 1)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("value", pa.int64(), "the column 'value' is to be binary or string, found int64"),
        ("value", pa.null(), "the column 'value' is to be binary or string, found null"),
        ("key", pa.int32(), "the column 'key' is to be binary or string, found int32"),
        ("topic", pa.binary(), "the column 'topic' is to be string, found binary"),
        ("partition", pa.int64(), "the column 'partition' is to be int, found int64"),
        ("partition", pa.string(), "the column 'partition' is to be int, found string"),
        ("headers", pa.list_(pa.string()), "the column 'headers' is to be array<struct<"),
        ("headers", pa.map_(pa.string(), pa.binary()), "the column 'headers' is to be array<"),
        ("headers", pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])), "'head"),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])), "'head"),
    ],
)
def test_wrong_types_are_named_in_one_line(name, kind, said) -> None:
    columns = {"value": pa.binary(), "topic": pa.string(), name: kind}
    with pytest.raises(CannotEncode) as refused:
        find_columns(pa.schema(list(columns.items())), None)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_value_is_asked_for_by_name() -> None:
    schema = pa.schema([("Values", pa.binary()), ("key", pa.binary())])
    with pytest.raises(
        CannotEncode, match=r"'value' is missing .* found Values, key; rename 'Values'"
    ):
        find_columns(schema, "t")
    with pytest.raises(CannotEncode, match=r"'value' is missing .* found none"):
        find_columns(pa.schema([]), "t")


def test_no_topic_at_all_is_refused() -> None:
    with pytest.raises(CannotEncode, match="no topic to write to: set the option 'topic', or add"):
        find_columns(pa.schema([("value", pa.binary())]), None)


def test_two_columns_of_a_name_are_refused() -> None:
    schema = pa.schema([("value", pa.binary()), ("value", pa.binary())])
    with pytest.raises(CannotEncode, match="2 columns are called 'value', one is wanted"):
        find_columns(schema, "t")


@pytest.mark.parametrize("lies", [[0, 2, 9], [0, 3, 2], [-1, 1, 2], [0, 2**31 - 1, 4]], ids=str)
def test_offsets_that_lead_out_of_the_buffer_are_refused(lies) -> None:
    offsets = np.array([0, 2, 4], np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"four")]
    column = pa.Array.from_buffers(pa.binary(), 2, buffers)
    # Arrow looks at the ends when an array is made from buffers: they change behind its back.
    offsets[:] = lies
    with pytest.raises(CannotEncode, match="offsets that lead out of its values"):
        binary_column(column, "value")


def test_lists_that_lead_out_of_their_headers_are_refused() -> None:
    headers = pa.array([{"key": "a", "value": b"1"}], HEADER)
    offsets = np.array([0, 1], np.int32)
    buffers = [None, pa.py_buffer(offsets)]
    column = pa.Array.from_buffers(pa.list_(HEADER), 1, buffers, children=[headers])
    offsets[1] = 5
    with pytest.raises(CannotEncode, match="'headers' has offsets that lead out of its values"):
        header_column(column)


def test_fewer_offsets_than_rows_are_refused() -> None:
    offsets = shrinking(12)
    column = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"")])
    offsets.resize(8)
    with pytest.raises(CannotEncode, match="fewer offsets than rows"):
        binary_column(column, "value")


def test_fewer_partitions_than_rows_are_refused() -> None:
    values = shrinking(12)
    column = pa.Array.from_buffers(pa.int32(), 3, [None, values])
    values.resize(8)
    with pytest.raises(CannotEncode, match="'partition' has fewer values than rows"):
        explicit_partitions(column)


def shrinking(size: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(size, resizable=True)
    np.frombuffer(buffer, np.uint8)[:] = 0
    return buffer


@pytest.mark.parametrize("skipped", range(18))
def test_nulls_are_found_after_any_offset(skipped) -> None:
    values = [None if n % 3 == 0 else b"v" * n for n in range(40)]
    column = binary_column(pa.array(values, pa.binary()).slice(skipped, 20), "value")
    wanted = [-1 if value is None else len(value) for value in values[skipped : skipped + 20]]
    assert column.lengths.tolist() == wanted


@pytest.mark.parametrize("kernels", [rows_numba, rows_numpy], ids=["numba", "numpy"])
def test_a_kernel_with_too_little_room_writes_nothing_after_it(kernels) -> None:
    column = binary_column(pa.array([b"x" * 50] * 4), "value")
    headers = header_column(
        pa.array([[{"key": "h" * 20, "value": b"v" * 20}]] * 4, pa.list_(HEADER))
    )
    sizes = np.empty(4, np.int64)
    lengths = (column.lengths, column.lengths)
    counts = (headers.starts, headers.counts, headers.keys.lengths, headers.values.lengths)
    kernels.measure(*lengths, *counts, sizes)
    memory = np.full(2_000, 0xEE, np.uint8)
    for room in range(4 * 200):
        out = memory[:room]
        arguments = (np.arange(4), sizes, *column, *column, *headers[:2], *headers[2], *headers[3])
        end = kernels.write(*arguments, out, 0, 0)
        assert end == -1 or end <= room
        assert (memory[room:] == 0xEE).all()
        memory[:] = 0xEE
    assert end > 4 * 140
