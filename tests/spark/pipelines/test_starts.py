"""`start: latest` is one moment for all flows of a pipeline, however they get on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from ottla.pipelines.language.model import TopicSource
from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.running.checkpoints import Local
from ottla.pipelines.running.starts import of_new_flows
from ottla.pipelines.views.graph import Flow
from ottla.spark.planning import CannotRead
from ottla.testing import Broker
from spark.conftest import MakeTopic
from spark.kit.filling import put, record
from spark.kit.messages import messages_in
from spark.kit.pipeline_runs import run_once
from spark.kit.pipeline_sources import PLACE, pipeline_of

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


def test_a_flow_whose_folder_is_deleted_begins_at_another_moment(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic(1), topic(1)
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""
version: 1
name: shop
bootstrap: {broker.bootstrap}
sources:
  orders: {{topic: {source}, format: json, schema: id int, start: latest}}
sinks:
  out: {{from: orders, topic: {target}, format: json}}
""")
    run_once(spark, file)
    assert (tmp_path / "checkpoint" / "out" / "commits" / "0").exists()
    shutil.rmtree(tmp_path / "checkpoint" / "out")
    put(broker.bootstrap, source, [record(b'{"id": 1}')])
    run_once(spark, file)
    assert messages_in(broker.bootstrap, target) == []


def test_a_topic_that_is_gone_before_the_first_batch_is_named(
    broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    source = TopicSource(name="orders", place=PLACE, topics=(name,), start="latest", schema="a INT")
    pipeline, store = pipeline_of(tmp_path, broker.bootstrap, source), Local(tmp_path)
    streams = [Flow("out", cast(Any, None), cast(Any, None), (source,))]
    noted = {"starts": of_new_flows(pipeline, streams, None, store)}
    assert noted["starts"]["out"]["orders"]["offsets"] == {name: {"0": 0}}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    with pytest.raises(CannotRead, match=f"topic {name} does not exist on .*: create it first"):
        of_new_flows(pipeline, streams, noted, store)
