"""From names to frames: sources are opened, views made of them, flows end in sinks.

Only what is wanted is opened. What is wrong with one view does not hide what is wrong with another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.language.model import Pipeline, PythonFunction, Sink, Source, Sql, View
from ottla.pipelines.language.problems import BadPipeline, Place, Problem
from ottla.pipelines.views.event_time import time_problems, timed
from ottla.pipelines.views.python_views import SPARK, BesideTheFile, inputs_of
from ottla.pipelines.views.spark_errors import one_line, quiet
from ottla.pipelines.views.sql_views import BadView, sql_frame
from ottla.spark.spelling import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# transformWithState works with no other state store. Queries that have a checkpoint keep theirs.
STATE_STORE: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKS_DB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Opened:
    """A source, ready to be used."""

    # Good rows, observed as source:<name>, watermark and deduplication applied; stream or table.
    frame: DataFrame
    # Its bad records (value, reason) where they are at hand, for tests in the pipeline's file.
    bad: DataFrame | None = None


Open = Callable[[Source], Opened]


@dataclass(frozen=True)
class Flow:
    """What one streaming query does: a frame into a sink."""

    name: str
    sink: Sink
    frame: DataFrame
    # Those that this flow reads, in the order of the file.
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Graph:
    # Every source and view that was made, by name.
    frames: Mapping[str, DataFrame]
    flows: tuple[Flow, ...]


def build(
    spark: SparkSession,
    pipeline: Pipeline,
    open: Open,
    *,
    wanted: Collection[str] | None = None,
) -> Graph:
    """Flows for all sinks; with `wanted` only the frames of these sources and views.

    Temp views are registered in `spark` (the pipeline's names are taken there). Raises BadPipeline.
    """
    resolver = Resolver(spark, pipeline, open)
    sinks = pipeline.sinks.values() if wanted is None else ()
    inputs = [sink.input for sink in sinks if resolver.check_input(sink)]
    resolver.make_all(inputs if wanted is None else wanted)
    if resolver.problems:
        raise BadPipeline(resolver.problems)
    return Graph(resolver.frames, tuple(_flows(pipeline, resolver)) if wanted is None else ())


class Resolver:
    """Makes frames by name, each once, whatever they need first; collects problems."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, open: Open) -> None:
        self.frames: dict[str, DataFrame] = {}
        self.problems: list[Problem] = []
        # What each view uses directly.
        self.uses: dict[str, set[str]] = {}
        self._spark = spark
        self._pipeline = pipeline
        self._open = open
        self._broken: set[str] = set()
        self._making: list[str] = []
        # Those that are temp views at the moment.
        self._shown: set[str] = set()
        self._beside = BesideTheFile(pipeline.file.parent)
        # Spark does not tell Orders from orders unless it is told to.
        self._by_lower = {name.lower(): name for name in (*pipeline.sources, *pipeline.views)}

    def make_all(self, names: Collection[str]) -> None:
        """As many of these as can be made; the rest is in `problems`."""
        self.drop_views()
        self._check_catalog()
        with quiet(), self._beside.importable():
            for wanted in names:
                try:
                    self._make(self._by_lower[wanted.lower()])
                except BadView:
                    continue
        self._show(set(self.frames))

    def drop_views(self) -> None:
        """What an earlier build has left under these names would be taken for theirs."""
        for name in self._by_lower.values():
            self._spark.catalog.dropTempView(name)
        self._shown.clear()

    def name_of(self, wanted: str) -> str | None:
        """The source or view of this name, as the file spells it where it is defined."""
        return self._by_lower.get(wanted.lower())

    def check_input(self, sink: Sink) -> bool:
        """Does the sink's `from` name something?"""
        if self.name_of(sink.input) is not None:
            return True
        text = f"sink {sink.name}: {sink.input} is neither a source nor a view"
        self.problems.append(Problem(text + self._nearest(sink.input), sink.place))
        return False

    def sources_of(self, name: str) -> tuple[Source, ...]:
        """All that a source or view reads from, in the order of the file."""
        reached = self.reached([name])
        return tuple(one for one in self._pipeline.sources.values() if one.name in reached)

    def reached(self, names: Collection[str]) -> set[str]:
        """These names and everything they are made of."""
        found: set[str] = set()
        ahead = list(names)
        while ahead:
            name = ahead.pop()
            if name not in found:
                found.add(name)
                ahead.extend(self.uses.get(name, ()))
        return found

    def _make(self, name: str) -> None:
        if name in self.frames:
            return
        if name in self._broken:
            raise BadView
        self._making.append(name)
        try:
            self.frames[name] = self._made(name)
        except (BadView, BadPipeline) as error:
            self._broken.add(name)
            self.problems.extend(error.problems)
            raise BadView from None
        finally:
            self._making.pop()

    def _made(self, name: str) -> DataFrame:
        source = self._pipeline.sources.get(name)
        if source is not None:
            return self._opened(source).frame
        view = self._pipeline.views[name]
        if isinstance(view.body, Sql):
            frame = self._from_sql(view, view.body)
        else:
            frame = self._from_python(view, view.body)
        return self._timed(view, frame)

    def _show(self, names: set[str]) -> None:
        """Lets Spark see these and no others, so that it misses every name that a view uses."""
        for name in self._shown - names:
            self._spark.catalog.dropTempView(name)
        for name in names - self._shown:
            self.frames[name].createOrReplaceTempView(name)
        self._shown = set(names)

    def _check_catalog(self) -> None:
        """A table of Spark's own would be read in the place of a source of its name."""
        for name in self._by_lower.values():
            if self._spark.catalog.tableExists(name):
                one = self._pipeline.sources.get(name) or self._pipeline.views[name]
                text = f"{name} is also a table in Spark's catalog; choose another name"
                self.problems.append(Problem(text, one.place))

    def _opened(self, source: Source) -> Opened:
        from pyspark.errors import AnalysisException

        try:
            return self._open(source)
        except AnalysisException as error:
            problem = Problem(f"source {source.name}: {one_line(error)}", source.place)
            raise BadView(problem) from None

    def _from_sql(self, view: View, sql: Sql) -> DataFrame:
        subject = f"view {view.name}"

        def provide(missing: str, place: Place) -> None:
            self._use(view, missing, place)
            self._show(self.uses[view.name])

        self._show(set())
        return sql_frame(self._spark, sql, subject=subject, provide=provide)

    def _from_python(self, view: View, wanted: PythonFunction) -> DataFrame:
        subject = f"view {view.name}"
        if STATE_STORE not in self._pipeline.spark:
            self._spark.conf.set(STATE_STORE, ROCKS_DB)
        function = self._beside.find(wanted, subject=subject)
        known = {**self._pipeline.sources, **self._pipeline.views}
        inputs: dict[str, Any] = {}
        for parameter in inputs_of(function, known):
            if parameter == SPARK:
                inputs[parameter] = self._spark
            else:
                name = self._use(view, parameter, wanted.place)
                inputs[parameter] = self.frames[name]
        self._show(self.uses.get(view.name, set()))
        return self._beside.call(function, inputs, wanted, subject=subject)

    def _use(self, view: View, wanted: str, place: Place) -> str:
        """Makes what the view needs and gives its name as the file spells it; raises BadView."""
        name = self._by_lower.get(wanted.lower())
        if name is None:
            text = f"view {view.name}: {wanted} is neither a source nor a view"
            if isinstance(view.body, PythonFunction):
                function = f"{view.body.module}:{view.body.function}"
                text = (
                    f"view {view.name}: the parameter {wanted} of {function} is neither a source "
                    "nor a view, nor spark"
                )
            raise BadView(Problem(text + self._nearest(wanted), place))
        if name in self._making:
            circle = " → ".join([*self._making[self._making.index(name) :], name])
            text = (
                f"view {view.name} is made of itself: {circle}; take one of them out of the circle"
            )
            raise BadView(Problem(text, place))
        self._make(name)
        self.uses.setdefault(view.name, set()).add(name)
        return name

    def _timed(self, view: View, frame: DataFrame) -> DataFrame:
        problems = time_problems(view, frame)
        if problems:
            raise BadPipeline(problems)
        return timed(frame, view)

    def _nearest(self, name: str) -> str:
        known = self._by_lower.values()
        return nearest(name, known) or f"; there are {', '.join(known)}"


def _flows(pipeline: Pipeline, resolver: Resolver) -> list[Flow]:
    flows: list[Flow] = []
    for sink in pipeline.sinks.values():
        name = resolver.name_of(sink.input) or sink.input
        frame = _counted(resolver.frames[name])
        flows.append(Flow(sink.name, sink, frame, resolver.sources_of(name)))
    return flows


def _counted(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import count, lit

    return frame.observe("out", count(lit(1)).alias("rows"))
