"""A checkpoint moves between the connectors and goes on, without loss and without repeats."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla.testing import Broker
from spark.kit.filling import put_numbers
from spark.kit.streams import (
    OTTLA,
    batch_ids,
    drain,
    forget_last_commit,
    offsets_line,
    offsets_of,
    read_stream,
    running,
    until_query,
)

MakeTopic = Callable[..., str]
PARTITIONS = 2


class Job:
    """One streaming job over one checkpoint, under either format."""

    def __init__(
        self, spark: SparkSession, broker: Broker, topic: str, partitions: int, checkpoint: Path
    ) -> None:
        self._spark = spark
        self._bootstrap = broker.bootstrap
        self._partitions = partitions
        self.topic = topic
        self.checkpoint = checkpoint

    def frame(self, format: str, **options: Any) -> DataFrame:
        given = {"subscribe": self.topic, "startingOffsets": "earliest", **options}
        return read_stream(self._spark, format, self._bootstrap, **given)

    def put(self, numbers: range) -> None:
        put_numbers(self._bootstrap, self.topic, numbers, partitions=self._partitions)

    def drain(self, format: str, **options: Any) -> list[int]:
        return drain(self.frame(format, **options), self.checkpoint).numbers


@pytest.fixture
def job(spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path) -> Job:
    return Job(spark, broker, topic(PARTITIONS), PARTITIONS, tmp_path / "checkpoint")


def test_a_checkpoint_goes_over_and_back(job: Job, connector: str) -> None:
    for turn, format in enumerate([connector, OTTLA, connector, OTTLA, OTTLA]):
        numbers = range(100 * turn, 100 * turn + 100)
        job.put(numbers)
        assert job.drain(format) == list(numbers), f"turn {turn} under {format}"


def test_a_job_that_began_here_goes_on_there(job: Job, connector: str) -> None:
    job.put(range(50))
    assert job.drain(OTTLA, maxOffsetsPerTrigger=20) == list(range(50))
    job.put(range(50, 90))
    assert job.drain(connector) == list(range(50, 90))


def test_the_offset_log_is_the_connector_s(
    spark: SparkSession, connector: str, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """Partitions by number and not as text: another order would make batch after batch."""
    count = 11
    job = Job(spark, broker, topic(count), count, tmp_path)
    job.put(range(100))
    job.drain(OTTLA)
    ours = offsets_line(job.checkpoint, 0)
    assert list(json.loads(ours)[job.topic]) == [str(at) for at in range(count)]
    job.put(range(100, 101))
    job.drain(connector)
    theirs = json.loads(offsets_line(job.checkpoint, 1))
    assert json.loads(ours).keys() == theirs.keys()
    assert json.loads(ours)[job.topic].keys() == theirs[job.topic].keys()


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_restarted_idle_query_makes_no_batches(
    job: Job, connector: str, taken_over: bool
) -> None:
    job.put(range(30))
    job.drain(connector if taken_over else OTTLA)
    assert batch_ids(job.checkpoint) == [0]
    for turn in (1, 2):
        with running(job.frame(OTTLA), job.checkpoint) as (query, collected):
            until_query(
                query, lambda q=query: "Waiting for data" in q.status["message"], "never idle"
            )
            job.put(range(30 + turn, 31 + turn))
            until_query(query, lambda c=collected: len(c.rows) == 1, "the row that ends the wait")
        assert len([rows for _, rows in collected.batches if rows]) == 1
    # One batch per turn for its row; the text of the offsets may differ once after a takeover.
    assert len(batch_ids(job.checkpoint, "offsets")) <= 3 + taken_over


def test_a_batch_whose_commit_is_lost_runs_again_over_the_same_rows(job: Job) -> None:
    job.put(range(40))
    first = drain(job.frame(OTTLA, maxOffsetsPerTrigger=25), job.checkpoint)
    assert first.numbers == list(range(40))
    again = forget_last_commit(job.checkpoint)
    ends_at = offsets_of(job.checkpoint, again)
    job.put(range(40, 60))
    second = drain(job.frame(OTTLA), job.checkpoint)
    assert offsets_of(job.checkpoint, again) == ends_at
    repeated = dict(first.batches)[again]
    assert sorted(second.batches[0][1]) == sorted(repeated)
    assert second.numbers == sorted([int(row.value) for row in repeated] + list(range(40, 60)))


def test_a_start_at_latest_is_the_same_start_after_batch_0_is_replayed(job: Job) -> None:
    """Spark asks for the initial offset again then, and producers have been writing since."""
    job.put(range(10))
    latest = {"startingOffsets": "latest"}
    assert job.drain(OTTLA, **latest) == []
    assert forget_last_commit(job.checkpoint) == 0
    job.put(range(10, 30))
    assert job.drain(OTTLA, **latest) == list(range(10, 30))
    job.put(range(30, 40))
    assert job.drain(OTTLA, **latest) == list(range(30, 40))


def test_a_start_at_latest_is_kept_while_producers_write(job: Job) -> None:
    """Rows that come between the two questions of batch 0 are read again when it is."""
    latest = {"startingOffsets": "latest"}
    numbers = iter(range(10**9))
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            first = next(numbers)
            job.put(range(first, first + 1))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        first = drain(job.frame(OTTLA, **latest), job.checkpoint)
    finally:
        is_over.set()
        writer.join()
    again = dict(first.batches).get(forget_last_commit(job.checkpoint), [])
    last = next(numbers)
    job.put(range(last, last + 1))
    second = job.drain(OTTLA, **latest)
    assert second[: len(again)] == sorted(int(row.value) for row in again)
    assert second[-1] == last
    assert sorted({*first.numbers, *second}) == list(
        range(min([*first.numbers, *second]), last + 1)
    )
