"""Which sources and sinks of a pipeline need jars that Spark does not find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.pipelines.jars import has_class
from ottla.pipelines.language.model import Pipeline
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.sinks.kinds import sink_kind
from ottla.pipelines.sources.kinds import source_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def missing_jars(spark: SparkSession, pipeline: Pipeline) -> list[Problem]:
    """One problem per source or sink whose classes Spark cannot load; names the coordinates."""
    sources = [
        (one.subject, one.place, source_kind(one).needed_jar(one, spark.version))
        for one in pipeline.sources.values()
    ]
    sinks = [
        (one.subject, one.place, sink_kind(one).needed_jar(one, spark.version))
        for one in pipeline.sinks.values()
    ]
    return [
        Problem(
            f"{subject} needs the class {jar.java_class}, which Spark does not find: add "
            f"--packages {jar.coordinates} (or --jars with the file)",
            place,
        )
        for subject, place, jar in (*sources, *sinks)
        if jar is not None and not has_class(spark, jar.java_class)
    ]
