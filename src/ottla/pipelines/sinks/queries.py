"""Where a flow's rows go: one streaming query per sink, or one write where nothing streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.pipelines.language.model import (
    CurrentTableSink,
    DeltaSink,
    FileSink,
    JdbcSink,
    Pipeline,
    Sink,
    Source,
    TopicSink,
)
from ottla.pipelines.language.problems import BadPipeline, Problem
from ottla.pipelines.sinks import current_table, delta
from ottla.pipelines.sinks import files as file_sinks
from ottla.pipelines.sinks import topic as topic_sink
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.upserts import is_upsert, upsert_problems

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from ottla.pipelines.views.graph import Flow

WriteBatch = Callable[["DataFrame", Batch], None]


def problems(sink: Sink, frame: DataFrame, sources: Sequence[Source] = ()) -> list[Problem]:
    """What can be said about a sink from its columns and from what its flow reads.

    `frame` may be a stream without data.
    """
    found = upsert_problems(sink, frame, sources)
    if isinstance(sink, TopicSink):
        found += topic_sink.topic_problems(sink, frame)
    elif isinstance(sink, FileSink):
        found += file_sinks.file_problems(sink, frame)
    elif isinstance(sink, CurrentTableSink):
        found += file_sinks.path_problems(sink)
    elif isinstance(sink, JdbcSink):
        from ottla.pipelines.sinks import jdbc

        found += jdbc.jdbc_problems(sink, frame)
    elif isinstance(sink, DeltaSink):
        found += delta.delta_problems(sink, frame)
    return found


def start(
    flow: Flow, *, pipeline: Pipeline, checkpoint: str, trigger: Mapping[str, Any]
) -> StreamingQuery:
    """The query of a flow, running; `trigger` as DataStreamWriter.trigger takes it."""
    _check(flow)

    def begin(mode: str) -> StreamingQuery:
        writer = _writer(flow, pipeline, mode).queryName(flow.name)
        writer = writer.option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    if not is_upsert(flow.sink):
        return begin(flow.sink.mode)
    return _begin_upsert(begin)


def _begin_upsert(begin: Callable[[str], StreamingQuery]) -> StreamingQuery:
    """Of an aggregation each changed row is wanted (update), of anything else each new one.

    Without an aggregation update is the same as append, where Spark lets it be: it refuses some
    joins and limits.
    """
    from pyspark.errors import AnalysisException

    try:
        return begin("update")
    except AnalysisException as refused:
        try:
            return begin("append")
        except AnalysisException:
            raise refused from None


def write_once(flow: Flow, *, pipeline: Pipeline, run_id: str) -> None:
    """All rows of a flow without streams.

    With the same run_id again: tables (JDBC, Delta, current) and Avro files stay as they are.
    """
    _check(flow)
    sink, frame = flow.sink, flow.frame
    if isinstance(sink, TopicSink):
        topic_sink.write(frame, pipeline, sink)
    elif isinstance(sink, FileSink):
        file_sinks.write_once(frame, pipeline, sink, run_id)
    else:
        _batch_writer(pipeline, sink)(frame, Batch.of_run(run_id))


def _check(flow: Flow) -> None:
    found = problems(flow.sink, flow.frame, flow.sources)
    if found:
        raise BadPipeline(list(dict.fromkeys(found)))


def _writer(flow: Flow, pipeline: Pipeline, mode: str) -> DataStreamWriter:
    sink, frame = flow.sink, flow.frame
    if isinstance(sink, TopicSink) and mode == "append":
        rows = topic_sink.messages(frame, sink).writeStream.outputMode(mode)
        return rows.format("ottla").options(**topic_sink.options(pipeline, sink))
    if isinstance(sink, FileSink) and sink.format != "avro":
        writer = file_sinks.rows_to_write(frame, sink).writeStream.outputMode(mode)
        writer = writer.format(sink.format).options(**file_sinks.format_options(sink))
        path = str(file_sinks.local_path(sink.path))
        return writer.partitionBy(*sink.partition_by).option("path", path)
    write, spark = _batch_writer(pipeline, sink), frame.sparkSession

    def take(rows: DataFrame, number: int) -> None:
        # Only the query that is running calls this, and no two have the same name.
        query = next(query.id for query in spark.streams.active if query.name == flow.name)
        write(rows, Batch.of_stream(query, number))

    return frame.writeStream.outputMode(mode).foreachBatch(take)


def _batch_writer(pipeline: Pipeline, sink: Sink) -> WriteBatch:
    """For sinks that take a batch as a whole; all but topics know it when it comes again."""
    if isinstance(sink, TopicSink):
        # Spark refuses update for sinks in Python, so changed rows go to a topic batch by batch.
        topic = sink
        return lambda rows, batch: topic_sink.write(rows, pipeline, topic)
    if isinstance(sink, FileSink):
        files = sink
        return lambda rows, batch: file_sinks.write_avro(rows, pipeline, files, batch)
    if isinstance(sink, CurrentTableSink):
        table = sink
        return lambda rows, batch: current_table.merge(rows, pipeline, table, batch)
    if isinstance(sink, JdbcSink):
        from ottla.pipelines.sinks import jdbc

        database = sink
        return lambda rows, batch: jdbc.write(rows, pipeline, database, batch)
    if isinstance(sink, DeltaSink):
        lake = sink
        return lambda rows, batch: delta.write(rows, pipeline, lake, batch)
    raise TypeError(f"no sink: {type(sink).__name__}")
