"""A table of a database, by JDBC: read anew for every batch of the stream it is joined with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.pipelines.jars import Jar, jdbc_driver
from ottla.pipelines.language.model import JdbcSource, Pipeline
from ottla.pipelines.language.secrets import redact
from ottla.pipelines.sources import schemas
from ottla.pipelines.sources.contract import Letters, Offsets, SourceKind
from ottla.pipelines.sources.foreign_tables import loaded
from ottla.pipelines.sources.rows import opened
from ottla.pipelines.views.graph import Opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class Databases(SourceKind[JdbcSource]):
    def open(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        source: JdbcSource,
        letters: Letters | None,
        start: Offsets | None,
    ) -> Opened:
        driver = jdbc_driver(source.url, source.options)
        given = {
            "url": source.url,
            "dbtable": source.table,
            "user": source.user,
            "password": source.password,
            # Without its name Spark looks only among the drivers that are on its own class path.
            "driver": None if driver is None else driver.java_class,
        }
        options = {name: text for name, text in given.items() if text is not None}
        reader = spark.read.format("jdbc").options(**{**options, **source.options})
        return opened(loaded(source, f"table {source.table}", reader.load), source)

    def shape(self, source: JdbcSource) -> StructType | None:
        return schemas.table_shape(source)

    def identity(self, source: JdbcSource) -> dict[str, Any]:
        return {"kind": "jdbc", "url": redact(source.url, ()), "table": source.table}

    def is_stream(self, source: JdbcSource) -> bool:
        return False

    def needed_jar(self, source: JdbcSource, spark_version: str) -> Jar | None:
        return jdbc_driver(source.url, source.options)
