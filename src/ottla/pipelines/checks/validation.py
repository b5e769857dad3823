"""What can be known about a pipeline before anything of it runs.

Sources are empty streams and tables with the columns that the real ones have, so views are analysed
and queries are checked by Spark itself, and no broker, file or database is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.errors import OttlaError
from ottla.pipelines.checks.existing_topics import missing_topics, uses_topics
from ottla.pipelines.checks.missing_jars import missing_jars
from ottla.pipelines.checks.output_modes import is_aggregated, mode_problems
from ottla.pipelines.language.model import Pipeline, Sink, Source
from ottla.pipelines.language.problems import BadPipeline, PipelineFailed, Place, Problem
from ottla.pipelines.sinks.kinds import sink_problems
from ottla.pipelines.sinks.upserts import lacks_sequence
from ottla.pipelines.sources.kinds import is_stream, open_source, shape
from ottla.pipelines.views.event_time import time_problems, timed
from ottla.pipelines.views.graph import Flow, Opened, Resolver
from ottla.pipelines.views.spark_errors import quiet
from ottla.pipelines.views.sql_views import BadView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def validate(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    topics: Callable[[], Mapping[str, int] | None],
) -> list[Problem]:
    """All that is wrong, and notes (`Problem.is_note`), in the order of the file."""
    jars = missing_jars(spark, pipeline)
    without_jars = frozenset(problem.place for problem in jars if problem.place is not None)
    sources = EmptySources(spark, pipeline, without_jars)
    resolver = Resolver(spark, pipeline, sources.open)
    fed = [sink for sink in pipeline.sinks.values() if resolver.check_input(sink)]
    try:
        # Those that no sink uses too: they may be meant for later, but must be right.
        resolver.make_all([*pipeline.sources, *pipeline.views])
        problems = [*jars, *resolver.problems, *sources.problems]
        with quiet():
            for sink in fed:
                problems += _sink_problems(sink, resolver, sources)
    finally:
        resolver.drop_views()
    problems += _topic_problems(pipeline, topics)
    if not any(not problem.is_note for problem in problems):
        problems += _unused(pipeline, resolver)
    return sorted(set(problems), key=_in_order)


def flow_problems(
    pipeline: Pipeline,
    flows: Sequence[Flow],
    topics: Callable[[], Mapping[str, int] | None],
) -> list[Problem]:
    """All that is wrong with flows that are about to start, whose frames are there already."""
    with quiet():
        found = [
            problem
            for flow in flows
            for problem in _frame_problems(flow.sink, flow.frame, flow.sources)
        ]
    found += [one for one in _topic_problems(pipeline, topics) if not one.is_note]
    return sorted(set(found), key=_in_order)


class EmptySources:
    """Sources without rows, and what is wrong with them."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, without_jars: frozenset[Place]
    ) -> None:
        self.problems: list[Problem] = []
        # Their time is not what it should be, so nothing is said about what depends on it.
        self.untimed: set[str] = set()
        self._spark = spark
        self._pipeline = pipeline
        self._without_jars = without_jars

    def open(self, source: Source) -> Opened:
        """As `open_source`; what is not needed to go on is only noted."""
        if source.place in self._without_jars:
            raise BadView
        frame = self._frame(source)
        problems = time_problems(source, frame)
        if not problems:
            try:
                return Opened(timed(frame, source))
            except BadPipeline as error:
                problems = list(error.problems)
        self.problems += problems
        self.untimed.add(source.name)
        return Opened(frame)

    def _frame(self, source: Source) -> DataFrame:
        columns = shape(source)
        if columns is not None:
            return empty_frame(self._spark, columns, is_stream=is_stream(source))
        try:
            real = open_source(self._spark, self._pipeline, source).frame
        except PipelineFailed as error:
            # The line names the source.
            raise BadView(Problem(str(error), source.place)) from None
        return empty_frame(self._spark, real.schema, is_stream=real.isStreaming)


def empty_frame(spark: SparkSession, columns: StructType, *, is_stream: bool) -> DataFrame:
    """A frame with these columns, all of which may be null, and no rows."""
    from pyspark.sql.functions import lit

    seed = spark.readStream.format("rate").load() if is_stream else spark.range(0)
    nothing = (lit(None).cast(field.dataType).alias(field.name) for field in columns.fields)
    return seed.where("false").select(*nothing)


def _sink_problems(sink: Sink, resolver: Resolver, sources: EmptySources) -> list[Problem]:
    name = resolver.name_of(sink.input)
    frame = resolver.frames.get(name or "")
    if name is None or frame is None:
        # Told where it is broken.
        return []
    is_timed = not sources.untimed.intersection(resolver.reached([name]))
    return _frame_problems(sink, frame, resolver.sources_of(name), is_timed=is_timed)


def _frame_problems(
    sink: Sink, frame: DataFrame, read: Sequence[Source], *, is_timed: bool = True
) -> list[Problem]:
    repeated = _repeated_columns(sink, frame)
    if repeated:
        return repeated
    found = sink_problems(sink, frame, read)
    if frame.isStreaming and is_timed:
        of_mode = mode_problems(sink, frame)
        found += of_mode
        if not of_mode and lacks_sequence(sink, frame) and not is_aggregated(frame):
            found.append(_no_sequence(sink))
    return found


def _repeated_columns(sink: Sink, frame: DataFrame) -> list[Problem]:
    counts = Counter(name.lower() for name in frame.columns)
    twice = [name for name, count in counts.items() if count > 1]
    if not twice:
        return []
    text = (
        f"sink {sink.name}: {sink.input} has several columns named {', '.join(twice)}; "
        "name its columns one by one instead of *, each with a name of its own"
    )
    return [Problem(text, sink.place)]


def _no_sequence(sink: Sink) -> Problem:
    text = (
        f"sink {sink.name}: which of two rows of {sink.input} with the same key is newer? add "
        "sequence_by: with a column that grows, or select _timestamp, _partition and _offset too"
    )
    return Problem(text, sink.place)


def _topic_problems(
    pipeline: Pipeline, topics: Callable[[], Mapping[str, int] | None]
) -> list[Problem]:
    if not uses_topics(pipeline):
        return []
    try:
        found = topics()
    except OttlaError as error:
        return [Problem(f"{pipeline.bootstrap}: {error}; correct bootstrap or kafka in the file")]
    if found is None:
        text = f"no broker answers at {pipeline.bootstrap}: the topics were not looked at"
        return [Problem(text, is_note=True)]
    return missing_topics(pipeline, found)


def _unused(pipeline: Pipeline, resolver: Resolver) -> list[Problem]:
    wanted = [sink.input for sink in pipeline.sinks.values()]
    wanted += [name for case in pipeline.tests.values() for name in case.expect]
    used = resolver.reached([resolver.name_of(name) or name for name in wanted])
    return [
        Problem(f"{kind} {name} is used by no sink and no test", one.place, is_note=True)
        for kind, named in (("source", pipeline.sources), ("view", pipeline.views))
        for name, one in named.items()
        if name not in used
    ]


def _in_order(problem: Problem) -> tuple[bool, str, int, int, str]:
    """By place; what has none comes last."""
    place = problem.place
    if place is None:
        return (True, "", 0, 0, problem.text)
    return (False, str(place.file), place.line, place.column, problem.text)
