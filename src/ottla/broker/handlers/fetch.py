"""Fetch, versions 4 to 17: fetch sessions (KIP-227), topic ids (KIP-516), leader epochs (KIP-320).

Replicas are served from `replica_fetch`. Consumers read from followers, too, up to what these know
to be committed, and are sent to one in their own rack (KIP-392, `replica.selector.class`). Who does
not lead names who does (KIP-951). With isolation level 1 (read_committed) a consumer reads up to
the last stable offset, and is told which transactions in what it reads were aborted (KIP-98).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ottla.broker.deferred import Deferred
from ottla.broker.handlers.metadata_fetch import MetadataFetch, is_of_metadata
from ottla.broker.network.fetch_sessions import (
    FINAL_EPOCH,
    FULL_EPOCH,
    NO_SESSION,
    OWNED_KEY,
    FetchSession,
    PartitionKey,
    SessionPartition,
    TopicKey,
)
from ottla.broker.network.leader_hints import FETCH_VERSION as HINTS_VERSION
from ottla.broker.network.leader_hints import LeaderHints
from ottla.broker.network.waiting import EachPartition, ParkedFetch, ReadPlace, SharedReads
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.partition import Partition
from ottla.cluster.read_replicas import nearer_replica
from ottla.errors import (
    ErrorCode,
    FetchSessionTopicIdError,
    OttlaError,
    UnknownTopicId,
    code_of,
)
from ottla.log.values import LogPosition
from ottla.types import NO_OFFSET
from ottla.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.control.metadata import MetadataCache

logger = logging.getLogger(__name__)

TOPIC_IDS_VERSION = 13
# From here on consumers know that followers serve them, too (KIP-392).
FOLLOWERS_VERSION = 11
READ_COMMITTED = 1


def handle(
    services: Services, context: RequestContext, request: FetchRequest
) -> Deferred[FetchResponse] | FetchResponse | Awaitable[Deferred[FetchResponse] | FetchResponse]:
    if request.replica_id >= 0 or request.replica_state.replica_id >= 0:
        if is_of_metadata(request):
            return MetadataFetch(services, context, request).start()
        from ottla.broker.handlers.replica_fetch import ReplicaFetch

        return ReplicaFetch(services, context, request).start()
    return Fetch(services, context, request).start()


def error_response(request: FetchRequest, error: Exception) -> FetchResponse:
    return FetchResponse(error_code=code_of(error))


class Fetch:
    """One fetch from its session to its reply; parked in between when there is too little."""

    IS_REPLICA: ClassVar = False

    __slots__ = (
        "_asked",
        "_by_id",
        "_bytes_max",
        "_cold",
        "_context",
        "_deferred",
        "_is_follower_enough",
        "_is_stable_only",
        "_known",
        "_partitions",
        "_rack",
        "_request",
        "_services",
        "_session",
        "_uses_session",
    )

    def __init__(self, services: Services, context: RequestContext, request: FetchRequest) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._by_id = context.version >= TOPIC_IDS_VERSION
        # Who names no rack was sent to no follower: it takes this node for the leader.
        self._is_follower_enough = context.version >= FOLLOWERS_VERSION and bool(request.rack_id)
        self._is_stable_only = request.isolation_level == READ_COMMITTED and not self.IS_REPLICA
        # Where the consumer stands, if it may be sent to a replica there.
        rack_id = request.rack_id
        self._rack = rack_id if rack_id and services.config.is_rack_aware else ""
        self._bytes_max = min(request.max_bytes, services.config.fetch_max_bytes)
        self._session: FetchSession | None = None
        self._uses_session = False
        # What is looked at; with a session, only what has changed since it was told.
        self._asked: list[tuple[TopicKey, FetchPartition]] = []
        self._known: list[SessionPartition] = []
        self._partitions: list[Partition | OttlaError] = []
        self._deferred: Deferred[FetchResponse] | None = None

    def start(self) -> Deferred[FetchResponse] | FetchResponse:
        self._resolve_session()
        if self._session is None:
            self._asked = list(self._named())
        self._look_up()
        answers, byte_count, is_cold, must_answer = self._read_all(cached_only=True)
        if is_cold:
            return self._in_thread()
        request = self._request
        if (
            must_answer
            or byte_count >= request.min_bytes
            or request.max_wait_ms <= 0
            or not (self._asked if self._session is None else self._session.partitions)
            or (self._session is not None and self._has_news(self._session, answers))
        ):
            return self._respond(answers)
        return self._park(request.min_bytes - byte_count)

    # --------------------------------------------------------------------------------- session

    def _resolve_session(self) -> None:
        request, sessions = self._request, self._services.fetch_sessions
        if request.session_id == NO_SESSION and request.session_epoch == FINAL_EPOCH:
            return
        owned = self._context.memory.setdefault(OWNED_KEY, {})
        if request.session_epoch in (FULL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                sessions.close(request.session_id)
            if request.session_epoch == FULL_EPOCH:
                self._session = sessions.open(self._by_id, owned, of_replica=self.IS_REPLICA)
                if self._session is not None:
                    self._session.update(self._named(), ())
            return
        session = sessions.resume(
            request.session_id, request.session_epoch, owned, of_replica=self.IS_REPLICA
        )
        if session.uses_topic_ids != self._by_id:
            sessions.close(session.id)
            raise FetchSessionTopicIdError("a fetch session cannot change to or from topic ids")
        session.update(self._named(), self._forgotten())
        self._session = session
        self._uses_session = True

    def _named(self) -> Iterable[tuple[TopicKey, FetchPartition]]:
        for topic in self._request.topics:
            key: TopicKey = topic.topic_id if self._by_id else topic.topic
            for partition in topic.partitions:
                yield key, partition

    def _forgotten(self) -> Iterable[PartitionKey]:
        for topic in self._request.forgotten_topics_data:
            key: TopicKey = topic.topic_id if self._by_id else topic.topic
            for partition in topic.partitions:
                yield key, partition

    # --------------------------------------------------------------------------------- reading

    def _look_up(self) -> None:
        """Finds the partitions, as they are now."""
        session = self._session
        if session is not None:
            self._known = list(session.changed)
            self._asked = [(known.key[0], known.asked) for known in self._known]
        self._partitions = [self._find(topic, asked.partition) for topic, asked in self._asked]
        if session is not None:
            for known, found in zip(self._known, self._partitions, strict=True):
                known.watch(found if isinstance(found, Partition) else None)

    def _find(self, topic: TopicKey, index: int) -> Partition | OttlaError:
        if isinstance(topic, bytes):
            known = self._services.metadata.image.topics_by_id.get(topic)
            if known is None:
                return UnknownTopicId(f"no topic has the id {topic.hex()}")
            name = known.name
        else:
            name = topic
        partition = (self._services.partitions.in_topic(name) or {}).get(index)
        if partition is None:
            return self._services.partitions.absence_of(name, index)
        return partition

    def _read_all(
        self, *, cached_only: bool, reads: SharedReads | None = None
    ) -> tuple[list[PartitionData], int, bool, bool]:
        """(answers, bytes, whether a page was cold, whether something must be told at once).

        A session whose reply is full looks no further: the others have their turn in the next one.
        """
        room = self._bytes_max
        byte_count = 0
        must_answer = False
        answers = []
        for (_, asked), partition in zip(self._asked, self._partitions, strict=True):
            if room <= 0 and self._uses_session:
                break
            answer = PartitionData(asked.partition, high_watermark=-1)
            answers.append(answer)
            try:
                if isinstance(partition, OttlaError):
                    raise partition
                is_cold = self._read_one(partition, asked, answer, room, cached_only, reads)
            except (OttlaError, OSError) as error:
                answer.error_code = code_of(error)
                answer.records = b""
                must_answer = True
                continue
            if is_cold:
                assert isinstance(partition, Partition)
                self._cold = partition
                return answers, byte_count, True, must_answer
            if answer.records:
                size = len(answer.records)
                if size > room and byte_count:
                    # Only the first batch of a reply may be larger than the reply may be. Whoever
                    # comes after it would be read in vain, too.
                    answer.records = b""
                    room, must_answer = 0, True
                else:
                    room -= size
                    byte_count += size
            elif answer.diverging_epoch.end_offset >= 0 or answer.preferred_read_replica >= 0:
                must_answer = True
        return answers, byte_count, False, must_answer

    def _read_one(
        self,
        partition: Partition,
        asked: FetchPartition,
        answer: PartitionData,
        room: int,
        cached_only: bool,
        reads: SharedReads | None,
    ) -> bool:
        """Fills the answer; True when the page was cold."""
        partition.check_epoch(
            asked.current_leader_epoch, is_follower_enough=self._is_follower_enough
        )
        committed, stable = partition.high_watermark, partition.last_stable
        answer.high_watermark, answer.last_stable_offset = committed.offset, stable.offset
        answer.log_start_offset = partition.start_offset
        answer.records = b""
        if not partition.is_end_known:
            # Consumers may have been told of more: they get what is certain, and no end.
            answer.high_watermark = answer.last_stable_offset = NO_OFFSET
        if self._rack and self._is_sent_elsewhere(partition, asked, answer):
            return False
        if partition.must_wait_for_end(asked.fetch_offset):
            # It waits; in the end it is told to look for the leader, and to try again. Not by
            # OFFSET_NOT_AVAILABLE, which kafka-python raises to its user.
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return False
        if asked.last_fetched_epoch >= 0:
            parted = partition.divergence(asked.last_fetched_epoch, asked.fetch_offset)
            if parted is not None:
                answer.diverging_epoch = EpochEndOffset(*parted)
                return False
        limit = stable if self._is_stable_only else committed
        if asked.fetch_offset == limit.offset or room <= 0:
            return False
        bytes_max = min(asked.partition_max_bytes, room)
        place = (partition, asked.fetch_offset, bytes_max, limit.offset)
        if self._is_stable_only:
            return self._fill_stable(place, answer, limit, cached_only, reads)
        return self._fill(place, answer, partition.read, cached_only, reads)

    def _fill_stable(
        self,
        place: ReadPlace,
        answer: PartitionData,
        limit: LogPosition,
        cached_only: bool,
        reads: SharedReads | None,
    ) -> bool:
        partition, offset, bytes_max, _ = place
        known = reads.get(place) if reads is not None else None
        found = partition.read_stable(
            offset, bytes_max, limit, cached_only=cached_only, known=known
        )
        if found is None:
            return True
        answer.records, aborted = found
        if reads is not None:
            reads[place] = answer.records
        answer.aborted_transactions = [AbortedTransaction(*each[:2]) for each in aborted]
        return False

    def _is_sent_elsewhere(
        self, partition: Partition, asked: FetchPartition, answer: PartitionData
    ) -> bool:
        """Whether a follower in the consumer's own rack is named to read from."""
        replicas = partition.replicas
        if replicas is None:
            return False
        metadata, listener = self._services.metadata, self._context.listener
        racks = metadata.kept_for_image(("racks", listener), partial(_racks_on, metadata, listener))
        nearer = nearer_replica(replicas, racks, self._rack, asked.fetch_offset)
        if nearer is None:
            return False
        answer.preferred_read_replica = nearer
        return True

    def _fill(
        self,
        place: ReadPlace,
        answer: PartitionData,
        read: Callable[..., Buffer | None],
        cached_only: bool,
        reads: SharedReads | None,
    ) -> bool:
        data = reads.get(place) if reads is not None else None
        if data is None:
            _, offset, limit, _ = place
            data = read(offset, limit, cached_only=cached_only)
            if data is None:
                return True
            if reads is not None:
                reads[place] = data
        answer.records = data
        return False

    def _readable_to(self, partition: Partition) -> int:
        limit = partition.last_stable if self._is_stable_only else partition.high_watermark
        return limit.offset

    def _is_ahead(self, partition: Partition, offset: int) -> bool:
        """Whether there is nothing to read from there on before more is committed."""
        return offset > self._readable_to(partition) or partition.must_wait_for_end(offset)

    def _has_news(self, session: FetchSession, answers: list[PartitionData]) -> bool:
        """Whether something is committed that cannot wait for the next records.

        Where consumers read from followers, these hear of it at once.
        """
        return session.tells_at_once and any(
            known.high_watermark < answer.high_watermark
            for known, answer in zip(self._known, answers, strict=False)
        )

    # ------------------------------------------------------------------------------- answering

    def _park(self, missing_bytes: int) -> Deferred[FetchResponse]:
        self._deferred = Deferred()
        found: list[Partition] = []
        ahead: dict[Partition, int] = {}
        for (_, asked), partition in zip(self._asked, self._partitions, strict=True):
            if isinstance(partition, Partition):
                found.append(partition)
                if self._is_ahead(partition, asked.fetch_offset):
                    ahead[partition] = asked.fetch_offset
        parked = ParkedFetch(
            self._services.parking,
            self._session or EachPartition(found, of_replica=self.IS_REPLICA),
            missing_bytes,
            self._request.max_wait_ms / 1000,
            self._complete,
            ahead,
            self._count_missing,
            self._is_stable_only,
        )
        self._deferred.when_abandoned(parked.leave)
        return self._deferred

    def _count_missing(self, reads: SharedReads) -> int:
        """How many bytes it waits for still; none when it has to answer for another reason."""
        self._look_up()
        _, byte_count, is_cold, must_answer = self._read_all(cached_only=True, reads=reads)
        return 0 if is_cold or must_answer else self._request.min_bytes - byte_count

    def _complete(self, reads: SharedReads) -> None:
        assert self._deferred is not None
        try:
            self._look_up()
            answers, _, is_cold, _ = self._read_all(cached_only=True, reads=reads)
            if is_cold:
                self._in_thread()
                return
            response = self._respond(answers)
        except Exception as error:
            # The router's boundary has been left: without a reply the client would wait for ever.
            logger.exception("a fetch that had waited failed")
            response = error_response(self._request, error)
        self._deferred.resolve(response)

    def _in_thread(self) -> Deferred[FetchResponse]:
        """The disk has to be waited for, which the loop may not do."""
        deferred = self._deferred = self._deferred or Deferred()
        # In a thread of the disk that has to be waited for: another's must not run out of them.
        store = self._services.stores.of(self._cold)
        future = store.run(lambda: self._read_all(cached_only=False))

        def done(finished: asyncio.Future[tuple[list[PartitionData], int, bool, bool]]) -> None:
            error = finished.exception()
            if error is not None:
                deferred.resolve(error_response(self._request, error))  # type: ignore[arg-type]
            else:
                deferred.resolve(self._respond(finished.result()[0], is_fresh=False))

        future.add_done_callback(done)
        return deferred

    def _respond(self, answers: list[PartitionData], *, is_fresh: bool = True) -> FetchResponse:
        """What is not fresh was read while things went on: it settles nothing."""
        session = self._session
        response = FetchResponse(session_id=session.id if session is not None else NO_SESSION)
        topics: dict[TopicKey, FetchableTopicResponse] = {}
        memory = self._context.memory
        for at, answer in enumerate(answers):
            (topic, asked), partition = self._asked[at], self._partitions[at]
            is_settled = False
            if isinstance(partition, Partition):
                self._count(partition, asked, answer, memory)
                if session is not None and is_fresh:
                    is_settled = self._is_settled(partition, asked, answer)
            if session is not None:
                is_news = session.told(self._known[at], answer, is_settled=is_settled)
                if self._uses_session and not is_news:
                    continue
            answered = topics.get(topic)
            if answered is None:
                answered = topics[topic] = (
                    FetchableTopicResponse(topic_id=topic)
                    if isinstance(topic, bytes)
                    else FetchableTopicResponse(topic=topic)
                )
                response.responses.append(answered)
            answered.partitions.append(answer)
            if answer.error_code and self._context.version >= HINTS_VERSION:
                self._name_leader(topic, answer, response)
        return response

    def _name_leader(self, topic: TopicKey, answer: PartitionData, response: FetchResponse) -> None:
        metadata = self._services.metadata
        known = metadata.image.topics_by_id.get(topic) if isinstance(topic, bytes) else None
        if known is not None:
            LeaderHints(metadata, self._context.listener).in_fetch(known.name, answer, response)

    def _is_settled(
        self, partition: Partition, asked: FetchPartition, answer: PartitionData
    ) -> bool:
        """Whether the client is at the end of what it may read, and is told so."""
        return (
            asked.fetch_offset == self._readable_to(partition)
            and not answer.records
            and answer.error_code == 0
            and answer.preferred_read_replica < 0
            and answer.diverging_epoch.end_offset < 0
        )

    def _count(
        self,
        partition: Partition,
        asked: FetchPartition,
        answer: PartitionData,
        memory: dict[Partition, int],
    ) -> None:
        """Messages count as read when the client asks for the next: no batch is opened."""
        metrics = partition.metrics
        metrics.fetch_requests += 1
        if answer.error_code:
            metrics.fetch_errors += 1
            return
        before = memory.get(partition)
        if before is not None and asked.fetch_offset > before:
            metrics.messages_out += asked.fetch_offset - before
        if answer.records:
            metrics.bytes_out += len(answer.records)
            memory[partition] = asked.fetch_offset
        elif before is not None:
            del memory[partition]


def _racks_on(metadata: MetadataCache, listener: str) -> dict[int, str | None]:
    """Where the brokers stand that clients of this listener can reach."""
    return {broker.id: broker.rack for broker in metadata.brokers() if listener in broker.endpoints}
