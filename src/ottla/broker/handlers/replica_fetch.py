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
from ottla.config.setting import LONG_MAX
from ottla.errors import FetchSessionNotFound, NotLeader, OttlaError
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

    __slots__ = ("_broker_epoch", "_replica", "_taken_bytes")

    def __init__(self, services: Services, context: RequestContext, request: FetchRequest) -> None:
        super().__init__(services, context, request)
        self._replica = NodeId(max(request.replica_id, request.replica_state.replica_id))
        self._broker_epoch = request.replica_state.replica_epoch
        # Of what is throttled, in this reply.
        self._taken_bytes = 0

    def start(self) -> Deferred[FetchResponse] | FetchResponse:
        if self._services.fetch_sessions.is_late(self._replica, self._context.memory):
            # What it has said since counts, and is not said again.
            raise FetchSessionNotFound(f"node {self._replica} fetches by a later connection")
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

    def _read_all(
        self, *, cached_only: bool, reads: SharedReads | None = None
    ) -> tuple[list[PartitionData], int, bool, bool]:
        self._taken_bytes = 0
        return super()._read_all(cached_only=cached_only, reads=reads)

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
        throttled_room = self._services.throttles.room(partition, self._replica)
        is_throttled = throttled_room < LONG_MAX
        if is_throttled:
            # It stays among what the session has to look at, and has its turn in a later round.
            room = min(room, throttled_room - self._taken_bytes)
            if room <= 0:
                return False
        place = (partition, asked.fetch_offset, min(asked.partition_max_bytes, room), written)
        is_cold = self._fill(place, answer, partition.read_uncommitted, cached_only, reads)
        if is_throttled:
            self._taken_bytes += len(answer.records or b"")
        return is_cold

    def _count(
        self,
        partition: Partition,
        asked: FetchPartition,
        answer: PartitionData,
        memory: dict[Partition, int],
    ) -> None:
        """What is copied was not read by anybody yet."""
        byte_count = len(answer.records or b"")
        partition.metrics.replication_bytes_out += byte_count
        self._services.throttles.given(partition, self._replica, byte_count)

    def _readable_to(self, partition: Partition) -> int:
        return partition.written_offset

    def _is_ahead(self, partition: Partition, offset: int) -> bool:
        return offset > partition.written_offset
