"""What a start finds in the data directories: whose each partition's directory is.

One that the metadata does not know is a stray. Metadata can be lost, a directory may have been
mounted at the wrong broker: so it is renamed `-stray`, told, and kept, as Kafka does since 3.7.
Only where the metadata log itself tells that the topic was deleted, a crash came between the
deletion and the removal of its files, and they are removed now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from ottla.broker.departures import Departures
from ottla.broker.stores import Store
from ottla.cluster.image import TopicImage
from ottla.errors import CannotStart
from ottla.log.directory import DataDirectory
from ottla.types import METADATA_TOPIC, TopicPartition

logger = logging.getLogger(__name__)

STRAYS_TOLD_MAX: Final = 10

Stranger: TypeAlias = tuple[DataDirectory, TopicPartition, None]
Look: TypeAlias = Callable[[], list[TopicPartition]]


class Found(NamedTuple):
    """Where the partitions lie, and which of them have their topic's id in a file."""

    places: dict[TopicPartition, Store]
    settled: set[TopicPartition]


class Finder:
    def __init__(
        self,
        topics: Mapping[str, TopicImage],
        deleted_ids: Collection[bytes],
        departures: Departures,
    ) -> None:
        self._topics = topics
        self._deleted_ids = deleted_ids
        self._departures = departures
        self._strays = 0

    def look(
        self,
        stores: Iterable[Store],
        ask: Callable[[Store, Look], list[TopicPartition] | None],
    ) -> Found:
        """Blocking; `ask` looks into a directory, or says that it is offline.

        A partition that is in two places cannot be opened, and only a person can say which is the
        true one; Kafka refuses to start as well.
        """
        found = Found({}, set())
        for store in stores:
            look: Look = partial(self._look_in, store.data, found.settled)
            for name in ask(store, look) or ():
                other = found.places.setdefault(name, store)
                if other is not store:
                    raise CannotStart(
                        f"{name} is in {other.path} and in {store.path}: move the directory of "
                        "the older one away, and start again."
                    )
        self._tell_of_strays()
        return found

    def _look_in(self, data: DataDirectory, settled: set[TopicPartition]) -> list[TopicPartition]:
        self._departures.remove(data, data.doomed())
        found: list[TopicPartition] = []
        deleted: list[Stranger] = []
        strays: list[Stranger] = []
        for name in data.partitions():
            topic = self._topics.get(name.topic)
            is_known = topic is not None and name.partition in topic.partitions
            id_found = data.read_topic_id(name)
            if is_known and topic is not None and id_found in (None, topic.id):
                found.append(name)
                # Without a readable id it is still the topic's: the file is written again.
                if id_found is not None:
                    settled.add(name)
            elif name.topic != METADATA_TOPIC:
                (deleted if id_found in self._deleted_ids else strays).append((data, name, None))
        self._departures.begin(deleted)
        self._departures.begin(strays, is_kept=True)
        for data, name, _ in strays:
            self._note_stray(data, name)
        return found

    def _note_stray(self, data: DataDirectory, name: TopicPartition) -> None:
        self._strays += 1
        if self._strays <= STRAYS_TOLD_MAX:
            logger.warning(
                "%s is not in the metadata: kept as %s.<id>-stray. `ottla log dump --records` "
                "shows its messages; if nobody needs them, as after a deletion that a crash cut "
                "short, remove it by hand.",
                data.partition_path(name),
                name,
            )

    def _tell_of_strays(self) -> None:
        if self._strays > STRAYS_TOLD_MAX:
            more = self._strays - STRAYS_TOLD_MAX
            logger.warning("%d more directories are not in the metadata, kept as -stray", more)
