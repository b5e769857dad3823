"""How many messages a flow has still to read: the topics' ends minus where it stands.

The ends are asked by a thread of their own, so that a lost broker never holds the supervision.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from ottla.client.blocking import Blocking
from ottla.client.cluster import Cluster
from ottla.client.settings import ClientSettings
from ottla.client.values import LATEST
from ottla.errors import OttlaError
from ottla.pipelines.language.model import Pipeline, Source, TopicSource
from ottla.spark.options.kafka import CLIENT
from ottla.types import TopicPartition

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
ANSWER_S_MAX: Final = 5.0
# An older answer says nothing about now.
AGE_S_MAX: Final = 15.0

Offsets: TypeAlias = dict[TopicPartition, int]


def positions(progress: Mapping[str, Any], key: str = "endOffset") -> list[Offsets]:
    """What a batch's sources say of themselves; sources that are no topics are left out."""
    found = [offsets_of(one.get(key)) for one in progress.get("sources") or []]
    return [one for one in found if one is not None]


def messages_left(
    sources: Sequence[Source], ends: Offsets, reached: Sequence[Offsets]
) -> dict[str, int | None]:
    """Messages per topic source. Where two sources read one topic, the slower counts for both."""
    lag: dict[str, int | None] = {}
    for source in sources:
        if not isinstance(source, TopicSource):
            continue
        of_source = {p: end for p, end in ends.items() if p.topic in source.topics}
        its = [one for one in reached if any(p.topic in source.topics for p in one)]
        if not of_source or not its:
            lag[source.name] = None
            continue
        lag[source.name] = max(
            sum(max(end - one.get(p, 0), 0) for p, end in of_source.items()) for one in its
        )
    return lag


def newest(*all_ends: Offsets) -> Offsets:
    """Ends only grow: of several answers the greatest is the latest."""
    merged: Offsets = {}
    for ends in all_ends:
        for partition, end in ends.items():
            merged[partition] = max(end, merged.get(partition, 0))
    return merged


class Ends:
    """Asks for the ends of all topics of a pipeline, again and again, from `with` to its end."""

    def __init__(self, pipeline: Pipeline, sources: Sequence[Source]) -> None:
        self._topics = sorted(
            {topic for one in sources if isinstance(one, TopicSource) for topic in one.topics}
        )
        self._settings = client_settings(pipeline)
        self._lock = threading.Lock()
        self._known: Offsets = {}
        self._asked_at = float("-inf")
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._topics:
            self._thread = threading.Thread(target=self._ask_on, name="ottla-lag", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(ANSWER_S_MAX + EVERY_S)

    def now(self) -> Offsets:
        """The last answer; nothing when it is old."""
        with self._lock:
            return self._known if time.monotonic() - self._asked_at < AGE_S_MAX else {}

    def _ask_on(self) -> None:
        with Blocking(self._settings) as client:
            while not self._is_closed.is_set():
                try:
                    found = client.run(self._ask, ANSWER_S_MAX)
                except (OttlaError, OSError) as error:
                    # The flows themselves say what is wrong with the broker.
                    log.debug("the ends of the topics are not known: %s", error)
                else:
                    with self._lock:
                        self._known, self._asked_at = found, time.monotonic()
                self._is_closed.wait(EVERY_S)

    async def _ask(self, cluster: Cluster) -> Offsets:
        topics = await cluster.topics(self._topics)
        wanted = [
            TopicPartition(name, number)
            for name, info in topics.items()
            for number in info.partitions
        ]
        if not wanted:
            return {}
        found = await cluster.list_offsets(dict.fromkeys(wanted, LATEST))
        return {partition: one.offset for partition, one in found.items()}


def client_settings(pipeline: Pipeline) -> ClientSettings:
    """The cluster of the pipeline, for a question of our own."""
    kafka = {name: value for name, value in pipeline.kafka.items() if name in CLIENT}
    return ClientSettings.from_kafka({**kafka, "bootstrap.servers": pipeline.bootstrap})


def offsets_of(document: Any) -> Offsets | None:
    """`{"orders": {"0": 17}}`; None for what is something else."""
    if not isinstance(document, Mapping) or not document:
        return None
    found: Offsets = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, Mapping):
            return None
        for number, offset in partitions.items():
            if not str(number).isdigit() or not isinstance(offset, int):
                return None
            found[TopicPartition(str(topic), int(number))] = offset
    return found
