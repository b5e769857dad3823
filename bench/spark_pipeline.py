"""The demo pipeline against the same query written by hand with `format("kafka")`.

Both read the orders that the example's own generator makes, with the example's own SQL, and end
when they have read what is there. By hand there are no dead letters: records that do not parse are
left out, and so they are by the pipeline in the second case (`bad_records: drop`).
"""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import Pipeline, Sql
from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.launch.session import settings_of
from ottla.pipelines.running.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.spark_job import Job

EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "orders-per-minute"
FILL_TIMEOUT_S: Final = 120.0


def fill(bootstrap: str, topic: str, count: int) -> None:
    """The first `count` orders of the example's generator."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "acks": "1"})
    for order in itertools.islice(_generator().orders(seed=1), count):
        while True:
            try:
                producer.produce(topic, order.value, order.key)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(FILL_TIMEOUT_S)
    if left:
        raise RuntimeError(f"{left} orders were not acknowledged")


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("orders_generator", EXAMPLE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def once(session: SparkSession, job: Job) -> None:
    """One run over all that is in the topic, from a new checkpoint."""
    pipeline = _pipeline(job)
    fresh = session.newSession()
    # Both sides get what the command line gives a pipeline, where a session can still have it.
    for name, value in settings_of(pipeline, session.sparkContext.master).items():
        if fresh.conf.isModifiable(name):
            fresh.conf.set(name, value)
    with tempfile.TemporaryDirectory() as checkpoint:
        if job.format == "kafka":
            _by_hand(fresh, job, pipeline, checkpoint)
        else:
            run(
                fresh,
                pipeline,
                checkpoint=checkpoint,
                once=True,
                report=lambda _: None,
                stop=threading.Event(),
                stop_now=threading.Event(),
            )


def _pipeline(job: Job) -> Pipeline:
    overrides = {
        "bootstrap": job.bootstrap,
        "sources.orders.topic": job.topic,
        "sinks.out.topic": job.target,
    }
    if job.dead_letters:
        overrides["sources.orders.bad_records.topic"] = job.dead_letters
    else:
        overrides["sources.orders.bad_records"] = "drop"
    return read_pipeline(EXAMPLE / "pipeline.yaml", overrides=overrides)


def _by_hand(session: SparkSession, job: Job, pipeline: Pipeline, checkpoint: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    source, view = pipeline.sources["orders"], pipeline.views["totals"]
    assert source.schema is not None
    assert source.watermark is not None
    assert isinstance(view.body, Sql)
    stream: Any = session.readStream.format("kafka")
    stream = stream.option("kafka.bootstrap.servers", job.bootstrap).option("subscribe", job.topic)
    messages = stream.option("startingOffsets", "earliest").load()
    order = F.from_json(F.col("value").cast("string"), source.schema)
    orders = messages.select(order.alias("order")).select("order.*").where("id IS NOT NULL")
    orders = orders.withWatermark(source.watermark.column, source.watermark.delay)
    orders.createOrReplaceTempView("orders")
    totals = session.sql(view.body.text)
    rows = totals.select(F.col("shop").alias("key"), F.to_json(F.struct("*")).alias("value"))
    writer: Any = rows.writeStream.format("kafka").outputMode("append")
    writer = writer.option("kafka.bootstrap.servers", job.bootstrap).option("topic", job.target)
    writer = writer.option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
