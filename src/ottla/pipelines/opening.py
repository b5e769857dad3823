"""The flows of a run, each with the dead letters that it is to write.

What a task writes beside its rows is part of its frame. So flows that share a source, one of which
owns its letters, need frames of their own: all views are made once more for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.pipelines import graph
from ottla.pipelines.fingerprints import Document
from ottla.pipelines.model import Pipeline, Source
from ottla.pipelines.ownership import is_stream, letters_of
from ottla.pipelines.sources import Letters, Opened, has_letters, open_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Posts = Mapping[str, Letters]


class Opening:
    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline

    def flows(self, posts: Posts | None = None) -> Sequence[graph.Flow]:
        """All of them, as if each wrote these letters; None: those of all streams."""

        def open_one(source: Source) -> Opened:
            letters = self._all().get(source.name) if posts is None else posts.get(source.name)
            return open_source(self._spark, self._pipeline, source, letters)

        return graph.build(self._spark, self._pipeline, open_one).flows

    def owned(
        self, flows: Sequence[graph.Flow], owners: Mapping[str, Document]
    ) -> list[graph.Flow]:
        """The flows, made with the letters of all streams, with only those that are their own."""
        made: list[tuple[Posts, Sequence[graph.Flow]]] = []
        found: list[graph.Flow] = []
        for flow in flows:
            own = letters_of(flow, owners)
            names = {source.name for source in flow.sources}
            if own == {name: one for name, one in self._all().items() if name in names}:
                found.append(flow)
                continue
            again = next((some for posts, some in made if posts == own), None)
            if again is None:
                again = self.flows(own)
                made.append((own, again))
            found += [one for one in again if one.name == flow.name]
        return found

    def post(self, source: Source) -> None:
        """Writes the letters of a table, by a read that is for nothing else."""
        opened = open_source(self._spark, self._pipeline, source, Letters())
        opened.frame.write.format("noop").mode("overwrite").save()

    def _all(self) -> Posts:
        sources = self._pipeline.sources.values()
        return {one.name: Letters() for one in sources if has_letters(one) and is_stream(one)}
