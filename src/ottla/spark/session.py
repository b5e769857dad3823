"""What is done to a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ottla.spark.source import OttlaDataSource
from ottla.spark.together import let_streams_open_together


def register_source(spark: SparkSession) -> None:
    """Works with a classic session and over Spark Connect; doing it twice is harmless."""
    spark.dataSource.register(OttlaDataSource)
    let_streams_open_together(spark)
