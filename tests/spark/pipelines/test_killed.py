"""kill -9 of a running pipeline, Python and JVM, at random moments (by seed), in a loop.

Afterwards the files and the table hold the truth exactly; the topic is never short; every bad
record is among the dead letters. `make soak` kills more often (SOAK_KILLS, SOAK_SEED).
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla.testing import Broker
from ottla.testing.plugin import BrokerFactory
from scenarios.polling import until
from spark.kit import pipeline_soak as soak
from spark.kit.messages import Found, messages_in
from spark.kit.pipeline_feeds import Feed, Sent
from spark.kit.pipeline_runs import PATIENCE_S, CommandLine, run_once

PARTITIONS = 2
KEYS = 7
BAD_EVERY = 25
ROWS_PER_RUN = 400
ROWS_PER_BATCH = 100
FLOWS = ("files", "copies", "latest")

FILE = """
version: 1
name: killed
bootstrap: {bootstrap}
sources:
  numbers:
    topic: numbers
    format: json
    schema: id bigint, amount bigint
    max_rows_per_batch: {rows_per_batch}
    bad_records: {{topic: numbers.dead}}
views:
  good: SELECT id, amount, _key AS name, _timestamp, _partition, _offset FROM numbers
sinks:
  files: {{from: good, files: out, format: parquet}}
  copies: {{from: good, topic: copies, key: name, format: json}}
  latest: {{from: good, current_table: latest, keys: name}}
# Spark gives a Python process ten seconds to start, which is little where much else runs.
restarts: {{max: 20, max_backoff: 2 seconds}}
spark:
  spark.sql.shuffle.partitions: 1
  spark.driver.memory: 1g
"""


def row(number: int) -> Sent:
    """Some are no JSON."""
    value = {"id": number, "amount": number * 3}
    text = f"bad {number}" if number % BAD_EVERY == 0 else json.dumps(value)
    return Sent(b"key-%d" % (number % KEYS), text.encode())


class Truth:
    """What must be there in the end, from what was sent and where it lies."""

    def __init__(self, bootstrap: str, sent: list[Sent]) -> None:
        self.source = messages_in(bootstrap, "numbers")
        assert sorted((one.key, one.value) for one in self.source) == sorted(sent)
        good = [one for one in self.source if one.value and not one.value.startswith(b"bad")]
        self.rows = {value["id"]: value["amount"] for value in map(_json, good)}
        self.latest = {(one.key or b"").decode(): _json(one)["id"] for one in good}
        self.bad = {
            (one.partition, one.offset, one.value)
            for one in self.source
            if one.value and one.value.startswith(b"bad")
        }


def _json(message: Found) -> dict[str, Any]:
    return json.loads(message.value or b"")  # type: ignore[no-any-return]


@pytest.fixture
def pipeline(ottla_broker_factory: BrokerFactory, tmp_path: Path) -> tuple[Broker, Path]:
    broker = ottla_broker_factory()
    for name in ("numbers", "copies", "numbers.dead"):
        broker.create_topic(name, PARTITIONS)
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE.format(bootstrap=broker.bootstrap, rows_per_batch=ROWS_PER_BATCH))
    return broker, file


def moments(chance: random.Random, checkpoint: Path, first: bool) -> Callable[[], bool]:
    """When to kill: as the first offsets are written, or somewhere in a later batch of a flow."""
    if first:
        return lambda: any(checkpoint.glob("*/offsets/*")) or any(checkpoint.glob("*/offsets/.*"))
    log = f"{chance.choice(FLOWS)}/{chance.choice(['offsets', 'commits'])}/[0-9]*"
    wanted = len(list(checkpoint.glob(log))) + chance.randint(1, 3)
    return lambda: len(list(checkpoint.glob(log))) >= wanted


@pytest.mark.seconds(300 + 120 * soak.kills(1))
def test_a_pipeline_that_is_killed_over_and_over(
    spark: SparkSession, pipeline: tuple[Broker, Path]
) -> None:
    broker, file = pipeline
    checkpoint, seed, kills = file.parent / "checkpoint", soak.seed(), soak.kills(1)
    print(f"SOAK_SEED={seed} SOAK_KILLS={kills}")
    chance = random.Random(seed)
    arguments = ["pipeline", "run", str(file), "--checkpoint", str(checkpoint), "--master=local[2]"]
    restarts = 0
    with Feed(broker.bootstrap, "numbers", row) as feed:
        for turn in range(kills):
            feed.allow((turn + 1) * ROWS_PER_RUN)
            is_first_of_many = turn == 0 and kills > 1
            now = moments(chance, checkpoint, first=is_first_of_many)
            with CommandLine(arguments, file.parent) as child:
                until(
                    lambda c=child, n=now: c.check() and n(),
                    "the pipeline stands still",
                    PATIENCE_S,
                )
                time.sleep(0 if is_first_of_many else chance.uniform(0, 0.5))
                restarts += child.log().count('"restarting"')
                # Only we kill it: a Spark that spoils itself would be restarted, and hidden so.
                assert "restarting Spark" not in child.log(), child.log()[-3000:]
            soak.progress("pipeline", turn + 1, kills)
        feed.until_idle()
    # The other runs have batches of a size that leaves some to do; a change that may be made.
    run_once(spark, file, sources__numbers__max_rows_per_batch="100000")
    repeated = check(
        spark, Truth(broker.bootstrap, feed.sent), broker.bootstrap, file.parent, kills
    )
    soak.told(
        "pipeline killed", kills=kills, restarts=restarts, rows=len(feed.sent), doubles=repeated
    )


def check(spark: SparkSession, truth: Truth, bootstrap: str, home: Path, kills: int) -> int:
    """The doubles in the topic, of which there may be some."""
    in_files = Counter((one.id, one.amount) for one in spark.read.parquet(f"{home}/out").collect())
    assert dict(in_files.keys()) == truth.rows
    assert set(in_files.values()) == {1}, "files are exactly once"
    copies = messages_in(bootstrap, "copies")
    copied = Counter((value["id"], value["amount"]) for value in map(_json, copies))
    assert dict(copied.keys()) == truth.rows, "topics are never short"
    repeated = sum(copied.values()) - len(copied)
    assert repeated <= kills * ROWS_PER_BATCH, "only a batch that was at work may come twice"
    version = (home / "latest" / "current").resolve()
    table = {one.name: one.id for one in spark.read.parquet(str(version)).collect()}
    assert table == truth.latest
    letters = messages_in(bootstrap, "numbers.dead")
    assert {place(letter) for letter in letters} == truth.bad
    return repeated


def place(letter: Found) -> tuple[int, int, bytes | None]:
    told = dict(letter.headers)
    return int(told["ottla.partition"] or b""), int(told["ottla.offset"] or b""), letter.value
