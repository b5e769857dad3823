"""The partitions that are here, by topic and number, beside the one of the metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.storage.partition import Partition
from ottla.errors import OttlaError
from ottla.types import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.broker.storage.stores import Store

logger = logging.getLogger(__name__)

NO_PARTITIONS: Final[dict[int, Partition]] = {}


class Partitions:
    """Iterating gives all but the metadata's."""

    def __init__(
        self,
        metadata: Partition,
        absence_of: Callable[[str, int], OttlaError],
        stores: Iterable[Store],
    ) -> None:
        """`absence_of` says why a partition is not here."""
        self.metadata = metadata
        self.absence_of = absence_of
        self._stores = stores
        # With so many troubles noted none of the partitions was failing.
        self._calm_at: int | None = None
        self._topics: dict[str, dict[int, Partition]] = {}
        self._as_they_come: set[str] = set()

    # --------------------------------------------------------------------------------- asking

    def in_topic(self, name: str) -> dict[int, Partition] | None:
        return self._topics.get(name)

    def is_ready_for(self, topic: str) -> bool:
        """Whether batches are appended as they come: the topic is here, not ours, with no codec."""
        return topic in self._as_they_come

    def by_topic(self) -> Mapping[str, Mapping[int, Partition]]:
        return self._topics

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            yield from partitions.values()

    def get(self, topic: str, index: int) -> Partition:
        partition = self._topics.get(topic, NO_PARTITIONS).get(index)
        if partition is None:
            raise self.absence_of(topic, index)
        return partition

    def in_store(self, store: Store) -> list[Partition]:
        """Those that lie in this data directory, the metadata's first."""
        everybody = (self.metadata, *self)
        return [partition for partition in everybody if partition.data is store.data]

    def failing(self) -> list[Partition]:
        """Those whose writes the disk refuses. While nothing happens, nobody is looked at."""
        troubles = sum(store.data.troubles for store in self._stores)
        if troubles == self._calm_at:
            return []
        failing = [partition for partition in self if partition.failure is not None]
        self._calm_at = None if failing else troubles
        return failing

    def stalled(self) -> list[Partition]:
        """Those whose disk does not answer."""
        if not any(flusher.is_stalled for store in self._stores for flusher in store.flushers):
            return []
        return [partition for partition in self if partition.is_stalled]

    # ------------------------------------------------------------------------------- changing

    def add(self, partition: Partition) -> None:
        topic, index = partition.name
        self._topics.setdefault(topic, {})[index] = partition
        # Its log may have been opened damaged, or lie in a directory that has failed.
        self._calm_at = None
        self.note_codec(partition)

    def note_codec(self, partition: Partition) -> None:
        """Its settings may have changed."""
        topic = partition.name.topic
        if partition.must_recompress or topic in INTERNAL_TOPICS:
            self._as_they_come.discard(topic)
        else:
            self._as_they_come.add(topic)

    def remove(self, partition: Partition) -> None:
        topic, index = partition.name
        del self._topics[topic][index]
        if not self._topics[topic]:
            self.remove_topic(topic)

    def remove_topic(self, topic: str) -> dict[int, Partition]:
        """Returns the partitions that it had here."""
        self._as_they_come.discard(topic)
        return self._topics.pop(topic, {})

    def take_offline(self, store: Store, error: OSError) -> None:
        """The directory's disk has failed: its partitions serve nobody until the next start."""
        if not store.is_online:
            return
        logger.error("%s has failed, its partitions are offline: %s", store.path, error)
        store.failure = error
        for partition in self:
            if partition.data is store.data:
                partition.go_offline(error)
