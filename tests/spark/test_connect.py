"""Spark Connect: the client has no JVM and no context, and nothing of ours asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.testing.plugin import BrokerFactory
from spark.kit.children import Child
from spark.kit.filling import put_numbers, values_of
from spark.kit.results import results
from spark.kit.toolchain import require

JOB_TIMEOUT_S = 400


@pytest.mark.seconds(500)
def test_all_four_ways_over_spark_connect(
    tmp_path: Path, ottla_broker_factory: BrokerFactory
) -> None:
    require("java")
    broker = ottla_broker_factory()
    for name in ("source", "written", "streamed"):
        broker.create_topic(name, 2)
    put_numbers(broker.bootstrap, "source", range(100), partitions=2)
    job = {"bootstrap": broker.bootstrap, "directory": str(tmp_path)}
    with Child("spark.kit.connect_job", job, tmp_path) as child:
        found = results(child.wait(JOB_TIMEOUT_S))
    assert found["read"] == list(range(100))
    assert found["columns"][-1] == "headers"
    assert values_of(broker.bootstrap, "written", 2) == list(range(50))
    assert values_of(broker.bootstrap, "streamed", 2) == list(range(100))
