"""Spark's own connector for Kafka works on Ottla, batch and streaming, both ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from ottla.testing import Broker
from spark.kit.filling import add_partitions, put_numbers
from spark.kit.streams import drain, finish, read, read_stream, rows_of, running, until_query

MakeTopic = Callable[..., str]


def test_batch_write_and_read(
    spark: SparkSession, connector: str, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(3)
    rows = spark.range(1000).selectExpr("cast(id as string) key", "cast(id * 2 as string) value")
    writer = rows.write.format(connector).option("kafka.bootstrap.servers", broker.bootstrap)
    writer.option("topic", name).save()
    found = rows_of(read(spark, connector, broker.bootstrap, subscribe=name))
    assert sorted((int(row.key), int(row.value)) for row in found) == [
        (at, at * 2) for at in range(1000)
    ]
    assert {row.partition for row in found} == {0, 1, 2}


def test_streaming_write_and_read_through_a_restart(
    spark: SparkSession, connector: str, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic(2), topic(2)
    for numbers in (range(100), range(100, 250)):
        put_numbers(broker.bootstrap, source, numbers, partitions=2)
        frame = read_stream(
            spark, connector, broker.bootstrap, subscribe=source, startingOffsets="earliest",
            maxOffsetsPerTrigger=60,
        )  # fmt: skip
        writer = frame.select("key", "value").writeStream.format(connector)
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", target)
        writer = writer.option("checkpointLocation", str(tmp_path / "copy"))
        finish(writer.trigger(availableNow=True).start())
    copied = rows_of(read(spark, connector, broker.bootstrap, subscribe=target))
    assert sorted(int(row.value) for row in copied) == list(range(250))


def test_a_running_query_sees_new_rows_and_new_partitions(
    spark: SparkSession, connector: str, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(10))
    frame = read_stream(
        spark, connector, broker.bootstrap, subscribe=name, startingOffsets="earliest",
        **{"kafka.metadata.max.age.ms": 200},
    )  # fmt: skip
    with running(frame, tmp_path / "checkpoint") as (query, collected):
        until_query(query, lambda: len(collected.rows) == 10, "the first rows")
        add_partitions(broker.bootstrap, name, 2)
        put_numbers(broker.bootstrap, name, range(10, 30), partitions=2)
        until_query(query, lambda: len(collected.rows) == 30, "rows of the new partition")
    assert collected.numbers == list(range(30))


def test_available_now_reads_every_partition_of_many(
    spark: SparkSession, connector: str, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(20)
    put_numbers(broker.bootstrap, name, range(200), partitions=20)
    frame = read_stream(
        spark, connector, broker.bootstrap, subscribePattern=name, startingOffsets="earliest"
    )
    assert drain(frame, tmp_path / "checkpoint").numbers == list(range(200))
