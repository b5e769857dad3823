"""Rows into messages: key, value and headers of a topic's sink.

The rows of a partition become messages in their order, so messages of one key that were in order
in a partition of the batch are in order in the topic. A batch that runs again is written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import Pipeline, Source, TopicSink
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.sinks import avro_rows
from ottla.pipelines.sinks.batches import Batch
from ottla.pipelines.sinks.contract import SinkKind
from ottla.pipelines.sinks.json_text import JSON
from ottla.pipelines.sinks.written_columns import (
    NOT_WRITTEN,
    column_problems,
    problem,
    type_problems,
)
from ottla.pipelines.views.columns import is_plain, quote
from ottla.pipelines.views.spark_errors import sentence

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType

HEADERS: Final = "array<struct<key:string,value:binary>>"


class Topics(SinkKind[TopicSink]):
    def problems(
        self, sink: TopicSink, frame: DataFrame, sources: Sequence[Source]
    ) -> list[Problem]:
        found = column_problems(sink, "key", sink.key, frame)
        found += _value_problems(sink, frame)
        if len(sink.key) == 1:
            advice = "name one of its fields, or make it text in a view"
            found += type_problems(sink, "key", sink.key, frame, is_plain, advice)
        return found or _encoding_problems(sink, frame)

    def identity(self, sink: TopicSink, secrets: frozenset[str]) -> dict[str, Any]:
        return {"kind": "topic", "topic": sink.topic}

    def stream_writer(
        self, frame: DataFrame, pipeline: Pipeline, sink: TopicSink, mode: str
    ) -> DataStreamWriter | None:
        if mode != "append":
            # Spark has no update for sinks in Python: changed rows go to a topic batch by batch.
            return None
        rows = messages(frame, sink).writeStream.outputMode(mode)
        return rows.format("ottla").options(**_options(pipeline, sink))

    def write_batch(
        self, rows: DataFrame, pipeline: Pipeline, sink: TopicSink, batch: Batch
    ) -> None:
        """Again, when it comes again: a topic does not know which batches it has."""
        writer = messages(rows, sink).write.format("ottla").options(**_options(pipeline, sink))
        writer.mode("append").save()


def messages(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """The columns that `format("ottla")` writes: value, and key and headers where asked for."""
    if sink.format == "avro":
        columns = _beside(frame, sink)
        names = _value_columns(sink, frame.columns)
        return avro_rows.with_values(frame, names, columns, sink.schema, f"sink {sink.name}")
    return frame.select(_value(frame, sink).alias("value"), *_beside(frame, sink))


def _options(pipeline: Pipeline, sink: TopicSink) -> dict[str, str]:
    """Of Spark's writer; the sink's own win over the pipeline's."""
    kafka = {f"kafka.{name}": value for name, value in pipeline.kafka.items()}
    return {"bootstrap": pipeline.bootstrap, **kafka, **sink.options, "topic": sink.topic}


def _value_columns(sink: TopicSink, columns: Sequence[str]) -> list[str]:
    """What a value is made of: neither the columns of the message nor the new one's headers."""
    return [name for name in columns if name not in NOT_WRITTEN and name != sink.headers]


def _value_problems(sink: TopicSink, frame: DataFrame) -> list[Problem]:
    found: list[Problem] = []
    names = _value_columns(sink, frame.columns)
    if sink.headers is not None:
        missing = column_problems(sink, "headers", (sink.headers,), frame)
        found += missing or _header_problems(sink, frame.schema[sink.headers].dataType)
    if not names:
        text = f"{sink.input} has no columns for a value; select some under names without _"
        found.append(problem(sink, text))
    elif sink.format == "avro":
        found += avro_rows.schema_problems(
            sink, sink.schema, frame.select(*map(quote, names)).schema
        )
    elif sink.format in ("string", "bytes") and _single(sink, names) is None:
        text = (
            f"format {sink.format} writes one column, {sink.input} has {', '.join(names)}; "
            "call the one to write value, or set format: json"
        )
        found.append(problem(sink, text))
    elif sink.format == "bytes":
        name = _single(sink, names)
        kind = frame.schema[name].dataType.simpleString() if name is not None else ""
        if kind not in ("binary", "string"):
            text = f"format bytes writes binary or string, {name} is {kind}; CAST it in a view"
            found.append(problem(sink, text))
    return found


def _encoding_problems(sink: TopicSink, frame: DataFrame) -> list[Problem]:
    """What Spark says when it is asked to make messages of the rows."""
    from pyspark.errors import AnalysisException

    try:
        messages(frame, sink)
    except AnalysisException as error:
        return [problem(sink, f"format {sink.format}: {sentence(error)}")]
    return []


def _header_problems(sink: TopicSink, kind: DataType) -> list[Problem]:
    if kind.simpleString() == HEADERS:
        return []
    text = f"headers: {sink.headers} is {kind.simpleString()}; CAST it to {HEADERS} in a view"
    return [problem(sink, text)]


def _beside(frame: DataFrame, sink: TopicSink) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    columns = []
    if sink.key:
        columns.append(_key(frame, sink).alias("key"))
    if sink.headers is not None:
        columns.append(F.col(quote(sink.headers)).alias("headers"))
    return columns


def _key(frame: DataFrame, sink: TopicSink) -> Column:
    """One column as its text or bytes, several as a JSON object."""
    from pyspark.sql import functions as F  # noqa: N812

    if len(sink.key) == 1:
        return _text_or_bytes(frame, sink.key[0])
    return F.to_json(F.struct(*map(quote, sink.key)), dict(JSON))


def _value(frame: DataFrame, sink: TopicSink) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    names = _value_columns(sink, frame.columns)
    if sink.format == "json":
        return F.to_json(F.struct(*map(quote, names)), dict(JSON))
    name = _single(sink, names)
    assert name is not None, "_value_problems lets no other through"
    return _text_or_bytes(frame, name)


def _single(sink: TopicSink, names: Sequence[str]) -> str | None:
    """The one column of a text or bytes: `value`, or the only one, or the only one but the key."""
    if "value" in names:
        return "value"
    others = [name for name in names if name not in sink.key] or list(names)
    return others[0] if len(others) == 1 else None


def _text_or_bytes(frame: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(quote(name))
    kind = frame.schema[name].dataType.typeName()
    if kind in ("struct", "array", "map"):
        return F.to_json(column, dict(JSON))
    return column if kind in ("binary", "string") else column.cast("string")
