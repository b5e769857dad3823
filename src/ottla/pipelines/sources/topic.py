"""Topics: messages in, rows out; bad ones are put aside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import Pipeline, TopicSource
from ottla.pipelines.sources import schemas
from ottla.pipelines.sources.bad_records import HEADERS, Decoder, decode, message_columns
from ottla.pipelines.sources.contract import GivenFiles, Letters, Offsets, SourceKind
from ottla.pipelines.sources.rows import fields, opened
from ottla.pipelines.sources.schemas import bad_source
from ottla.pipelines.views.graph import Opened
from ottla.spark.formats.typed_columns import ERROR_COLUMN
from ottla.spark.offsets import to_document
from ottla.spark.options.formats import ids_text
from ottla.spark.options.source import SourceOptions
from ottla.spark.options.values import BadOption
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MESSAGE: Final = ("topic", "partition", "offset", "timestamp")


class Topics(SourceKind[TopicSource]):
    def open(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        source: TopicSource,
        letters: Letters | None,
        start: Offsets | None,
    ) -> Opened:
        self.shape(source)  # What is wrong with the schemas is told before anything is asked.
        names = ["key", "value", *_MESSAGE, *([HEADERS] if source.headers else [])]
        options = {**_reading(pipeline, source), **_typing(source)}
        if start is not None:
            options = {
                name: one for name, one in options.items() if not name.startswith("starting")
            }
            options["startingOffsets"] = json.dumps(start)
        if self.has_bad_records(source):
            names.append(ERROR_COLUMN)
            if letters is not None:
                options |= _letter_options(pipeline, source)
                if letters.since:
                    options["deadLettersFrom"] = json.dumps(letters.since)
        return _opened(_load(spark, source, {**options, "columns": ",".join(names)}), source)

    def shape(self, source: TopicSource) -> StructType:
        return schemas.topic_shape(source)

    def identity(self, source: TopicSource) -> dict[str, Any]:
        return {"kind": "topic", "topics": sorted(source.topics)}

    def has_bad_records(self, source: TopicSource) -> bool:
        """Bytes are never bad."""
        return schemas.key_format(source) is not None or schemas.value_format(source) is not None

    def stand_in(
        self, spark: SparkSession, pipeline: Pipeline, source: TopicSource, given: GivenFiles
    ) -> Opened:
        return opened_bytes(given.messages(source), source)


def opened_bytes(raw: DataFrame, source: TopicSource) -> Opened:
    """The source, of messages that are at hand.

    `raw` has value (binary), and key, topic, partition, offset, timestamp, headers where they are
    known. It is decoded to what format("ottla") makes of it with the source's formats, and to
    `_raw_key` and `_raw_value` with the bytes of bad rows.
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
    return _opened(decode(filled, Decoder(key, value, columns)), source)


def _opened(messages: DataFrame, source: TopicSource) -> Opened:
    """`messages` as format("ottla") gives them."""
    from pyspark.sql import functions as F  # noqa: N812

    place = F.concat(
        F.lit("topic "), "topic", F.lit(" partition "), "partition", F.lit(" offset "), "offset"
    )
    return opened(messages, source, place=place, columns=lambda rows: _columns(rows, source))


def _columns(rows: DataFrame, source: TopicSource) -> DataFrame:
    """As SQL sees them."""
    from pyspark.sql import functions as F  # noqa: N812

    chosen = [
        F.col(fields(rows, "value")),
        F.col("key").alias("_key"),
        *(F.col(name).alias(f"_{name}") for name in _MESSAGE),
        F.col("value").isNull().alias("_tombstone"),
    ]
    if source.headers:
        chosen.append(F.col(HEADERS).alias(schemas.HEADERS_COLUMN))
    return rows.select(*chosen)


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
        "columns": ",".join(["key", "value", ERROR_COLUMN]),
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
        raise bad_source(source, str(wrong)) from wrong


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


def _starting(source: TopicSource) -> dict[str, str]:
    if source.start in ("earliest", "latest"):
        return {"startingOffsets": source.start}
    try:
        at = datetime.fromisoformat(source.start)
    except ValueError as wrong:
        raise bad_source(
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
