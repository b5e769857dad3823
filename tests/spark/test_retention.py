"""What is gone before a job came to read it; what appears while a job runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ottla.testing import Broker
from spark.kit.filling import add_partitions, delete_before, put_numbers
from spark.kit.streams import OTTLA, Collected, drain, finish, read_stream, running, until_query

MakeTopic = Callable[..., str]


def stream(spark: SparkSession, broker: Broker, **options: object) -> DataFrame:
    return read_stream(spark, OTTLA, broker.bootstrap, **{"startingOffsets": "earliest", **options})


def test_retention_overtakes_a_stopped_job(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(100))
    drain(stream(spark, broker, subscribe=name), tmp_path)
    put_numbers(broker.bootstrap, name, range(100, 200))
    delete_before(broker.bootstrap, name, 150)
    with pytest.raises(PySparkException) as failure:
        drain(stream(spark, broker, subscribe=name), tmp_path)
    text = str(failure.value)
    assert name in text
    assert "100" in text, "the offset it wanted"
    assert "150" in text, "the offset that there is"
    assert "failOnDataLoss" in text, "the way on"
    lenient = stream(spark, broker, subscribe=name, failOnDataLoss="false")
    assert drain(lenient, tmp_path).numbers == list(range(150, 200))


class Overtaken(Collected):
    """Loses what comes next while the first batch is at work."""

    def __init__(self, lose: Callable[[], None]) -> None:
        super().__init__()
        self._lose = lose

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        super().__call__(frame, batch_id)
        if batch_id == 0:
            self._lose()


@pytest.mark.parametrize("strict", [True, False])
def test_retention_overtakes_a_running_job(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path, strict: bool
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(100))
    frame = stream(
        spark, broker, subscribe=name, maxOffsetsPerTrigger=10, failOnDataLoss=str(strict).lower()
    )
    collected = Overtaken(lambda: delete_before(broker.bootstrap, name, 75))
    writer = frame.writeStream.foreachBatch(collected).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    if strict:
        with pytest.raises(PySparkException, match=f"(?s){name}.*75"):
            finish(query)
        assert collected.numbers == list(range(10))
    else:
        finish(query)
        assert collected.numbers == [*range(10), *range(75, 100)]


def test_a_topic_that_was_made_anew_is_data_loss(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """The offset in the checkpoint lies beyond the end of the new one."""
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(100))
    drain(stream(spark, broker, subscribe=name), tmp_path)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(30)
    broker.create_topic(name)
    put_numbers(broker.bootstrap, name, range(5))
    with pytest.raises(PySparkException, match=f"(?s){name}.*100"):
        drain(stream(spark, broker, subscribe=name), tmp_path)


def test_topics_and_partitions_that_appear_are_read_from_their_beginning(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    first = topic(1)
    put_numbers(broker.bootstrap, first, range(10))
    frame = stream(spark, broker, subscribePattern=f"{first}.*")
    with running(frame, tmp_path) as (query, collected):
        until_query(query, lambda: len(collected.rows) == 10, "the first rows")
        add_partitions(broker.bootstrap, first, 3)
        put_numbers(broker.bootstrap, first, range(10, 40), partitions=3)
        until_query(query, lambda: len(collected.rows) >= 40, "rows of new partitions")
        broker.create_topic(f"{first}-second", 2)
        put_numbers(broker.bootstrap, f"{first}-second", range(40, 60), partitions=2)
        until_query(query, lambda: len(collected.rows) >= 60, "rows of the new topic")
    assert collected.numbers == list(range(60))


def test_what_appears_while_a_job_is_stopped_is_read_from_its_beginning(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """Also when the job once began at latest: that was about the partitions of then."""
    name = topic(1)
    frame = stream(spark, broker, subscribe=name, startingOffsets="latest")
    put_numbers(broker.bootstrap, name, range(5))
    assert drain(frame, tmp_path).numbers == []
    add_partitions(broker.bootstrap, name, 2)
    put_numbers(broker.bootstrap, name, range(10, 20), partitions=2)
    assert drain(frame, tmp_path).numbers == list(range(10, 20))
