"""`start: latest` is one moment for all flows of a pipeline, however they get on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from ottla.pipelines.problems import PipelineFailed
from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.filling import put, record
from spark.kit.messages import messages_in
from spark.kit.pipeline_runs import run_once

TIMEOUT_S = 30.0


@pytest.mark.parametrize("start", ["latest", "2099-01-01T00:00:00Z"])
def test_a_flow_that_did_not_start_begins_where_the_others_did(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path, start: str
) -> None:
    source, target = topic(1), topic(1)
    put(broker.bootstrap, source, [record(b'{"id": 1}')])
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""
version: 1
name: shop
bootstrap: {broker.bootstrap}
sources:
  orders: {{topic: {source}, format: json, schema: id int, start: "{start}"}}
sinks:
  out: {{from: orders, topic: {target}, format: json}}
  files: {{from: orders, files: blocked, format: json}}
restarts: {{max: 0}}
""")
    (tmp_path / "blocked").write_text("where a directory should be")
    with pytest.raises(PipelineFailed, match="flow files: "):
        run_once(spark, file)
    put(broker.bootstrap, source, [record(b'{"id": 2}')])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(source, 2)])[source].result(TIMEOUT_S)
    put(broker.bootstrap, source, [record(b'{"id": 3}')], partition=1)
    (tmp_path / "blocked").unlink()
    run_once(spark, file, restarts__max="5")
    rows = spark.read.schema("id int").json(str(tmp_path / "blocked")).collect()
    assert sorted(row.id for row in rows) == [2, 3]
    found = [json.loads(one.value or b"") for one in messages_in(broker.bootstrap, target)]
    assert sorted(one["id"] for one in found) == [2, 3]
