"""A pipeline with what most pipelines use, tested and run once against a broker of its own.

For Java's archive of classes (`class_archive.py`): what is loaded here need not be read and checked
again at the starts that follow. And for a Spark that stands by (`standby/`), which then has the
machine code for it too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.pipelines.cases.suite import run_tests
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.running.run import run
from ottla.spark.session import register_source
from ottla.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipelines.running.reports import Report

TOPICS: Final = ("orders", "orders.dead", "totals")
ORDERS: Final = (
    '{"id": 1, "shop": "a", "amount": 1.50, "at": "2026-01-01T00:00:00Z"}',
    '{"id": 2, "shop": "b", "amount": 2.50, "at": "2026-01-01T00:05:00Z"}',
)
NO_ORDER: Final = "no JSON"
TOTALS: Final = '{"minute": "2026-01-01T00:00:00Z", "shop": "a", "orders": 1, "total": 1.50}'
FILE: Final = """
version: 1
name: rehearsal
bootstrap: {bootstrap}
sources:
  orders:
    topic: orders
    format: json
    schema: id bigint, shop string, amount decimal(10,2), at timestamp
    watermark: {{column: at, delay: 1 minute}}
    bad_records: {{topic: orders.dead}}
views:
  totals: |
    SELECT window.start AS minute, shop, count(*) AS orders, sum(amount) AS total
    FROM orders GROUP BY window(at, '1 minute'), shop
  shops: SELECT shop, id, _timestamp, _partition, _offset FROM orders
sinks:
  totals: {{from: totals, topic: totals, key: shop, format: json, mode: append}}
  latest: {{from: shops, current_table: latest, keys: shop}}
  files: {{from: orders, files: files, format: parquet}}
tests:
  totals:
    given: {{orders: [orders.jsonl]}}
    expect: {{totals: totals.jsonl}}
"""


def rehearse(
    spark: SparkSession, directory: Path, *, is_enough: Callable[[], bool] = lambda: False
) -> None:
    """All of it, or as much as there is time for."""
    (directory / "orders.jsonl").write_text("\n".join((*ORDERS, NO_ORDER)))
    (directory / "totals.jsonl").write_text(TOTALS)
    file = directory / "pipeline.yaml"
    with Broker(data_dir=directory / "broker") as broker:
        file.write_text(FILE.format(bootstrap=broker.bootstrap))
        for topic in TOPICS:
            broker.create_topic(topic)
        pipeline = read_pipeline(file)
        if is_enough():
            return
        run_tests(spark, pipeline, report=_unseen)
        if is_enough():
            return
        register_source(spark)
        rows = spark.createDataFrame([(order,) for order in (*ORDERS, NO_ORDER)], "value string")
        writer = rows.write.format("ottla").mode("append").option("topic", TOPICS[0])
        writer.option("kafka.bootstrap.servers", broker.bootstrap).save()
        run(
            spark,
            pipeline,
            checkpoint=str(directory / "checkpoint"),
            once=True,
            report=_unseen,
            stop=threading.Event(),
            stop_now=threading.Event(),
        )


def _unseen(_: str | Report) -> None:
    pass
