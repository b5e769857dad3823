"""Fetches of followers: up to the end of the log, and each of them a report.

A follower asks for an offset once all before it is synced there, so what it asks for moves the
high watermark. Only what this request names counts: what a session remembers was counted when it
was named. An offset says nothing under another leader epoch, nor where the logs have parted.
"""

from __future__ import annotations

from typing import ClassVar

from ottla.broker.deferred import Deferred
from ottla.broker.handlers.fetch import Fetch
from ottla.broker.network.waiting import SharedReads
from ottla.broker.request import RequestContext
from ottla.broker.services import Services
from ottla.broker.storage.partition import Partition
from ottla.errors import NotLeader, OttlaError
from ottla.types import NodeId
from ottla.wire.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)


class ReplicaFetch(Fetch):
    IS_REPLICA: ClassVar = True

    __slots__ = ("_broker_epoch", "_replica")

    def __init__(self, services: Services, context: RequestContext, request: FetchRequest) -> None:
        super().__init__(services, context, request)
        self._replica = NodeId(max(request.replica_id, request.replica_state.replica_id))
        self._broker_epoch = request.replica_state.replica_epoch

    def start(self) -> Deferred[FetchResponse] | FetchResponse:
        now_ms = self._services.clock.now().steady_ms
        for topic, asked in self._named():
            partition = self._find(topic, asked.partition)
            if isinstance(partition, Partition):
                self._count_progress(partition, asked, now_ms)
        return super().start()

    def _count_progress(self, partition: Partition, asked: FetchPartition, now_ms: int) -> None:
        try:
            partition.check_epoch(asked.current_leader_epoch)
        except OttlaError:
            return
        if self._parted(partition, asked) is not None:
            return
        if asked.fetch_offset > partition.end_offset:
            # Its log is empty, and begins where ours has not come to: it has nothing of this.
            return
        is_counted = partition.fetched_by(
            self._replica, self._broker_epoch, asked.fetch_offset, now_ms, asked.log_start_offset
        )
        if is_counted and partition.is_misplaced(self._replica):
            self._services.on_misplaced(partition)

    def _parted(self, partition: Partition, asked: FetchPartition) -> EpochEndOffset | None:
        if asked.last_fetched_epoch < 0:
            return None
        parted = partition.divergence(asked.last_fetched_epoch, asked.fetch_offset)
        return None if parted is None else EpochEndOffset(*parted)

    def _read_one(
        self,
        partition: Partition,
        asked: FetchPartition,
        answer: PartitionData,
        room: int,
        cached_only: bool,
        reads: SharedReads | None,
    ) -> bool:
        partition.check_epoch(asked.current_leader_epoch)
        if not partition.has_replica(self._replica):
            raise NotLeader(f"node {self._replica} has no replica of {partition.name}")
        answer.high_watermark = answer.last_stable_offset = partition.high_watermark.offset
        answer.log_start_offset = partition.start_offset
        answer.records = b""
        parted = self._parted(partition, asked)
        if parted is not None:
            answer.diverging_epoch = parted
            return False
        written = partition.written_offset
        if asked.fetch_offset == written or room <= 0:
            return False
        place = (partition, asked.fetch_offset, min(asked.partition_max_bytes, room), written)
        return self._fill(place, answer, partition.read_uncommitted, cached_only, reads)

    def _count(
        self,
        partition: Partition,
        asked: FetchPartition,
        answer: PartitionData,
        memory: dict[Partition, int],
    ) -> None:
        """What is copied was not read by anybody yet."""
        partition.metrics.replication_bytes_out += len(answer.records or b"")

    def _readable_to(self, partition: Partition) -> int:
        return partition.written_offset

    def _must_tell(self, answers: list[PartitionData]) -> bool:
        """Where consumers read from followers, these hear at once what is committed."""
        session = self._session
        return (
            session is not None
            and session.tells_at_once
            and any(
                known.high_watermark < answer.high_watermark
                for known, answer in zip(self._known, answers, strict=False)
            )
        )
