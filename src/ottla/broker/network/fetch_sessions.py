"""Incremental fetch sessions (KIP-227): the broker remembers what a client reads.

A client that fetches a hundred partitions names them once; later requests carry only what changed,
and answers only the partitions that have something to say. A session is among those who wait at
each of its partitions, so that a change there is noted here: a fetch looks at what has changed
since it was told, and at nothing else, however much it reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.broker.request import CONNECTION_NUMBER
from ottla.errors import FetchSessionNotFound, InvalidFetchSessionEpoch
from ottla.ports import Clock, Random
from ottla.wire.messages.fetch import FetchPartition, PartitionData

if TYPE_CHECKING:
    from ottla.broker.network.waiting import ParkedFetch
    from ottla.broker.storage.partition import Partition

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = 0x7FFF_FFFF
# A session that was used within this time keeps its place against new ones.
EVICTION_MS: Final = 120_000

# A topic is named by its id from version 13 on, by its name before.
TopicKey: TypeAlias = str | bytes
PartitionKey: TypeAlias = tuple[TopicKey, int]
# The sessions that a connection has used last, by their ids, in what is remembered of it.
Owned: TypeAlias = dict[int, None]
OWNED_KEY: Final = "fetch sessions"


class SessionPartition:
    """What a client asks of one partition, and what it was last told; waits there for changes."""

    __slots__ = ("asked", "high_watermark", "key", "log_start_offset", "partition", "session")

    def __init__(self, session: FetchSession, key: PartitionKey, asked: FetchPartition) -> None:
        self.session = session
        self.key = key
        self.asked = asked
        self.high_watermark = -1
        self.log_start_offset = -1
        self.partition: Partition | None = None

    def watch(self, partition: Partition | None) -> None:
        """From now on its changes are noted; None: there is none here."""
        if partition is self.partition:
            return
        if self.partition is not None:
            self.partition.drop_fetch(self)
        self.partition = partition
        if partition is not None:
            partition.add_fetch(self, of_replica=self.session.of_replica)

    # What a partition tells those who wait.

    def arrived(self, partition: Partition, byte_count: int) -> None:
        session = self.session
        session.changed[self] = None
        if session.parked is not None:
            session.parked.arrived(partition, byte_count)

    def became_stable(self, partition: Partition) -> None:
        session = self.session
        session.changed[self] = None
        if session.parked is not None:
            session.parked.became_stable(partition)

    def went_back(self, partition: Partition) -> None:
        session = self.session
        session.changed[self] = None
        if session.parked is not None:
            session.parked.went_back(partition)

    def has_news(self, partition: Partition) -> None:
        session = self.session
        session.changed[self] = None
        if session.tells_at_once and session.parked is not None:
            session.parked.wake()

    def wake(self) -> None:
        session = self.session
        session.changed[self] = None
        if session.parked is not None:
            session.parked.wake()


class FetchSession:
    """What one client reads, and which of it has changed since the client was told.

    Whatever cannot be answered with "nothing new" stays among the changed: errors, and records that
    the client has been given but has not asked beyond.
    """

    __slots__ = (
        "changed",
        "epoch",
        "id",
        "last_used_ms",
        "of_replica",
        "owned",
        "parked",
        "partitions",
        "tells_at_once",
        "uses_topic_ids",
    )

    def __init__(
        self,
        id: int,
        uses_topic_ids: bool,
        now_ms: int,
        owned: Owned,
        *,
        of_replica: bool = False,
        tells_at_once: bool = False,
    ) -> None:
        """`tells_at_once`: a parked fetch is answered also for news other than records."""
        self.id = id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.last_used_ms = now_ms
        self.owned = owned
        self.of_replica = of_replica
        self.tells_at_once = tells_at_once
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        # In the order of their turn.
        self.changed: dict[SessionPartition, None] = {}
        self.parked: ParkedFetch | None = None

    def update(
        self,
        asked: Iterable[tuple[TopicKey, FetchPartition]],
        forgotten: Iterable[PartitionKey],
    ) -> None:
        for key in forgotten:
            gone = self.partitions.pop(key, None)
            if gone is not None:
                gone.watch(None)
                self.changed.pop(gone, None)
        for topic, partition in asked:
            key = (topic, partition.partition)
            known = self.partitions.get(key)
            if known is None:
                known = self.partitions[key] = SessionPartition(self, key, partition)
            else:
                if partition.current_leader_epoch != known.asked.current_leader_epoch:
                    # A follower forgets with the epoch what it was told in it.
                    known.high_watermark = -1
                known.asked = partition
            self.changed[known] = None

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def told(self, known: SessionPartition, answer: PartitionData, *, is_settled: bool) -> bool:
        """Whether the client does not know this yet; remembers that it is now told.

        `is_settled`: until something happens to the partition, there is no more to tell.
        """
        is_news = (
            bool(answer.records)
            or answer.error_code != 0
            or answer.diverging_epoch.end_offset >= 0
            or answer.preferred_read_replica >= 0
            or known.high_watermark != answer.high_watermark
            or known.log_start_offset != answer.log_start_offset
        )
        if answer.error_code != 0:
            known.high_watermark = -1
        else:
            known.high_watermark = answer.high_watermark
            known.log_start_offset = answer.log_start_offset
        if known in self.changed and (is_settled or answer.records):
            del self.changed[known]
            if not is_settled:
                # Who got data goes to the back, so that a full reply does not starve the others.
                self.changed[known] = None
        return is_news

    def close(self) -> None:
        """Nobody is told of anything any more."""
        self.owned.pop(self.id, None)
        for known in self.partitions.values():
            known.watch(None)
        self.changed.clear()
        if self.parked is not None:
            self.parked.wake()

    # Where a fetch of this session waits.

    def add_fetch(self, fetch: ParkedFetch) -> None:
        """A client has one fetch under way: with a second, the first is answered."""
        if self.parked is not None:
            self.parked.wake()
        self.parked = fetch

    def drop_fetch(self, fetch: ParkedFetch) -> None:
        if self.parked is fetch:
            self.parked = None


class FetchSessions:
    """All sessions of this broker: bounded, the longest unused goes first.

    Followers keep theirs against consumers, of whom there may be many: without one a follower
    names everything in every round.
    """

    def __init__(
        self, clock: Clock, random: Random, slots_max: int, *, tells_replicas_at_once: bool = False
    ) -> None:
        self._clock = clock
        self._random = random
        self._slots_max = slots_max
        self._tells_replicas_at_once = tells_replicas_at_once
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        # By replica the number of the last connection by which it has come.
        self._newest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, uses_topic_ids: bool, owned: Owned, *, of_replica: bool = False
    ) -> FetchSession | None:
        """A new session, or None when all slots are in use by busier ones."""
        now_ms = self._clock.now().steady_ms
        if len(self._sessions) >= self._slots_max and not self._evict(now_ms, of_replica):
            return None
        id = NO_SESSION
        while id == NO_SESSION or id in self._sessions:
            id = 1 + self._random.below(EPOCH_MAX)
        session = self._sessions[id] = FetchSession(
            id,
            uses_topic_ids,
            now_ms,
            owned,
            of_replica=of_replica,
            tells_at_once=of_replica and self._tells_replicas_at_once,
        )
        owned[id] = None
        return session

    def resume(
        self, id: int, epoch: int, owned: Owned, *, of_replica: bool = False
    ) -> FetchSession:
        """The session that a request continues."""
        session = self._sessions.get(id)
        if session is None or session.of_replica != of_replica:
            raise FetchSessionNotFound(f"fetch session {id} is not known here")
        if epoch != session.epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {id} is at epoch {session.epoch}, not {epoch}"
            )
        if session.owned is not owned:
            session.owned.pop(id, None)
            session.owned = owned
            owned[id] = None
        session.last_used_ms = self._clock.now().steady_ms
        self._sessions.move_to_end(id)
        session.next_epoch()
        return session

    def close(self, id: int) -> None:
        session = self._sessions.pop(id, None)
        if session is not None:
            session.close()

    def is_late(self, replica: int, memory: dict[Any, Any]) -> bool:
        """Whether the replica has given up this connection, and come by another one since.

        What it had sent by the first may arrive after all that it says by the second.
        """
        number: int = memory.get(CONNECTION_NUMBER, 0)
        newest = self._newest[replica] = max(number, self._newest.get(replica, 0))
        return number < newest

    def lost(self, memory: dict[Any, Any]) -> None:
        """A connection is gone; whoever comes back begins anew, as after an eviction."""
        for id in tuple(memory.get(OWNED_KEY, ())):
            self.close(id)

    def _evict(self, now_ms: int, for_replica: bool) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now_ms - oldest.last_used_ms < EVICTION_MS:
            consumers = (each for each in self._sessions.values() if not each.of_replica)
            oldest = next(consumers, None) if for_replica else None
        if oldest is None:
            return False
        self.close(oldest.id)
        return True
