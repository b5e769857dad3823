"""Spark reads and writes Ottla, and anything else that speaks the Kafka protocol.

Nothing is imported here: every Spark session looks into this package for its sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes `format("ottla")` known where Spark cannot find it by itself (`--py-files`).

    To be called also where several streams run in one Spark: they may open at once then.
    """
    from ottla.spark.session import register_source

    register_source(spark)
