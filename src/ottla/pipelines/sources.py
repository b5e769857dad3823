"""Sources as Spark frames: good rows with the columns that SQL sees; bad ones are put aside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.pipelines import file_sources, schemas, table_sources
from ottla.pipelines.bad_records import (
    ERROR,
    HEADERS,
    Decoder,
    bad_rows,
    decode,
    good_rows,
    message_columns,
)
from ottla.pipelines.model import (
    DeltaSource,
    FileSource,
    JdbcSource,
    Pipeline,
    RateSource,
    Source,
    TopicSource,
    View,
)
from ottla.pipelines.problems import BadPipeline, Problem
from ottla.pipelines.views import time_problems
from ottla.spark.offsets import to_document
from ottla.spark.options.formats import ids_text
from ottla.spark.options.letters import LetterOptions, letter_sink
from ottla.spark.options.source import SourceOptions
from ottla.spark.options.values import BadOption
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# As startingOffsets has them: by topic and partition.
Offsets: TypeAlias = Mapping[str, Mapping[str, int]]

_MESSAGE: Final = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True)
class Letters:
    """The dead letters of a source, for the one flow that writes them."""

    # Where they begin, in the form of startingOffsets; empty: with the first record that is read.
    since: Offsets = field(default_factory=dict)


@dataclass(frozen=True)
class Opened:
    """A source, ready to be used."""

    # Good rows, observed as source:<name>, watermark and deduplication applied; stream or table.
    frame: DataFrame
    # Its bad records (value, reason) where they are at hand, for tests in the pipeline's file.
    bad: DataFrame | None = None


def open_source(
    spark: SparkSession,
    pipeline: Pipeline,
    source: Source,
    letters: Letters | None = None,
    start: Offsets | None = None,
) -> Opened:
    """Raises BadPipeline where the file is wrong about the source, PipelineFailed for the rest.

    With `letters` whoever reads the frame writes the source's dead letters; otherwise its bad
    records are dropped, unless the source wants to fail. `start` is where a topic's first batch
    begins, whatever the file says.
    """
    match source:
        case TopicSource():
            return _open_topic(spark, pipeline, source, letters, start)
        case FileSource():
            posted = None if letters is None else _file_letters(pipeline, source)
            return opened(file_sources.read(spark, pipeline, source, posted), source)
        case JdbcSource():
            return opened(table_sources.read_jdbc(spark, source), source)
        case DeltaSource():
            return opened(table_sources.read_delta(spark, pipeline, source), source)
        case RateSource():
            return opened(table_sources.read_rate(spark, source), source)
        case _:
            raise TypeError(f"no source: {source!r}")


def has_letters(source: Source) -> bool:
    """Whether there may be some."""
    return source.bad_records.do == "dead_letter" and has_bad_records(source)


def has_bad_records(source: Source) -> bool:
    """Bytes are never bad."""
    if isinstance(source, TopicSource):
        return schemas.key_format(source) is not None or schemas.value_format(source) is not None
    return isinstance(source, FileSource) and source.format != "parquet"


def shape(source: Source) -> StructType | None:
    """The columns as SQL sees them, without broker or files; None: only the source itself knows."""
    match source:
        case TopicSource():
            return schemas.topic_shape(source)
        case FileSource():
            return file_sources.shape(source)
        case RateSource():
            return table_sources.rate_shape()
        case _:
            return schemas.table_shape(source)


def decoded(raw: DataFrame, source: TopicSource) -> DataFrame:
    """Messages as bytes into what format("ottla") makes of them with the source's formats.

    `raw` has value (binary), and key, topic, partition, offset, timestamp, headers where they are
    known. Besides the typed columns there are `_error`, and `_raw_key` and `_raw_value` with the
    bytes of bad rows.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = message_columns(headers=source.headers or HEADERS in raw.columns)
    given = {"topic": F.lit(source.topics[0]), "partition": F.lit(0), "offset": F.lit(0)}
    filled = raw.select(
        *(
            (F.col(name) if name in raw.columns else given.get(name, F.lit(None)))
            .cast(kind)
            .alias(name)
            for name, kind in columns
        )
    )
    key, value = schemas.key_format(source), schemas.value_format(source)
    return decode(filled, Decoder(key, value, columns))


def opened(decoded: DataFrame, source: Source) -> Opened:
    """Splits good from bad as the source wants it; observes, sets watermark, removes duplicates.

    `decoded` is what `decoded()` makes, or format("ottla"); sources that are not topics may also
    give their columns as they are, without `_error`.
    """
    frame = _columns(good_rows(decoded, source), source)
    problems = time_problems(source, frame)
    if problems:
        raise BadPipeline(problems)
    return Opened(timed(frame, source), bad_rows(decoded))


def timed(frame: DataFrame, what: Source | View) -> DataFrame:
    """With its watermark, and each row once among those that the watermark still waits for."""
    from pyspark.errors import PySparkException

    columns = list(what.deduplicate)
    if columns and frame.isStreaming and what.watermark is None:
        raise _problem(
            what,
            "deduplicate needs a watermark, which says for how long rows are remembered: "
            "add watermark: {column: …, delay: 10 minutes}",
        )
    try:
        if what.watermark is not None:
            frame = frame.withWatermark(what.watermark.column, what.watermark.delay)
        if columns:
            # A table has no end to wait for, and Spark no such operation for it.
            frame = (
                frame.dropDuplicatesWithinWatermark(columns)
                if frame.isStreaming
                else frame.dropDuplicates(columns)
            )
    except PySparkException as wrong:
        raise _problem(what, f"watermark or deduplicate: {_first_line(wrong)}") from wrong
    return frame


def _columns(frame: DataFrame, source: Source) -> DataFrame:
    """As SQL sees them."""
    from pyspark.sql import functions as F  # noqa: N812

    if not isinstance(source, TopicSource):
        if ERROR not in frame.columns:
            return frame
        return frame.select("value.*" if _is_struct(frame, "value") else "value")
    chosen = [
        F.col("value.*" if _is_struct(frame, "value") else "value"),
        F.col("key").alias("_key"),
        *(F.col(name).alias(f"_{name}") for name in _MESSAGE),
        F.col("value").isNull().alias("_tombstone"),
    ]
    if source.headers:
        chosen.append(F.col(HEADERS).alias(schemas.HEADERS_COLUMN))
    return frame.select(*chosen)


def _is_struct(frame: DataFrame, column: str) -> bool:
    return frame.schema[column].dataType.typeName() == "struct"


# --------------------------------------------------------------------------------------- topics


def _open_topic(
    spark: SparkSession,
    pipeline: Pipeline,
    source: TopicSource,
    letters: Letters | None,
    start: Offsets | None,
) -> Opened:
    schemas.topic_shape(source)  # What is wrong with the schemas is told before anything is asked.
    names = ["key", "value", *_MESSAGE, *([HEADERS] if source.headers else [])]
    options = {**_reading(pipeline, source), **_typing(source)}
    if start is not None:
        options = {name: text for name, text in options.items() if not name.startswith("starting")}
        options["startingOffsets"] = json.dumps(start)
    if has_bad_records(source):
        names.append(ERROR)
        if letters is not None:
            options |= _letter_options(pipeline, source)
            if letters.since:
                options["deadLettersFrom"] = json.dumps(letters.since)
    return opened(_load(spark, source, {**options, "columns": ",".join(names)}), source)


def _load(spark: SparkSession, source: TopicSource, options: dict[str, str]) -> DataFrame:
    # Spark would tell what is wrong with them in the trace of a Python worker.
    _parsed(source, options)
    return spark.readStream.format("ottla").options(**options).load()


def letters_between(
    spark: SparkSession,
    pipeline: Pipeline,
    source: TopicSource,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> DataFrame:
    """A table of what lies between; whoever reads it writes its letters."""
    partitions: dict[str, list[int]] = {}
    for one in end:
        partitions.setdefault(one.topic, []).append(one.partition)
    dropped = ("subscribe", "starting", "maxOffsets", "groupId")
    options = {
        name: text
        for name, text in {**_reading(pipeline, source), **_typing(source)}.items()
        if not name.startswith(dropped)
    }
    options |= {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(to_document(start)),
        "endingOffsets": json.dumps(to_document(end)),
        "columns": ",".join(["key", "value", ERROR]),
        "failOnDataLoss": "false",
        **_letter_options(pipeline, source),
    }
    return spark.read.format("ottla").options(**options).load()


def _letter_options(pipeline: Pipeline, source: TopicSource) -> dict[str, str]:
    return {
        "deadLetterTopic": source.bad_records.topic,
        "deadLettersOf": json.dumps([pipeline.name, source.name]),
    }


def starting_options(pipeline: Pipeline, source: TopicSource) -> SourceOptions:
    """How the topics are read, without what becomes of their messages."""
    return _parsed(source, _reading(pipeline, source))


def _parsed(source: TopicSource, options: Mapping[str, str]) -> SourceOptions:
    lower = {name.lower(): text for name, text in options.items()}
    try:
        return SourceOptions.parse(lower, streaming=True)
    except BadOption as wrong:
        raise _problem(source, str(wrong)) from wrong


def _reading(pipeline: Pipeline, source: TopicSource) -> dict[str, str]:
    options = {
        "bootstrap": pipeline.bootstrap,
        "subscribe": ",".join(source.topics),
        **{f"kafka.{name}": value for name, value in pipeline.kafka.items()},
        **_starting(source),
    }
    if source.max_rows_per_batch is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_rows_per_batch)
    return options | dict(source.options)


def _file_letters(pipeline: Pipeline, source: FileSource) -> LetterOptions:
    kafka = {f"kafka.{name}": value for name, value in pipeline.kafka.items()}
    options = {name.lower(): text for name, text in kafka.items()}
    try:
        sink = letter_sink({"bootstrap": pipeline.bootstrap, **options}, source.bad_records.topic)
    except BadOption as wrong:
        raise _problem(source, str(wrong)) from wrong
    return LetterOptions(sink, pipeline.name, source.name)


def _starting(source: TopicSource) -> dict[str, str]:
    if source.start in ("earliest", "latest"):
        return {"startingOffsets": source.start}
    try:
        at = datetime.fromisoformat(source.start)
    except ValueError as wrong:
        raise _problem(
            source,
            f"start is {source.start!r}; wanted: earliest, latest or a time such as "
            "2026-01-31T12:00:00Z",
        ) from wrong
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return {
        "startingTimestamp": str(int(at.timestamp() * 1000)),
        "startingOffsetsByTimestampStrategy": "latest",
    }


def _typing(source: TopicSource) -> dict[str, str]:
    options: dict[str, str] = {}
    for column, form in (
        ("key", schemas.key_format(source)),
        ("value", schemas.value_format(source)),
    ):
        if form is None:
            continue
        options[f"{column}Format"] = form.kind
        if form.schema is not None:
            options[f"{column}Schema"] = form.schema
        if form.schema_ids:
            options["avroFraming"] = "confluent"
            options[f"{column}SchemaIds"] = ids_text(form)
    return options


def _problem(what: Source | View, text: str) -> BadPipeline:
    kind = "view" if isinstance(what, View) else "source"
    return BadPipeline([Problem(f"{kind} {what.name}: {text}", what.place)])


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
