"""A broker that has records and does not give them: both connectors wait, and fail alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla.testing import Broker
from spark.kit.filling import put_numbers
from spark.kit.streams import OTTLA, read, rows_of
from spark.kit.withholding import FOR_GOOD, WithholdingBroker

MakeTopic = Callable[..., str]
POLL_TIMEOUT = "kafkaConsumer.pollTimeoutMs"


@pytest.mark.parametrize("empty_answers", [1, 2, 5])
def test_empty_answers_are_not_taken_for_the_end(
    spark: SparkSession, connector: str, broker: Broker, topic: MakeTopic, empty_answers: int
) -> None:
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(10))
    with WithholdingBroker(broker.bootstrap) as proxy:
        for format in (connector, OTTLA):
            proxy.withheld = empty_answers
            rows = rows_of(read(spark, format, proxy.address, subscribe=name))
            assert [int(row.value) for row in rows] == list(range(10)), format
            assert proxy.withheld == 0, format


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_records_that_never_come_end_the_query_at_its_deadline(
    spark: SparkSession, connector: str, broker: Broker, topic: MakeTopic, fail_on_data_loss: bool
) -> None:
    """Nothing says that they are gone, so accepting losses does not help in either."""
    name = topic(1)
    put_numbers(broker.bootstrap, name, range(10))
    options = {"subscribe": name, "failOnDataLoss": fail_on_data_loss, POLL_TIMEOUT: 1500}
    told = {}
    with WithholdingBroker(broker.bootstrap, withheld=FOR_GOOD) as proxy:
        for format in (connector, OTTLA):
            with pytest.raises((PySparkException, Py4JJavaError)) as raised:
                read(spark, format, proxy.address, **options).collect()
            told[format] = str(raised.value)
    assert "Cannot fetch record for offset 0 in 1500 milliseconds" in told[connector]
    (line,) = {text for text in told[OTTLA].splitlines() if "no record came" in text}
    assert line.endswith(
        f"cannot read topic {name} partition 0, offsets 0 to 10: {name}-0: no record came for "
        f"offset 0 in 1.5 s ({POLL_TIMEOUT}), although the log goes on to 10: "
        "look at the broker's log"
    )
