"""Positions that were committed within transactions which are not over yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ottla.coordinators.group_records import OffsetRecord
from ottla.types import TopicPartition
from ottla.wire.messages.group_records import OffsetCommitValue

# By producer; None where a later commit outside of transactions has overtaken it.
_Values: TypeAlias = dict[int, OffsetCommitValue | None]


class PendingOffsets:
    """The fold over records in transactions and over their markers.

    A position that was committed outside, later in the log than a pending one, stays. The pending
    one is forgotten but for its place, which is not stable before its marker.
    """

    __slots__ = ("_groups", "_producers")

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, _Values]] = {}
        self._producers: dict[int, dict[tuple[str, TopicPartition], None]] = {}

    def clear(self) -> None:
        self._groups.clear()
        self._producers.clear()

    def add(self, producer_id: int, record: OffsetRecord) -> None:
        place = TopicPartition(record.topic, record.partition)
        values = self._groups.setdefault(record.group, {}).setdefault(place, {})
        values[producer_id] = record.value
        self._producers.setdefault(producer_id, {})[record.group, place] = None

    def overtake(self, record: OffsetRecord) -> None:
        """A position was committed, or deleted, outside of transactions."""
        places = self._groups.get(record.group)
        values = places.get(TopicPartition(record.topic, record.partition)) if places else None
        for producer_id in values or ():
            assert values is not None
            values[producer_id] = None

    def end(self, producer_id: int) -> list[OffsetRecord]:
        """Takes out what its transaction has left to count, should it be committed."""
        found = []
        for group, place in self._producers.pop(producer_id, ()):
            places = self._groups[group]
            value = places[place].pop(producer_id)
            if not places[place]:
                del places[place]
            if not places:
                del self._groups[group]
            if value is not None:
                found.append(OffsetRecord(group, *place, value))
        return found

    def of_group(self, group: str) -> Mapping[TopicPartition, _Values]:
        return self._groups.get(group, {})

    def snapshot(self) -> dict[str, dict[TopicPartition, _Values]]:
        return {
            group: {place: dict(values) for place, values in places.items()}
            for group, places in self._groups.items()
        }
