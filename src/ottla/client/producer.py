"""Sends whole record batches and sees to it that each gets into its log once and in order.

The rules of order are in `lanes`; here are the requests. All batches that may go to one leader go
in one request, and a leader has a handful of requests under way. Whatever fails in a way that may
pass makes the partition wait for news of its leader, and is tried again until the delivery timeout.

The first failure ends the producer: what was not acknowledged then is not sent any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from ottla.client.batch_pieces import cut_batch
from ottla.client.failures import ConnectionLost, GaveUp, NoAnswer, code_name, is_passing
from ottla.client.lanes import Identity, Lane, Parcel, Verdict, verdict_of
from ottla.errors import ErrorCode, OttlaError
from ottla.types import NO_OFFSET, NO_PRODUCER, NodeId, ProducerEpoch, TopicPartition
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.records import stamp_producer

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster
    from ottla.client.values import Produced

log = logging.getLogger(__name__)

ACKS_NONE: Final = 0
ACKS_ALL: Final = -1
REQUESTS_PER_BROKER_MAX: Final = 5
REQUEST_BYTES_MAX: Final = 2 * 1024 * 1024
IN_FLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024
DELIVERY_TIMEOUT_S: Final = 120.0
PAUSE_S_MAX: Final = 1.0
PAUSES_COUNTED: Final = 10
# A topic that brokers create on demand is not there at once.
CREATION_PATIENCE_S: Final = 3.0
IDLE_PRODUCERS_MAX: Final = 8
TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_NOBODY: Final = Identity(NO_PRODUCER, ProducerEpoch(-1))


class DeliveryFailed(OttlaError):
    """A batch was refused for good, or not taken in time; one line says which, where and why."""


class TooLarge(DeliveryFailed):
    """A batch is more than the broker takes."""


class Outgoing(Protocol):
    """A whole batch of magic 2 and where it goes; its producer fields and CRC are stamped here."""

    @property
    def partition(self) -> TopicPartition: ...
    @property
    def batch(self) -> bytearray: ...
    @property
    def count(self) -> Any: ...


@dataclass(slots=True)
class Written:
    """What of one partition is acknowledged. Offsets are -1 when the leader did not tell them."""

    first_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET
    count: int = 0

    def add(self, base_offset: int, count: int) -> None:
        self.count += count
        if base_offset < 0:
            return
        if self.first_offset < 0:
            self.first_offset = base_offset
        self.last_offset = max(self.last_offset, base_offset + count - 1)


class ProducerSettings(NamedTuple):
    """How a producer works; those with the same settings can stand in for each other."""

    acks: int = ACKS_ALL
    is_idempotent: bool = True
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S


class Producer:
    """Lives on the loop of its cluster: `async with Producer(cluster) as producer`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = True,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        if idempotent and acks != ACKS_ALL:
            raise ValueError("an idempotent producer needs acks=all")
        self.settings = ProducerSettings(acks, idempotent, in_flight_bytes_max, delivery_timeout_s)
        self._cluster = cluster
        self._lanes: dict[TopicPartition, Lane] = {}
        self._stale: dict[TopicPartition, None] = {}
        self._identity: Identity | None = None
        self._requests: Counter[NodeId] = Counter()
        self._bytes = 0
        self._pauses = 0
        self._written: dict[TopicPartition, Written] = {}
        self._failure: Exception | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._looking: asyncio.Task[None] | None = None
        self._enrolling: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._progress: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def written(self) -> Mapping[TopicPartition, Written]:
        """What was acknowledged since `take_written`."""
        return self._written

    @property
    def requests_under_way(self) -> int:
        """To the broker that has most of them."""
        return max(self._requests.values(), default=0)

    def take_written(self) -> dict[TopicPartition, Written]:
        written, self._written = self._written, {}
        return written

    async def send(self, *batches: Outgoing) -> None:
        """Takes batches in order and waits for room; they belong to the producer from now on."""
        loop = asyncio.get_running_loop()
        for outgoing in batches:
            size = len(outgoing.batch)
            while self._bytes and self._bytes + size > self.settings.in_flight_bytes_max:
                self._pump()
                await self._some_progress()
            self._raise_failure()
            deadline = loop.time() + self.settings.delivery_timeout_s
            lane = self._lane(outgoing.partition)
            for parcel in _parcels(lane, outgoing):
                parcel.deadline = deadline
                lane.add(parcel)
                self._bytes += len(parcel.data)
        self._pump()
        self._raise_failure()

    async def flush(self) -> None:
        """Returns when everything sent is acknowledged; raises the first failure."""
        self._pump()
        while self._bytes:
            await self._some_progress()
        self._raise_failure()

    async def close(self) -> None:
        """Forgets what is not acknowledged; `flush` comes before it."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _lane(self, partition: TopicPartition) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(
                partition, is_idempotent=self.settings.is_idempotent
            )
        return lane

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _some_progress(self) -> None:
        """Until something is acknowledged or fails; the delivery timeout bounds the wait."""
        self._raise_failure()
        if self._progress is None:
            self._progress = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._progress)
        self._raise_failure()

    def _wake(self) -> None:
        if self._progress is not None:
            self._progress.set_result(None)
            self._progress = None

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._wake()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task is self._looking:
            self._looking = None
        if task is self._enrolling:
            self._enrolling = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._fail(error)
        self._pump()

    def _pump(self) -> None:
        """Begins whatever may be done now: identities, news of leaders, requests."""
        if self._failure is not None:
            return
        self._watch_deadlines()
        for lane in self._lanes.values():
            if lane.wants_identity:
                self._enrol(lane)
        ready = self._ready_by_leader()
        if self._stale and self._looking is None:
            self._looking = self._start(self._look_for_leaders())
        for leader, lanes in ready.items():
            while self._requests[leader] < REQUESTS_PER_BROKER_MAX:
                parcels = self._fill_request(lanes)
                if not parcels:
                    break
                self._requests[leader] += 1
                self._start(self._exchange(leader, parcels))

    def _ready_by_leader(self) -> dict[NodeId, list[Lane]]:
        ready: dict[NodeId, list[Lane]] = {}
        for partition, lane in self._lanes.items():
            if partition in self._stale or lane.peek() is None:
                continue
            leader = self._cluster.leader_of(partition)
            if leader is None:
                self._stale[partition] = None
            else:
                ready.setdefault(leader, []).append(lane)
        return ready

    def _fill_request(self, lanes: Iterable[Lane]) -> dict[TopicPartition, Parcel]:
        """At most one batch of each partition, as the protocol has it."""
        parcels: dict[TopicPartition, Parcel] = {}
        size = 0
        for lane in lanes:
            first = lane.peek()
            if first is None or (parcels and size + len(first.data) > REQUEST_BYTES_MAX):
                continue
            is_new = first.sequence < 0
            parcel = lane.next()
            if parcel is None:
                continue
            if is_new:
                identity = lane.identity or _NOBODY
                stamp_producer(parcel.data, identity.producer_id, identity.epoch, parcel.sequence)
            parcels[lane.partition] = parcel
            size += len(parcel.data)
        return parcels

    async def _exchange(self, leader: NodeId, parcels: dict[TopicPartition, Parcel]) -> None:
        """One request and what its answers mean."""
        batches = {partition: parcel.data for partition, parcel in parcels.items()}
        try:
            answers = await self._cluster.produce(
                batches, acks=self.settings.acks, timeout_ms=self._timeout_ms
            )
        except OttlaError as error:
            if not _may_pass(error):
                raise
            # Whatever else goes wrong does so before the request is sent.
            was_sent = isinstance(error, ConnectionLost | NoAnswer)
            for partition, parcel in parcels.items():
                parcel.reason = str(error)
                self._judge(
                    partition, parcel, Verdict.AGAIN_IN_DOUBT if was_sent else Verdict.AGAIN
                )
        else:
            for partition, parcel in parcels.items():
                self._take_answer(partition, parcel, answers[partition])
        finally:
            self._requests[leader] -= 1
        self._wake()

    def _take_answer(self, partition: TopicPartition, parcel: Parcel, answer: Produced) -> None:
        verdict = verdict_of(answer.error_code)
        if verdict is Verdict.DONE:
            self._written.setdefault(partition, Written()).add(answer.base_offset, parcel.count)
        else:
            parcel.reason = _reason(answer)
        if answer.error_code in TOO_LARGE and parcel.count > 1:
            self._divide(self._lanes[partition], parcel)
            return
        if verdict is Verdict.FAILED:
            kind = TooLarge if answer.error_code in TOO_LARGE else DeliveryFailed
            self._fail(kind(_refusal(partition, parcel, answer)))
        self._judge(partition, parcel, verdict)

    def _divide(self, lane: Lane, parcel: Parcel) -> None:
        """As Java's producer does: the leader may take the records in smaller batches."""
        size = len(parcel.data)
        if lane.refused_bytes is None:
            log.warning(
                "%s is more than the broker takes and goes in pieces; a smaller kafka.batch.size, "
                "or a larger max.message.bytes of the topic, saves that",
                _describe(lane.partition, parcel),
            )
        lane.refused_bytes = min(size, lane.refused_bytes or size)
        pieces = _cut(parcel.data, lane.refused_bytes)
        self._bytes += sum(len(piece.data) for piece in pieces) - size
        lane.divide(parcel, pieces)

    def _judge(self, partition: TopicPartition, parcel: Parcel, verdict: Verdict) -> None:
        self._lanes[partition].judge(parcel, verdict)
        if verdict is Verdict.DONE:
            self._bytes -= len(parcel.data)
            self._pauses = 0
        else:
            self._stale[partition] = None

    def _enrol(self, lane: Lane) -> None:
        """Gives a lane an identity that its leader has not refused."""
        if self._identity is not None and self._identity != lane.refused_identity:
            lane.begin(self._identity)
        elif self._enrolling is None:
            self._enrolling = self._start(self._ask_for_identity())

    async def _ask_for_identity(self) -> None:
        try:
            self._identity = await self._cluster.init_producer()
        except OttlaError as error:
            if not _may_pass(error):
                raise
            self._blame((lane for lane in self._lanes.values() if lane.wants_identity), error)
            await self._pause()

    async def _look_for_leaders(self) -> None:
        """One round for all partitions that wait; the next pump begins another if it must."""
        # A partition that is met for the first time has not failed: nothing to let pass.
        if any(self._lanes[partition].oldest_reason for partition in self._stale):
            await self._pause()
        wanted = tuple(self._stale)
        try:
            topics = await self._cluster.refresh(sorted({partition.topic for partition in wanted}))
        except OttlaError as error:
            if not _may_pass(error):
                raise
            self._blame((self._lanes[partition] for partition in wanted), error)
            return
        for partition in wanted:
            if self._cluster.leader_of(partition) is not None:
                self._stale.pop(partition, None)
                continue
            topic = topics.get(partition.topic)
            is_there = topic is not None and partition.partition in topic.partitions
            self._blame(
                [self._lanes[partition]],
                "the partition has no leader"
                if is_there
                else "there is no such partition any more",
            )

    async def _pause(self) -> None:
        """Longer each time, until something is acknowledged."""
        backoff_s = self._cluster.settings.retry_backoff_s
        pause_s = min(backoff_s * 2 ** min(self._pauses, PAUSES_COUNTED), PAUSE_S_MAX)
        self._pauses += 1
        await asyncio.sleep(pause_s)

    @staticmethod
    def _blame(lanes: Iterable[Lane], reason: object) -> None:
        for lane in lanes:
            oldest = lane.oldest
            if oldest is not None:
                oldest.reason = str(reason)

    @property
    def _timeout_ms(self) -> int:
        return int(self._cluster.settings.request_timeout_s * 1000)

    def _watch_deadlines(self) -> None:
        if self._alarm is None and self._bytes:
            loop = asyncio.get_running_loop()
            oldest = (lane.oldest for lane in self._lanes.values())
            first = min(parcel.deadline for parcel in oldest if parcel is not None)
            self._alarm = loop.call_at(first, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._alarm = None
        now = asyncio.get_running_loop().time()
        for lane in self._lanes.values():
            oldest = lane.oldest
            if oldest is not None and oldest.deadline <= now:
                self._fail(
                    DeliveryFailed(_too_late(lane, oldest, self.settings.delivery_timeout_s))
                )
                return
        self._watch_deadlines()


def borrow(cluster: Cluster, settings: ProducerSettings) -> Producer:
    """A producer that others have used before, or a new one; `give_back` it after a `flush`."""
    idle = cluster.idle_producers
    for at, producer in enumerate(idle):
        if producer.settings == settings:
            return idle.pop(at)
    return Producer(
        cluster,
        acks=settings.acks,
        idempotent=settings.is_idempotent,
        in_flight_bytes_max=settings.in_flight_bytes_max,
        delivery_timeout_s=settings.delivery_timeout_s,
    )


async def give_back(cluster: Cluster, producer: Producer) -> None:
    """It keeps its identity, so that brokers have one producer more to remember, and not many."""
    cluster.idle_producers.append(producer)
    while len(cluster.idle_producers) > IDLE_PRODUCERS_MAX:
        await cluster.idle_producers.pop(0).close()


async def partitions_to_write(cluster: Cluster, topic: str) -> int:
    """How many partitions a topic has, 0 if there is none.

    As with Java's producer, brokers that create topics on demand create this one.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CREATION_PATIENCE_S
    is_asked_for = False
    while True:
        found = await cluster.topics([topic])
        if topic in found:
            return len(found[topic].partitions)
        if loop.time() > deadline:
            return 0
        if not is_asked_for:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True
            )
            await cluster.ask_any(request, MetadataResponse)
            is_asked_for = True
        else:
            await asyncio.sleep(cluster.settings.retry_backoff_s)


def _may_pass(error: OttlaError) -> bool:
    return isinstance(error, GaveUp) or is_passing(error, soon=True)


def _reason(answer: Produced) -> str:
    name = code_name(answer.error_code)
    return f"{name} ({answer.error_message})" if answer.error_message else name


def _parcels(lane: Lane, outgoing: Outgoing) -> list[Parcel]:
    """What is as large as a batch that the leader has refused need not be tried."""
    batch, count = outgoing.batch, outgoing.count
    if lane.refused_bytes is None or len(batch) < lane.refused_bytes or count < 2:
        return [Parcel(batch, count)]
    stamp_producer(batch, *_NOBODY, -1)
    return _cut(batch, lane.refused_bytes)


def _cut(batch: bytearray, refused_bytes: int) -> list[Parcel]:
    pieces = cut_batch(batch, refused_bytes // 2)
    return [Parcel(piece.data, piece.records, sequence=piece.sequence) for piece in pieces]


def _refusal(partition: TopicPartition, parcel: Parcel, answer: Produced) -> str:
    what = _describe(partition, parcel)
    if answer.error_code in TOO_LARGE:
        return f"{what} is more than the broker takes: raise the topic's max.message.bytes"
    return f"the broker refused {what}: {parcel.reason}"


def _too_late(lane: Lane, parcel: Parcel, timeout_s: float) -> str:
    return (
        f"{_describe(lane.partition, parcel)} was not acknowledged within {timeout_s:g} s "
        f"(kafka.delivery.timeout.ms): {parcel.reason or 'no answer'}"
    )


def _describe(partition: TopicPartition, parcel: Parcel) -> str:
    records = "1 record" if parcel.count == 1 else f"{parcel.count} records"
    return (
        f"a batch of {records} and {len(parcel.data)} bytes "
        f"for partition {partition.partition} of topic {partition.topic}"
    )
