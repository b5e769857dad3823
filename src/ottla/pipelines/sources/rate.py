"""Rows out of nothing, so many a second, for trying out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import Pipeline, RateSource
from ottla.pipelines.sources.contract import GivenFiles, Letters, Offsets, SourceKind
from ottla.pipelines.sources.rows import opened
from ottla.pipelines.views.graph import Opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_COLUMNS: Final = "timestamp TIMESTAMP, value BIGINT"


class Rates(SourceKind[RateSource]):
    def open(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        source: RateSource,
        letters: Letters | None,
        start: Offsets | None,
    ) -> Opened:
        rows = spark.readStream.format("rate")
        rows = rows.option("rowsPerSecond", str(source.rows_per_second))
        return opened(rows.options(**source.options).load(), source)

    def shape(self, source: RateSource) -> StructType:
        from pyspark.sql.types import LongType, StructType, TimestampType

        return StructType().add("timestamp", TimestampType()).add("value", LongType())

    def identity(self, source: RateSource) -> dict[str, Any]:
        return {"kind": "rate"}

    def stand_in(
        self, spark: SparkSession, pipeline: Pipeline, source: RateSource, given: GivenFiles
    ) -> Opened:
        return opened(given.rows(source, _COLUMNS, is_stream=True), source)
