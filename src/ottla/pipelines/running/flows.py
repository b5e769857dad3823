"""The flows of a run, each with the dead letters that it is to write, and its own beginning.

Both are part of a frame. So flows that share a source, one of which owns its letters, need frames
of their own: all views are made once more for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.pipelines.language.model import Pipeline, Source, TopicSource
from ottla.pipelines.running.fingerprints import Document
from ottla.pipelines.running.lag import Offsets as Positions
from ottla.pipelines.running.ownership import LETTERS, letters_of
from ottla.pipelines.running.starts import STARTS
from ottla.pipelines.sources.contract import Letters, Offsets
from ottla.pipelines.sources.kinds import has_letters, is_stream, open_source
from ottla.pipelines.sources.topic import letters_between, starting_options
from ottla.pipelines.views import graph
from ottla.pipelines.views.graph import Opened
from ottla.spark.asker import Asker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Own:
    """What of a source is a flow's own: the letters that it writes, and where it begins."""

    letters: Mapping[str, Letters]
    starts: Mapping[str, Offsets]


class FlowFactory:
    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        sources = pipeline.sources.values()
        self._common = Own(
            {one.name: Letters() for one in sources if has_letters(one) and is_stream(one)}, {}
        )

    def flows(self, own: Own | None = None) -> Sequence[graph.Flow]:
        """All of them, each as if these were its own; None: with the letters of all streams."""
        wanted = own or self._common

        def open_one(source: Source) -> Opened:
            name = source.name
            return open_source(
                self._spark,
                self._pipeline,
                source,
                wanted.letters.get(name),
                wanted.starts.get(name),
            )

        return graph.build(self._spark, self._pipeline, open_one).flows

    def owned(self, flows: Sequence[graph.Flow], noted: Document) -> list[graph.Flow]:
        """The flows, made with what is common, with what is their own; `noted` in the checkpoint.

        For most there is no difference.
        """
        made: list[tuple[Own, Sequence[graph.Flow]]] = []
        found: list[graph.Flow] = []
        for flow in flows:
            own = self._own(flow, noted)
            names = {source.name for source in flow.sources}
            common = {name: one for name, one in self._common.letters.items() if name in names}
            if own == Own(common, {}):
                found.append(flow)
                continue
            again = next((some for one, some in made if one == own), None)
            if again is None:
                again = self.flows(own)
                made.append((own, again))
            found += [one for one in again if one.name == flow.name]
        return found

    def _own(self, flow: graph.Flow, noted: Document) -> Own:
        starts = noted[STARTS].get(flow.name, {})
        return Own(
            letters_of(flow, noted[LETTERS]),
            {name: one["offsets"] for name, one in starts.items()},
        )

    def ends(self, source: TopicSource, reached: Positions) -> Positions:
        """Where the topics end now; asked for again where they seem shorter than somebody came."""
        found = Asker(starting_options(self._pipeline, source)).settled_ends(reached)
        return {partition: one.latest for partition, one in found.items()}

    def catch_up(self, source: TopicSource, start: Positions, end: Positions) -> None:
        """Writes the letters of what lies between, by a read that is for nothing else."""
        frame = letters_between(self._spark, self._pipeline, source, start, end)
        frame.write.format("noop").mode("overwrite").save()

    def post(self, source: Source) -> None:
        """Writes the letters of a table, by a read that is for nothing else."""
        opened = open_source(self._spark, self._pipeline, source, Letters())
        opened.frame.write.format("noop").mode("overwrite").save()
