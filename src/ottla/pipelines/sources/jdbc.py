"""Tables that other systems keep (JDBC, Delta), and rows out of nothing for trying out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.pipelines.jars import needed_class
from ottla.pipelines.language.model import DeltaSource, JdbcSource, Pipeline, RateSource, Source
from ottla.pipelines.language.problems import PipelineFailed
from ottla.pipelines.sources.files import located

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_JAVA_TRACE: Final = re.compile(r"\n\s*at .*", re.DOTALL)
_JAVA_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ")


def read_jdbc(spark: SparkSession, source: JdbcSource) -> DataFrame:
    needed = needed_class(source, spark.version)
    given = {
        "url": source.url,
        "dbtable": source.table,
        "user": source.user,
        "password": source.password,
        # Without its name Spark looks only among the drivers that are on its own class path.
        "driver": needed[0] if needed else None,
    }
    options = {name: text for name, text in given.items() if text is not None}
    reader = spark.read.format("jdbc").options(**{**options, **source.options})
    return _loaded(source, f"table {source.table}", reader.load)


def read_delta(spark: SparkSession, pipeline: Pipeline, source: DeltaSource) -> DataFrame:
    path = located(pipeline, source.path)
    if source.read == "stream":
        streams = spark.readStream.format("delta").options(**source.options)
        return _loaded(source, path, lambda: streams.load(path))
    tables = spark.read.format("delta").options(**source.options)
    return _loaded(source, path, lambda: tables.load(path))


def read_rate(spark: SparkSession, source: RateSource) -> DataFrame:
    reader = spark.readStream.format("rate").option("rowsPerSecond", str(source.rows_per_second))
    return reader.options(**source.options).load()


def rate_shape() -> StructType:
    from pyspark.sql.types import LongType, StructType, TimestampType

    return StructType().add("timestamp", TimestampType()).add("value", LongType())


def _loaded(source: Source, what: str, load: Callable[[], DataFrame]) -> DataFrame:
    """Spark asks for the columns at once, so here is where a database that is away is noticed."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return load()
    except PySparkException as wrong:
        reason = str(wrong).strip().partition("\n")[0]
    except Py4JJavaError as wrong:
        text = _JAVA_TRACE.sub("", str(wrong.java_exception.toString()))
        reason = " ".join(_JAVA_CLASS.sub("", text).split())
    raise PipelineFailed(f"source {source.name}: cannot read {what}: {reason}")
