"""What a writing task does with Arrow batches before they are encoded, and what the driver says."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from ottla.client.settings import ClientSettings
from ottla.spark.encoding.encoder import CannotEncode
from ottla.spark.options.sink import SinkOptions
from ottla.spark.writer import (
    CannotWrite,
    Span,
    WrittenByTask,
    describe,
    gathered,
    make_stream_writer,
    make_writer,
)

OPTIONS = SinkOptions(ClientSettings(("localhost:9092",)), topic="t")
TEXT = StructType([StructField("value", StringType())])


def rows(*values: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})


def gathered_values(batches: list[pa.RecordBatch], enough_bytes: int) -> list[list[str | None]]:
    return [batch.column(0).to_pylist() for batch in gathered(iter(batches), lambda: enough_bytes)]


def test_small_batches_are_put_together_in_order() -> None:
    batches = [rows("a", None), rows("b"), rows(), rows("c", "d")]
    assert gathered_values(batches, 1_000_000) == [["a", None, "b", "c", "d"]]


def test_what_is_enough_is_handed_on_at_once() -> None:
    taken: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for value in (letter * 100 for letter in "abcde"):
            taken.append(value)
            yield rows(value)

    stream = gathered(batches(), lambda: 150)
    assert next(stream).num_rows == 2
    assert len(taken) == 2
    assert [batch.num_rows for batch in stream] == [2, 1]


def test_what_is_enough_may_change_as_topics_become_known() -> None:
    wanted = iter([0, 10_000, 10_000, 10_000])
    batches = gathered(iter([rows("a")] * 4), lambda: next(wanted))
    assert [batch.num_rows for batch in batches] == [1, 3]


def test_slices_count_as_what_they_are() -> None:
    large = rows(*["x" * 100] * 1000)
    assert len(gathered_values([large.slice(at, 1) for at in range(10)], 5_000)) == 1


def test_no_rows_give_no_batches() -> None:
    assert gathered_values([], 1) == []


@pytest.mark.parametrize("make", [make_writer, make_stream_writer])
def test_wrong_columns_are_refused_on_the_driver(make) -> None:  # type: ignore[no-untyped-def]
    wrong = StructType([StructField("value", IntegerType())])
    with pytest.raises(CannotEncode, match="'value' is to be binary or string"):
        make(OPTIONS, wrong, overwrite=False)


def test_topics_are_not_overwritten() -> None:
    with pytest.raises(CannotWrite, match="append"):
        make_writer(OPTIONS, TEXT, overwrite=True)
    make_writer(OPTIONS, TEXT, overwrite=False)
    make_stream_writer(OPTIONS, TEXT, overwrite=True)


def test_driver_tells_how_much_was_written_also_when_tasks_are_missing() -> None:
    first = WrittenByTask((Span("b", 0, 0, 9, 10), Span("a", 1, 5, 5, 1)), "1")
    second = WrittenByTask((Span("b", 0, 10, 14, 5),), "1")
    assert describe([first, None, second]) == "16 rows in 2 partitions of a, b"
    assert describe([None]) == "0 rows in 0 partitions of none"
