"""A flow at work: one streaming query per sink, or one write where nothing streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.language.problems import BadPipeline
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.kinds import sink_kind, sink_problems
from ottla.pipelines.views.graph import Flow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def start(
    flow: Flow, *, pipeline: Pipeline, checkpoint: str, trigger: Mapping[str, Any]
) -> StreamingQuery:
    """The query of a flow, running; `trigger` as DataStreamWriter.trigger takes it."""
    _check(flow)

    def begin(mode: str) -> StreamingQuery:
        writer = _writer(flow, pipeline, mode).queryName(flow.name)
        writer = writer.option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    if flow.sink.upserted is None:
        return begin(flow.sink.mode)
    return _begin_upsert(begin)


def _begin_upsert(begin: Callable[[str], StreamingQuery]) -> StreamingQuery:
    """Of an aggregation each changed row is wanted (update), of anything else each new one.

    Without an aggregation update is the same as append, but Spark does not have it for some joins
    and limits.
    """
    from pyspark.errors import AnalysisException

    try:
        return begin("update")
    except AnalysisException as no_update:
        try:
            return begin("append")
        except AnalysisException:
            raise no_update from None


def write_once(flow: Flow, *, pipeline: Pipeline, run_id: str) -> None:
    """All rows of a flow without streams.

    With the same run_id again: tables (JDBC, Delta, current) and Avro files stay as they are.
    """
    _check(flow)
    batch = Batch.of_run(run_id)
    sink_kind(flow.sink).write_batch(flow.frame, pipeline, flow.sink, batch)


def _check(flow: Flow) -> None:
    found = sink_problems(flow.sink, flow.frame, flow.sources)
    if found:
        raise BadPipeline(list(dict.fromkeys(found)))


def _writer(flow: Flow, pipeline: Pipeline, mode: str) -> DataStreamWriter:
    sink, kind = flow.sink, sink_kind(flow.sink)
    writer = kind.stream_writer(flow.frame, pipeline, sink, mode)
    if writer is not None:
        return writer
    spark = flow.frame.sparkSession

    def take(rows: DataFrame, number: int) -> None:
        # Only the query that is running calls this, and no two have the same name.
        query = next(query.id for query in spark.streams.active if query.name == flow.name)
        kind.write_batch(rows, pipeline, sink, Batch.of_stream(query, number))

    return flow.frame.writeStream.outputMode(mode).foreachBatch(take)
