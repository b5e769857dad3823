"""Two sources, two sinks, and a broker that is killed in the middle while producers go on.

`make soak` lets it run for SOAK_MINUTES, with the broker killed again and again.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla.pipelines.language.problems import PipelineFailed
from ottla.testing.plugin import BrokerFactory
from spark.kit import pipeline_soak as soak
from spark.kit.messages import messages_in
from spark.kit.pipeline_feeds import Feed, Sent
from spark.kit.pipeline_runs import Running, run_once

PARTITIONS = 2
REFUND_EVERY = 5
RUN_S = 12.0
KILL_EVERY_S = 30.0
# In `make soak` an hour of a small shop, in `make test` seconds of it.
ROWS_PER_S = 100

FILE = """
version: 1
name: two-by-two
bootstrap: {bootstrap}
sources:
  orders:
    topic: orders
    schema: id bigint, amount bigint, at timestamp
    watermark: {{column: at, delay: 1 hour}}
  refunds:
    topic: refunds
    schema: order_id bigint, part bigint, at timestamp
    watermark: {{column: at, delay: 1 hour}}
views:
  ledger: |
    SELECT id, amount FROM orders
    UNION ALL
    SELECT order_id, -part FROM refunds
  refunded: |
    SELECT id, amount, part FROM orders JOIN refunds
    ON id = order_id AND refunds.at BETWEEN orders.at AND orders.at + INTERVAL 1 HOUR
sinks:
  books: {{from: ledger, files: books, format: parquet}}
  returns: {{from: refunded, topic: returns, key: id, format: json}}
# Spark gives a Python process ten seconds to start, which is little where much else runs.
restarts: {{max: 20, max_backoff: 2 seconds}}
spark:
  spark.sql.shuffle.partitions: 2
"""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def order(number: int) -> Sent:
    value = {"id": number, "amount": number + 1000, "at": now()}
    return Sent(b"%d" % number, json.dumps(value).encode())


def refund(number: int) -> Sent:
    value = {"order_id": number * REFUND_EVERY, "part": number + 1, "at": now()}
    return Sent(b"%d" % number, json.dumps(value).encode())


def values(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(one.value or b"") for one in messages_in(bootstrap, topic)]


@pytest.mark.seconds(600 + soak.seconds(RUN_S))
def test_a_broker_restart_in_the_middle_loses_nothing(
    spark: SparkSession, ottla_broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    broker = ottla_broker_factory()
    for name in ("orders", "refunds", "returns"):
        broker.create_topic(name, PARTITIONS)
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE.format(bootstrap=broker.bootstrap))
    chance = random.Random(soak.seed())
    print(f"SOAK_SEED={soak.seed()} SOAK_MINUTES={soak.seconds(RUN_S) / 60:g}")
    with (
        Feed(broker.bootstrap, "orders", order) as orders,
        Feed(broker.bootstrap, "refunds", refund) as refunds,
        Running(spark, file) as run,
    ):
        orders.allow(ROWS_PER_S)
        run.until(lambda: {one.flow for one in run.batches} == {"books", "returns"}, "no batch")
        began, next_kill, kills = time.monotonic(), RUN_S / 3, 0
        while (passed := time.monotonic() - began) < soak.seconds(RUN_S):
            run.check()
            feed(orders, refunds, passed)
            if passed > next_kill:
                broker.kill()
                time.sleep(chance.uniform(0, 1))
                broker.start()
                kills += 1
                next_kill += chance.uniform(0.5, 1.5) * KILL_EVERY_S
            time.sleep(0.1)
        orders.until_idle()
        refunds.until_idle()
    run_once(spark, file)
    assert kills > 0
    soak.told(
        "broker killed",
        kills=kills,
        restarts=run.kinds.count("restarting"),
        rows=len(orders.sent) + len(refunds.sent),
        doubles=check(spark, broker.bootstrap, tmp_path),
    )


def feed(orders: Feed, refunds: Feed, passed_s: float) -> None:
    """As many as should have been sent by now; a refund comes after its order."""
    orders.allow(int(passed_s * ROWS_PER_S))
    refunds.allow(len(orders.sent) // REFUND_EVERY)


def check(spark: SparkSession, bootstrap: str, home: Path) -> int:
    """The doubles in the topic, of which there may be some."""
    orders, refunds = values(bootstrap, "orders"), values(bootstrap, "refunds")
    assert len(orders) > len(refunds) > 0
    expected = Counter((one["id"], one["amount"]) for one in orders)
    expected.update((one["order_id"], -one["part"]) for one in refunds)
    books = Counter((one.id, one.amount) for one in spark.read.parquet(f"{home}/books").collect())
    assert books == expected, "files are exactly once"
    amounts = {one["id"]: one["amount"] for one in orders}
    pairs = {(one["order_id"], amounts[one["order_id"]], one["part"]) for one in refunds}
    written = values(bootstrap, "returns")
    returns = {(one["id"], one["amount"], one["part"]) for one in written}
    assert returns == pairs, "topics are never short"
    return len(written) - len(returns)


def test_a_broker_that_stays_away_is_one_line(
    spark: SparkSession, ottla_broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    broker = ottla_broker_factory()
    for name in ("orders", "refunds", "returns"):
        broker.create_topic(name)
    file = tmp_path / "pipeline.yaml"
    impatient = """
kafka: {request.timeout.ms: 1000, default.api.timeout.ms: 2000, delivery.timeout.ms: 2000}
"""
    text = FILE.format(bootstrap=broker.bootstrap).replace("max: 20", "max: 2")
    file.write_text(text + impatient)
    broker.kill()
    with pytest.raises(PipelineFailed) as failure:
        run_once(spark, file)
    line = str(failure.value)
    assert broker.bootstrap in line
    assert "\n" not in line
    assert "Traceback" not in line
