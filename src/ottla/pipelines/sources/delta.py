"""A Delta table: what is new in it with each batch, or all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.pipelines.jars import Jar, delta_jar
from ottla.pipelines.language.model import DeltaSource, Pipeline
from ottla.pipelines.sources import schemas
from ottla.pipelines.sources.contract import Letters, Offsets, SourceKind
from ottla.pipelines.sources.files import located
from ottla.pipelines.sources.foreign_tables import loaded
from ottla.pipelines.sources.rows import opened
from ottla.pipelines.views.graph import Opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class DeltaTables(SourceKind[DeltaSource]):
    def open(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        source: DeltaSource,
        letters: Letters | None,
        start: Offsets | None,
    ) -> Opened:
        path = located(pipeline, source.path)

        def load() -> DataFrame:
            reader = spark.readStream if source.read == "stream" else spark.read
            return reader.format("delta").options(**source.options).load(path)

        return opened(loaded(source, path, load), source)

    def shape(self, source: DeltaSource) -> StructType | None:
        return schemas.table_shape(source)

    def identity(self, source: DeltaSource) -> dict[str, Any]:
        return {"kind": "delta", "path": source.path}

    def is_stream(self, source: DeltaSource) -> bool:
        return source.read == "stream"

    def needed_jar(self, source: DeltaSource, spark_version: str) -> Jar | None:
        return delta_jar(spark_version)
