"""The follower's side of a fetch session (KIP-227): a leader is told only what has changed.

A round costs what moved in it, however many partitions are followed.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ottla.errors import ErrorCode
from ottla.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
EPOCH_MAX: Final = 0x7FFF_FFFF
# The leader has forgotten the session, or never opened it: everything is told anew.
SESSION_LOST: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

# A partition by the id of its topic, and its index.
Place: TypeAlias = tuple[bytes, int]


class LeaderSession:
    """What one leader is asked for, and what of that it knows already."""

    def __init__(self, replica: ReplicaState, wait_ms: int, min_bytes: int, max_bytes: int) -> None:
        self._replica = replica
        self._wait_ms = wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._wanted: dict[Place, FetchPartition] = {}
        self._news: dict[Place, FetchPartition] = {}
        self._forgotten: dict[Place, None] = {}
        # As the request that is under way has it.
        self._told: dict[Place, FetchPartition] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, place: Place, asked: FetchPartition) -> None:
        """From the next request on this partition is fetched, from there."""
        self._wanted[place] = self._news[place] = asked
        self._forgotten.pop(place, None)

    def drop(self, place: Place) -> None:
        """The partition is fetched no more, or not for the moment."""
        self._news.pop(place, None)
        if self._wanted.pop(place, None) is not None:
            self._forgotten[place] = None

    def forget(self) -> None:
        """The connection is lost, and the session with it."""
        self._id, self._epoch = NO_SESSION, FIRST_EPOCH
        self._news = dict(self._wanted)
        self._forgotten = {}
        self._told = {}

    def told(self, place: Place) -> FetchPartition | None:
        """What the leader was last asked of this partition: its answer is one to that."""
        return self._told.get(place)

    def request(self) -> FetchRequest:
        """The next round; what it tells counts as told."""
        news, self._news = self._news, {}
        forgotten, self._forgotten = self._forgotten, {}
        for place in forgotten:
            self._told.pop(place, None)
        self._told.update(news)
        return FetchRequest(
            replica_state=self._replica,
            max_wait_ms=self._wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=_by_topic(news),
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=[index])
                for topic_id, index in forgotten
                if self._epoch != FIRST_EPOCH
            ],
        )

    def answered(self, response: FetchResponse) -> bool:
        """Whether the response is one; if not, the next request tells everything anew."""
        if response.error_code:
            self.forget()
            return False
        if response.session_id == NO_SESSION:
            # No place was free for a session there: each request has to name everything.
            told = self._told
            self.forget()
            self._told = told
        else:
            self._id = response.session_id
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1
        return True


def _by_topic(places: dict[Place, FetchPartition]) -> list[FetchTopic]:
    topics: dict[bytes, FetchTopic] = {}
    for (topic_id, _), asked in places.items():
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchTopic(topic_id=topic_id)
        topic.partitions.append(asked)
    return list(topics.values())
