"""Options as a person writes them, through a real Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.filling import put_numbers
from spark.kit.streams import OTTLA, read, read_stream


def test_a_mistyped_option_is_told_with_the_one_that_was_meant(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Any
) -> None:
    line = "option maxoffsetpertrigger is unknown; did you mean maxOffsetsPerTrigger?"
    for begin in (read, read_stream):
        with pytest.raises(
            PySparkException, match=r"did you mean maxOffsetsPerTrigger\?"
        ) as caught:
            begin(spark, OTTLA, broker.bootstrap, subscribe=topic(1), maxOffsetPerTrigger="5")
        assert line in str(caught.value)
    frame = spark.range(1).selectExpr("cast(id as string) value")
    with pytest.raises(PySparkException, match=r"did you mean kafka\.compression\.type\?"):
        frame.write.format(OTTLA).option("bootstrap", broker.bootstrap).option(
            "topic", topic(1)
        ).option("kafka.compresion.type", "zstd").mode("append").save()


def test_options_are_taken_however_they_are_spelled(
    spark: SparkSession, broker: Broker, topic: MakeTopic
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(5))
    frame = (
        spark.read.format(OTTLA)
        .option("BOOTSTRAP", broker.bootstrap)
        .option("Subscribe", name)
        .option("STARTINGOFFSETS", f'{{"{name}":{{"0":2}}}}')
        .load()
    )
    assert sorted(int(row.value) for row in frame.collect()) == [2, 3, 4]


@pytest.mark.parametrize("pattern", ["b{}", "^b{}$", "B{}", r"\Qb{}\E", "^[a-b]{}$", "{}x"])
def test_a_pattern_finds_the_topics_that_the_connector_finds(
    spark: SparkSession, broker: Broker, connector: str, pattern: str, topic: MakeTopic
) -> None:
    # Topics of other tests are there too, so the names carry what topic() made unique.
    unique = topic(1)[-8:]
    for name in (f"b{unique}", f"b{unique}-eu", f"ab{unique}", f"a{unique}"):
        broker.create_topic(name, 1, None)
        put_numbers(broker.bootstrap, name, range(1))
    text = pattern.format(unique)

    def topics(format: str) -> list[str]:
        frame = read(spark, format, broker.bootstrap, subscribePattern=text)
        return sorted(row.topic for row in frame.collect())

    assert topics(OTTLA) == topics(connector)


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"endingOffsets": "earliest"},
        {"startingOffsets": '{"t":{"0":-1}}'},
        {"endingOffsets": '{"t":{"0":-2}}'},
        {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
        {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":5}}'},
        {"startingOffsets": "first"},
        {"startingTimestamp": "today"},
        {"assign": '{"t":[0]}'},
        {"minPartitions": "0"},
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
        {"failOnDataLoss": "perhaps"},
        {"kafka.auto.offset.reset": "earliest"},
        {"kafka.enable.auto.commit": "true"},
        {"kafka.key.deserializer": "x"},
        {"kafka.interceptor.classes": "x"},
        {"startingOffsetsByTimestampStrategy": "other", "startingTimestamp": "1"},
    ],
)
def test_what_the_connector_refuses_is_refused_here(
    spark: SparkSession, broker: Broker, connector: str, options: dict[str, str]
) -> None:
    for format in (connector, OTTLA):
        with pytest.raises(Exception, match=r".") as caught:
            read(spark, format, broker.bootstrap, subscribe="t", **options).collect()
        if format == OTTLA:
            assert "BadOption" in str(caught.value)
