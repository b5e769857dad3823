"""Spark reads and writes Ottla, and anything else that speaks the Kafka protocol.

Nothing is imported here: every Spark session looks into this package for its sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def quick_start() -> None:
    """Lets the first read of a session on this machine (`local[…]`) come sooner.

    To be called before the session is made: Python workers are got ready while the JVM starts.
    Where PYSPARK_PYTHON names another Python than this one, Spark starts as it always does.
    """
    import os
    import shutil
    import sys

    from ottla.spark.startup.environment import quick_environment

    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None or shutil.which(chosen) == sys.executable:
        os.environ.update(quick_environment(os.environ))


def register(spark: SparkSession) -> None:
    """Makes `format("ottla")` known where Spark cannot find it by itself (`--py-files`).

    To be called also where several streams run in one Spark: they may open at once then.
    """
    from ottla.spark.session import register_source

    register_source(spark)
