"""What a start finds in the data directories: whose each partition's directory is.

One that the metadata does not know is a stray. Metadata can be lost, a directory may have been
mounted at the wrong broker: so it is renamed `-stray`, told, and kept, as Kafka does since 3.7.
Only where the metadata log itself tells that the topic was deleted, or that the partition has moved
away from here, a crash came between that and the removal of its files, and they are removed now.

A directory may also have lost its topic's id. A crash takes that only before anything in it is
acknowledged, so that a deleted namesake's may lie there as well: it is a stray, too, unless a clean
stop or a checkpoint vouches for it. Where it has no segment either, there is nothing to keep.

A crash may also come between the two steps of a move from one directory to another. Then both have
all there was, and the one it has moved to says so (`directory_moves.py`): the other is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from ottla.broker.storage.departures import Departures
from ottla.broker.storage.stores import Store
from ottla.cluster.directories import directory_of
from ottla.cluster.image import MetadataImage
from ottla.errors import CannotStart
from ottla.log.directory import DataDirectory
from ottla.types import METADATA_TOPIC, TopicPartition

logger = logging.getLogger(__name__)

STRAYS_TOLD_MAX: Final = 10

Stranger: TypeAlias = tuple[DataDirectory, TopicPartition, None]
# The partitions in a directory, and whether each has its topic's id.
Seen: TypeAlias = dict[TopicPartition, bool]
Look: TypeAlias = Callable[[], Seen]


class Found(NamedTuple):
    """Where the partitions lie, and which of them have their topic's id in a file."""

    places: dict[TopicPartition, Store]
    with_id: set[TopicPartition]


class Finder:
    """`synced` has, for each directory, the partitions that its checkpoint knows."""

    def __init__(
        self,
        image: MetadataImage,
        deleted_ids: Collection[bytes],
        departed: Collection[tuple[bytes, int]],
        node_id: int,
        synced: Mapping[Store, Collection[TopicPartition]],
        departures: Departures,
    ) -> None:
        self._topics = image.topics_by_name
        self._deleted_ids = deleted_ids
        self._departed = departed
        self._node_id = node_id
        self._synced = synced
        self._departures = departures
        self._strays = 0

    def look(self, stores: Iterable[Store], ask: Callable[[Store, Look], Seen | None]) -> Found:
        """Blocking; `ask` looks into a directory, or says that it is offline."""
        found = Found({}, set())
        for store in stores:
            for name, has_id in (ask(store, partial(self._look_in, store)) or {}).items():
                other = found.places.get(name)
                if other is not None:
                    loser = left_behind(name, other, store)
                    if loser is not None:
                        self._departures.begin([(loser.data, name, None)])
                    else:
                        loser = self._loser(name, (other, name in found.with_id), (store, has_id))
                        self._set_aside([(loser.data, name, None)])
                    if loser is store:
                        continue
                found.places[name] = store
                if has_id:
                    found.with_id.add(name)
        self._tell_of_strays()
        return found

    def _look_in(self, store: Store) -> Seen:
        data, synced = store.data, self._synced.get(store, ())
        self._departures.remove(data, data.doomed())
        found: Seen = {}
        deleted: list[Stranger] = []
        strays: list[Stranger] = []
        for name in data.partitions():
            topic = self._topics.get(name.topic)
            image = None if topic is None else topic.partitions.get(name.partition)
            is_known = image is not None and self._node_id in image.replicas
            id_found = data.read_topic_id(name)
            is_vouched_for = id_found is not None or store.was_clean or name in synced
            if topic and is_known and id_found in (None, topic.id) and is_vouched_for:
                # Without a readable id it is still the topic's: the file is written again.
                found[name] = id_found is not None
            elif name.topic != METADATA_TOPIC:
                # Of a partition that never had a batch there may be small files, and no id.
                is_empty = is_known and id_found is None and not data.has_segments(name)
                is_gone = is_empty or self._has_left(id_found, name.partition)
                (deleted if is_gone else strays).append((data, name, None))
        self._departures.begin(deleted)
        self._set_aside(strays)
        return found

    def _has_left(self, topic_id: bytes | None, index: int) -> bool:
        return topic_id is not None and (
            topic_id in self._deleted_ids or (topic_id, index) in self._departed
        )

    def _loser(
        self, name: TopicPartition, one: tuple[Store, bool], other: tuple[Store, bool]
    ) -> Store:
        partition = self._topics[name.topic].partitions[name.partition]
        return stranger_of(one, other, name, directory_of(partition, self._node_id))

    def _set_aside(self, strays: Sequence[Stranger]) -> None:
        self._departures.begin(strays, is_kept=True)
        for data, name, _ in strays:
            self._note_stray(data, name)

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


def left_behind(name: TopicPartition, one: Store, other: Store) -> Store | None:
    """Of two directories of one name, the one from which the partition has moved to the other."""
    moved = [store for store in (one, other) if store.data.has_moved_here(name)]
    if len(moved) != 1:
        return None
    return other if moved[0] is one else one


def stranger_of(
    one: tuple[Store, bool],
    other: tuple[Store, bool],
    name: TopicPartition,
    named_directory: bytes | None,
) -> Store:
    """Of two directories of one name, the one that is not the topic's.

    Each comes with whether it has the topic's id. Where both are as good, only a person can say
    which is the true one; Kafka refuses to start as well.
    """
    if one[1] != other[1]:
        return other[0] if one[1] else one[0]
    if not one[1]:
        for named, stranger in ((one, other), (other, one)):
            if named[0].directory_id == named_directory:
                return stranger[0]
    raise CannotStart(
        f"{name} is in {one[0].path} and in {other[0].path}: move the directory of the older one "
        "away, and start again."
    )
