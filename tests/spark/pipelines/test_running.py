"""A run of a pipeline, from its first batch to its end: reports, restarts, stopping, metrics."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from ottla.pipelines.language.problems import BadPipeline, PipelineFailed
from ottla.pipelines.running.metrics import PipelineMetrics, serving
from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from spark.conftest import MakeTopic
from spark.kit.filling import put, record
from spark.kit.messages import messages_in
from spark.kit.pipeline_runs import Running, run_once
from spark.kit.streams import TIMEOUT_S, batch_ids, offsets_of

# Waits in a task for a file that the test makes, so that a batch lasts as long as a test wants it.
GATED = """
import time
from pathlib import Path

HERE = Path({here!r})

def gate(numbers):
    def wait(batches):
        for batch in batches:
            for number in batch.column("number").to_pylist():
                (HERE / f"came-{{number // 100}}").touch()
                deadline = time.monotonic() + 120
                while not (HERE / f"open-{{number // 100}}").exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            yield batch
    return numbers.select("number").mapInArrow(wait, "number bigint")

def flaky(numbers):
    def fail(batches):
        for batch in batches:
            fails = sorted(HERE.glob("fail-*"))
            if fails:
                fails[0].unlink()
                raise OSError(f"no luck with {{fails[0].name}}, password=hunter2")
            yield batch
    return numbers.select("number").mapInArrow(fail, "number bigint")
"""


def write(directory: Path, broker: Broker, text: str) -> Path:
    (directory / "views.py").write_text(GATED.format(here=str(directory)))
    file = directory / "pipeline.yaml"
    head = f"version: 1\nname: shop\nbootstrap: {broker.bootstrap}\n"
    file.write_text(head + text)
    return file


def put_rows(broker: Broker, topic: str, numbers: range, partitions: int = 1) -> None:
    for partition in range(partitions):
        mine = [n for n in numbers if n % partitions == partition]
        rows = [record(b'{"number": %d}' % number, b"k") for number in mine]
        put(broker.bootstrap, topic, rows, partition=partition)


def numbers_in(broker: Broker, topic: str) -> list[int]:
    found = messages_in(broker.bootstrap, topic)
    return sorted(json.loads(one.value or b"")["number"] for one in found)


def copying(source: str, target: str, more: str = "", view: str = "") -> str:
    return f"""
sources:
  numbers: {{topic: {source}, format: json, schema: number bigint, max_rows_per_batch: 100}}
views:
  seen: {view or "SELECT number FROM numbers"}
sinks:
  out: {{from: seen, topic: {target}, format: json}}
{more}
"""


def test_once_takes_what_is_there_and_tells_each_batch_once(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic(2), topic()
    put_rows(broker, source, range(250), 2)
    file = write(tmp_path, broker, copying(source, target))
    running = run_once(spark, file)
    assert numbers_in(broker, target) == list(range(250))
    told = [one.batch for one in running.batches]
    assert told == batch_ids(running.checkpoint / "out")
    assert len(told) > 1
    assert sum(one.rows_in for one in running.batches) == 250
    assert sum(one.rows_out for one in running.batches) == 250
    lags = [one.lag["numbers"] for one in running.batches]
    assert lags[-1] == 0
    assert lags == sorted(lags, reverse=True)
    assert lags[0] == 250 - running.batches[0].rows_in
    assert running.kinds == ["started", "done"]
    assert "250 rows in, 250 rows out" in running.texts("done")[0]
    # Nothing new: nothing is told, nothing is written.
    put_before = numbers_in(broker, target)
    again = run_once(spark, file)
    assert (again.batches, again.kinds) == ([], ["started", "done"])
    assert numbers_in(broker, target) == put_before


def test_failing_flow_is_restarted_while_the_others_go_on(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target, other = topic(), topic(), topic()
    put_rows(broker, source, range(10))
    more = f"  plain: {{from: numbers, topic: {other}, format: json}}\n"
    more += "restarts: {max: 20, backoff: 100 milliseconds, max_backoff: 1 second}"
    file = write(tmp_path, broker, copying(source, target, more, "{python: views:flaky}"))
    for name in ("fail-1", "fail-2"):
        (tmp_path / name).touch()
    running = run_once(spark, file)
    assert numbers_in(broker, target) == list(range(10))
    assert numbers_in(broker, other) == list(range(10))
    told = [(one.flow, one.text) for one in running.events if one.kind == "restarting"]
    assert [flow for flow, _ in told] == ["out", "out"]
    for count, (_, text) in enumerate(told, 1):
        assert text.startswith("restarting in 0.")
        assert f" s because OSError: no luck with fail-{count}, password=*** (views.py" in text
    assert sorted((one.flow, one.batch) for one in running.batches) == [("out", 0), ("plain", 0)]


def test_flow_that_fails_too_often_ends_the_run_with_one_line(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic(), topic()
    put_rows(broker, source, range(10))
    more = "restarts: {max: 1, backoff: 100 milliseconds}"
    file = write(tmp_path, broker, copying(source, target, more, "{python: views:flaky}"))
    for name in ("fail-1", "fail-2", "fail-3"):
        (tmp_path / name).touch()
    with pytest.raises(PipelineFailed) as failed:
        run_once(spark, file)
    assert str(failed.value) == (
        "flow out: OSError: no luck with fail-2, password=*** (views.py line 25, in fail) "
        "(after 1 restart)"
    )
    assert numbers_in(broker, target) == []


def test_bad_record_is_final_at_once(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic(), topic()
    put(broker.bootstrap, source, [record(b'{"number": 1}'), record(b"no JSON at all")])
    file = write(tmp_path, broker, copying(source, target))
    with Running(spark, file, once=True) as running:
        failure = running.end().failure
        running.failure = None
    assert isinstance(failure, PipelineFailed)
    assert str(failure).startswith(f"flow out: topic {source} partition 0 offset 1: ")
    assert "\n" not in str(failure)
    assert running.kinds == ["started"]


def test_stop_finishes_the_batch_at_work_and_begins_no_other(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic(), topic()
    put_rows(broker, source, range(100))
    file = write(tmp_path, broker, copying(source, target, view="{python: views:gate}"))
    with Running(spark, file) as running:
        running.until((tmp_path / "came-0").exists, "no batch has begun")
        # These are the next batch, whose gate is never opened.
        put_rows(broker, source, range(100, 200))
        with pytest.raises(BadPipeline, match="another run"):
            run_once(spark, file)
        running.stop.set()
        running.until(lambda: running.texts("stopping"), "nobody has heard the stop")
        assert not running.is_over
        (tmp_path / "open-0").touch()
        running.end().check()
    assert numbers_in(broker, target) == list(range(100))
    commits = batch_ids(running.checkpoint / "out")
    assert [one.batch for one in running.batches] == commits
    assert offsets_of(running.checkpoint / "out", commits[-1]) == {source: {"0": 100}}
    assert running.kinds == ["started", "stopping", "stopped"]
    # At once: the batch at work is cut off, and runs again next time.
    with Running(spark, file) as cut:
        cut.until((tmp_path / "came-1").exists, "the next batch has not begun")
        cut.stop_now.set()
        cut.end().check()
    assert cut.batches == []
    assert batch_ids(running.checkpoint / "out") == commits
    (tmp_path / "open-1").touch()
    assert sum(one.rows_in for one in run_once(spark, file).batches) == 100
    assert numbers_in(broker, target) == list(range(200))


def test_lost_broker_is_waited_for_and_metrics_show_it(
    spark: SparkSession, ottla_broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    broker = ottla_broker_factory()
    for name in ("numbers", "copies"):
        broker.create_topic(name, 1)
    put_rows(broker, "numbers", range(50))
    more = "restarts: {max: 1000, backoff: 100 milliseconds, max_backoff: 200 milliseconds}\n"
    more += "kafka: {default.api.timeout.ms: 500, request.timeout.ms: 500}"
    file = write(tmp_path, broker, copying("numbers", "copies", more))
    metrics = PipelineMetrics("shop")
    with serving(metrics, 0) as port, Running(spark, file, metrics=metrics) as running:
        running.until(lambda: running.batches, "no batch")
        put_rows(broker, "numbers", range(50, 60))
        running.until(lambda: sum(one.rows_in for one in running.batches) == 60, "rows are missing")
        running.until(lambda: scraped(port)["lag_messages"] == 0, "the lag is not known")
        found = scraped(port)
        assert found["rows_in_total"] == found["rows_out_total"] == 60
        assert found["batches_total"] == len(running.batches)
        broker.kill()
        running.until(
            lambda: any("Connection refused" in one for one in running.texts("restarting")),
            "nobody has missed the broker",
        )
        assert scraped(port)["restarts_total"] > found["restarts_total"]
        broker.start()
        put_rows(broker, "numbers", range(60, 70))
        running.until(
            lambda: sum(one.rows_in for one in running.batches) == 70, "what came later is missing"
        )
    assert sorted(set(numbers_in(broker, "copies"))) == list(range(70))
    assert running.kinds[-2:] == ["stopping", "stopped"]


def scraped(port: int) -> dict[str, float]:
    """One flow with one source: names say it all."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    found = {"lag_messages": -1.0}
    for sample in (one for family in families for one in family.samples):
        assert sample.labels["pipeline"] == "shop"
        is_of_spark = "spark_restarts" in sample.name
        assert sample.labels.get("flow") == (None if is_of_spark else "out")
        found[sample.name.removeprefix("ottla_pipeline_")] = sample.value
    return found


def test_tables_are_written_once_beside_the_streams(
    spark: SparkSession, broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    target = topic()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"number": 1}\n{"number": 2}\n')
    text = f"""
sources:
  given: {{files: in/*.json, format: json, schema: number bigint, read: table}}
sinks:
  out: {{from: given, topic: {target}, format: json}}
"""
    file = write(tmp_path, broker, text)
    # Not `once`: there is nothing to wait for either way.
    with Running(spark, file) as running:
        running.end().check()
    assert running.kinds == ["started", "done"]
    assert numbers_in(broker, target) == [1, 2]
