"""Lets Spark find `format("ottla")` by itself.

Spark imports every package named `pyspark_*` and registers its `DefaultSource`. Each session does
that, also those that never heard of Ottla: so this must stay light and must not fail.
"""

from ottla.spark.source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
