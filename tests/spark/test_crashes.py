"""kill -9 at random moments (by seed) of the driver, of Python workers, of the broker.

Afterwards every row is in the target topic, twice only where a batch ran twice, and in the files
exactly once.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from scenarios import polling
from spark.kit import pipeline_soak as soak
from spark.kit.children import Child, kill_9, python_workers
from spark.kit.copying import copy_to_files, copy_to_topic
from spark.kit.pipeline_feeds import Feed, Sent
from spark.kit.pipeline_runs import PATIENCE_S
from spark.kit.streams import OTTLA, batch_ids, finish, read

PARTITIONS = 3
ROWS_PER_BATCH = 120
# More than what a kill waits for: two batches after one that runs again.
ROWS_PER_KILL = 4 * ROWS_PER_BATCH
# More than the Pythons that two kills can leave in Spark's pools.
KILLED_MAX = 20

T = TypeVar("T")


def row(number: int) -> Sent:
    return Sent(b"key-%d" % number, b"%d" % number)


@pytest.fixture
def job(ottla_broker_factory: BrokerFactory, tmp_path: Path, jars: list[Path]) -> dict[str, Any]:
    broker = ottla_broker_factory()
    broker.create_topic("source", PARTITIONS)
    broker.create_topic("target", PARTITIONS)
    return {
        "broker": broker,
        "bootstrap": broker.bootstrap,
        "source": "source",
        "target": "target",
        "directory": str(tmp_path),
        "rows_per_batch": ROWS_PER_BATCH,
        "jars": [],
    }


def check_end(spark: SparkSession, job: dict[str, Any], feed: Feed, runs: int) -> int:
    """Lets both copies reach the end, and looks at what they made over all runs; the doubles."""
    # In few batches: those that were cut off have run, and this one is not.
    last = {**job, "rows_per_batch": len(feed.sent)}
    for query in [copy(spark, last, availableNow=True) for copy in (copy_to_topic, copy_to_files)]:
        finish(query)
    expected = {sent.value.decode() for sent in feed.sent}
    in_files = Counter(
        row.value for row in spark.read.parquet(f"{job['directory']}/files").collect()
    )
    assert set(in_files) == expected
    assert set(in_files.values()) == {1}, "files are exactly once"
    copied = past_killed_workers(lambda: copied_rows(spark, job))
    assert {value for _, value in copied} == expected
    assert all(key == f"key-{value}" for key, value in copied)
    assert max(copied.values()) <= runs
    repeated = sum(copied.values()) - len(copied)
    assert repeated <= (runs - 1) * ROWS_PER_BATCH, "only a batch that was at work may come twice"
    return repeated


def copied_rows(spark: SparkSession, job: dict[str, Any]) -> Counter[tuple[str, str]]:
    rows = read(spark, OTTLA, job["bootstrap"], subscribe="target").selectExpr(
        "cast(value as string) value", "cast(key as string) key"
    )
    return Counter((row.key, row.value) for row in rows.collect())


def past_killed_workers(attempt: Callable[[], T]) -> T:
    """Spark may hand out an idle Python that was killed meanwhile, each one once, and a driver that
    plans a read does not ask for another by itself.
    """
    for _ in range(KILLED_MAX):
        with contextlib.suppress(PySparkException):
            return attempt()
    return attempt()


def begun(job: dict[str, Any]) -> int:
    """The last batch of the copy into the topic that has been begun."""
    log = Path(job["directory"], "topic-checkpoint", "offsets")
    # Spark deletes the oldest: their number says nothing.
    return max(batch_ids(log.parent, "offsets"), default=-1) if log.is_dir() else -1


def at_a_moment(
    chance: random.Random, job: dict[str, Any], feed: Feed, check: Callable[[], bool]
) -> None:
    """Waits until a batch or two later than now, and somewhere in that batch."""
    wanted = begun(job) + chance.randint(1, 2)
    # Without more rows there would be no more batches.
    feed.allow(len(feed.sent) + ROWS_PER_KILL)
    polling.until(lambda: check() and begun(job) >= wanted, "the job stands still", PATIENCE_S)
    time.sleep(chance.uniform(0, 0.4))


@pytest.mark.seconds(300 + 120 * soak.kills(1))
def test_the_driver_is_killed(spark: SparkSession, job: dict[str, Any]) -> None:
    kills, seed = soak.kills(1), soak.seed()
    chance = random.Random(seed)
    plain = {name: value for name, value in job.items() if name != "broker"}
    with Feed(job["bootstrap"], "source", row) as feed:
        for turn in range(kills):
            with Child("spark.kit.copying", plain, Path(job["directory"])) as child:
                at_a_moment(chance, job, feed, child.check)
            soak.progress("driver", turn + 1, kills)
        feed.until_idle()
    repeated = check_end(spark, job, feed, runs=kills + 1)
    soak.told("driver killed", kills=kills, rows=len(feed.sent), doubles=repeated)


def test_a_driver_killed_while_it_writes_the_first_offsets(
    spark: SparkSession, job: dict[str, Any]
) -> None:
    """Spark refuses what such a driver leaves, unless it is told not to look."""
    leftover = Path(job["directory"], "topic-checkpoint", "offsets", ".0.6d3c.tmp")
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    with Feed(job["bootstrap"], "source", row) as feed:
        feed.allow(ROWS_PER_BATCH)
        feed.until_idle()
    finish(copy_to_topic(spark, job, availableNow=True))
    assert read(spark, OTTLA, job["bootstrap"], subscribe="target").count() == ROWS_PER_BATCH


class Persistent:
    """Both copies, started again whenever they fail."""

    def __init__(self, spark: SparkSession, job: dict[str, Any]) -> None:
        self._make: list[Callable[[], StreamingQuery]] = [
            lambda: copy_to_topic(spark, job),
            lambda: copy_to_files(spark, job),
        ]
        self._queries = [make() for make in self._make]
        self.restarts = 0

    def check(self) -> bool:
        for at, query in enumerate(self._queries):
            if not query.isActive:
                # Spark may plan with a Python that was killed while it rested; not the next time.
                with contextlib.suppress(Py4JJavaError, PySparkException):
                    self._queries[at] = self._make[at]()
                    self.restarts += 1
        return True

    def stop(self) -> None:
        for query in self._queries:
            query.stop()


@pytest.mark.parametrize("seed", [1])
def test_python_workers_are_killed(spark: SparkSession, job: dict[str, Any], seed: int) -> None:
    chance = random.Random(seed)
    killed = 0
    copies = Persistent(spark, job)
    try:
        with Feed(job["bootstrap"], "source", row) as feed:
            for _ in range(2):
                at_a_moment(chance, job, feed, copies.check)
                killed += sum(kill_9(worker) for worker in python_workers())
            feed.until_idle()
    finally:
        copies.stop()
    assert killed > 0
    check_end(spark, job, feed, runs=copies.restarts + 2)


@pytest.mark.parametrize("seed", [1])
def test_the_broker_is_killed(spark: SparkSession, job: dict[str, Any], seed: int) -> None:
    """Queries need not fail: errors that pass are tried again."""
    chance = random.Random(seed)
    broker: Broker = job["broker"]
    copies = Persistent(spark, job)
    try:
        with Feed(job["bootstrap"], "source", row) as feed:
            for _ in range(2):
                at_a_moment(chance, job, feed, copies.check)
                broker.kill()
                broker.start()
            feed.until_idle()
    finally:
        copies.stop()
    check_end(spark, job, feed, runs=copies.restarts + 2)


def test_a_broker_that_stays_away_fails_the_query_with_one_line(
    spark: SparkSession, ottla_broker_factory: BrokerFactory
) -> None:
    broker = ottla_broker_factory()
    broker.create_topic("t")
    broker.kill()
    quick = {"kafka.request.timeout.ms": 1000, "kafka.default.api.timeout.ms": 2000}
    with pytest.raises(PySparkException, match=broker.bootstrap):
        read(spark, OTTLA, broker.bootstrap, subscribe="t", **quick).collect()
