"""Spark itself is lost under a running pipeline: the command goes on with a new one."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.running.lost_spark import Earlier, SparkLost
from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from scenarios.polling import until
from spark.kit.children import kill_9
from spark.kit.messages import messages_in
from spark.kit.pipeline_feeds import Feed, Sent
from spark.kit.pipeline_runs import PATIENCE_S, CommandLine, Running, run_once

ROWS = 300
RESTARTING = "restarting Spark in 0.1 s because"

FILE = """
version: 1
name: lost
bootstrap: {bootstrap}
sources:
  numbers: {{topic: numbers, format: json, schema: id bigint, max_rows_per_batch: 100}}
views:
  seen: {{python: views:seen}}
sinks:
  files: {{from: seen, files: out, format: json}}
  copies: {{from: seen, topic: copies, format: json}}
restarts: {{max: {restarts}, backoff: 100 milliseconds}}
spark: {{spark.sql.shuffle.partitions: 1}}
"""

# The context stops when a file is there, once.
VIEWS = """
import contextlib, threading, time
from pathlib import Path

STOP = Path(__file__).with_name("stop-the-context")

def seen(numbers, spark):
    def watch():
        while not STOP.exists():
            time.sleep(0.1)
        # Views are made more than once, and the JVM may be ended before it has answered.
        with contextlib.suppress(Exception):
            STOP.unlink()
            spark.sparkContext._jsc.stop()
    threading.Thread(target=watch, daemon=True).start()
    return numbers.select("id")
"""


def row(number: int) -> Sent:
    return Sent(b"%d" % number, json.dumps({"id": number}).encode())


@pytest.fixture
def lost(ottla_broker_factory: BrokerFactory, tmp_path: Path) -> tuple[Broker, Path]:
    broker = ottla_broker_factory()
    for name in ("numbers", "copies"):
        broker.create_topic(name, 1)
    (tmp_path / "views.py").write_text(VIEWS)
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE.format(bootstrap=broker.bootstrap, restarts=5))
    return broker, file


def arguments(file: Path) -> list[str]:
    checkpoint = str(file.parent / "checkpoint")
    return [
        "pipeline", "run", str(file), "--checkpoint", checkpoint, "--master=local[2]",
        "--metrics=0",
    ]  # fmt: skip


def java_of(child: CommandLine) -> psutil.Process | None:
    for process in psutil.Process(child.pid).children():
        try:
            if process.name() == "java":
                return process
        except psutil.NoSuchProcess:
            continue
    return None


def kill_java(child: CommandLine, home: Path) -> None:
    java = java_of(child)
    assert java is not None
    assert kill_9(java)


def stop_the_context(child: CommandLine, home: Path) -> None:
    (home / "stop-the-context").touch()


@pytest.mark.seconds(900)
def test_a_run_goes_on_in_a_new_spark(spark: SparkSession, lost: tuple[Broker, Path]) -> None:
    """And when that one is lost too, in another way, in a third."""
    broker, file = lost
    home = file.parent
    with (
        Feed(broker.bootstrap, "numbers", row) as feed,
        CommandLine(arguments(file), home) as child,
    ):
        feed.allow(ROWS)
        wait(child, lambda: batches(child, "files") and batches(child, "copies"))
        for times, lose in enumerate((kill_java, stop_the_context), 1):
            before = len(batches(child, "files")), len(batches(child, "copies"))
            java = java_of(child)
            assert java is not None
            lose(child, home)
            wait(child, lambda n=times: child.log().count(RESTARTING) == n)
            feed.allow((times + 1) * ROWS)
            wait(child, lambda b=before: len(batches(child, "files")) > b[0])
            wait(child, lambda b=before: len(batches(child, "copies")) > b[1])
            assert java_of(child) not in (java, None)
            assert not java.is_running(), "the old JVM lives on"
            served = re.findall(r"Metrics: (\S+)", child.log())
            assert len(served) == times + 1
            assert len(set(served)) == 1, "whoever scrapes it knows this address"
            told = urllib.request.urlopen(served[0], timeout=60).read().decode()
            assert f'ottla_pipeline_spark_restarts_total{{pipeline="lost"}} {times}.0' in told
        feed.until_idle()
        child.terminate()
        assert child.end(PATIENCE_S) == 0, child.log()[-3000:]
    assert "Traceback" not in child.log()
    run_once(spark, file)
    rows = Counter(one.id for one in spark.read.json(str(home / "out")).collect())
    assert rows == Counter(range(3 * ROWS)), "files are exactly once"
    copied = {json.loads(one.value or b"")["id"] for one in messages_in(broker.bootstrap, "copies")}
    assert copied == set(range(3 * ROWS)), "topics are never short"


@pytest.mark.seconds(600)
def test_a_spark_that_is_lost_is_a_failure_where_nothing_is_restarted(
    lost: tuple[Broker, Path],
) -> None:
    broker, file = lost
    file.write_text(FILE.format(bootstrap=broker.bootstrap, restarts=0))
    with (
        Feed(broker.bootstrap, "numbers", row) as feed,
        CommandLine(arguments(file), file.parent) as child,
    ):
        feed.allow(ROWS)
        wait(child, lambda: batches(child, "files"))
        kill_java(child, file.parent)
        assert child.end(PATIENCE_S) == 1
    assert "Spark's JVM has gone" in child.log()
    assert "Traceback" not in child.log()


# What a run makes of a Spark that says it has stopped, in one that has not.
SAID = """
from pathlib import Path

LOST = Path(__file__).with_name("lost")

def seen(numbers):
    def fail(batches):
        for batch in batches:
            if LOST.exists():
                raise OSError("Cannot call methods on a stopped SparkContext, password=hunter2")
            yield batch
    return numbers.select("id").mapInArrow(fail, "id bigint")
"""


@pytest.mark.seconds(600)
def test_sparks_that_are_lost_in_a_row_are_counted_until_it_is_enough(
    spark: SparkSession, lost: tuple[Broker, Path]
) -> None:
    broker, file = lost
    file.write_text(FILE.format(bootstrap=broker.bootstrap, restarts=1))
    (file.parent / "views.py").write_text(SAID)
    (file.parent / "lost").touch()
    with Feed(broker.bootstrap, "numbers", row) as feed:
        feed.allow(ROWS)
        feed.until_idle()
    first = Running(spark, file, once=True)
    with pytest.raises(SparkLost) as loss, first:
        first.end()
    (line,) = first.texts("restarting")
    assert line.startswith("restarting Spark in 0.1 s because OSError: Cannot call methods on a")
    earlier = loss.value.earlier
    assert (earlier.restarts, earlier.failures) == (1, 1)
    second = Running(spark, file, once=True, earlier=earlier)
    with pytest.raises(PipelineFailed, match=r"stopped.*\(after 1 restart of Spark\)"), second:
        second.end()
    assert second.texts("restarting") == []
    (file.parent / "lost").unlink()
    # A batch has come between: patience begins anew. What was done is not done again.
    done = Earlier(earlier.run_id, ("copies",), restarts=1, failures=1)
    with Running(spark, file, once=True, earlier=done) as third:
        third.end()
    assert {batch.flow for batch in third.batches} == {"files"}


def wait(child: CommandLine, holds: Callable[[], object]) -> None:
    until(lambda: child.check() and holds(), "the pipeline stands still", PATIENCE_S)


def batches(child: CommandLine, flow: str) -> list[str]:
    lines = child.log().splitlines()
    return [one for one in lines if '"type":"batch"' in one.replace(" ", "") and f'"{flow}"' in one]
