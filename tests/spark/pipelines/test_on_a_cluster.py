"""The same file on a real standalone cluster: a master, two workers, one of which dies at work.

Its environment, its modules, its secrets and its drivers are sent there; checkpoints may lie in an
object store.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from ottla.pipelines.launch.environments import NAME
from ottla.testing.plugin import BrokerFactory
from scenarios.polling import until
from spark.kit import packed
from spark.kit.file_sinks import committed_rows
from spark.kit.messages import messages_in
from spark.kit.pipeline_feeds import Feed, Sent
from spark.kit.pipeline_runs import PATIENCE_S, CommandLine
from spark.kit.postgres import PASSWORD, USER, Postgres
from spark.kit.session import quick_java
from spark.kit.standalone import standalone
from spark.kit.toolchain import require

PARTITIONS = 4
ROWS = 400
BAD_EVERY = 50
DRIVER = "org.postgresql:postgresql:42.7.11"

FILE = """
version: 1
name: on-a-cluster
bootstrap: {bootstrap}
sources:
  numbers:
    topic: numbers
    schema: id bigint
    bad_records: {{topic: numbers.dead}}
views:
  marked: {{python: "marks:marked"}}
sinks:
  files: {{from: marked, files: out, format: parquet}}
  table:
    from: marked
    jdbc: {url}
    table: numbers
    user: {user}
    password: ${{DATABASE_PASSWORD}}
spark:
  spark.executor.memory: 512m
  spark.executor.extraJavaOptions: "{java}"
  spark.sql.shuffle.partitions: 2
"""

# The function is called in Python processes of the executors; they wait until the test has seen
# them at work.
MARKS = """
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

from doubling import doubled

GATE = Path({gate!r})


@udf("bigint")
def marked_one(number):
    (GATE / f"at-work-{{os.getpid()}}").write_text(sys.prefix)
    until = time.monotonic() + 120
    while not (GATE / "open").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return doubled(number)


def marked(numbers: DataFrame) -> DataFrame:
    return numbers.select("id", marked_one("id").alias("twice"))
"""


def row(number: int) -> Sent:
    text = f"bad {number}" if number % BAD_EVERY == 0 else json.dumps({"id": number})
    return Sent(b"%d" % number, text.encode())


def at_work(gate: Path) -> int | None:
    """The process of a task, once its note is whole."""
    for note in gate.glob("at-work-*"):
        if note.read_text():
            return int(note.name.rpartition("-")[2])
    return None


@pytest.mark.seconds(1200)
def test_a_worker_dies_and_the_totals_are_right(
    ottla_broker_factory: BrokerFactory,
    postgres: Postgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require("java", "mvn")
    broker, gate = ottla_broker_factory(), tmp_path / "gate"
    gate.mkdir()
    for name in ("numbers", "numbers.dead"):
        broker.create_topic(name, PARTITIONS)
    with Feed(broker.bootstrap, "numbers", row) as feed:
        feed.allow(ROWS)
        feed.until_idle()
    postgres.rows("CREATE TABLE numbers (id bigint, twice bigint)")
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        FILE.format(bootstrap=broker.bootstrap, url=postgres.url, user=USER, java=quick_java())
    )
    (tmp_path / "marks.py").write_text(MARKS.format(gate=str(gate)))
    (tmp_path / "doubling.py").write_text("def doubled(number):\n    return 2 * number\n")
    monkeypatch.setenv("DATABASE_PASSWORD", PASSWORD)
    archive = tmp_path / "environment.tar.gz"
    directory, _ = packed.environment()
    arguments = ["pipeline", "pack", str(archive), "--prefix", str(directory)]
    with CommandLine(arguments, tmp_path) as child:
        child.wait(PATIENCE_S)
    with standalone(tmp_path, workers=2) as cluster:
        arguments = ["pipeline", "run", str(file), "--once", "--master", cluster.url]
        arguments += ["--checkpoint", f"file://{tmp_path}/checkpoint", "--packages", DRIVER]
        arguments += ["--environment", str(archive)]
        with CommandLine(arguments, tmp_path) as child:
            until(lambda: child.check() and at_work(gate), "no task is at work", PATIENCE_S)
            pid = at_work(gate)
            assert pid is not None
            prefix = Path((gate / f"at-work-{pid}").read_text())
            assert (prefix.name, "worker-" in str(prefix)) == (NAME, True), (
                "the Python that was sent"
            )
            cluster.kill_worker_of(pid)
            (gate / "open").touch()
            child.wait(PATIENCE_S)
    check(broker.bootstrap, postgres, tmp_path, feed.sent)


def check(bootstrap: str, postgres: Postgres, home: Path, sent: list[Sent]) -> None:
    good = {json.loads(one.value)["id"] for one in sent if not one.value.startswith(b"bad")}
    expected = Counter((number, 2 * number) for number in good)
    files = committed_rows(home / "out")
    assert Counter((one["id"], one["twice"]) for one in files) == expected
    rows = postgres.rows("SELECT id, twice FROM numbers")
    assert Counter(tuple(map(int, one.split("|"))) for one in rows) == expected
    letters = {one.value for one in messages_in(bootstrap, "numbers.dead")}
    assert letters == {one.value for one in sent if one.value.startswith(b"bad")}
