"""What is done to a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ottla.spark.concurrent_streams import let_streams_open_together
from ottla.spark.source import OttlaDataSource


def register_source(spark: SparkSession) -> None:
    """Works with a classic session and over Spark Connect; doing it twice is harmless."""
    spark.dataSource.register(OttlaDataSource)
    let_streams_open_together(spark)
