"""Rows into a Delta table, each batch once.

Delta itself keeps the number of the last batch of each writer (`txnAppId`, `txnVersion`) in the
same commit as the rows, and leaves out a batch that comes again.

Upserts keep the sequence of each key, removed ones too, in a Delta table beside (`<path>_ottla`).
It is written after the table. A crash between the two is mended when the batch comes again: what is
newer is found out from sequences that have not changed, the table leaves the batch out, and the
sequences take it.
"""

from __future__ import annotations

import re
import secrets as random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.jars import Jar, delta_jar
from ottla.pipelines.language.model import DeltaSink, Pipeline, Source
from ottla.pipelines.language.problems import PipelineFailed, Problem
from ottla.pipelines.sinks.batches import ONCE, Batch
from ottla.pipelines.sinks.contract import SinkKind
from ottla.pipelines.sinks.upserts import (
    ARRIVAL,
    DELETED,
    DELETED_AT,
    SEQUENCE,
    changes,
    newest,
    remembered,
    rows_identity,
    sequence_of,
    told_by_rows,
    upsert_problems,
)
from ottla.pipelines.sinks.written_columns import partition_problems, problem, written_columns
from ottla.pipelines.views.columns import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a MERGE, which has no options of its own, takes from its session.
_SESSION: Final = "spark.databricks.delta.write."
_MISFIT: Final = re.compile(
    r"NoSuchMethodError|NoSuchFieldError|AbstractMethodError|IncompatibleClassChangeError"
    r"|NoClassDefFoundError"
)


class DeltaTables(SinkKind[DeltaSink]):
    def problems(
        self, sink: DeltaSink, frame: DataFrame, sources: Sequence[Source]
    ) -> list[Problem]:
        found = [*upsert_problems(sink, frame, sources), *partition_problems(sink, frame)]
        if not written_columns(sink, frame.columns):
            text = f"{sink.input} has no columns to write; select some under names without _"
            found.append(problem(sink, text))
        return found

    def identity(self, sink: DeltaSink, secrets: frozenset[str]) -> dict[str, Any]:
        return {"kind": "delta", "path": sink.path, **rows_identity(sink)}

    def write_batch(
        self, rows: DataFrame, pipeline: Pipeline, sink: DeltaSink, batch: Batch
    ) -> None:
        write(rows, pipeline, sink, batch)

    def needed_jar(self, sink: DeltaSink, spark_version: str) -> Jar | None:
        return delta_jar(spark_version)


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
    names = sequence_of(sink, frame.columns)
    columns = written_columns(sink, frame.columns)
    stored = _stored(frame, sink, names) if names else None
    with changed(frame, stored, sink, names) as rows:
        _make_table(rows.select(*map(quote, columns)), sink.path, sink.options, sink.partition_by)
        _merge_into(rows, lambda view: _merge(sink, view, columns), transaction)
        if names:
            _make_table(rows.select(*map(quote, _sequence_columns(sink))), _beside(sink), {}, ())
            _merge_into(rows, lambda view: _merge_sequences(sink, view), transaction)


def _beside(sink: DeltaSink) -> str:
    """Where the sequences of a table are."""
    return f"{sink.path.rstrip('/')}_ottla"


def _sequence_columns(sink: DeltaSink) -> tuple[str, ...]:
    return (*sink.keys, SEQUENCE, DELETED_AT)


@contextmanager
def changed(
    frame: DataFrame, stored: DataFrame | None, sink: DeltaSink, names: tuple[str, ...]
) -> Iterator[DataFrame]:
    """Of each key the row of this batch that is newer than what is stored, if there is one.

    The batch is read once: whoever reads it again writes its dead letters again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    removed = F.when(F.col(quote(DELETED)), F.current_timestamp())
    new = changes(frame, sink).withColumn(DELETED_AT, removed).withColumn(ARRIVAL, F.lit(1))
    new.persist()
    if stored is None:
        rows = newest(new, sink, names).drop(ARRIVAL)
    else:
        touched = new.select(*map(quote, sink.keys)).distinct()
        old = stored.join(touched, list(sink.keys), "left_semi").withColumn(ARRIVAL, F.lit(0))
        both = new.unionByName(old, allowMissingColumns=True)
        rows = newest(both, sink, names).where(F.col(quote(ARRIVAL)) == 1).drop(ARRIVAL)
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()
        new.unpersist()


def _stored(frame: DataFrame, sink: DeltaSink, names: tuple[str, ...]) -> DataFrame | None:
    """Sequences so far; None in the first batch."""
    from pyspark.sql import functions as F  # noqa: N812

    stored = _table(frame, _beside(sink))
    if stored is not None:
        return remembered(stored, sink, names, sink.path)
    rows = _table(frame, sink.path)
    told = None if rows is None else told_by_rows(rows, names)
    if told is None or SEQUENCE not in told.columns:
        return None
    never = F.lit(None).cast("timestamp").alias(DELETED_AT)
    return told.select(*map(quote, (*sink.keys, SEQUENCE)), never)


def _table(frame: DataFrame, path: str) -> DataFrame | None:
    from pyspark.errors import AnalysisException

    try:
        table = frame.sparkSession.read.format("delta").load(path)
        # Delta may find out only now that there is no table.
        return table if table.columns else None
    except AnalysisException:
        return None


def _make_table(
    rows: DataFrame, path: str, options: Mapping[str, str], partition_by: Sequence[str]
) -> None:
    """An empty one, where there is none yet."""
    empty = rows.sparkSession.createDataFrame([], rows.schema)
    writer = empty.write.format("delta").options(**options).mode("ignore")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.save(path)


def _merge_into(rows: DataFrame, merge: Callable[[str], str], transaction: dict[str, str]) -> None:
    """The statement over a view of the rows, in one commit with the number of the batch."""
    spark = rows.sparkSession
    view = f"ottla_changes_{random.token_hex(4)}"
    rows.createOrReplaceTempView(view)
    try:
        for name, value in transaction.items():
            spark.conf.set(_SESSION + name, value)
        spark.sql(merge(view))
    finally:
        for name in transaction:
            spark.conf.unset(_SESSION + name)
        spark.catalog.dropTempView(view)


def _merge(sink: DeltaSink, view: str, columns: Sequence[str]) -> str:
    deleted = f"s.{quote(DELETED)}"
    return (
        f"{_head(sink, sink.path, view)} "
        f"WHEN MATCHED AND {deleted} THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {_sets(columns)} "
        f"WHEN NOT MATCHED AND NOT {deleted} THEN {_insert(columns)}"
    )


def _merge_sequences(sink: DeltaSink, view: str) -> str:
    """Tombstones that have lived their time go with the next batch that is merged."""
    columns = _sequence_columns(sink)
    gone = f"t.{quote(DELETED_AT)}"
    life = f"make_dt_interval(0, 0, 0, {sink.tombstone_life_s:f})"
    return (
        f"{_head(sink, _beside(sink), view)} "
        f"WHEN MATCHED THEN UPDATE SET {_sets(columns)} "
        f"WHEN NOT MATCHED THEN {_insert(columns)} "
        f"WHEN NOT MATCHED BY SOURCE AND {gone} < current_timestamp() - {life} THEN DELETE"
    )


def _head(sink: DeltaSink, path: str, view: str) -> str:
    same = " AND ".join(f"t.{quote(one)} = s.{quote(one)}" for one in sink.keys)
    return f"MERGE INTO delta.{quote(path)} AS t USING {view} AS s ON {same}"


def _sets(columns: Sequence[str]) -> str:
    return ", ".join(f"t.{quote(one)} = s.{quote(one)}" for one in columns)


def _insert(columns: Sequence[str]) -> str:
    names = ", ".join(map(quote, columns))
    return f"INSERT ({names}) VALUES ({', '.join(f's.{quote(one)}' for one in columns)})"
