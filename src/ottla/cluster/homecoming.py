"""Leaders go home by themselves: the first replica leads again once it is in sync.

As in Kafka (`auto.leader.rebalance.enable`), after every `leader.imbalance.check.interval.seconds`;
unlike there in small steps with a pause between them, so that clients do not look for thousands of
leaders at once. When the next look is due is soft state, and begins anew with each controller.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ottla.cluster.elections import Election, Rules, Standing, changed
from ottla.cluster.image import MetadataImage, PartitionImage
from ottla.types import NO_NODE
from ottla.wire.schema import Message

PARTITIONS_PER_STEP: Final = 4_000
ELECTIONS_PER_STEP: Final = 50
STEP_PAUSE_MS: Final = 1_000


class Homecoming:
    def __init__(self, own_id: int) -> None:
        self._own_id = own_id
        self._due_ms: int | None = None
        self._topics: deque[tuple[bytes, int]] = deque()

    def begin(self, rules: Rules, now_ms: int) -> None:
        """The next look is a whole interval from now."""
        self._topics.clear()
        self._due_ms = now_ms + rules.config.leader_imbalance_check_interval_seconds * 1000

    def abandon(self) -> None:
        self._topics.clear()
        self._due_ms = None

    def next_deadline_ms(self, image: MetadataImage) -> int | None:
        """A node alone leads everything."""
        return self._due_ms if image.brokers.keys() - {self._own_id} else None

    def step(self, rules: Rules, now_ms: int) -> list[Message]:
        """Some of the elections that are due, if any."""
        if self._due_ms is None or now_ms < self._due_ms:
            return []
        if not rules.config.auto_leader_rebalance_enable:
            self.begin(rules, now_ms)
            return []
        if not self._topics:
            self._topics.extend((topic_id, 0) for topic_id in rules.image.topics_by_id)
        records = self._elections(rules, Standing(rules.image.brokers))
        if self._topics:
            self._due_ms = now_ms + STEP_PAUSE_MS
        else:
            self.begin(rules, now_ms)
        return records

    def _elections(self, rules: Rules, standing: Standing) -> list[Message]:
        records: list[Message] = []
        left = PARTITIONS_PER_STEP
        while self._topics and left > 0 and len(records) < ELECTIONS_PER_STEP:
            topic_id, index = self._topics.popleft()
            left -= 1
            topic = rules.image.topics_by_id.get(topic_id)
            partition = topic.partitions.get(index) if topic is not None else None
            if topic is None or partition is None:
                continue
            self._topics.appendleft((topic_id, index + 1))
            if _is_away(partition, standing):
                terms = rules.terms(topic)
                isr = partition.isr
                record = changed(
                    topic_id, index, partition, standing, terms, isr, Election.PREFERRED
                )
                records += [] if record is None else [record]
        return records


def _is_away(partition: PartitionImage, standing: Standing) -> bool:
    """Whether the first replica could lead, and does not."""
    home = partition.replicas[0]
    return (
        partition.leader not in (home, NO_NODE)
        and home in partition.isr
        and standing.can_serve(home, partition)
    )
