"""Rows into a Delta table, each batch once.

Delta itself keeps the number of the last batch of each writer (`txnAppId`, `txnVersion`) in the
same commit as the rows, and leaves out a batch that comes again.
"""

from __future__ import annotations

import re
import secrets as random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ottla.pipelines.batches import ONCE, Batch
from ottla.pipelines.model import DeltaSink, Pipeline
from ottla.pipelines.problems import PipelineFailed, Problem
from ottla.pipelines.upserts import (
    DELETED,
    changes,
    column_problems,
    problem,
    quote,
    stored_order,
    written_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a MERGE, which has no options of its own, takes from its session.
_SESSION: Final = "spark.databricks.delta.write."
_MISFIT: Final = re.compile(
    r"NoSuchMethodError|NoSuchFieldError|AbstractMethodError|IncompatibleClassChangeError"
    r"|NoClassDefFoundError"
)


def delta_problems(sink: DeltaSink, frame: DataFrame) -> list[Problem]:
    found = column_problems(sink, "partition_by", sink.partition_by, frame)
    if not written_columns(sink, frame.columns):
        text = f"{sink.input} has no columns to write; select some under names without _"
        found.append(problem(sink, text))
    return found


def write(frame: DataFrame, pipeline: Pipeline, sink: DeltaSink, batch: Batch) -> None:
    from py4j.protocol import Py4JJavaError

    try:
        _write(frame, pipeline, sink, batch)
    except Py4JJavaError as error:
        # Java's own error classes for jars that were compiled against something else.
        if _MISFIT.search(str(error.java_exception)) is None:
            raise
        raise PipelineFailed(
            f"sink {sink.name}: the Delta jars are not made for this Spark "
            f"({frame.sparkSession.version}); give those that are by --packages, or install the "
            "Spark that they are for"
        ) from None


def _write(frame: DataFrame, pipeline: Pipeline, sink: DeltaSink, batch: Batch) -> None:
    transaction = _transaction(pipeline, sink, batch)
    if sink.mode == "upsert":
        # Runs without streams share a session; their rows are the same when they come again.
        _upsert(frame, sink, {} if batch.query == ONCE else transaction)
        return
    rows = frame.select(*map(quote, written_columns(sink, frame.columns)))
    writer = rows.write.format("delta").options(**sink.options).options(**transaction)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    writer.mode("overwrite" if sink.mode == "complete" else "append").save(sink.path)


def _transaction(pipeline: Pipeline, sink: DeltaSink, batch: Batch) -> dict[str, str]:
    """The number must grow; runs without streams have none, so each of them is its own writer."""
    whose = f"ottla/{pipeline.name}/{sink.name}/{batch.query}"
    if batch.query == ONCE:
        return {"txnAppId": f"{whose}/{batch.id}", "txnVersion": "0"}
    return {"txnAppId": whose, "txnVersion": batch.id}


def _upsert(frame: DataFrame, sink: DeltaSink, transaction: dict[str, str]) -> None:
    spark = frame.sparkSession
    columns = written_columns(sink, frame.columns)
    view = f"ottla_changes_{random.token_hex(4)}"
    # A MERGE reads its rows twice.
    new = changes(frame, sink).persist()
    try:
        _make_table(new.select(*map(quote, columns)), sink)
        new.createOrReplaceTempView(view)
        for name, value in transaction.items():
            spark.conf.set(_SESSION + name, value)
        spark.sql(_merge(sink, view, columns, stored_order(sink, frame.columns)))
    finally:
        for name in transaction:
            spark.conf.unset(_SESSION + name)
        spark.catalog.dropTempView(view)
        new.unpersist()


def _make_table(rows: DataFrame, sink: DeltaSink) -> None:
    """An empty one, where there is none yet."""
    empty = rows.sparkSession.createDataFrame([], rows.schema)
    writer = empty.write.format("delta").options(**sink.options).mode("ignore")
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    writer.save(sink.path)


def _merge(sink: DeltaSink, view: str, columns: Sequence[str], order: str | None) -> str:
    same = " AND ".join(f"t.{quote(one)} = s.{quote(one)}" for one in sink.key)
    deleted, newer = f"s.{quote(DELETED)}", ""
    if order is not None:
        newer = f" AND (t.{quote(order)} IS NULL OR t.{quote(order)} <= s.{quote(order)})"
    names = ", ".join(map(quote, columns))
    values = ", ".join(f"s.{quote(one)}" for one in columns)
    sets = ", ".join(f"t.{quote(one)} = s.{quote(one)}" for one in columns)
    return (
        f"MERGE INTO delta.{quote(sink.path)} AS t USING {view} AS s ON {same} "
        f"WHEN MATCHED AND {deleted}{newer} THEN DELETE "
        f"WHEN MATCHED AND NOT {deleted}{newer} THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND NOT {deleted} THEN INSERT ({names}) VALUES ({values})"
    )
