"""Where flows begin: `start: latest` is one moment for all flows that a run begins.

What it means is asked once and noted in `pipeline.json` before the first query starts. A flow that
has not come to its first batch, whatever happened to it or to the run, begins there next time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ottla.pipelines.language.model import Pipeline, TopicSource
from ottla.pipelines.running.checkpoints import COMMITS, Store
from ottla.pipelines.running.fingerprints import Document
from ottla.pipelines.sources.kinds import identity
from ottla.pipelines.sources.topic import starting_options
from ottla.spark.asker import Asker
from ottla.spark.offsets import from_document, to_document
from ottla.spark.options.positions import EARLIEST_OFFSET, is_repeatable

if TYPE_CHECKING:
    from ottla.pipelines.views.graph import Flow

STARTS: Final = "starts"


def of_new_flows(
    pipeline: Pipeline, streams: Sequence[Flow], old: Document | None, store: Store
) -> dict[str, dict[str, Document]]:
    """By flow and source, for those without a batch yet whose start would move; asks brokers."""
    noted: Mapping[str, Mapping[str, Document]] = {} if old is None else old.get(STARTS, {})
    asking = _Asking(pipeline)
    found: dict[str, dict[str, Document]] = {}
    for flow in streams:
        before = noted.get(flow.name, {})
        # The beginning of the first batch is in no log of Spark's: it is needed until that is done.
        if store.batches(flow.name, COMMITS) or (store.has_flow(flow.name) and not before):
            continue
        for source in flow.sources:
            if isinstance(source, TopicSource) and asking.moves(source):
                known = before.get(source.name)
                if known is None or not _is_same(known, source):
                    known = {"start": source.start, "reads": identity(source)}
                    known["offsets"] = asking.now(source)
                offsets = asking.completed(source, known["offsets"])
                found.setdefault(flow.name, {})[source.name] = {**known, "offsets": offsets}
    return found


def forgotten(document: Document, flow: str, store: Store) -> Document:
    """The document without a flow's beginning, when its first batch is done.

    Where it goes on is in Spark's log then. If that is deleted, the flow begins anew, and `latest`
    is the moment when it does.
    """
    if flow not in document[STARTS] or not store.batches(flow, COMMITS):
        return document
    left = {name: one for name, one in document[STARTS].items() if name != flow}
    return {**document, STARTS: left}


def _is_same(known: Document, source: TopicSource) -> bool:
    return bool(known["start"] == source.start and known["reads"] == identity(source))


class _Asking:
    """Each source is asked for once."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._askers: dict[str, Asker] = {}
        self._now: dict[str, dict[str, dict[str, int]]] = {}

    def moves(self, source: TopicSource) -> bool:
        return not is_repeatable(starting_options(self._pipeline, source).starting)

    def now(self, source: TopicSource) -> dict[str, dict[str, int]]:
        if source.name not in self._now:
            asker = self._asker(source)
            ends = asker.ends(fresh=True)
            asker.check_topics_exist(some=True)
            position = starting_options(self._pipeline, source).starting
            offsets = asker.resolve(position, ends, is_start=True).offsets
            self._now[source.name] = to_document(offsets)
        return self._now[source.name]

    def completed(
        self, source: TopicSource, offsets: dict[str, dict[str, int]]
    ) -> dict[str, dict[str, int]]:
        """For the partitions that there are now: new ones begin at their first record."""
        known, asker = from_document(offsets), self._asker(source)
        ends = asker.ends()
        asker.check_topics_exist(some=True)
        return to_document({one: known.get(one, EARLIEST_OFFSET) for one in ends})

    def _asker(self, source: TopicSource) -> Asker:
        if source.name not in self._askers:
            self._askers[source.name] = Asker(starting_options(self._pipeline, source))
        return self._askers[source.name]
