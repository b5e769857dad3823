"""What PySpark does to a data source and does not promise: our connector is built around these.

Each is shown with a source that only takes notes. A test that fails here after an upgrade means
that Spark has changed, and that the part of ottla.spark named in the test wants a look.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark.kit.recording import ROWS, Notes, Recording
from spark.kit.streams import batch_ids, drain, finish, forget_last_commit, until_query

END = {"t": {"0": 10, "1": 10}}
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(str(tmp_path / "notes"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(Recording)


def stream(spark: SparkSession, tmp_path: Path, *ends: Any, **options: str) -> DataFrame:
    reader = spark.readStream.format("recording").options(notes=str(tmp_path / "notes"), **options)
    return reader.option("ends", json.dumps(ends)).load()


def sink(frame: DataFrame, tmp_path: Path, checkpoint: Path, **options: str) -> StreamingQuery:
    writer = frame.writeStream.format("recording").option("notes", str(tmp_path / "notes"))
    writer = writer.options(**options).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def test_initial_offset_is_asked_twice_and_again_when_batch_0_is_replayed(
    spark: SparkSession, tmp_path: Path, notes: Notes, checkpoint: Path
) -> None:
    """stream_reader.py pins a start that cannot be repeated in an empty batch 0."""
    frame = stream(spark, tmp_path, END)
    drain(frame, checkpoint)
    assert len(notes.all("initialOffset")) == 2
    assert forget_last_commit(checkpoint) == 0
    drain(frame, checkpoint)
    assert len(notes.all("initialOffset")) == 3
    replayed = notes.all("partitions")
    assert [(one["start"], one["end"]) for one in replayed] == [({"t": {"0": 0, "1": 0}}, END)] * 2


def test_offsets_are_compared_as_text(
    spark: SparkSession, tmp_path: Path, notes: Notes, checkpoint: Path
) -> None:
    """offsets.py writes one order of keys only: another order is a batch without a row."""
    turned = {"t": {"1": 10, "0": 10}}
    frame = stream(spark, tmp_path, END, turned, END, turned, turned)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        until_query(query, lambda: len(notes.all("latestOffset")) > 8, "an idle query asks on")
    finally:
        query.stop()
    assert len(batch_ids(checkpoint, "offsets")) == 4


def test_an_idle_query_asks_for_the_latest_offset_on_and_on(
    spark: SparkSession, tmp_path: Path, notes: Notes, checkpoint: Path
) -> None:
    """stream_reader.py keeps the answer for a moment: each would be a request to the broker."""
    frame = stream(spark, tmp_path, END)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        until_query(query, lambda: len(notes.all("latestOffset")) > 20, "an idle query asks on")
    finally:
        query.stop()
    assert batch_ids(checkpoint, "offsets") == [0]
    asked = {one["process"] for one in notes.all("latestOffset", "initialOffset")}
    assert len(asked) == 1, "one process holds the reader of a query"


def test_commit_skips_the_last_batch_of_available_now(
    spark: SparkSession, tmp_path: Path, notes: Notes, checkpoint: Path
) -> None:
    """Progress for a consumer group also comes from the start given to latestOffset.

    Nor is there a last word in `stop`: Spark mostly ends the process before it comes to that.
    """
    middle = {"t": {"0": 5, "1": 5}}
    frame = stream(spark, tmp_path, middle, END, END)
    drain(frame, checkpoint)
    assert batch_ids(checkpoint) == [0, 1]
    assert [one["end"] for one in notes.all("commit")] == [middle]
    assert [one["start"] for one in notes.all("latestOffset")][-1] == END
    assert len(notes.all("prepareForTriggerAvailableNow")) == 1
    assert len(notes.all("stop")) <= 1


def test_options_arrive_lower_cased_with_spark_s_own_among_them(
    spark: SparkSession, tmp_path: Path, notes: Notes, checkpoint: Path
) -> None:
    """options.py knows its names in lower case and lets `path` and `checkpointlocation` pass."""
    frame = stream(spark, tmp_path, END, startingOffsets="x")
    finish(sink(frame, tmp_path, checkpoint, someOption="y", path=str(tmp_path)))
    (read,) = {tuple(one["options"]) for one in notes.all("new RecordingStreamReader")}
    assert "startingoffsets" in read
    assert "startingOffsets" not in read
    (written,) = {tuple(one["options"]) for one in notes.all("new RecordingWriter")}
    assert {"someoption", "checkpointlocation", "path"} < set(written)


def test_a_stream_writer_is_built_twice_per_batch_and_commits_may_repeat(
    spark: SparkSession, tmp_path: Path, notes: Notes, checkpoint: Path
) -> None:
    """writer.py keeps nothing in the object between write and commit."""
    frame = stream(spark, tmp_path, {"t": {"0": 5, "1": 5}}, END, END)
    finish(sink(frame, tmp_path, checkpoint))
    assert len(notes.all("new RecordingWriter")) == 2 * len(batch_ids(checkpoint)) == 4
    forget_last_commit(checkpoint)
    finish(sink(frame, tmp_path, checkpoint))
    assert [one["batch"] for one in notes.all("sink commit")] == [0, 1, 1]


def test_abort_follows_a_commit_that_failed(
    spark: SparkSession, tmp_path: Path, notes: Notes, checkpoint: Path
) -> None:
    frame = stream(spark, tmp_path, END)
    with pytest.raises(PySparkException, match="this commit fails"):
        finish(sink(frame, tmp_path, checkpoint, fail="commit"))
    assert [one["call"] for one in notes.all("sink commit", "abort")] == ["sink commit", "abort"]


def batch(spark: SparkSession, tmp_path: Path, **options: str) -> DataFrame:
    reader = spark.read.format("recording").option("notes", str(tmp_path / "notes"))
    return reader.options(**options).load()


def test_push_filters_is_refused_at_default_settings(spark: SparkSession, tmp_path: Path) -> None:
    """source.py has a reader with and one without it."""
    assert spark.conf.get(PUSHDOWN, "false") == "false"
    with pytest.raises(PySparkException, match=r"PUSHDOWN_DISABLED|filterPushdown"):
        batch(spark, tmp_path, filters="yes").collect()


def test_filters_that_a_source_takes_are_gone_from_the_plan(
    spark: SparkSession, tmp_path: Path, notes: Notes
) -> None:
    """filters.py takes only what is then applied to the letter."""
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = batch(spark, tmp_path, filters="yes")
        assert frame.where(frame.value == b"nothing like that").count() == 2 * ROWS
    finally:
        spark.conf.unset(PUSHDOWN)
    assert any("EqualTo" in text for one in notes.all("pushFilters") for text in one["filters"])


@pytest.mark.parametrize("where", ["type", "later"])
def test_an_arrow_type_next_to_the_declared_one_fails_the_task(
    spark: SparkSession, tmp_path: Path, where: str
) -> None:
    """columns.py holds one constant schema, and every Arrow batch has it."""
    assert batch(spark, tmp_path).count() == 2 * ROWS
    with pytest.raises(PySparkException):
        batch(spark, tmp_path, **{where: "large_binary"}).collect()
