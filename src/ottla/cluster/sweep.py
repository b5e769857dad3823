"""Going over the partitions, some at a time, until each is as the brokers' standing demands.

Nothing is remembered of why: a partition whose leader or in-sync replicas cannot serve is changed,
one that is well is left alone. So a sweep that is cut short, by another change or by the end of the
lead, is simply begun again, and thousands of partitions never hold up the loop.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ottla.cluster.elections import Rules, Standing, settled
from ottla.cluster.growth import grown
from ottla.cluster.image import MetadataImage
from ottla.wire.schema import Message

# Each of these takes the loop about ten milliseconds.
PARTITIONS_PER_STEP: Final = 4_000
RECORDS_PER_STEP: Final = 250


class Sweep:
    def __init__(self) -> None:
        self._topics: deque[bytes] = deque()
        self._next_index = 0

    @property
    def is_done(self) -> bool:
        return not self._topics

    def begin(self, image: MetadataImage) -> None:
        self._topics = deque(image.topics_by_id)
        self._next_index = 0

    def step(self, rules: Rules, standing: Standing) -> list[Message]:
        """The changes that some of the partitions need."""
        records: list[Message] = []
        left = PARTITIONS_PER_STEP
        while self._topics and left > 0 and len(records) < RECORDS_PER_STEP:
            topic = rules.image.topics_by_id.get(self._topics[0])
            if topic is None or self._next_index not in topic.partitions:
                self._topics.popleft()
                self._next_index = 0
                left -= 1
                continue
            terms = rules.terms(topic)
            if self._next_index == 0:
                records += grown(rules, standing, topic)
            while left > 0 and len(records) < RECORDS_PER_STEP:
                partition = topic.partitions.get(self._next_index)
                if partition is None:
                    break
                change = settled(topic.id, self._next_index, partition, standing, terms)
                records += [] if change is None else [change]
                self._next_index += 1
                left -= 1
        return records
