"""Keeps this node's copies of what one other node leads up to date.

A round is: ask, append, sync, ask again. The next request of a partition says "I have everything
before this offset", and the leader counts that towards the high watermark; so it leaves only when
what came is synced here. Where the copy has gone another way than its leader, the leader's answer
says where their epochs part, and the copy is cut there: by epoch, never by high watermark.

After a failed sync a copy is not asked for until its log is opened anew, and then from where that
ends. An answer is taken only by the log that it was asked for: same epoch, same end. Compaction
leaves gaps between batches, so a batch that comes too late would not be known by its offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.replication.limits import FetchLimits
from ottla.broker.replication.session import SESSION_LOST, LeaderSession, Place
from ottla.broker.replication.throttles import Throttles
from ottla.broker.storage.waiters import FutureWaiter, told
from ottla.client.failures import ClientFailed
from ottla.errors import ErrorCode, OttlaError
from ottla.log.intake import BatchBeginsEarlier
from ottla.ports import Clock
from ottla.types import LeaderEpoch, NodeId
from ottla.wire.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.storage.partition import Partition
    from ottla.broker.storage.truncation import Truncation
    from ottla.client.connection import Connection

logger = logging.getLogger(__name__)

EARLIEST: Final = -2
NO_SESSION_EPOCH: Final = -1
# A copy whose disk takes longer than this is left out of the rounds until it is done.
PATIENCE_S: Final = 1.0
RETRY_PAUSE_S: Final = 0.1
RETRY_PAUSE_S_MAX: Final = 1.0
NO_ANSWER_S: Final = 5.0


class Copy:
    """One followed partition: fetched from one leader, in one epoch of its."""

    __slots__ = ("epoch", "is_busy", "partition", "place")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.place: Place = (partition.topic_id, partition.index)
        self.epoch = partition.leader_epoch
        self.is_busy = False

    @property
    def is_current(self) -> bool:
        """Whether the partition still follows as it did when this copy was begun."""
        partition = self.partition
        return (
            not partition.is_elected
            and not partition.is_retired
            and not partition.is_offline
            and partition.leader_epoch == self.epoch
        )


class Landing:
    """What one round has brought, on its way to the disk.

    Implements `WriteWaiter`: each partition tells of its own, and the round waits for all.
    """

    __slots__ = ("_done", "_loop", "failures", "late")

    def __init__(self, loop: asyncio.AbstractEventLoop, copies: Iterable[Copy]) -> None:
        self.late = dict.fromkeys(copies)
        self.failures: dict[Copy, Exception] = {}
        self._loop = loop
        self._done: asyncio.Future[None] = loop.create_future()
        for copy in tuple(self.late):
            copy.partition.wait_durable(self, copy)

    def succeeded(self, item: Copy) -> None:
        self.late.pop(item, None)
        if not self.late:
            self._end()

    def failed(self, item: Copy, error: Exception) -> None:
        self.failures[item] = error
        self.succeeded(item)

    async def ended(self, seconds_max: float) -> None:
        """Returns when all is durable or has failed, or when that takes too long."""
        timer = self._loop.call_later(seconds_max, self._end)
        try:
            await self._done
        finally:
            timer.cancel()

    def _end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class Fetcher:
    """One connection to one leader, for all that this node follows there."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        leader: NodeId,
        replica: ReplicaState,
        limits: FetchLimits,
        connect: Callable[[NodeId], Awaitable[Connection]],
        truncation: Truncation,
        shorten: Callable[[Partition, int], Awaitable[None]],
        throttles: Throttles,
    ) -> None:
        self.leader = leader
        self._loop = loop
        self._clock = clock
        self._limits = limits
        self._connect = connect
        self._truncation = truncation
        self._shorten = shorten
        self._throttles = throttles
        self._replica = replica
        self._session = LeaderSession(replica, limits.wait_ms, limits.min_bytes, limits.max_bytes)
        self._copies: dict[Place, Copy] = {}
        self._news = asyncio.Event()
        self._works: dict[asyncio.Task[None], None] = {}
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_unreachable = False

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name=f"fetch-from-{self.leader}")

    async def stop(self) -> None:
        tasks = [*self._works, *((self._task,) if self._task is not None else ())]
        # All in one turn: the task would begin new works while others are waited for.
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._connection is not None:
            self._connection.abort("no longer needed")

    def __len__(self) -> int:
        return len(self._copies)

    # ----------------------------------------------------------------------- what is followed

    def follow(self, partition: Partition) -> None:
        """Begins to fetch it, or goes on under its new epoch."""
        known = self._copies.get((partition.topic_id, partition.index))
        if known is None or known.partition is not partition or not known.is_current:
            self.begin_anew(partition)

    def begin_anew(self, partition: Partition) -> None:
        """What was asked for before, or is being done for it, means nothing any more."""
        copy = Copy(partition)
        self._copies[copy.place] = copy
        self._session.drop(copy.place)
        self._resume(copy)

    def leave(self, partition: Partition) -> None:
        place = (partition.topic_id, partition.index)
        if self._copies.pop(place, None) is not None:
            self._session.drop(place)
            self._news.set()

    def _resume(self, copy: Copy) -> None:
        """Asks for what comes after all that the copy has synced."""
        partition = copy.partition
        if self._copies.get(copy.place) is not copy or copy.is_busy or not copy.is_current:
            return
        if partition.is_fenced:
            # Nobody knows what it has. It begins anew when its log is opened again.
            self._session.drop(copy.place)
            return
        if partition.failure is not None or partition.is_stalled:
            # Whoever asks counts as one who takes what comes, and may be in sync.
            self._work(copy, self._until_taking(copy))
            return
        if partition.is_being_cut or not partition.is_all_durable:
            self._work(copy, _settled(partition))
            return
        pause_s = self._throttles.pause_s(partition)
        if pause_s:
            self._work(copy, asyncio.sleep(pause_s))
            return
        self._session.want(
            copy.place,
            FetchPartition(
                partition=partition.index,
                current_leader_epoch=copy.epoch,
                fetch_offset=partition.end_offset,
                last_fetched_epoch=partition.last_batch_epoch,
                log_start_offset=partition.start_offset,
                partition_max_bytes=self._limits.partition_bytes_max,
            ),
        )
        self._news.set()

    async def _until_taking(self, copy: Copy) -> None:
        """Returns when the disk takes writes again, as far as `Repairs` can tell.

        The leader of a copy that is in sync would wait for it until it lags. It is told of less
        than there is, and takes the copy out of those in sync.
        """
        partition = copy.partition
        while (
            (partition.failure is not None or partition.is_stalled)
            and not partition.is_fenced
            and copy.is_current
        ):
            await asyncio.sleep(RETRY_PAUSE_S_MAX)
            if partition.failure is not None and partition.is_in_sync:
                less = max(partition.start_offset, partition.high_watermark.offset - 1)
                with suppress(ClientFailed, OSError):
                    await self.report(partition, less)

    async def report(self, partition: Partition, offset: int) -> bool:
        """Tells the leader to count on nothing from `offset` on, in this copy. False when it has
        not heard it.
        """
        copy, connection = self._copies.get((partition.topic_id, partition.index)), self._connection
        if copy is None or not copy.is_current or connection is None or not connection.is_usable:
            return False
        self._session.drop(copy.place)
        asked = FetchPartition(
            partition=partition.index,
            current_leader_epoch=copy.epoch,
            fetch_offset=offset,
            log_start_offset=partition.start_offset,
        )
        request = FetchRequest(
            replica_state=self._replica,
            session_epoch=NO_SESSION_EPOCH,
            topics=[FetchTopic(topic_id=partition.topic_id, partitions=[asked])],
        )
        response = await connection.ask(request, FetchResponse, timeout_s=NO_ANSWER_S)
        answers = [each.error_code for topic in response.responses for each in topic.partitions]
        return not response.error_code and answers == [ErrorCode.NONE]

    def _work(self, copy: Copy, work: Awaitable[Any]) -> None:
        """Until it is done the copy is not asked for."""
        copy.is_busy = True
        if self._copies.get(copy.place) is copy:
            self._session.drop(copy.place)
        task = self._loop.create_task(self._finish(copy, work))
        self._works[task] = None
        task.add_done_callback(self._works.pop)

    async def _finish(self, copy: Copy, work: Awaitable[Any]) -> None:
        try:
            await work
        except (OttlaError, OSError) as error:
            if copy.is_current:
                logger.warning("%s cannot follow: %s", copy.partition.name, error)
            await asyncio.sleep(RETRY_PAUSE_S_MAX)
        except Exception:
            logger.exception("%s cannot follow", copy.partition.name)
            await asyncio.sleep(RETRY_PAUSE_S_MAX)
        finally:
            copy.is_busy = False
        self._resume(copy)

    # -------------------------------------------------------------------------------- fetching

    async def _run(self) -> None:
        pause_s = RETRY_PAUSE_S
        while True:
            try:
                connection = await self._connected()
                await self._round(connection)
                pause_s = RETRY_PAUSE_S
            except (ClientFailed, OSError) as error:
                self._lost(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_PAUSE_S_MAX)
            except Exception as error:
                # Nothing else would ever fetch what this node follows there.
                logger.exception("a round of fetches from node %d failed", self.leader)
                self._lost(error)
                await asyncio.sleep(RETRY_PAUSE_S_MAX)

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_usable:
            self._session.forget()
            self._connection = connection = await self._connect(self.leader)
            if self._is_unreachable:
                logger.info("node %d is reached again", self.leader)
            self._is_unreachable = False
        return connection

    def _lost(self, error: Exception) -> None:
        if not self._is_unreachable:
            logger.warning("node %d cannot be fetched from: %s", self.leader, error)
        self._is_unreachable = True
        if self._connection is not None:
            self._connection.abort("a fetch failed")
            self._connection = None

    async def _round(self, connection: Connection) -> None:
        self._news.clear()
        if not len(self._session):
            await self._news.wait()
            return
        request = self._session.request()
        timeout_s = self._limits.wait_ms / 1000 + NO_ANSWER_S
        response = await connection.ask(request, FetchResponse, timeout_s=timeout_s)
        if not self._session.answered(response):
            if response.error_code not in SESSION_LOST:
                await asyncio.sleep(RETRY_PAUSE_S)
            return
        await self._take(connection, response)

    async def _take(self, connection: Connection, response: FetchResponse) -> None:
        """Appends all of it, then waits for the disk, but not for one that stands still."""
        appended = []
        for topic in response.responses:
            for data in topic.partitions:
                copy = self._copies.get((topic.topic_id, data.partition_index))
                if copy is None or copy.is_busy:
                    continue
                if not copy.is_current:
                    # Its directory has failed: the leader would send the same again at once.
                    self._session.drop(copy.place)
                elif not self._is_asked_for(copy):
                    self._resume(copy)
                elif self._take_one(connection, copy, data):
                    appended.append(copy)
        if not appended:
            return
        landing = Landing(self._loop, appended)
        await landing.ended(PATIENCE_S)
        for copy in appended:
            if copy in landing.failures:
                self._work(copy, _raise(landing.failures[copy]))
            elif copy in landing.late:
                self._work(copy, until_durable(copy.partition))
            else:
                self._resume(copy)

    def _is_asked_for(self, copy: Copy) -> bool:
        """Whether what has come is for the log as it is now."""
        asked, partition = self._session.told(copy.place), copy.partition
        return (
            asked is not None
            and asked.current_leader_epoch == copy.epoch
            and asked.fetch_offset == partition.end_offset
            and not partition.is_being_cut
        )

    def _take_one(self, connection: Connection, copy: Copy, data: PartitionData) -> bool:
        """Whether something was appended, which has to be synced."""
        partition = copy.partition
        if data.error_code:
            self._work(copy, self._mend(connection, copy, data))
            return False
        if data.diverging_epoch.end_offset >= 0:
            self._work(copy, self._cut(copy, data.diverging_epoch))
            return False
        if data.records:
            try:
                taken = partition.append_replicated(data.records, self._clock.wall_ms())
                partition.metrics.replication_bytes_in += taken
                self._throttles.taken(partition, taken)
            except BatchBeginsEarlier as error:
                self._work(copy, self._begin_earlier(copy, error.base_offset, data.records))
                return False
            except (OttlaError, OSError) as error:
                self._work(copy, _raise(error))
                return False
        partition.take_leader_high_watermark(data.high_watermark)
        if data.log_start_offset > partition.start_offset:
            self._work(copy, self._shorten(partition, data.log_start_offset))
            return False
        return bool(data.records)

    async def _mend(self, connection: Connection, copy: Copy, data: PartitionData) -> None:
        """What the leader refuses passes with the metadata that tells us more, or is mended."""
        partition = copy.partition
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start_offset = await self._leader_start(connection, copy)
            # A log with nothing in it loses nothing: it may also begin beyond the leader's end.
            is_apart = start_offset > partition.end_offset or partition.is_empty
            if copy.is_current and start_offset >= 0 and is_apart:
                logger.warning("%s begins anew at offset %d", partition.name, start_offset)
                await self._truncation.restart_at(partition, start_offset)
                return
        await asyncio.sleep(RETRY_PAUSE_S)

    async def _cut(self, copy: Copy, parted: EpochEndOffset) -> None:
        """Only for the leader that has said so: what it lacks, the next one may count on."""
        if copy.is_current:
            epoch = LeaderEpoch(parted.epoch)
            await self._truncation.truncate_to(copy.partition, epoch, parted.end_offset)

    async def _begin_earlier(self, copy: Copy, base_offset: int, records: Buffer) -> None:
        """The leader's first batch begins before its log does; no fetch may ask for that offset."""
        if not copy.is_current:
            return
        await self._truncation.restart_at(copy.partition, base_offset)
        if copy.is_current:
            copy.partition.append_replicated(records, self._clock.wall_ms())
            await until_durable(copy.partition)

    async def _leader_start(self, connection: Connection, copy: Copy) -> int:
        partition = copy.partition
        asked = ListOffsetsPartition(
            partition_index=partition.index,
            current_leader_epoch=copy.epoch,
            timestamp=EARLIEST,
        )
        request = ListOffsetsRequest(
            replica_id=self._replica.replica_id,
            topics=[ListOffsetsTopic(name=partition.name.topic, partitions=[asked])],
        )
        response = await connection.ask(request, ListOffsetsResponse)
        answer = response.topics[0].partitions[0]
        return -1 if answer.error_code else answer.offset


async def _raise(error: Exception) -> None:
    raise error


async def _settled(partition: Partition) -> None:
    """Returns when nobody cuts it, and what it has is durable."""
    if partition.is_being_cut:
        await told(partition.when_not_busy)
    await until_durable(partition)


def until_durable(partition: Partition) -> asyncio.Future[None]:
    """Done when all that the partition has been given by now is as safe as its topic asks."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    partition.wait_durable(FutureWaiter(future), None)
    return future
