"""Fetch of the metadata log by its other replicas (KIP-595): part of the handler of Fetch.

A fetch waits until there is more in the log, committed or not, or more of it is committed.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.deferred import Deferred
from ottla.broker.request import RequestContext
from ottla.errors import ErrorCode, OttlaError, code_of
from ottla.quorum.decisions import Answer
from ottla.quorum.events import FetchAsked
from ottla.quorum.voters import ReplicaKey
from ottla.types import METADATA_TOPIC_ID, NodeId, Offset
from ottla.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from ottla.wire.schema import Buffer

if TYPE_CHECKING:
    from ottla.broker.request import RequestContext
    from ottla.broker.services import Services

# In a connection's memory: the epoch, and up to where its node knows the log to be committed.
TOLD: Final = "metadata-told"


def is_of_metadata(request: FetchRequest) -> bool:
    """Whether a replica asks for the metadata log, and for nothing else."""
    return (
        request.replica_state.replica_id >= 0
        and len(request.topics) == 1
        and request.topics[0].topic_id == METADATA_TOPIC_ID
        and [asked.partition for asked in request.topics[0].partitions] == [0]
    )


class MetadataFetch:
    """One fetch, from its count as progress of its sender to its reply."""

    def __init__(self, services: Services, context: RequestContext, request: FetchRequest) -> None:
        self._services = services
        self._quorum = services.quorum
        self._partition = services.quorum.partition
        self._request = request
        self._asked = request.topics[0].partitions[0]
        self._memory = context.memory
        self._deferred: Deferred[FetchResponse] = Deferred()
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> Deferred[FetchResponse] | FetchResponse:
        asked, quorum = self._asked, self._quorum
        replica_id = NodeId(self._request.replica_state.replica_id)
        replica = ReplicaKey(replica_id, asked.replica_directory_id)
        is_ours = self._request.cluster_id in (None, self._services.cluster_id)
        if is_ours and quorum.is_leader and quorum.doubles.has_double(replica):
            double = Answer(ErrorCode.INVALID_VOTER_KEY, quorum.leader_epoch, quorum.leader_id)
            return self._reply(self._data(double))
        answer = await quorum.answer(
            FetchAsked(
                replica,
                asked.current_leader_epoch,
                Offset(asked.fetch_offset),
                self._matches(),
                self._request.cluster_id,
            )
        )
        if answer.error is not ErrorCode.NONE:
            return self._reply(self._data(answer))
        confirmations = self._quorum.confirmations
        confirmations.fetched(replica_id, self._memory)
        data, is_ours = self._look()
        if is_ours and self._has_records:
            self._read(data)
            return self._deferred
        is_awaited = confirmations.is_awaited(self._memory)
        if not is_ours or is_awaited or self._has_committed_more():
            return self._reply(data)
        return self._park()

    def _parted(self) -> tuple[int, int] | None:
        asked = self._asked
        if asked.fetch_offset == 0:
            return None
        return self._partition.divergence(asked.last_fetched_epoch, asked.fetch_offset)

    def _is_before_the_log(self, parted: tuple[int, int] | None) -> bool:
        """Whether only a snapshot leads from what the sender has to our log (KIP-630)."""
        asked, start = self._asked, self._partition.start_offset
        if start == 0:
            return False
        if asked.fetch_offset == start:
            # What came before it is not in the log any more, but its last epoch is known.
            return asked.last_fetched_epoch != self._services.snapshots.epoch_before(start)
        return asked.fetch_offset < start or (parted is not None and parted[1] < start)

    def _matches(self) -> bool:
        """Whether the sender has what we have, up to where it asks."""
        parted = self._parted()
        if self._is_before_the_log(parted) or self._asked.fetch_offset > self._partition.end_offset:
            return False
        return parted is None

    def _has_committed_more(self) -> bool:
        """Than the sender can know: it is told at once, with records or without."""
        told: tuple[int, int] = self._memory.get(TOLD, (-1, -1))
        return (self._quorum.leader_epoch, self._quorum.high_watermark) > told

    # --------------------------------------------------------------------------------- reading

    def _look(self) -> tuple[PartitionData, bool]:
        """What there is to say but for the records, and whether they go on where it asks."""
        quorum = self._quorum
        leads = ErrorCode.NONE if quorum.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = self._data(Answer(leads, quorum.leader_epoch, quorum.leader_id))
        if not quorum.is_leader:
            return data, False
        parted = self._parted()
        if self._is_before_the_log(parted):
            data.snapshot_id = SnapshotId(*self._services.snapshots.newest_id)
        elif parted is not None:
            data.diverging_epoch = EpochEndOffset(*parted)
        else:
            return data, True
        return data, False

    @property
    def _has_records(self) -> bool:
        return self._asked.fetch_offset < self._partition.written_offset

    def _read(self, data: PartitionData) -> None:
        """From memory, or in a thread of the disk that has to be waited for."""
        try:
            records = self._records(cached_only=True)
        except (OttlaError, OSError) as error:
            data.error_code = code_of(error)
        else:
            if records is None:
                store = self._services.stores.of(self._partition)
                store.run(partial(self._records, cached_only=False)).add_done_callback(self._found)
                return
            data.records = records
        self._deferred.resolve(self._reply(data))

    def _records(self, *, cached_only: bool) -> Buffer | None:
        asked = self._asked
        return self._partition.read_uncommitted(
            asked.fetch_offset, asked.partition_max_bytes, cached_only=cached_only
        )

    def _found(self, read: asyncio.Future[Buffer | None]) -> None:
        """While the disk was waited for, another may have begun to lead."""
        if self._deferred.is_resolved:
            return
        (data, is_ours), error = self._look(), read.exception()
        is_ours = is_ours and self._asked.current_leader_epoch == data.current_leader.leader_epoch
        if error is not None:
            data.error_code = data.error_code or code_of(error)
        elif is_ours:
            data.records = read.result() or b""
        self._deferred.resolve(self._reply(data))

    def _data(self, answer: Answer) -> PartitionData:
        return PartitionData(
            partition_index=0,
            error_code=answer.error,
            high_watermark=self._quorum.high_watermark,
            log_start_offset=self._partition.start_offset,
            current_leader=LeaderIdAndEpoch(answer.leader_id, answer.epoch),
            records=b"",
        )

    def _reply(self, data: PartitionData) -> FetchResponse:
        leader_id = NodeId(data.current_leader.leader_id)
        if data.error_code == ErrorCode.NONE:
            self._memory[TOLD] = (data.current_leader.leader_epoch, data.high_watermark)
            self._quorum.confirmations.answered(self._memory)
        endpoint = self._quorum.endpoint_of(leader_id)
        nodes = [] if endpoint is None else [NodeEndpoint(leader_id, endpoint.host, endpoint.port)]
        topic = FetchableTopicResponse(topic_id=METADATA_TOPIC_ID, partitions=[data])
        return FetchResponse(responses=[topic], node_endpoints=nodes)

    # --------------------------------------------------------------------------------- waiting

    def _park(self) -> Deferred[FetchResponse]:
        self._partition.add_fetch(self)
        self._partition.add_fetch(self, of_replica=True)
        wait_s = max(0, self._request.max_wait_ms) / 1000
        self._timer = self._services.loop.call_later(wait_s, self.wake)
        self._deferred.when_abandoned(self._leave)
        return self._deferred

    def arrived(self, partition: object, byte_count: int) -> None:
        self.wake()

    def has_news(self, partition: object) -> None:
        """It hears of commits otherwise."""

    def became_stable(self, partition: object) -> None:
        """There are no transactions in the metadata."""

    def went_back(self, partition: object) -> None:
        self.wake()

    def wake(self) -> None:
        self._leave()
        # After this turn: whoever wakes it may be in the middle of a change of roles.
        self._services.loop.call_soon(self._complete)

    def _complete(self) -> None:
        if self._deferred.is_resolved:
            return
        data, is_ours = self._look()
        if is_ours and self._has_records:
            self._read(data)
        else:
            self._deferred.resolve(self._reply(data))

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._partition.drop_fetch(self)
