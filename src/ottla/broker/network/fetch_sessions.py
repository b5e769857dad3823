"""Incremental fetch sessions (KIP-227): the broker remembers what a client reads.

A client that fetches a hundred partitions names them once; later requests carry only what changed,
and answers only the partitions that have something to say.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.errors import FetchSessionNotFound, InvalidFetchSessionEpoch
from ottla.ports import Clock, Random
from ottla.wire.messages.fetch import FetchPartition, PartitionData

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = 0x7FFF_FFFF
# A session that was used within this time keeps its place against new ones.
EVICTION_MS: Final = 120_000

# A topic is named by its id from version 13 on, by its name before.
TopicKey: TypeAlias = str | bytes
PartitionKey: TypeAlias = tuple[TopicKey, int]


@dataclass(slots=True)
class SessionPartition:
    """What a client asks of one partition, and what it was last told."""

    asked: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1


class FetchSession:
    __slots__ = ("epoch", "id", "last_used_ms", "partitions", "uses_topic_ids")

    def __init__(self, id: int, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.last_used_ms = now_ms
        self.partitions: OrderedDict[PartitionKey, SessionPartition] = OrderedDict()

    def update(
        self,
        asked: Iterable[tuple[TopicKey, FetchPartition]],
        forgotten: Iterable[PartitionKey],
    ) -> None:
        for key in forgotten:
            self.partitions.pop(key, None)
        for topic, partition in asked:
            known = self.partitions.get((topic, partition.partition))
            if known is None:
                self.partitions[topic, partition.partition] = SessionPartition(partition)
            else:
                known.asked = partition

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def worth_telling(self, key: PartitionKey, answer: PartitionData) -> bool:
        """Whether the client does not know this yet; remembers that it is now told."""
        known = self.partitions.get(key)
        if known is None:
            return True
        is_news = (
            bool(answer.records)
            or answer.error_code != 0
            or answer.diverging_epoch.end_offset >= 0
            or known.high_watermark != answer.high_watermark
            or known.log_start_offset != answer.log_start_offset
        )
        if answer.error_code != 0:
            known.high_watermark = -1
        else:
            known.high_watermark = answer.high_watermark
            known.log_start_offset = answer.log_start_offset
        if answer.records:
            # Who got data goes to the back, so that a full reply does not starve the others.
            self.partitions.move_to_end(key)
        return is_news


class FetchSessions:
    """All sessions of this broker: bounded, the longest unused goes first."""

    def __init__(self, clock: Clock, random: Random, slots_max: int) -> None:
        self._clock = clock
        self._random = random
        self._slots_max = slots_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, uses_topic_ids: bool) -> FetchSession | None:
        """A new session, or None when all slots are in use by busier ones."""
        now_ms = self._clock.now().steady_ms
        if len(self._sessions) >= self._slots_max and not self._evict(now_ms):
            return None
        id = NO_SESSION
        while id == NO_SESSION or id in self._sessions:
            id = 1 + self._random.below(EPOCH_MAX)
        session = self._sessions[id] = FetchSession(id, uses_topic_ids, now_ms)
        return session

    def resume(self, id: int, epoch: int) -> FetchSession:
        """The session that a request continues."""
        session = self._sessions.get(id)
        if session is None:
            raise FetchSessionNotFound(f"fetch session {id} is not known here")
        if epoch != session.epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {id} is at epoch {session.epoch}, not {epoch}"
            )
        session.last_used_ms = self._clock.now().steady_ms
        self._sessions.move_to_end(id)
        session.next_epoch()
        return session

    def close(self, id: int) -> None:
        self._sessions.pop(id, None)

    def _evict(self, now_ms: int) -> bool:
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms < EVICTION_MS:
            return False
        self.close(oldest.id)
        return True
