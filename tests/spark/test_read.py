"""Batch reads: which rows, in which columns, cut into which tasks, and what an error says."""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla.spark import register, versions
from ottla.spark.batch_reader import make_reader
from ottla.spark.data_loss import DataLost
from ottla.spark.options.source import SourceOptions
from ottla.spark.planning import CannotRead
from ottla.spark.source import OttlaDataSource
from ottla.spark.stream_reader import OttlaStreamReader
from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from spark.conftest import MakeTopic
from spark.kit.filling import (
    append_to_log_file,
    delete_before,
    emptied_batch,
    put,
    put_numbers,
    record,
)
from spark.kit.streams import OTTLA, read, rows_of

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def numbers(spark: SparkSession, broker: Broker, **options: Any) -> list[int]:
    return sorted(
        int(row.value) for row in rows_of(read(spark, OTTLA, broker.bootstrap, **options))
    )


def test_the_columns_are_those_of_sparks_own_connector(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put(broker.bootstrap, name, [record(b"v", b"k", timestamp=1_700_000_000_123)])
    frame = read(spark, OTTLA, broker.bootstrap, subscribe=name, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    (row,) = frame.selectExpr("*", "unix_millis(timestamp) ms").collect()
    assert (bytes(row.key), bytes(row.value), row.topic, row.partition) == (b"k", b"v", name, 0)
    assert (row.offset, row.ms, row.timestampType, row.headers) == (0, 1_700_000_000_123, 0, None)


def test_only_the_columns_asked_for_are_built(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(3))
    frame = read(spark, OTTLA, broker.bootstrap, subscribe=name, columns="offset,key")
    assert frame.columns == ["offset", "key"]
    assert sorted(row.offset for row in frame.collect()) == [0, 1, 2]


def test_topics_are_chosen_by_name_by_pattern_and_by_partition(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    one, two = topic(2), topic(1)
    put_numbers(broker.bootstrap, one, range(10), partitions=2)
    put_numbers(broker.bootstrap, two, range(10, 13))
    assert numbers(spark, broker, subscribe=f"{one},{two}") == list(range(13))
    assert numbers(spark, broker, subscribePattern=f"{one}|{two}") == list(range(13))
    chosen = json.dumps({one: [1]})
    assert numbers(spark, broker, assign=chosen) == [1, 3, 5, 7, 9]


def test_a_range_begins_and_ends_where_it_was_told(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    for number in range(10):
        put(broker.bootstrap, name, [record(b"%d" % number, timestamp=1000 * number)])
    at_offsets = {
        "startingOffsets": json.dumps({name: {"0": 3}}),
        "endingOffsets": json.dumps({name: {"0": 5}}),
    }
    assert numbers(spark, broker, subscribe=name, **at_offsets) == [3, 4]
    at_times = {"startingTimestamp": 2500, "endingTimestamp": 7000}
    assert numbers(spark, broker, subscribe=name, **at_times) == [3, 4, 5, 6]
    to_the_end = {"startingTimestamp": 8000, "endingTimestamp": 99_000}
    assert numbers(spark, broker, subscribe=name, **to_the_end) == [8, 9]


def test_a_partition_is_read_by_one_task_and_so_in_order_however_long_it_is(
    spark: SparkSession, connector: str, ottla_broker_factory: BrokerFactory
) -> None:
    """Two million of its offsets are empty, so that a few rows show it."""
    own = ottla_broker_factory()
    own.create_topic("long")
    put(own.bootstrap, "long", [record(b"0"), record(b"1")])
    append_to_log_file(own, "long", emptied_batch(2, 2_200_000))
    put(own.bootstrap, "long", [record(b"2"), record(b"3")])
    for format in (connector, OTTLA):
        frame = read(spark, format, own.bootstrap, subscribe="long")
        assert frame.rdd.getNumPartitions() == 1, format
        assert [row.value for row in frame.collect()] == [b"0", b"1", b"2", b"3"]
    asked = {"subscribe": "long", "maxRecordsPerPartition": 1_000_000}
    assert read(spark, OTTLA, own.bootstrap, **asked).rdd.getNumPartitions() == 3


def test_one_fat_partition_is_shared_by_all_cores_where_that_is_asked_for(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(2)
    put_numbers(broker.bootstrap, name, range(0, 100, 2), partitions=2)
    frame = read(spark, OTTLA, broker.bootstrap, subscribe=name, maxRecordsPerPartition=7)
    from pyspark.sql.functions import spark_partition_id

    tasks = frame.groupBy(spark_partition_id().alias("task")).count().collect()
    assert len(tasks) == 8, "the other partition is empty and makes no task"
    assert max(row["count"] for row in tasks) == 7
    assert sorted(int(row.value) for row in frame.collect()) == list(range(0, 100, 2))
    assert numbers(spark, broker, subscribe=name, minPartitions=5) == list(range(0, 100, 2))


def test_many_partitions_and_empty_topics_are_read(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    """Two hundred are read in test_row_for_row_on_kafka.py."""
    many, empty = topic(20), topic(3)
    put_numbers(broker.bootstrap, many, range(200), partitions=20)
    assert numbers(spark, broker, subscribe=f"{many},{empty}") == list(range(200))
    assert numbers(spark, broker, subscribe=empty) == []


def test_filters_narrow_what_is_read_only_when_spark_offers_them(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(3)
    put_numbers(broker.bootstrap, name, range(30), partitions=3)
    where = "partition = 1 and offset >= 4 and offset < 7 and value <> '16'"
    frame = read(spark, OTTLA, broker.bootstrap, subscribe=name).where(where)
    expected = sorted(int(row.value) for row in frame.collect())
    assert expected == [13, 19]
    spark.conf.set(PUSHDOWN, "true")
    try:
        narrowed = read(spark, OTTLA, broker.bootstrap, subscribe=name).where(where)
        assert sorted(int(row.value) for row in narrowed.collect()) == expected
        assert narrowed.rdd.getNumPartitions() == 1
    finally:
        spark.conf.set(PUSHDOWN, "false")
    assert frame.rdd.getNumPartitions() == 3


def error_of(spark: SparkSession, broker: Broker, **options: Any) -> str:
    with pytest.raises(PySparkException) as raised:
        read(spark, OTTLA, broker.bootstrap, **options).collect()
    return str(raised.value)


def test_an_unknown_topic_is_named(spark: SparkSession, broker: Broker) -> None:
    told = error_of(spark, broker, subscribe="not-there")
    assert f"CannotRead: topic not-there does not exist on {broker.bootstrap}" in told


def test_a_start_that_retention_has_taken_is_told_in_one_line_or_accepted(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(10))
    delete_before(broker.bootstrap, name, 6)
    start = {"subscribe": name, "startingOffsets": json.dumps({name: {"0": 2}})}
    line = f"topic {name} partition 0: offset 2 was wanted, available are 6 to 10"
    told = error_of(spark, broker, **start)
    (found,) = {text for text in told.splitlines() if line in text}
    assert "DataLost" in found
    assert "failOnDataLoss=false" in found
    assert numbers(spark, broker, failOnDataLoss="false", **start) == [6, 7, 8, 9]


class Reading:
    """A reader asked as Spark's driver and executors do, without one."""

    def __init__(self, broker: Broker, **options: str) -> None:
        given = {"kafka.bootstrap.servers": broker.bootstrap}
        given |= {name.lower(): value for name, value in options.items()}
        self.reader = make_reader(SourceOptions.parse(given, streaming=False))

    def plan(self) -> list[Any]:
        return self.reader.partitions()

    def offsets(self, tasks: list[Any]) -> list[int]:
        batches = [batch for task in tasks for batch in self.reader.read(task)]
        return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_a_start_or_an_end_after_the_log_is_told_or_accepted(
    broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(4))
    after = {"subscribe": name, "startingOffsets": json.dumps({name: {"0": 9}})}
    with pytest.raises(DataLost, match="offset 9 was wanted, available are 0 to 4"):
        Reading(broker, **after).plan()
    assert Reading(broker, failOnDataLoss="false", **after).plan() == []
    beyond = {"subscribe": name, "endingOffsets": json.dumps({name: {"0": 7}})}
    with pytest.raises(DataLost, match="offset 7 was wanted, available are 0 to 4"):
        Reading(broker, **beyond).plan()
    lax = Reading(broker, failOnDataLoss="false", **beyond)
    assert lax.offsets(lax.plan()) == [0, 1, 2, 3]


def test_an_end_before_the_start_is_an_error(broker: Broker, topic: MakeTopic) -> None:
    name = topic(1)
    for number in range(4):
        put(broker.bootstrap, name, [record(b"", timestamp=1000 * number)])
    turned = {"startingOffsets": json.dumps({name: {"0": 3}}), "endingTimestamp": "1000"}
    with pytest.raises(CannotRead, match="begins at offset 3 and ends before, at 1"):
        Reading(broker, subscribe=name, **turned).plan()


def test_a_task_whose_offsets_go_before_it_runs_tells_it_or_goes_on(
    broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(10))
    strict, lax = (
        Reading(broker, subscribe=name, failOnDataLoss=choice) for choice in ("true", "false")
    )
    tasks = strict.plan()
    delete_before(broker.bootstrap, name, 6)
    with pytest.raises(DataLost, match="offset 0 was wanted, available are 6 to 10"):
        strict.offsets(tasks)
    assert lax.offsets(tasks) == [6, 7, 8, 9], "though all ten are in one batch"


def test_a_topic_that_goes_before_its_task_runs_is_one_line(
    broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(3))
    reading = Reading(broker, subscribe=name)
    tasks = reading.plan()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(30)
    with pytest.raises(CannotRead, match=f"cannot read topic {name} partition 0") as told:
        reading.offsets(tasks)
    assert "\n" not in str(told.value)


def test_registering_by_hand_works_as_often_as_one_likes(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(3))
    session = spark.newSession()
    register(session)
    register(session)
    assert numbers(session, broker, subscribe=name) == [0, 1, 2]


def test_a_session_that_only_looks_for_sources_loads_little() -> None:
    """Every Spark session imports it, and a failure there would take all other sources along."""
    code = (
        "import sys, pyspark_ottla; print(pyspark_ottla.DefaultSource.name());"
        "print([name for name in sys.modules if name.startswith('ottla')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    name, modules = done.stdout.splitlines()
    assert name == "ottla"
    assert ast.literal_eval(modules) == ["ottla", "ottla.spark", "ottla.spark.source"]


# ── what is shipped to the executors ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [make_reader, OttlaStreamReader])
def test_another_version_on_an_executor_is_one_line(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
    streaming = kind is OttlaStreamReader
    packed = pickle.dumps(kind(SourceOptions.parse(options, streaming=streaming)))
    assert isinstance(pickle.loads(packed), kind if streaming else object)
    monkeypatch.setattr(versions, "own_version", lambda: "9.9.9")
    with pytest.raises(versions.VersionsDiffer, match=r"driver runs Ottla 0.*runs Ottla 9\.9\.9"):
        pickle.loads(packed)


def test_a_newer_driver_s_state_is_not_opened_before_the_versions_are_compared() -> None:
    with pytest.raises(versions.VersionsDiffer):
        versions.unpack("9.9.9", b"what only 9.9.9 can read")


def test_no_repr_shows_a_password() -> None:
    options = {
        "kafka.bootstrap.servers": "localhost:1",
        "subscribe": "t",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="ann" password="hunter2";'
        ),
    }
    parsed = SourceOptions.parse(options, streaming=False)
    shown = [make_reader(parsed), OttlaStreamReader(parsed), OttlaDataSource(options), parsed]
    for one in shown:
        assert "hunter2" not in repr(one) + str(one)
